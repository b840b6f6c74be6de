"""Schedules of blocks with times known from arithmetic."""

from __future__ import annotations

import io
import json
import random
from typing import Any

from pasta.backends.nvidia.patches import write
from pasta.backends.nvidia.plan import instances_of, layout_of
from pasta.plugins import find_tools, load_tools
from pasta.probes import Counter, probe
from pasta.runtime.probe_plan import needs_order
from pasta.testing import Events, run_tool
from pasta.tool import Result, Tool

TOOL = find_tools("block_schedule")[0]
CLOCK = 5_000_000  # of the device, where a launch begins

Block = tuple[int, int, int]  # multiprocessor, begin, end


def played(
    *launches: list[Block], multiprocessors: int = 4, warps: int = 2, devices: int = 1
) -> Events:
    """Launches of kernels k0, k1, … on one device after the other; all warps of a
    block begin together, the last one ends it."""
    events = Events()
    events.device(0, multiprocessors=multiprocessors)
    for number, blocks in enumerate(launches):
        where = {"device": number % devices, "grid": (len(blocks), 1, 1)}
        events.launch(f"k{number}", block=(32 * warps, 1, 1), **where)
        for block, (sm, begin, end) in enumerate(blocks):
            for warp in range(warps):
                where = {"block": block, "warp": warp, "sm": sm, "mask": 0xFFFF_FFFF}
                events.access("block_enter", time=CLOCK + begin + warp, **where)
                last = end if warp == warps - 1 else (begin + end) // 2
                events.access("block_exit", time=CLOCK + last, **where)
    return events


def launch(result: Result, number: int = 0) -> dict[str, Any]:
    (found,) = (each for each in result.tables["launches"].rows() if each["launch"] == number)
    return found


def test_multiprocessors_of_two_devices() -> None:
    events = played([(0, 0, 100)], [(0, 0, 50), (0, 50, 80)], devices=2)
    table = run_tool(TOOL, events).tables["multiprocessors"]
    found = [(row["device"], row["sm"], row["blocks"]) for row in table.rows()]
    assert found == [(0, 0, 1), (1, 0, 2)]


def test_one_block_after_the_other() -> None:
    """Multiprocessor 0 has three blocks of 100, 1 and 2 one each, 3 none."""
    blocks = [(0, 0, 100), (1, 0, 100), (2, 0, 100), (0, 100, 200), (0, 200, 300)]
    result = run_tool(TOOL, played(blocks))
    found = launch(result)
    assert (found["blocks"], found["span"], found["multiprocessors"]) == (5, 300, 3)
    assert found["imbalance"] == 300 / (500 / 4)
    assert found["idle_share"] == 1 - 500 / 1200
    assert (found["tail"], found["tail_share"]) == (200, 200 / 300)  # half of them ended at 100
    assert (found["resident"], found["most_resident"]) == (1, 1)
    sms = {
        row["sm"]: (row["blocks"], row["busy"]) for row in result.tables["multiprocessors"].rows()
    }
    assert sms == {0: (3, 300), 1: (1, 100), 2: (1, 100)}
    unequal, few = result.findings
    assert (
        unequal.what == "work is unevenly distributed over multiprocessors"
        and unequal.where == "k0"
    )
    assert unequal.gain == 1 - 125 / 300
    assert few.what == "few multiprocessors are busy at the end of launches"
    resident = list(result.figures["over_time"].series["blocks"])
    assert (resident[0], resident[-1]) == (3, 0)


def test_resident_blocks_over_time() -> None:
    """Two launches, whose clocks begin alike; of the first, multiprocessor 1 has a pause."""
    blocks = [(0, 0, 100), (0, 50, 150), (1, 10, 20), (0, 150, 160), (1, 30, 60), (1, 40, 60)]
    table = run_tool(TOOL, played(blocks, [(0, 0, 7)])).tables["resident"]
    names = ("launch", "device", "sm", "clock", "duration", "blocks")
    assert [tuple(row[name] for name in names) for row in table.rows()] == [
        (0, 0, 0, CLOCK, 50, 1), (0, 0, 0, CLOCK + 50, 50, 2), (0, 0, 0, CLOCK + 100, 50, 1),
        (0, 0, 0, CLOCK + 150, 10, 1),
        (0, 0, 1, CLOCK + 10, 10, 1), (0, 0, 1, CLOCK + 30, 10, 1), (0, 0, 1, CLOCK + 40, 20, 2),
        (1, 0, 0, CLOCK, 7, 1),
    ]  # fmt: skip


def test_resident_blocks_overlap() -> None:
    result = run_tool(TOOL, played([(0, 0, 100), (0, 50, 150), (0, 90, 100), (0, 200, 250)]))
    found = launch(result)
    assert found["span"] == 250 and found["most_resident"] == 3
    assert found["resident"] == (100 + 100 + 10 + 50) / 200  # while it was busy
    (row,) = result.tables["multiprocessors"].rows()
    assert row["busy"] == 200


