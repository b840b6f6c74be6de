"""Tools, their options, and the pipeline that runs them."""

from __future__ import annotations

import builtins
import inspect
import json
import pickle
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from pasta import abi
from pasta.errors import ToolError
from pasta.members import Member
from pasta.processors.batch import Batch
from pasta.processors.filter import Filter
from pasta.processors.needs import NEEDS
from pasta.runtime.pipeline import Pipeline
from pasta.table import Table, absent_where, formatted
from pasta.testing import Events, run_tool
from pasta.tool import HANDLERS, Result, Tool, option, snake_case


class Configured(Tool):
    """Has one option of each kind.

    And a second paragraph.
    """

    flag = option(False, help="a flag")
    count = option(3, help="a count", minimum=1)
    ratio = option(0.5, help="a ratio")
    mode = option("fast", help="a mode", choices=["fast", "exact"])
    size = option("4KiB", kind="bytes", help="a size")
    wait = option("10ms", kind="duration", help="a duration")
    names = option("gemm|conv", kind="regex", help="a regular expression")


def test_options_read_as_typed_values() -> None:
    tool = Configured()
    assert (tool.flag, tool.count, tool.ratio, tool.mode) == (False, 3, 0.5, "fast")
    assert (tool.size, tool.wait) == (4096, 10_000_000)


@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        ("flag", "yes", True), ("flag", "0", False), ("flag", True, True),
        ("count", "0x10", 16), ("count", 7, 7),
        ("ratio", "1e-3", 0.001), ("ratio", 2, 2.0),
        ("mode", "exact", "exact"),
        ("size", "1.5MiB", 3 << 19), ("size", "2GB", 2 * 10**9), ("size", "512", 512),
        ("size", 64, 64), ("size", "3 kib", 3072),
        ("wait", "2s", 2 * 10**9), ("wait", "5us", 5000), ("wait", "1min", 60 * 10**9),
        ("wait", 2, 2 * 10**9), ("wait", "3", 3 * 10**9), ("wait", 0.25, 250_000_000),
        ("names", "^a[0-9]$", "^a[0-9]$"),
    ],
)  # fmt: skip
def test_options_take_toml_values_and_texts(key: str, given: object, value: object) -> None:
    assert getattr(Configured({key: given}), key) == value


@pytest.mark.parametrize(
    ("key", "given", "remedy"),
    [
        ("flag", "perhaps", "true or false"),
        ("flag", 1, "true or false"),
        ("count", 0, "at least 1"),
        ("count", True, "an integer"),
        ("count", "many", "an integer"),
        ("count", 1.5, "an integer"),
        ("ratio", "half", "a number"),
        ("mode", "slow", "fast, exact"),
        ("size", "4 parsecs", "4KiB"),
        ("size", "-1", "4KiB"),
        ("size", 1.5, "4KiB"),
        ("wait", [], "10ms"),
        ("wait", True, "10ms"),
        ("wait", -1, "10ms"),
        ("names", "a(b", "a regular expression"),
        ("names", 1, "a regular expression"),
        ("cuont", 1, "did you mean count?"),
        ("xyz", 1, "there are count, flag, mode, names"),
    ],
)
def test_invalid_options_name_tool_key_and_accepted_values(
    key: str, given: object, remedy: str
) -> None:
    with pytest.raises(ToolError) as caught:
        Configured({key: given})
    assert "configured" in str(caught.value)
    assert key in str(caught.value)
    assert remedy in str(caught.value)


def test_unsupported_option_types_and_assignments_are_rejected() -> None:
    with pytest.raises(TypeError, match="list"):
        option([], help="")
    with pytest.raises(AttributeError, match="count"):
        Configured().count = 4  # type: ignore[assignment]


def test_misspelt_handler_is_an_error_on_definition() -> None:
    with pytest.raises(ToolError, match=r"no handler on_launch: did you mean on_launches"):
        type("Wrong", (Tool,), {"on_launch": lambda self, launches: None})


