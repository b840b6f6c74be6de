"""Probed kernels, and the comparison of results with their code."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pasta import interruption
from pasta.backends.nvidia import visibility
from pasta.errors import ToolError
from pasta.probes import Counter, PerPC, maps_of, probe
from pasta.probes.coverage import Code
from pasta.probes.maps import accumulators_of
from pasta.processors.filter import Filter
from pasta.runtime.code_ahead import CodeAhead
from pasta.runtime.pipeline import Pipeline
from pasta.sass.disassembly import Function, Instruction, classify
from pasta.table import Table
from pasta.testing import Events, run_tool
from pasta.tool import Result, Tool

ENTRY = 0x7000


class Total(Tool):
    """Counts accesses to global memory."""

    total = Counter()

    @probe.global_memory
    def count(access, maps):  # type: ignore[no-untyped-def]
        maps.total.add()

    def result(self) -> Result:
        return Result("counted")


class ByInstruction(Tool):
    """Counts accesses to global memory by instruction."""

    requests = PerPC("count")

    @probe.global_memory
    def request(access, maps):  # type: ignore[no-untyped-def]
        maps.requests.add(access.pc)

    def result(self) -> Result:
        return Result("counted")


def function(name: str, *opcodes: str, line: int = 0) -> Function:
    """Instructions 16 bytes apart, from 0."""
    made = []
    for at, text in enumerate(opcodes):
        opcode = classify(text)
        assert opcode is not None
        place: tuple[Any, ...] = ("k.cu", line + at) if line else ()
        made.append(Instruction(16 * at, opcode, False, *place))
    return Function(name, 16 * len(opcodes), tuple(made))


class Gpu(Events):
    """Events of NVIDIA's library 13.5."""

    def __init__(self) -> None:
        super().__init__()
        self.add("process_start", source="nvidia_sanitizer", version="13.5")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[int, Code]:
    """Code of modules by the hash of their images; the others were not kept."""
    made: dict[int, Code] = {}

    def read(asked: Sequence[tuple[Path, Collection[str]]], **_: object) -> list[Code]:
        codes = []
        for path, names in asked:
            code = made[int(path.name)]
            kept = {name: each for name, each in (code.functions or {}).items() if name in names}
            codes.append(Code(kept, code.reason) if code.functions is not None else code)
        return codes

    monkeypatch.setattr(visibility, "read_together", read)
    return made


def finished(tool: Tool, events: Events, modules: dict[int, Code], pcs: list[int]) -> Pipeline:
    """A pipeline that has received a GPU's counts."""
    context = events.context()
    context.images = lambda hash: Path(str(hash)) if hash in modules else None
    pipeline = Pipeline(Filter(), [tool], context)
    pipeline.feed(events.batch())
    for name, spec in maps_of(tool).items():
        if "pc" in spec.keys:
            columns = {"pc": np.array(pcs, np.uint64), "count": np.ones(len(pcs), np.uint64)}
            accumulators_of(tool)[name].accumulate(columns)
    return pipeline


def result_of(
    tool: Tool, events: Events, modules: dict[int, Code], pcs: list[int] | None = None
) -> Result:
    pipeline = finished(tool, events, modules, pcs or [])
    result = pipeline.finish()
    assert not pipeline.failures
    return result[tool.name]


def rows(result: Result, kind: str = "global") -> list[tuple[str, str, Any, Any]]:
    """Kernel, verdict, instructions and executed ones, in order."""
    return [
        (row["kernel"], row["coverage"], row["instructions"], row["executed"])
        for row in result.tables["coverage"].rows()
        if row["kind"] == kind
    ]


def test_kernels_of_modules(modules: dict[int, Code]) -> None:
    """Kernels of two modules with the same name; coverage comes from the code that was read."""
    modules[1] = Code({"k": function("k", "LDG.E", "STG.E"), "f": function("f", "LDS")})
    modules[2] = Code({"k": function("k", "LDG.E", "TEX.LL")})
    events = Gpu()
    events.add("module_load", handle=11, hash=1)
    events.add("module_load", handle=12, hash=2)
    for name, module in (("k", 11), ("f", 11), ("k", 12), ("k", 11)):
        events.launch(name, module=module)
    result = result_of(Total(), events, modules)
    assert rows(result) == [
        ("k", "partly", 1, None),
        ("k", "seen", 2, None),
        ("f", "seen", 0, None),
    ]
    assert result.summary.startswith("counted; 1 of 3 kernels seen only in part (k: 1 texture")
    table = result.tables["coverage"]
    assert table.shown == 1
    assert next(table.rows())["kind"] == "texture"


def test_reused_handle(modules: dict[int, Code]) -> None:
    modules[1] = Code({"k": function("k", "LDG.E")})
    modules[2] = Code({"k": function("k", "LDG.E", "LDG.E", "LDG.E")})
    events = Gpu()
    events.add("module_load", handle=11, hash=1)
    events.launch("k", module=11)
    events.add("module_unload", handle=11)
    events.add("module_load", handle=11, hash=2)
    events.launch("k", module=11)
    result = result_of(Total(), events, modules)
    assert sorted(each[2] for each in rows(result)) == [1, 3]
    assert result.summary == "counted; all 4 such instructions of 2 kernels can be seen"


