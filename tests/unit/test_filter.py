"""The filter against a reference that processes one event at a time."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta.errors import ConfigError
from pasta.processors.demangle import demangle
from pasta.processors.filter import (
    ACTIVITY,
    COPY_RESULT_KINDS,
    LAUNCH_KINDS,
    Filter,
    Selection,
)
from pasta.runtime.pipeline import Pipeline
from pasta.testing import Events
from tests.support.examples import examples

KERNELS = ("_Z4vaddPfS_i", "_Z4gemmPf", "copy_kernel", "näme")
RANGES = ("step", "forward", "backward")

steps = st.lists(
    st.one_of(
        st.tuples(st.just("launch"), st.sampled_from(KERNELS), st.integers(1, 2)),
        st.tuples(st.just("push"), st.sampled_from(RANGES), st.integers(1, 2), st.integers(0, 1)),
        st.tuples(st.just("pop"), st.integers(1, 2), st.integers(0, 1)),
        st.tuples(st.just("start"), st.sampled_from(RANGES), st.integers(1, 3)),
        st.tuples(st.just("end"), st.integers(1, 3)),
        st.tuples(st.just("launch_end"), st.integers(0, 8)),
        st.tuples(st.just("complete"), st.integers(0, 8)),
        st.tuples(st.just("copy"), st.integers(1, 2)),
        st.tuples(st.just("alloc")),
    ),
    max_size=50,
)
filters = st.builds(
    Filter,
    kernel=st.sampled_from([None, "vadd", r"float\*", "^_Z4", "n.me", "nothing"]),
    exclude=st.sampled_from([None, "gemm", "copy"]),
    launch_skip=st.integers(0, 3),
    launch_count=st.one_of(st.none(), st.integers(0, 4)),
    range=st.sampled_from([None, "step", "ward", "nothing"]),
)


def play(program: list[Any]) -> tuple[Events, list[dict[str, Any]]]:
    """Events, and the same as dictionaries with the fields that a filter needs."""
    events, plain = Events(), []
    for what, *rest in program:
        event: dict[str, Any] = {"what": what, "position": events._position, "thread": 1}
        if what == "launch":
            event.update(name=rest[0], thread=rest[1])
            event["ordinal"] = events.launch(rest[0], thread=rest[1])
        elif what == "push":
            event.update(name=rest[0], thread=rest[1], domain=rest[2])
            events.push(rest[0], thread=rest[1], domain="domain" if rest[2] else 0)
        elif what == "pop":
            event.update(thread=rest[0], domain=rest[1])
            events.pop(thread=rest[0], domain="domain" if rest[1] else 0)
        elif what == "start":
            event.update(name=rest[0], id=rest[1])
            events.add("range_start", name=rest[0], id=rest[1])
        elif what == "end":
            event.update(id=rest[0])
            events.add("range_end", id=rest[0])
        elif what == "launch_end":
            event.update(ordinal=rest[0])
            events.launch_end(rest[0])
        elif what == "complete":
            event.update(ordinal=rest[0])
            events.complete(rest[0], 1, 2)
        elif what == "copy":
            event.update(thread=rest[0])
            events.copy("host_to_device", 1, 2, 3, thread=rest[0])
        else:
            events.alloc(0x1000, 16)
        plain.append(event)
    return events, plain


def kept_one_by_one(filter: Filter, plain: list[dict[str, Any]]) -> list[int]:
    kept, chosen, number = [], set(), 0
    stacks: dict[int, list[tuple[int, str]]] = {}
    process: dict[int, str] = {}

    def found(pattern: str, name: str) -> bool:
        return bool(re.search(pattern, name) or re.search(pattern, demangle(name)))

    def inside(thread: int) -> bool:
        if not filter.range:
            return True
        names = [name for _, name in stacks.get(thread, [])] + list(process.values())
        return any(re.search(filter.range, name) for name in names)

    for event in plain:
        what, keep = event["what"], True
        if what == "push":
            stacks.setdefault(event["thread"], []).append((event["domain"], event["name"]))
        elif what == "pop":
            stack = stacks.get(event["thread"], [])
            for at in reversed(range(len(stack))):
                if stack[at][0] == event["domain"]:
                    del stack[at]
                    break
        elif what == "start":
            process[event["id"]] = event["name"]
        elif what == "end":
            process.pop(event["id"], None)
        elif what == "copy":
            keep = inside(event["thread"])
        elif what == "launch":
            keep = not filter.kernel or found(filter.kernel, event["name"])
            keep = keep and not (filter.exclude and found(filter.exclude, event["name"]))
            if keep and inside(event["thread"]):
                number += 1
                most = filter.launch_count
                keep = number > filter.launch_skip and (
                    most is None or number <= filter.launch_skip + most
                )
            else:
                keep = False
            if keep:
                chosen.add(event["ordinal"])
        elif what in ("launch_end", "complete") and filter.selects_launches:
            keep = event["ordinal"] in chosen
        if keep:
            kept.append(event["position"])
    return kept


@examples(300)
@given(program=steps, filter=filters, splits=st.lists(st.integers(0, 50), max_size=4))
def test_filter_matches_a_per_event_reference(program: Any, filter: Filter, splits: Any) -> None:
    events, plain = play(program)
    # An end or completion follows its launch; a later one does not occur in programs.
    launched = -1
    for event in plain:
        if event["what"] == "launch":
            launched = event["ordinal"]
        elif event["what"] in ("launch_end", "complete") and event["ordinal"] > launched:
            return
    selection = Selection(filter)
    kept: list[int] = []
    for batch in events.batches(each for each in splits if each <= len(events)):
        left = selection.apply(batch, events.strings)
        assert left.base == batch.base
        positions = [int(i) + left.base for _, records in left for i in records["index"]]
        kept += sorted(positions)
        selection = pickle.loads(pickle.dumps(selection))
    assert kept == kept_one_by_one(filter, plain)
    launches = [event for event in plain if event["what"] == "launch"]
    assert selection.seen == len(launches)
    assert selection.selected == len(
        {event["position"] for event in launches} & set(kept_one_by_one(filter, plain))
    )


def test_empty_filter_returns_the_batch_itself() -> None:
    events = Events()
    events.launch("kernel")
    batch = events.batch()
    assert Selection(Filter()).apply(batch, events.strings) is batch


def test_lists_launched_kernels_if_none_matched() -> None:
    events = Events()
    for name in ("a", "b", "a"):
        events.launch(name)
    selection = Selection(Filter(kernel="c"))
    selection.apply(events.batch(), events.strings)
    assert selection.matched_nothing
    assert events.strings.many(selection.launched) == ["a", "b"]


@pytest.mark.parametrize("wrong", [{"kernel": "("}, {"range": "["}, {"launch_skip": -1}])
def test_invalid_filters_name_the_key(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Filter(**wrong)


def test_kinds_match_the_abi() -> None:
    from pasta import abi

    assert set(ACTIVITY) | set(LAUNCH_KINDS) | set(COPY_RESULT_KINDS) <= set(abi.KINDS)


def test_completions_of_copies_and_sets_are_kept_with_them_in_later_batches_too() -> None:
    """They come on another thread, which has no open range."""
    events = Events()
    events.copy("host_to_device", 1, 2, 3, correlation=1)
    events.push("step")
    events.copy("host_to_device", 1, 2, 3, correlation=2)
    events.add("memory_set", address=2, bytes=3, correlation=3)
    events.pop()
    events.add("memory_set", address=2, bytes=3, correlation=4)
    events.copy("host_to_device", 1, 2, 3)  # without completion
    before = len(events)
    events.push("step", thread=7)
    for correlation in (1, 2, 2, 3, 4, 5, 0):
        events.copy_complete(correlation, 10, 20, thread=7)
    for splits in ([], [before], range(len(events))):
        selection, kept = Selection(Filter(range="step")), []
        for batch in events.batches(splits):
            kept += selection.apply(batch, events.strings)["copy_complete"]["correlation"].tolist()
            selection = pickle.loads(pickle.dumps(selection))
        assert kept == [2, 2, 3]


def test_a_selection_of_kernels_keeps_copies_and_their_completions() -> None:
    events = Events()
    events.launch("other")
    events.copy("host_to_device", 1, 2, 3, correlation=1)
    events.copy_complete(1, 10, 20)
    left = Selection(Filter(kernel="gemm", launch_skip=1)).apply(events.batch(), events.strings)
    assert not len(left["kernel_launch"])
    assert len(left["memory_copy"]) == len(left["copy_complete"]) == 1


@pytest.mark.parametrize("splits", [[], [4], [6], range(1, 14)], ids=str)
def test_late_nodes_of_graphs_are_selected_with_their_graph_launch(splits: Any) -> None:
    events = Events()
    events.push("step")
    events.add("graph_launch", graph=1, time=100, thread=1)
    events.add("graph_launch", graph=1, time=100, thread=2)  # outside of the range of thread 1
    events.pop()
    events.add("graph_launch", graph=1, time=200, thread=1)
    events.push("step")
    kept = events.launch("a", time=100, thread=1, flags=1)
    events.launch("b", time=100, thread=2, flags=1)
    events.launch("c", time=200, thread=1, flags=1)
    events.copy("host_to_device", 1, 2, 3, time=100, thread=1, flags=1, correlation=7)
    events.copy("host_to_device", 1, 2, 4, time=200, thread=1, flags=1, correlation=8)
    events.copy_complete(7, 10, 20)
    events.copy_complete(8, 10, 20)
    now = events.launch("d", time=100, thread=1)  # not of a graph: by its place
    selection = Selection(Filter(range="step"))
    batches = [
        selection.apply(batch, events.strings)
        for batch in events.batches(each for each in splits if each < len(events))
    ]
    found = [int(each) for batch in batches for each in batch["kernel_launch"]["ordinal"]]
    assert found == [kept, now]
    assert [int(each) for b in batches for each in b["memory_copy"]["bytes"]] == [3]
    assert [int(each) for b in batches for each in b["copy_complete"]["correlation"]] == [7]


# ---- operators and modules


def model() -> Events:
    """A layer inside another one, its gradient on a second thread, and the optimizer."""
    events = Events()
    events.launch("load")
    events.operator("aten::linear", module="net.fc1 Linear", sequence=7)
    events.operator("aten::addmm", depth=2, module="net.fc1 Linear")
    events.launch("gemm")
    events.add("memory_copy", bytes=8, correlation=5)
    events.operator_end(depth=2)
    events.launch("bias")
    events.operator_end()
    events.operator("aten::relu", module="net.act ReLU", sequence=8)
    events.launch("relu")
    events.operator_end()
    for name, sequence in (("ReluBackward0", 8), ("AddmmBackward0", 7)):
        events.operator(
            name, sequence=sequence, scope=1, forward_thread=1, framework_thread=2, thread=2
        )
        events.operator("aten::mm", depth=2, thread=2, framework_thread=2)
        events.launch(name, thread=2)
        events.operator_end(depth=2, thread=2)
        events.operator_end(thread=2)
    events.operator("Optimizer.step")
    events.launch("adam")
    events.operator_end()
    return events


@pytest.mark.parametrize("splits", [(), range(1, 24)], ids=str)
@pytest.mark.parametrize(
    ("filter", "launched", "copies"),
    [
        ({"operator": "addmm"}, ["gemm"], 1),
        ({"operator": "^aten::linear$"}, ["gemm", "bias"], 1),
        ({"operator": "aten::(mm|relu)"}, ["relu", "ReluBackward0", "AddmmBackward0"], 0),
        ({"module": r"^net\.fc1"}, ["gemm", "bias", "AddmmBackward0"], 1),
        ({"module": "ReLU"}, ["relu", "ReluBackward0"], 0),
        ({"module": "net", "operator": "aten::mm"}, ["ReluBackward0", "AddmmBackward0"], 0),
        ({"module": "fc1", "kernel": "gemm|adam"}, ["gemm"], 1),
        ({"operator": "nothing"}, [], 0),
    ],
)
def test_operators_and_modules(
    filter: dict[str, str], launched: list[str], copies: int, splits: range
) -> None:
    events = model()
    pipeline = Pipeline(Filter(**filter), [], events.context())
    kept = [pipeline.feed(batch) for batch in events.batches(splits)]
    names = [events.strings[id] for batch in kept for id in batch["kernel_launch"]["name"].tolist()]
    assert names == launched
    assert sum(len(batch["memory_copy"]) for batch in kept) == copies


def test_a_filter_by_operators_that_matched_nothing_names_them() -> None:
    events = model()
    pipeline = Pipeline(Filter(operator="nothing", module="none"), [], events.context())
    pipeline.feed(events.batch())
    assert pipeline.selection.matched_nothing
    operators, modules = pipeline.selection.operators
    assert {"aten::linear", "Optimizer.step"} <= {events.strings[id] for id in operators}
    assert {events.strings[id] for id in modules} == {"net.fc1 Linear", "net.act ReLU"}