def test_names_and_descriptions() -> None:
    assert [snake_case(name) for name in ("KernelFreq", "UVMAdvisor", "A", "PcDependency")] == [
        "kernel_freq", "uvm_advisor", "a", "pc_dependency",
    ]  # fmt: skip
    assert Configured.name == "configured"
    assert Configured.summary_line() == "Has one option of each kind."


class Everything(Tool):
    """Records the handlers' arguments."""

    def start(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []

    def result(self) -> Result:
        return Result(summary=json.dumps(self.calls))


for _name in HANDLERS:
    if _name != "on_batch":

        def _handler(self: Any, records: Any, name: str = _name) -> None:
            assert not records.flags.writeable
            assert (np.diff(records["index"].astype(int)) > 0).all()
            self.calls.append((name, records["kind"].tolist()))

        setattr(Everything, _name, _handler)


def test_kinds_reach_their_handlers_in_ring_order() -> None:
    events = Events()
    for kinds in HANDLERS.values():
        for kind in reversed(kinds):
            events.add(kind)
    calls = dict(json.loads(run_tool(Everything, events).summary))
    for name, kinds in HANDLERS.items():
        if name != "on_batch":
            assert calls[name] == [abi.KINDS[kind] for kind in reversed(kinds)]


def test_merging_different_payloads_leaves_foreign_fields_absent() -> None:
    events = Events()
    events.add("operator_begin", name="aten::add", sequence=7, stack=3)
    events.add("operator_end", depth=1)
    begin, end = events.batch().merged("operator_begin", "operator_end")
    assert events.strings[int(begin["name"])] == "aten::add"
    assert (begin["sequence"], begin["stack"]) == (7, 3)
    assert (end["sequence"], end["stack"], end["name"]) == (0xFFFF_FFFF, 0, 0)


class Fails(Tool):
    """Raises what its option says, where its option says."""

    where = option("on_launches", help="where")
    what = option("ValueError", help="which")

    def _raise(self, where: str) -> None:
        if where == self.where:
            raise getattr(builtins, self.what)("the tool's own fault")

    def start(self) -> None:
        self._raise("start")

    def on_launches(self, launches: Any) -> None:
        self._raise("on_launches")

    def on_batch(self, batch: Batch) -> None:
        self._raise("on_batch")
        assert self.where != "on_launches", "called after it failed"

    def result(self) -> Result:
        self._raise("result")
        return Result(summary="fine")


class Counts(Tool):
    """Counts launches."""

    def start(self) -> None:
        self.launches = 0

    def on_launches(self, launches: Any) -> None:
        self.launches += len(launches)

    def result(self) -> Result:
        return Result(summary=str(self.launches))


def three_launches() -> Events:
    events = Events()
    for name in ("a", "b", "a"):
        events.launch(name)
    return events


@pytest.mark.parametrize("where", ["start", "on_launches", "on_batch", "result"])
@pytest.mark.parametrize("what", ["ValueError", "SystemExit", "KeyboardInterrupt"])
def test_failing_tool_is_disabled_and_others_continue(where: str, what: str) -> None:
    events = three_launches()
    pipeline = Pipeline(
        Filter(), [Fails({"where": where, "what": what}), Counts()], events.context()
    )
    for batch in events.batches([1]):
        pipeline.feed(batch)
    results = pipeline.finish()
    assert list(results) == ["counts"]
    assert results["counts"].summary == "3"
    failure = pipeline.failures["fails"]
    assert failure.where == where
    assert failure.reason == f"{what}: the tool's own fault"
    assert "_raise" in failure.traceback


def test_result_of_a_wrong_type_is_a_failure() -> None:
    wrong = type("Wrong", (Tool,), {"result": lambda self: "text"})
    events = three_launches()
    pipeline = Pipeline(Filter(), [wrong()], events.context())
    assert pipeline.finish() == {}
    assert "not str" in pipeline.failures["wrong"].reason


def test_feed_returns_filtered_read_only_records() -> None:
    class Vandal(Tool):
        """Writes into its batch."""

        def on_launches(self, launches: Any) -> None:
            launches["grid"] = 0

    events = three_launches()
    pipeline = Pipeline(Filter(kernel="a"), [Vandal()], events.context())
    batch = events.batch()
    kept = pipeline.feed(batch)
    assert events.strings.many(kept["kernel_launch"]["name"]) == ["a", "a"]
    assert len(batch["kernel_launch"]) == 3
    assert "read-only" in pipeline.failures["vandal"].reason


def test_state_moves_to_another_pipeline() -> None:
    events = three_launches()
    first, second = events.batches([2])
    pipeline = Pipeline(Filter(launch_skip=1), [Counts(), Fails()], events.context())
    pipeline.feed(first)
    again = Pipeline.restore(pipeline.state(), [Counts(), Fails()], events.context())
    again.feed(second)
    assert again.finish()["counts"].summary == "2"
    assert list(again.failures) == ["fails"]
    assert again.selection.seen == 3


class Unpicklable(Tool):
    """Has state that cannot be pickled."""

    def start(self) -> None:
        self.kept = lambda: None

    def result(self) -> Result:
        return Result(summary="")


def test_unpicklable_tool_is_disabled_alone() -> None:
    events = three_launches()
    pipeline = Pipeline(Filter(), [Unpicklable(), Counts()], events.context())
    pipeline.feed(events.batch())
    again = Pipeline.restore(pipeline.state(), [Unpicklable(), Counts()], events.context())
    assert list(again.finish()) == ["counts"]
    assert again.failures["unpicklable"].where == "pickling"


def test_the_docstring_lists_every_handler() -> None:
    listed = re.findall(r"^    (on_\w+)  ", inspect.getdoc(Tool) or "", re.MULTILINE)
    assert listed == [*HANDLERS, "on_accesses"]
    assert not any(hasattr(Tool, name) for name in listed)


def test_needs_include_bases_handlers_and_dependencies() -> None:
    base = type("Base", (Tool,), {"needs": ("history",), "on_completions": print})
    derived = type("Derived", (base,), {"needs": {"tensors"}})
    own = {"history", "objects", "launches"}
    assert base.needed() == own
    assert derived.needed() == own | {"tensors", "ranges", "operators", "stacks"}
    assert Tool.needed() == frozenset()
    assert not Counts().needs_compiled and base().needs_compiled


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        (("object",), "'object' in needs is unknown: did you mean objects?"),
        (("probes",), "'probes' in needs is unknown: did you mean objects?"),
        (("x", 5), "'x' in needs is unknown"),
        ((5,), "5 in needs is unknown"),
        (
            "objects",
            "needs = 'objects' is not accepted: use a tuple of names, as needs = (\"objects\",)",
        ),
        (5, "needs = 5 is not accepted"),
        (property(lambda self: ()), "is not accepted"),
    ],
)
def test_invalid_needs_are_an_error_on_definition(needs: object, message: str) -> None:
    with pytest.raises(ToolError, match=re.escape(message)):
        type("Wrong", (Tool,), {"needs": needs})