def test_instructions_of_a_map(modules: dict[int, Code]) -> None:
    modules[1] = Code({"k": function("k", "LDG.E", "LDS", "STG.E", "LD.E", "LDG.E")})
    events = Gpu()
    events.add("module_load", handle=11, hash=1)
    events.launch("k", module=11, entry_pc=ENTRY)
    events.launch("k", module=11, entry_pc=ENTRY + 0x1000)  # of another context
    pcs = [ENTRY, ENTRY + 0x1000 + 32, ENTRY + 48, ENTRY + 80, 0x100]
    result = result_of(ByInstruction(), events, modules, pcs)
    assert rows(result) == [("k", "seen", 3, 2)]
    assert rows(result, "generic") == [("k", "seen", 1, 1)]


@pytest.mark.parametrize(
    ("loaded", "kept", "why"),
    [
        (False, False, "module loaded before PASTA"),
        (True, False, "module not kept, see probes.code-memory"),
        (True, True, "nvdisasm was not found"),
    ],
)
def test_unknown_code(modules: dict[int, Code], loaded: bool, kept: bool, why: str) -> None:
    if kept:
        modules[1] = Code(None, "nvdisasm was not found")
    events = Gpu()
    if loaded:
        events.add("module_load", handle=11, hash=1)
    events.launch("k", module=11)
    result = result_of(Total(), events, modules)
    assert rows(result) == [("k", "unknown", None, None)]
    text = f"coverage unknown for 1 kernel: {why}"
    assert result.summary == f"counted; {text} (tensor_store would not be seen)"
    assert result.tables["coverage"].shown == 0


@pytest.mark.slow
def test_gpu_records_do_not_identify_executed_code(modules: dict[int, Code]) -> None:
    """A tool's probe selects which records are written."""
    modules[1] = Code({"k": function("k", "LDG.E", "LDGSTS.E")})
    events = Gpu()
    events.add("module_load", handle=11, hash=1)
    events.launch("k", module=11)
    events.access(addresses=[0])
    tool = Total()
    pipeline = finished(tool, events, modules, [])
    pipeline.feed_accesses(events.accesses())
    result = pipeline.finish()["total"]
    assert rows(result) == [("k", "seen", 1, None)]
    assert rows(result, "async_copy") == [("k", "seen", 1, None)]
    assert result.summary == "counted; all 2 such instructions of 1 kernel can be seen"


def test_unprobed_launches_are_omitted(modules: dict[int, Code]) -> None:
    events = Gpu()
    events.launch("k", flags=0)
    result = result_of(Total(), events, modules)
    assert rows(result) == []
    assert result.summary == "counted; no launches were probed, of 1"