def test_equal_blocks_give_no_finding() -> None:
    result = run_tool(TOOL, played([(sm, 0, 100) for sm in range(4)]))
    assert not result.findings and launch(result)["imbalance"] == 1


def test_the_trace_has_a_thread_for_each_resident_block() -> None:
    result = run_tool(TOOL, played([(0, 0, 100), (0, 50, 150), (0, 100, 120)], [(1, 0, 10)]))
    file = io.BytesIO()
    write_ = result.files["blocks.json"]
    assert callable(write_)
    write_(file)
    events = json.loads(file.getvalue())["traceEvents"]
    slices = [(e["pid"], e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert slices == [
        (0, 0, "block 0", 0, 0.1), (0, 1, "block 1", 0.05, 0.1), (0, 0, "block 2", 0.1, 0.02),
        (1, 1, "block 0", 0, 0.01),
    ]  # fmt: skip
    names = [e["args"]["name"] for e in events if e["ph"] == "M"]
    assert names == ["k0, launch 0", "multiprocessor 0", "multiprocessor 0, 2", "k1, launch 1",
                     "multiprocessor 1"]  # fmt: skip


def test_any_number_of_blocks_may_be_resident() -> None:
    """On a multiprocessor; each has a thread of its own, the lowest one that is free."""
    blocks = [(sm, begin, 1000) for sm in range(2) for begin in range(100)]
    result = run_tool(TOOL, played([*blocks, (0, 1000, 1100)]))
    file = io.BytesIO()
    write_ = result.files["blocks.json"]
    assert callable(write_)
    write_(file)
    events = json.loads(file.getvalue())["traceEvents"]
    threads = [e["tid"] for e in events if e["ph"] == "X"]
    assert len(set(threads)) == 200 and threads.count(0) == 2
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names[0] == "multiprocessor 0" and names[100] == "multiprocessor 1"
    assert names[199] == "multiprocessor 1, 100"


def test_random_schedules_match_a_walk() -> None:
    random_ = random.Random(3)
    launches: list[list[Block]] = []
    for _ in range(20):
        blocks = []
        for _ in range(random_.randrange(1, 12)):
            begin = random_.randrange(1000)
            blocks.append((random_.randrange(4), begin, begin + random_.randrange(1, 400)))
        launches.append(blocks)
    result = run_tool(TOOL, played(*launches, warps=1))
    for number, blocks in enumerate(launches):
        first, last = min(b for _, b, _ in blocks), max(e for _, _, e in blocks)
        busy = [
            len({t for sm, b, e in blocks if sm == each for t in range(b, e)}) for each in range(4)
        ]
        ends = sorted(
            max(e for sm, _, e in blocks if sm == each) for each in {sm for sm, _, _ in blocks}
        )
        most = max(
            sum(sm == at and b <= t < e for sm, b, e in blocks)
            for at in range(4) for t in {b for _, b, _ in blocks}
        )  # fmt: skip
        found = launch(result, number)
        assert found["span"] == last - first
        assert found["imbalance"] == max(busy) / (sum(busy) / 4)
        assert found["tail"] == last - ends[(len(ends) - 1) // 2]
        assert found["most_resident"] == most


def test_without_a_clock_or_blocks_one_line_says_so() -> None:
    events = Events()
    events.launch("k")
    assert run_tool(TOOL, events).summary.startswith("no blocks were recorded")
    events.access("block_enter", mask=1)
    events.access("block_exit", mask=1)
    summary = run_tool(TOOL, events).summary
    assert summary.startswith("1 block, without times: the source has no device clock")


def test_blocks_that_did_not_end_are_noted() -> None:
    events = played([(0, 0, 100)])
    events.access("block_enter", mask=1, block=7, time=CLOCK)
    result = run_tool(TOOL, events)
    assert launch(result)["blocks"] == 1
    assert any(note.startswith("1 block left out") for note in result.notes)


class Barriers(Tool):
    """Adds up times of barriers."""

    times = Counter(by="block", fields=("first", "count"))

    @probe.barrier(per="warp")
    def wait(access: Any, maps: Any) -> None:
        maps.times.add(access.block, first=access.time, count=1)

    def result(self) -> Result:
        return Result("")


def test_times_in_patches() -> None:
    """The device's clock is read by probes that use it, and where records are written."""
    (tool,) = load_tools(["block_schedule"])
    text, _ = write(layout_of([tool]), instances_of([tool]), "13.5")
    for kind in ("block_enter", "block_exit"):
        patch = text[text.index(f"def pasta_{kind}(") :].split("\n\n")[0]
        assert "time = global_time()" in patch and "user, pc, time, bytes" in patch
    barriers = Barriers()
    text, _ = write(layout_of([barriers]), instances_of([barriers]), "13.5")
    assert "time = global_time()" in text
    assert needs_order([tool]) and needs_order([barriers])
    assert not needs_order(load_tools(["mem_trace", "access_count"]))
    assert needs_order(load_tools(["pc_dependency"]))