def test_members_extend_classes_and_instances() -> None:
    class Doubled(Member):
        """Doubles an option."""

        needs = ("objects",)
        uses = ("registers",)

        def of(self, owner: Any) -> Member:
            assert "count" in owner.options()
            return self

        def attach(self, tool: Any) -> None:
            tool.doubled = 2 * tool.count

    base = type("Base", (Configured,), {"double": Doubled()})
    derived = type("Derived", (base,), {"double": None})
    assert base({"count": 4}).doubled == 8
    assert (base.needed(), base.wants()) == ({"objects"}, {"registers"})
    assert not hasattr(derived(), "doubled")
    assert not derived.needed() and not derived.wants()


def test_processors_are_declared_in_dependency_order() -> None:
    names = list(NEEDS)
    for name, need in NEEDS.items():
        for required in need.requires:
            assert name == "operators" or names.index(required) < names.index(name)


def test_tools_cannot_change_the_processors() -> None:
    class Vandal(Tool):
        """Tries to remove a processor that it needs."""

        needs = ("objects",)

        def on_launches(self, launches: Any) -> None:
            del self.context.processors["objects"]

    events = three_launches()
    pipeline = Pipeline(Filter(), [Vandal()], events.context())
    pipeline.feed(events.batch())
    assert "TypeError" in pipeline.failures["vandal"].reason
    assert list(pipeline.processors) == ["objects"]