def test_code_is_read_while_the_program_runs(
    modules: dict[int, Code], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kernel's code is read once, also that of a kernel that is launched later."""
    monkeypatch.setattr("pasta.runtime.code_ahead._INTERVAL", 0.0)
    modules[1] = Code({"k": function("k", "LDG.E"), "f": function("f", "LDG.E", "LDG.E")})
    asked: list[list[str]] = []
    begun, go = threading.Event(), threading.Event()
    read = visibility.read_together

    def slow(wanted: Any, **how: Any) -> list[Code]:
        asked.extend(sorted(names) for _, names in wanted)
        begun.set()
        assert go.wait(10)
        return read(wanted, **how)

    monkeypatch.setattr(visibility, "read_together", slow)
    events = Gpu()
    events.add("module_load", handle=11, hash=1)
    events.launch("k", module=11)
    pipeline = finished(Total(), events, modules, [])
    assert pipeline.probes is not None
    ahead = CodeAhead()
    ahead.look(pipeline.probes)
    assert begun.wait(10)
    ahead.look(pipeline.probes)  # does not wait
    go.set()
    ahead.finish(pipeline.probes)
    events.launch("f", module=11)
    pipeline.feed(events.batch())
    result = pipeline.finish()["total"]
    assert asked == [["k"], ["f"]]
    assert sorted(rows(result)) == [("f", "seen", 2, None), ("k", "seen", 1, None)]


def test_reading_code_has_a_time_limit(
    modules: dict[int, Code], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pasta.probes.kernels.MAX_READING", 0.0)
    modules[1] = Code({"k": function("k", "LDG.E")})
    events = Gpu()
    events.add("module_load", handle=11, hash=1)
    events.launch("k", module=11)
    assert (
        "reading the code of other kernels took 0 s" in result_of(Total(), events, modules).summary
    )


@pytest.mark.parametrize(
    ("filter", "named"),
    [
        (Filter(kernel="sel", launch_count=1), "not_wanted"),
        (Filter(kernel="sel", launch_skip=5, launch_count=1), "not_wanted"),
        (Filter(launch_count=1), ""),
    ],
)
def test_kernels_selected_by_name_are_not_slowed_down_beside_others(
    filter: Filter, named: str
) -> None:
    """Whether the range of launches includes some of theirs or not."""
    events = Gpu()
    events.add("module_load", handle=11, hash=1)
    for _ in range(3):
        for name in ("sel_first", "not_wanted", "sel_second"):
            events.launch(name, module=11)
    pipeline = Pipeline(filter, [Total()], events.context())
    pipeline.feed(events.batch())
    summary = pipeline.finish()["total"].summary
    assert not pipeline.failures
    slow = "1 kernel was not selected but slowed down, because selected kernels are in the same"
    assert (f"{slow} modules: {named}" in summary) == bool(named)
    assert ("slowed down" in summary) == bool(named)


def test_interruption_ends_the_reading_of_code(
    modules: dict[int, Code], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(interruption, "_file", tmp_path)
    modules[1] = Code({"k": function("k", "LDG.E")})
    events = Gpu()
    events.add("module_load", handle=11, hash=1)
    events.launch("k", module=11)
    text = "coverage unknown for 1 kernel: reading it was interrupted by a signal"
    assert text in result_of(Total(), events, modules).summary


def test_unexpected_module_does_not_lose_the_result(
    modules: dict[int, Code], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> list[Code]:
        raise ValueError("no such opcode")

    monkeypatch.setattr(visibility, "read_together", fail)
    modules[1] = Code({})
    events = Gpu()
    events.add("module_load", handle=11, hash=1)
    events.launch("k", module=11)
    result = result_of(Total(), events, modules)
    why = "reading it failed: ValueError: no such opcode"
    assert f"coverage unknown for 1 kernel: {why}" in result.summary


@pytest.mark.parametrize(
    ("sources", "verdict", "state", "says"),
    [
        (("made_up",), "unknown", "not known",
         "coverage unknown for 1 kernel: source made_up does not report code"),
        (("torch", "made_up", "refacc"), "unknown", "not known", "source made_up does not report"),
        (("amd_rocprofiler",), "unseen",
         "not seen: rocprofiler-sdk has no callback for them", "would not be seen"),
        (("torch", "refacc"), "seen",
         "0 executed (patched; unknown whether the code has any)", "counted"),
    ],
)  # fmt: skip
def test_kinds_covered_by_a_source(
    sources: tuple[str, ...], verdict: str, state: str, says: str
) -> None:
    """Nothing is assumed to be covered because its source is unknown."""
    events = Events()
    for source in sources:
        events.add("process_start", source=source, version="1")
    events.launch("k")
    result = result_of(Total(), events, {})
    row = next(row for row in result.tables["coverage"].rows() if row["kind"] == "global")
    assert (row["kind"], row["coverage"], row["state"]) == ("global", verdict, state)
    assert says in result.summary
    if verdict == "unknown" and "made_up" in sources:
        assert (row["visible"], row["patched"]) == (None, None)


@pytest.mark.slow
def test_executed_kinds_of_an_unknown_source_are_reported() -> None:
    events = Events()
    events.add("process_start", source="made_up", version="1")
    events.launch("k")
    events.access("global", [64])
    rows = run_tool(Total, events).tables["coverage"].rows()
    row = next(row for row in rows if row["kind"] == "global")
    assert (row["coverage"], row["state"], row["executed"]) == ("unknown", "executed", None)


def test_reference_accelerator_covers_all_accesses() -> None:
    events = Events()
    events.launch("reads")
    events.access(addresses=[0])
    events.access("shared", addresses=[0])
    events.launch("idles")
    result = run_tool(Total, events)
    assert result.summary == "counted"
    found = {
        (row["kernel"], row["kind"]): (row["coverage"], row["state"])
        for row in result.tables["coverage"].rows()
    }
    assert found["reads", "global"] == ("seen", "executed")
    assert found["reads", "shared"] == ("seen", "not selected")
    assert found["idles", "global"][0] == "seen"


def test_source_lines_of_instructions(modules: dict[int, Code]) -> None:
    modules[1] = Code({"k": function("k", "LDG.E", "STG.E", line=5), "f": function("f", "LDG.E")})
    events = Gpu()
    events.add("module_load", handle=11, hash=1)
    events.launch("k", module=11, entry_pc=ENTRY)
    events.launch("f", module=11, entry_pc=ENTRY + 0x100)
    pipeline = finished(Total(), events, modules, [])
    pipeline.finish()
    probes = pipeline.probes
    assert probes is not None
    pcs = np.array([0x10, ENTRY, ENTRY + 16, ENTRY + 32, ENTRY + 0x100], np.uint64)
    lines = probes.kernels.lines(events.strings, pcs)
    assert lines == [None, "k.cu:5", "k.cu:6", None, None]


def test_coverage_table_name_is_reserved() -> None:
    class Covers(Total):
        """Also has a table `coverage`."""

        def result(self) -> Result:
            return Result("", {"coverage": Table({})})

    events = Events()
    events.launch("k")
    pipeline = Pipeline(Filter(), [Covers()], events.context())
    pipeline.feed(events.batch())
    pipeline.finish()
    assert "the table name coverage is reserved for PASTA" in pipeline.failures["covers"].traceback
    assert ToolError.__name__ in pipeline.failures["covers"].reason
