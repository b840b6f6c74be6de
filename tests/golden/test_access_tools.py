"""Accesses with counts known from arithmetic, through each tool with probes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from pasta.config import Config
from pasta.plugins import find_tools, load_tools
from pasta.processors.filter import Filter
from pasta.runtime.pipeline import Pipeline
from pasta.table import Table
from pasta.testing import Events, run_tool
from pasta.tool import Result
from tests.support.access_checks import CHECKS
from tests.support.expected_accesses import GLOBAL, NOWHERE, SHARED, Access, Expected, expected

NAMES = (
    "access_count", "working_set", "hotness", "coalescing", "bank_conflicts", "divergence",
    "heatmap", "mem_trace",
)  # fmt: skip
TOOL = {name: find_tools(name)[0] for name in NAMES}
A, B, C = 0x10_0000, 0x20_0000, 0x30_0000
ENTRY = 0x7000


def row(table: Table, **wanted: Any) -> dict[str, Any]:
    """The only row in which these columns have these values."""
    (found,) = (each for each in table.rows() if all(each[name] == wanted[name] for name in wanted))
    return found


def taken(result: Result) -> list[dict[str, Any]]:
    """Rows of all files of mem_trace."""
    rows = []
    for path in result.files.values():
        assert isinstance(path, Path)
        rows += pq.ParquetFile(path).read().to_pylist()
        path.unlink()
    return rows


# ---- the scenarios of tests/support/expected_accesses.py -------------------------------------

SCENARIOS = (
    "stride1", "stride2", "stride32", "tail", "one_thread", "divergent", "early_exit",
    "atomics_one", "atomics_distinct", "shared_broadcast", "shared_1way", "shared_2way",
    "shared_8way", "shared_32way", "shared_8bytes", "shared_16bytes", "local", "matrix", "cluster",
    "bulk", "unknown", "reuse",
)  # fmt: skip
#: Scenarios with millions of accesses, by name.
SLOW = {"reuse": pytest.mark.slow}


def scenarios(*left_out: str) -> list[Any]:
    """Parameters `name` of tests."""
    names = [name for name in SCENARIOS if name not in left_out]
    return [pytest.param(name, marks=SLOW.get(name, ())) for name in names]


@cache
def scenario(name: str) -> tuple[Expected, Events]:
    """Expected counts of a scenario, and its accesses as records; each instruction has its own
    pc."""
    wanted, events = expected(name), Events()
    for role, size in wanted.memory.objects.items():
        events.alloc(wanted.memory[role], size)
    pcs: dict[str, int] = {}
    for launch in wanted.launches:
        entry = pcs.setdefault(launch.kernel, ENTRY * (1 + len(pcs)))
        events.launch(launch.kernel, entry_pc=entry, grid=(launch.warps, 1, 1))
        for number, access in enumerate(launch.accesses):
            add(events, access, entry + 16 * number)
    return wanted, events


def add(events: Events, access: Access, pc: int) -> None:
    for _ in range(access.times):
        for block, (at, sizes) in enumerate(zip(access.at, access.sizes, strict=True)):
            lanes = np.flatnonzero(at != NOWHERE)
            (bytes,) = set(sizes[lanes].tolist())
            events.access(
                access.kind,
                at[lanes].tolist(),
                mask=sum(1 << lane for lane in lanes.tolist()),
                bytes=bytes,
                write=access.op == "store",
                atomic=access.op in ("atom", "red"),
                pc=pc,
                block=block,
                form=None if access.runs is None else 3,
            )


def scenario_result(name: str, tool: str, **options: object) -> tuple[Expected, Result]:
    wanted, events = scenario(name)
    return wanted, run_tool(TOOL[tool], events, options=options)


@pytest.mark.parametrize("name", scenarios())
def test_access_count_counts_every_kind(name: str) -> None:
    wanted, result = scenario_result(name, "access_count")
    fields = ("instructions", "accesses", "reads", "writes", "atomics", "bytes")
    for kernel, launches in wanted.kernels.items():
        found = row(result.tables["kernels"], kernel=kernel)
        total = wanted.count(kernel=kernel)
        assert {f: found[f] for f in fields} == {f: getattr(total, f) for f in fields}
        assert found["launches"] == launches
        by_kind = {
            each["kind"]: {f: each[f] for f in fields}
            for each in result.tables["kinds"].rows()
            if each["kernel"] == kernel
        }
        assert by_kind == {
            kind: {f: getattr(wanted.count(kind, kernel=kernel), f) for f in fields}
            for kind in wanted.kinds(kernel)
        }
        objects = {
            role: each["accesses"]
            for each in result.tables["objects"].rows()
            if each["kernel"] == kernel
            for role in [*(r for r in wanted.memory.objects if at(each, wanted, r)), *unknown(each)]
        }
        assert objects == wanted.count(GLOBAL, kernel=kernel).objects
    for number in range(len(wanted.launches)):
        total = wanted.count(launch=number)
        rows = [r for r in result.tables["launches"].rows() if r["launch"] == number]
        assert {f: sum(r[f] for r in rows) for f in fields} == {
            f: getattr(total, f) for f in fields
        }


def at(found: dict[str, Any], wanted: Expected, role: str) -> bool:
    return bool(found["object_address"] == wanted.memory[role])


def unknown(found: dict[str, Any]) -> list[str]:
    return ["unknown"] if found["object_id"] is None else []


#: Rows of unknown objects have no bytes.
CHECKED = [
    pytest.param(name, tool, marks=SLOW.get(name, ()))
    for name in SCENARIOS
    for tool in CHECKS
    if (name, tool) != ("unknown", "working_set")
]


@pytest.mark.parametrize(("name", "tool"), CHECKED)
def test_tools_agree_with_arithmetic(name: str, tool: str) -> None:
    wanted, result = scenario_result(
        name, tool, **({"blocks": 1 << 20} if tool == "heatmap" else {})
    )
    assert not CHECKS[tool](lambda table: list(result.tables[table].rows()), wanted)
    for table in result.tables.values():  # and of nothing else
        assert {each["kernel"] for each in table.rows() if "kernel" in each} <= set(wanted.kernels)


@pytest.mark.parametrize("name", scenarios("unknown"))
def test_working_set_sums_touched_bytes(name: str) -> None:
    wanted, result = scenario_result(name, "working_set")
    launches = list(result.tables["launches"].rows())
    assert {each["footprint"] for each in launches} == {sum(wanted.memory.objects.values())}
    for number, each in enumerate(launches):
        touched = wanted.count(GLOBAL, launch=number).objects
        assert each["allocations"] == sum(wanted.memory.objects[role] for role in touched)


@pytest.mark.parametrize("name", scenarios())
def test_hotness_attributes_every_access(name: str) -> None:
    wanted, result = scenario_result(name, "hotness")
    found = {
        role: each["accesses"]
        for each in result.tables["objects"].rows()
        for role in [*(r for r in wanted.memory.objects if at(each, wanted, r)), *unknown(each)]
    }
    assert found == wanted.count(GLOBAL).objects


@pytest.mark.parametrize("name", scenarios())
def test_coalescing_counts_waste(name: str) -> None:
    wanted, result = scenario_result(name, "coalescing")
    table, total = result.tables["instructions"], wanted.count(GLOBAL)
    assert int(table.columns["wasted_bytes"].sum()) == 32 * (total.sectors - total.ideal_sectors)


@pytest.mark.parametrize("name", scenarios("bulk", "matrix"))
def test_divergence_is_the_histogram_of_active_lanes(name: str) -> None:
    wanted, result = scenario_result(name, "divergence")
    lanes = wanted.count(GLOBAL | SHARED - {"async_store"} | {"local"}).lanes
    (series,) = result.figures["lanes"].series.values()
    assert {n: int(count) for n, count in enumerate(series) if count} == lanes
    rows = result.tables["instructions"].columns["active_lanes"]
    assert np.array_equal(rows.sum(axis=0), series)


@pytest.mark.slow
@pytest.mark.parametrize("name", scenarios())
def test_mem_trace_records_every_instruction(name: str) -> None:
    spaces = {"shared_memory": True, "local_memory": True}
    wanted, result = scenario_result(name, "mem_trace", **spaces)
    total, rows = wanted.count(), taken(result)
    assert len(rows) == total.instructions
    masks = [each["lanes"].bit_count() for each in rows]
    assert sum(masks) == total.accesses
    pairs = zip(rows, masks, strict=True)
    assert sum(lanes * each["bytes"] for each, lanes in pairs) == total.bytes
    assert sum(m for r, m in zip(rows, masks, strict=True) if r["atomic"]) == total.atomics


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_results_are_independent_of_batches_and_handover(name: str) -> None:
    """The state moves to another process after some of the batches."""
    _, events = scenario("reuse")
    whole = run_tool(TOOL[name], events)
    pipeline = Pipeline(Filter(), load_tools([name]), events.context())
    for number, (batch, accesses) in enumerate(events.stretches([1, 4, 5])):
        pipeline.feed(batch)
        pipeline.feed_accesses(accesses)
        if number in (1, 2):
            pipeline = Pipeline.restore(pipeline.state(), load_tools([name]), events.context())
    moved = pipeline.finish()[name]
    assert not pipeline.failures
    assert moved.summary.split(" in ")[0] == whole.summary.split(" in ")[0]  # files differ
    for title, table in whole.tables.items():
        assert moved.tables[title].to_arrow() == table.to_arrow()
    if name == "mem_trace":
        assert len(moved.files) > len(whole.files) == 1
        assert taken(moved) == taken(whole)


@pytest.mark.parametrize("name", NAMES)
def test_no_events(name: str) -> None:
    result = run_tool(TOOL[name], Events())
    assert result.summary.startswith("no ")
    for table in result.tables.values():
        table.to_arrow()
        assert len(table) == 0


@pytest.mark.parametrize("preset", [*NAMES, "memory"])
def test_presets_contain_the_defaults(preset: str) -> None:
    config = Config()
    config.load(preset)
    tools = {tool.name: tool for tool in load_tools(config.tools, config.tool_options)}
    assert list(tools) == (
        ["access_count", "working_set", "hotness"] if preset == "memory" else [preset]
    )
    for name, written in config.tool_options.items():
        assert written == {key: TOOL[name].options()[key].given for key in written}


# ---- access_count ---------------------------------------------------------------------------


@pytest.mark.parametrize("bytes", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("lanes", [32, 5])
def test_bytes_of_every_size(bytes: int, lanes: int) -> None:
    events = Events()
    events.alloc(A, 4096)
    events.launch("kernel")
    events.access("global", [A + bytes * i for i in range(lanes)], bytes=bytes)
    result = run_tool(TOOL["access_count"], events)
    assert row(result.tables["launches"])["bytes"] == lanes * bytes
    assert row(result.tables["objects"])["bytes"] == lanes * bytes
    assert f"{lanes} accesses by 1 warp instruction in 1 launch, " in result.summary


def test_accesses_per_touched_page() -> None:
    events = Events()
    events.alloc(A, 4096 + 1)  # two pages
    events.alloc(B, 4096)
    events.alloc(C, 1 << 20)
    events.launch("kernel")
    events.access("global", [A, A + 4, B])
    events.access("global", [A + 4097], bytes=8)  # past the end
    events.launch("idle")
    result = run_tool(TOOL["access_count"], events)
    found = row(result.tables["kernels"], kernel="kernel")
    assert (found["objects"], found["object_bytes"], found["pages"]) == (2, 8193, 3)
    assert (found["known"], found["unknown"], found["per_page"]) == (3, 1, 1.0)
    idle = row(result.tables["kernels"], kernel="idle")
    assert (idle["launches"], idle["accesses"], idle["per_page"]) == (1, 0, None)
    assert row(result.tables["launch_objects"])["kernel"] == "kernel"
    assert "25.0 % of accesses to global memory were outside known objects" in result.summary


# ---- working_set ----------------------------------------------------------------------------


def test_footprint_is_live_memory_at_each_launch() -> None:
    events = Events()
    events.alloc(A, 1000)
    events.alloc(0x900_0000, 1 << 30, "virtual")
    events.alloc(0xA00_0000, 50, flags=4)  # the runtime's own
    events.launch("a")
    events.alloc(B, 500, "managed")
    events.alloc(C, 70, device=1)
    events.launch("a")
    events.launch("a", device=1)
    events.free(A)
    events.launch("a")
    for splits in ([], [2, 4, 6], range(9)):
        result = run_tool(TOOL["working_set"], events, splits=splits)
        assert result.tables["launches"].columns["footprint"].tolist() == [1000, 1500, 570, 500]


def test_tensors_and_their_allocations() -> None:
    events = Events()
    events.alloc(A, 4096)
    for at in range(4):
        events.tensor_alloc(A + 512 * at, 512, allocated=512, reserved=4096, stack=0)
    events.launch("kernel")
    events.access("global", [A, A + 512])
    events.access("global", [A + 2048])  # between tensors
    result = run_tool(TOOL["working_set"], events)
    found = row(result.tables["launches"])
    assert (found["working_set"], found["objects"]) == (96, 3)
    assert (found["tensors"], found["allocations"]) == (1024, 4096)


@pytest.mark.slow
def test_statistics_over_launches() -> None:
    events = Events()
    events.alloc(A, 1 << 20)
    for count in range(1, 11):
        events.launch("even" if count % 2 == 0 else "odd")
        events.access("global", [A + 32 * i for i in range(count)])
    result = run_tool(TOOL["working_set"], events)
    found = row(result.tables["run"], measure="touched (unique bytes)")
    assert [found[each] for each in ("min", "mean", "median", "p90", "max")] == [
        32, 176, 5 * 32, 9 * 32, 320,
    ]  # fmt: skip
    assert row(result.tables["kernels"], kernel="odd")["max"] == 9 * 32
    coarse = run_tool(TOOL["working_set"], events, options={"granularity": "64B"})
    assert coarse.tables["launches"].columns["working_set"].tolist()[:4] == [64, 64, 128, 128]
    most = row(result.tables["objects"])
    assert (most["launches"], most["most"], most["mean"]) == (10, 320, 176)


# ---- hotness --------------------------------------------------------------------------------


def test_bins_of_each_object() -> None:
    events = Events()
    events.alloc(A, 10_000)
    events.alloc(B, 64, "managed")
    events.launch("kernel")
    events.access("global", [A, A + 4095, A + 4096, A + 4097, A + 8192])
    events.access("global", [B] * 3)
    events.access("global", [A + 10_000, B + 64])
    result = run_tool(TOOL["hotness"], events)
    bins = {(r["object_address"], r["offset"]): r["count"] for r in result.tables["bins"].rows()}
    assert bins == {(A, 0): 2, (A, 4096): 2, (A, 8192): 1, (B, 0): 3, (None, 0): 2}
    object = row(result.tables["objects"], object_address=A)
    assert (object["bins_touched"], object["bins"], object["share"]) == (3, 3, 0.5)
    assert row(result.tables["objects"], object_id=None)["object"] == "unknown"
    heat, _ = result.figures.values()
    assert heat.series["accesses"].tolist() == [2, 2, 1]
    assert heat.x.tolist() == [0, 4096, 8192]
    assert "20.0 % of them were outside known objects" in result.summary


@pytest.mark.slow
def test_windows_of_time() -> None:
    """Windows end with launches: of 3 accesses, 2 + 2, 1 + 5 and 1."""
    events = Events()
    events.alloc(A, 10_000)
    events.alloc(B, 64)
    for addresses in ([A, A], [A + 4096, B], [B], [A] * 4 + [A + 8192], [A + 8192]):
        events.launch("kernel")
        events.access("global", addresses)
    result = run_tool(TOOL["hotness"], events, options={"window": 3})
    windows = [
        (r["window"], r["object_address"], r["accesses"], r["bins_touched"], r["hottest"])
        for r in result.tables["windows"].rows()
    ]
    assert windows == [
        (0, A, 3, 2, 0), (0, B, 1, 1, 0), (1, A, 5, 2, 0), (1, B, 1, 1, 0), (3, A, 1, 1, 8192),
    ]  # fmt: skip
    bins = [
        (r["window"], r["object_address"], r["offset"], r["count"])
        for r in result.tables["window_bins"].rows()
    ]
    assert bins == [
        (0, A, 0, 2), (0, A, 4096, 1), (0, B, 0, 1), (1, A, 0, 4), (1, A, 8192, 1), (1, B, 0, 1),
        (3, A, 8192, 1),
    ]  # fmt: skip
    a, b = result.figures["windows"].series.values()
    assert (a.tolist(), b.tolist()) == ([3, 5, 0, 1], [1, 1, 0, 0])
    # their sum equals the counts without windows
    whole = run_tool(TOOL["hotness"], events)
    for name in ("objects", "bins"):
        assert list(result.tables[name].rows()) == list(whole.tables[name].rows())
    assert set(whole.tables) == {"objects", "bins", "coverage"}


@pytest.mark.slow
def test_heat_map_points_are_bounded() -> None:
    events = Events()
    events.alloc(A, 1 << 20)
    events.launch("kernel")
    events.access("global", [A + (1 << 20) - 1 - i for i in range(32)], bytes=1)
    (heat,) = run_tool(TOOL["hotness"], events, options={"bin": "1B"}).figures.values()
    assert len(heat.x) == 512
    assert heat.series["accesses"].tolist() == [0] * 511 + [32]


# ---- by instruction -------------------------------------------------------------------------


def test_coalescing_lists_the_worst_instruction_first() -> None:
    events = Events()
    events.alloc(A, 1 << 20)
    events.launch("good", entry_pc=0x5000)
    events.launch("_Z3badPf", entry_pc=0x4000)
    events.access("global", [A + 4 * i for i in range(32)], pc=0x5010)
    for _ in range(2):
        events.access("global", [A + 128 * i for i in range(32)], pc=0x4FF0)
    events.access("global", [A], pc=0x10)
    worst, early, good = run_tool(TOOL["coalescing"], events).tables["instructions"].rows()
    assert (worst["kernel"], worst["offset"], worst["pc"]) == ("bad", 0xFF0, 0x4FF0)
    assert (worst["sectors"], worst["ideal_sectors"], worst["efficiency"]) == (32, 4, 0.125)
    assert (worst["wasted_bytes"], worst["share"]) == (2 * 28 * 32, 1792 / (64 + 4 + 1) / 32)
    assert (good["kernel"], good["offset"], good["efficiency"]) == ("good", 0x10, 1.0)
    assert (early["kernel"], early["offset"], early["line"]) == (None, None, None)


def test_kernels_loaded_at_the_same_address_are_all_named() -> None:
    events = Events()
    events.alloc(A, 64)
    for name in ("first", "second"):
        events.launch(name, entry_pc=0x4000)
        events.access("global", [A], pc=0x4010)
    (found,) = run_tool(TOOL["coalescing"], events).tables["instructions"].rows()
    assert (found["kernel"], found["instructions"]) == ("first or second", 2)


def test_bank_conflicts_list_the_worst_instruction_first() -> None:
    events = Events()
    events.launch("kernel", entry_pc=0x4000)
    events.access("shared", [4 * i for i in range(32)], pc=0x4010)
    events.access("shared", [0] * 32, pc=0x4020)
    events.access("shared", [32 * i for i in range(32)], pc=0x4030)  # 4 banks of 8 words
    worst, *others = run_tool(TOOL["bank_conflicts"], events).tables["instructions"].rows()
    assert (worst["offset"], worst["ways"], worst["ideal_ways"], worst["extra"]) == (0x30, 8, 1, 7)
    assert [each["extra"] for each in others] == [0, 0]
    assert worst["share"] == 0.7


# ---- divergence -----------------------------------------------------------------------------


def test_equal_blocks_are_grouped() -> None:
    events = Events()
    events.alloc(A, 4096)
    events.launch("kernel", grid=(3, 2, 1))
    for block, times in ((0, 1), (2, 1), (4, 1), (5, 6)):
        for _ in range(times):
            events.access("global", [A, A + 4], block=block)
    result = run_tool(TOOL["divergence"], events)
    groups = {
        (each["accesses"], each["blocks"], each["first"]) for each in result.tables["groups"].rows()
    }
    assert groups == {(2, 3, 0), (12, 1, 5), (0, 2, 1)}
    found = row(result.tables["launches"])
    assert (found["blocks"], found["told_apart"], found["accesses"]) == (6, 6, 18)
    assert (found["mean"], found["most"], found["imbalance"]) == (3.0, 12, 4.0)
    assert "one block makes 4.00 times the mean number of accesses" in result.summary


@pytest.mark.slow
@pytest.mark.parametrize(("grid", "apart"), [(8, 8), (9, 7)])
def test_blocks_beyond_the_limit_are_merged(grid: int, apart: int) -> None:
    events = Events()
    events.alloc(A, 64)
    events.launch("kernel", grid=(grid, 1, 1))
    for block in range(grid):
        events.access("global", [A], block=block)
    result = run_tool(TOOL["divergence"], events, options={"blocks": 8})
    found = row(result.tables["launches"])
    assert (found["blocks"], found["told_apart"]) == (grid, apart)
    assert (found["groups"], found["imbalance"]) == (1, 1.0)
    assert ("more than the 7 blocks" in result.summary) == (grid > 8)


# ---- heatmap --------------------------------------------------------------------------------


def patterns(events: Events, **options: object) -> dict[str, int]:
    """Sectors with each pattern."""
    table = run_tool(TOOL["heatmap"], events, options=options).tables["findings"]
    return {each["pattern"]: each["sectors"] for each in table.rows()}


@pytest.fixture
def launched() -> Events:
    events = Events()
    events.alloc(A, 4096)
    events.launch("kernel", grid=(8, 1, 1))
    return events


def test_words_of_different_warps_in_a_sector_are_falsely_shared(launched: Events) -> None:
    for warp in range(8):
        launched.access("global", [A + 4 * warp], warp=warp)
    assert patterns(launched) == {"false sharing": 1}
    sectors = run_tool(TOOL["heatmap"], launched).tables["sectors"]
    found = row(sectors)
    assert (found["warps"], found["accesses"], found["offset"]) == (8, 8, 0)
    assert [found[f"word_{at}"] for at in range(8)] == [1] * 8


def test_words_read_by_all_warps_are_broadcast(launched: Events) -> None:
    for block in range(2):
        for _ in range(3):
            launched.access("global", [A + 4 * i for i in range(16)], block=block)
    assert patterns(launched) == {"broadcast": 2}
    words = run_tool(TOOL["heatmap"], launched).tables["words"].columns
    assert (set(words["accesses"].tolist()), set(words["warps"].tolist())) == ({6}, {2})


def test_words_of_several_warps_are_shared(launched: Events) -> None:
    launched.access("global", [A, A + 4], warp=0)
    launched.access("global", [A + 4], warp=1)
    assert patterns(launched) == {"shared": 1}


def test_one_warp_whole_and_partial_sectors(launched: Events) -> None:
    launched.access("global", [A + 16 + 4 * i for i in range(16)])  # half, whole, half
    assert patterns(launched) == {"whole": 1, "partial": 2}


def test_strides_and_scatter(launched: Events) -> None:
    launched.access("global", [A + 8 * i for i in range(16)])
    assert patterns(launched) == {"strided": 4}
    events = Events()
    events.alloc(A, 4096)
    events.launch("kernel")
    events.access("global", [A + 4 * i * i for i in range(9)])
    assert set(patterns(events)) <= {"scattered", "partial"}
    assert patterns(events)["scattered"] >= 5


@pytest.mark.slow
def test_only_selected_blocks_are_analysed(launched: Events) -> None:
    for block in range(8):
        launched.access("global", [A + 32 * block], block=block)
    result = run_tool(TOOL["heatmap"], launched, options={"first_block": 2, "blocks": 3})
    assert sorted(r["offset"] for r in result.tables["sectors"].rows()) == [64, 96, 128]
    assert result.summary.startswith("3 sectors accessed by blocks 2 to 4")


def test_wide_accesses_and_transfers_touch_all_their_words(launched: Events) -> None:
    launched.access("global", [A + 2], bytes=4)  # in two words
    launched.access("tensor_load", [A + 1024], bytes=8, rows=3, stride=256)
    launched.access("global", [A + 4096], bytes=16)  # past the end
    words = run_tool(TOOL["heatmap"], launched).tables["words"]
    found = [(r["object"] == "unknown", r["offset"]) for r in words.rows()]
    inside = [0, 4, *(1024 + 256 * r + b for r in range(3) for b in (0, 4))]
    assert found == [
        *((True, A + 4096 + 4 * i) for i in range(4)), *((False, at) for at in inside),
    ]  # fmt: skip


def test_pairs_beyond_the_limit_are_reported() -> None:
    events = Events()
    events.alloc(A, 4096)
    events.launch("kernel")
    events.access("global", [A + 4 * i for i in range(8)])
    events.launch("kernel")
    events.access("global", [A])
    result = run_tool(TOOL["heatmap"], events, options={"limit": 8}, splits=[2])
    assert "1 warp instruction dropped: more than 8 (word, warp) pairs" in result.summary


# ---- mem_trace ------------------------------------------------------------------------------


def test_one_row_per_warp_instruction() -> None:
    events = Events()
    events.alloc(A, 4096)
    events.launch("kernel")
    events.access("global", [A + 8 * i for i in range(32)], pc=16, block=3, warp=2, sm=7)
    events.access("global", [A, A + 12, A + 4], mask=0b1011, bytes=2, write=True)
    events.access("global", [A, A + (1 << 40)], mask=0b101, atomic=True)
    events.access("global", [A + 8192], mask=0b10000)
    events.access("tensor_load", [A + 256], bytes=64, rows=4, stride=128)
    events.access("shared", [0, 4])
    stride, deltas, far, one, box = taken(run_tool(TOOL["mem_trace"], events))
    assert (stride["pc"], stride["block"], stride["warp"], stride["sm"]) == (16, 3, 2, 7)
    assert (stride["address"], stride["stride"], stride["addresses"]) == (A, 8, None)
    assert (stride["kind"], stride["reads"], stride["object"]) == ("global", True, 0)
    assert (deltas["stride"], deltas["addresses"]) == (None, [A, A + 12, A + 4])
    assert (deltas["lanes"], deltas["writes"], deltas["bytes"]) == (0b1011, True, 2)
    assert far["atomic"] and far["stride"] == 1 << 39
    assert (one["address"], one["object"]) == (A + 8192, None)
    assert (box["rows"], box["stride"], box["bytes"], box["kind"]) == (4, 128, 64, "tensor_load")


@pytest.mark.slow
def test_memory_spaces_can_be_selected(launched: Events) -> None:
    launched.access("global", [A])
    launched.access("shared", [0])
    launched.access("local", [0])
    options = {"global_memory": False, "shared_memory": True, "local_memory": True}
    rows = taken(run_tool(TOOL["mem_trace"], launched, options=options))
    assert [each["kind"] for each in rows] == ["shared", "local"]


def test_files_are_removed_after_reading(launched: Events, tmp_path: Any) -> None:
    launched.access("global", [A])
    result = run_tool(TOOL["mem_trace"], launched, options={"directory": str(tmp_path)})
    assert len(list(tmp_path.iterdir())) == 1
    assert len(taken(result)) == 1
    assert not list(tmp_path.iterdir())


# ---- findings -------------------------------------------------------------------------------


def findings(tool: str, events: Events, **options: object) -> list[tuple[str, float | None]]:
    found = run_tool(TOOL[tool], events, options=options).findings
    return [(each.where, each.gain) for each in found]


def test_wasted_sectors_are_a_finding() -> None:
    events = Events()
    events.alloc(A, 1 << 20)
    events.launch("kernel", entry_pc=0x4000)
    events.access("global", [A + 4 * i for i in range(32)], pc=0x4010)  # 4 sectors
    events.access("global", [A + 128 * i for i in range(32)], pc=0x4020)  # 32, not 4
    wasted = 28 * 32
    found = findings("coalescing", events, wasted=wasted)
    assert found == [("kernel at 0x20", 28 / 36)]
    assert not findings("coalescing", events, wasted=wasted + 1)
    assert not findings("coalescing", events, wasted=wasted, wasted_share=0.78)


def test_bank_conflicts_are_a_finding() -> None:
    events = Events()
    events.launch("kernel", entry_pc=0x4000)
    events.access("shared", [4 * i for i in range(32)], pc=0x4010)
    events.access("shared", [32 * i for i in range(32)], pc=0x4030)  # 8 wavefronts, not 1
    assert findings("bank_conflicts", events, conflicts=7) == [("kernel at 0x30", 7 / 9)]
    assert not findings("bank_conflicts", events, conflicts=8)
    assert not findings("bank_conflicts", events, conflicts=7, conflict_share=0.78)


def test_idle_lanes_and_unequal_blocks_are_findings() -> None:
    events = Events()
    events.alloc(A, 4096)
    events.launch("kernel", grid=(4, 1, 1), entry_pc=0x4000)
    for block, lanes in enumerate((2, 2, 2, 26)):
        events.access("global", [A + 4 * i for i in range(lanes)], pc=0x4010, block=block)
    unequal = ("kernel, launch 0", 1 - 8 / 26)
    assert findings("divergence", events, unequal=32) == [unequal]
    assert not findings("divergence", events, unequal=33)
    assert not findings("divergence", events, unequal=32, imbalance=3.3)  # it is 3.25
    idle = ("kernel at 0x10", 96 / 128)
    assert findings("divergence", events, idle=96) == [idle]
    assert not findings("divergence", events, idle=97)
    assert not findings("divergence", events, idle=96, idle_share=0.76)
    events.launch("another", grid=(2, 1, 1), entry_pc=0x8000)
    for block, lanes in enumerate((2, 30)):
        events.access("global", [A + 4 * i for i in range(lanes)], pc=0x8010, block=block)
    # shares of one whole, which add up where reports merge findings
    gains = [("kernel, launch 0", 18 / 56), ("another, launch 1", 14 / 56)]
    assert findings("divergence", events, unequal=32, imbalance=1.5) == gains


def test_hot_small_objects_are_a_finding() -> None:
    events = Events()
    events.alloc(A, 64)
    events.alloc(B, 1 << 20)
    events.launch("kernel")
    for _ in range(3):
        events.access("global", [A + 4 * i for i in range(16)])
    events.access("global", [B + 4 * i for i in range(32)])
    ((where, gain),) = findings("hotness", events, hot_accesses=80)
    assert (where, gain) == ("device 64 B at 0x100000", 0.6)
    assert not findings("hotness", events, hot_accesses=81)
    assert not findings("hotness", events, hot_accesses=80, hot_bytes=63)
    assert not findings("hotness", events, hot_accesses=80, hot=0.61)


def test_untouched_memory_is_a_finding() -> None:
    events = Events()
    events.alloc(A, 1000)
    events.alloc(B, 3000)
    events.alloc(C, 500, "pinned")  # of no device
    events.launch("kernel")
    events.access("global", [A])
    events.free(B)
    events.launch("kernel")
    ((where, gain),) = findings("working_set", events, untouched=3000)
    assert (where, gain) == ("device 2.93 KiB at 0x200000", 3000 / 4500)
    assert not findings("working_set", events, untouched=3001)
    events.launch("kernel", flags=0)  # it may have been touched
    assert not findings("working_set", events, untouched=3000)