def test_unrequested_processors_do_not_exist() -> None:
    events = three_launches()
    pipeline = Pipeline(Filter(), [Counts()], events.context())
    with pytest.raises(ToolError, match='add "objects" to `needs`'):
        _ = pipeline.context.objects


def test_the_context_is_not_pickled() -> None:
    tool = Counts()
    tool.context = three_launches().context()
    tool.start()
    assert "context" not in vars(pickle.loads(pickle.dumps(tool)))


def test_a_table_in_arrow_and_on_the_terminal() -> None:
    table = Table(
        {
            "kernel": ["a", "b"],
            "bytes": np.asarray([1536, 3 << 30], np.uint64),
            "time": absent_where(np.asarray([1500, 0]), [False, True]),
            "share": np.asarray([0.125, 0.875]),
            "address": [0x7F00, None],
            "secret": [1, 2],
        },
        units={"bytes": "bytes", "time": "ns", "share": "share", "address": "address"},
        labels={"share": "of bytes"},
        title="Some",
        shown=1,
        hidden=frozenset({"secret"}),
    )
    arrow = table.to_arrow()
    assert arrow.column("time").to_pylist() == [1500, None]
    assert arrow.column("bytes").to_pylist() == [1536, 3 << 30]
    assert arrow.schema.field("share").metadata == {b"unit": b"share", b"label": b"of bytes"}
    from rich.console import Console

    from pasta.report.layout import View

    console = Console(width=100, record=True, file=open("/dev/null", "w"))
    console.print(View(table))
    text = console.export_text()
    for part in ("1.50 KiB", "1.50 us", "12.5 %", "0x7f00", "of bytes", "1 more row"):
        assert part in text
    assert "secret" not in text


def test_table_rejects_inconsistent_columns() -> None:
    with pytest.raises(ValueError, match="length"):
        Table({"a": [1], "b": [1, 2]})
    with pytest.raises(ValueError, match="'c' is not a column"):
        Table({"a": [1]}, units={"c": "bytes"})


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "bytes", "0 B"), (1023, "bytes", "1,023 B"), (1024, "bytes", "1.00 KiB"),
        (2**20 - 1, "bytes", "1.00 MiB"), (-2048, "bytes", "-2.00 KiB"),
        (999, "ns", "999 ns"), (1_000_000, "ns", "1.00 ms"), (90 * 10**9, "ns", "90.00 s"),
        (None, "bytes", "-"), (1234567, None, "1,234,567"), (True, None, "True"),
        ([4, 1, 1], None, "4x1x1"), (35_800_000.4, None, "35,800,000"), (999.4, None, "999"),
        (0.01234, None, "0.0123"), (6e23, None, "6e+23"),
        (float("inf"), None, "inf"), (float("nan"), None, "nan"),
    ],
)  # fmt: skip
def test_number_formatting(value: Any, unit: Any, text: str) -> None:
    assert formatted(value, unit) == text


def test_selecting_a_built_in_tool_imports_no_slow_module() -> None:
    code = (
        "import sys; from pasta.plugins import load_tools;"
        "load_tools(['kernel_freq', 'copies', 'memory_timeline', 'event_trace']);"
        "print([m for m in ('numpy', 'numba', 'pyarrow', 'rich') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
