"""Live bytes, peaks and lifetimes known from arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pasta.plugins import find_tools
from pasta.processors.timeline import LevelTimeline
from pasta.testing import Events, run_tool, run_tools
from tests.support.allocators import allocating

(MemoryTimeline,) = find_tools("memory_timeline")


def peaks(result: Any) -> dict[tuple[str, int | None, str, bool], dict[str, Any]]:
    return {
        (row["layer"], row["device"], row["memory"], row["internal"]): row
        for row in result.tables["peaks"].rows()
    }


def test_peak_and_live_objects_at_the_peak() -> None:
    events = Events(start_time=0, step=10)
    events.alloc(0x1000, 100)  # at 10
    events.alloc(0x2000, 200)  # at 20
    events.free(0x1000)  # at 30
    events.alloc(0x3000, 150)  # at 40: the peak, 350
    events.alloc(0x9000, 5000, "pinned")
    events.free(0x2000)  # at 60
    events.alloc(0x2000, 200)  # at 70: 350 again
    result = run_tool(MemoryTimeline, events)
    total = peaks(result)[("memory", 0, "total", False)]
    assert (total["peak"], total["peak_time"], total["live_at_end"]) == (350, 40, 350)
    assert peaks(result)[("memory", 0, "pinned", False)]["peak"] == 5000
    at_peak = list(result.tables["at_peak"].rows())
    assert [(row["address"], row["bytes"], row["freed"]) for row in at_peak] == [
        (0x2000, 200, 60), (0x3000, 150, None),
    ]  # fmt: skip
    assert [row["share"] for row in at_peak] == [pytest.approx(200 / 350), pytest.approx(150 / 350)]
    freed = [r for r in result.tables["allocations"].rows() if r["freed"] is not None]
    assert [(r["address"], r["allocated"], r["freed"], r["lifetime"]) for r in freed] == [
        (0x2000, 20, 60, 40), (0x1000, 10, 30, 20),
    ]  # fmt: skip
    assert [r["bytes"] for r in result.tables["never_freed"].rows()] == [5000, 200, 150]
    assert "3 allocations of 5.22 KiB never freed" in result.summary


def test_reserved_ranges_and_internal_memory_are_separate() -> None:
    events = Events()
    events.alloc(0x10_0000, 1 << 40, "virtual")
    events.alloc(0x10_0000, 64, "pool")
    events.alloc(0x99_0000, 512, flags=4)
    result = run_tool(MemoryTimeline, events)
    found = {key: row["peak"] for key, row in peaks(result).items()}
    assert found == {
        ("memory", 0, "virtual", False): 1 << 40,
        ("memory", 0, "pool", False): 64,
        ("memory", 0, "device", True): 512,
        ("memory", 0, "total", False): 64,
    }
    assert [row["bytes"] for row in result.tables["never_freed"].rows()] == [64]


def test_devices_and_tensors_have_separate_timelines() -> None:
    events = Events()
    events.alloc(0x1000, 1000, device=0)
    events.alloc(0x9000, 500, device=1)
    events.tensor_alloc(0x1000, 100)
    events.tensor_alloc(0x1080, 100)
    events.tensor_free(0x1000)
    found = peaks(run_tool(MemoryTimeline, events))
    assert found[("memory", 0, "total", False)]["peak"] == 1000
    assert found[("memory", 1, "total", False)]["peak"] == 500
    tensors = found[("tensor", 0, "total", False)]
    assert (tensors["peak"], tensors["live_at_end"], tensors["allocations"]) == (200, 100, 2)


def test_missed_and_unknown_frees_are_reported() -> None:
    events = Events()
    events.alloc(0x1000, 100)
    events.alloc(0x1010, 100)
    events.free(0x7000)
    result = run_tool(MemoryTimeline, events)
    assert peaks(result)[("memory", 0, "total", False)]["live_at_end"] == 100
    assert "1 frees were missed" in result.summary
    assert "1 frees of memory whose allocation was not recorded" in result.summary
    (missed,) = [r for r in result.tables["allocations"].rows() if r["free_missed"]]
    assert missed["address"] == 0x1000


def test_fragmentation_of_the_caching_allocator() -> None:
    events = Events(start_time=0, step=10)
    events.tensor_alloc(0x1000, 300, allocated=300, reserved=1000)
    events.tensor_alloc(0x2000, 600, allocated=900, reserved=2000)
    events.tensor_free(0x1000, allocated=600, reserved=2000)
    events.tensor_alloc(0x3000, 100, allocated=700, reserved=2000)
    (row,) = run_tool(MemoryTimeline, events).tables["allocator"].rows()
    assert (row["peak_allocated"], row["peak_reserved"]) == (900, 2000)
    assert (row["largest_gap"], row["gap_time"], row["share"]) == (1400, 30, 0.7)
    assert (row["allocated_at_end"], row["reserved_at_end"]) == (700, 2000)


def test_totals_of_the_caching_allocator_follow_from_tensors() -> None:
    dense, sparse = (
        run_tool(MemoryTimeline, allocating(dense=dense), splits=splits)
        for dense, splits in ((True, []), (False, [3, 4]))
    )
    (row,) = sparse.tables["allocator"].rows()
    assert row == next(iter(dense.tables["allocator"].rows()))
    assert (row["peak_allocated"], row["peak_reserved"]) == (950, 2000)
    assert (row["allocated_at_end"], row["reserved_at_end"]) == (350, 1500)
    assert (row["largest_gap"], row["share"]) == (1400, 0.7)
    assert sparse.summary == dense.summary


def test_freed_allocations_are_bounded_except_at_the_peak() -> None:
    events = Events()
    for number in range(20):
        events.alloc(0x1000, 10 + number)
        events.free(0x1000)
    for number in range(5):
        events.alloc(0x1000 * (number + 1), 7)
    for number in range(5):
        events.free(0x1000 * (number + 1))
    result = run_tool(MemoryTimeline, events, options={"keep": 2})
    sizes = [row["bytes"] for row in result.tables["allocations"].rows()]
    assert sizes == [29, 28, 7, 7, 7, 7, 7]
    assert "18 smaller freed allocations are not in the table" in result.summary
    assert len(result.tables["at_peak"]) == 5


def test_sizes_over_four_gibibytes_add_up() -> None:
    events = Events()
    for number in range(3):
        events.alloc(number << 40, 3 << 32)
    assert peaks(run_tool(MemoryTimeline, events))[("memory", 0, "total", False)]["peak"] == 9 << 32


def test_downsampled_timeline_keeps_maxima_and_last_levels() -> None:
    rng = np.random.default_rng(5)
    times = np.cumsum(rng.integers(1, 1 << 16, 5000)).astype(np.uint64)
    levels = rng.integers(0, 1000, 5000)
    timeline = LevelTimeline(0, 64)
    for part in np.array_split(np.arange(5000), 13):
        timeline.add(times[part], levels[part])
    assert timeline.used <= 64
    peak_times, peaks = timeline.peaks
    begun = {
        int(time) >> timeline.shift: (int(time), int(peak))
        for time, peak in zip(peak_times, peaks, strict=True)
    }
    previous = 0
    for time, highest, last in zip(timeline.times, timeline.highest, timeline.last, strict=True):
        inside = (times >= time) & (times < time + timeline.width)
        expected = levels[inside].tolist()
        assert highest == max([previous, *expected])
        if expected:
            first = int(times[inside][np.argmax(levels[inside])])
            assert begun[int(time) >> timeline.shift] == (first, max(expected))
        previous = expected[-1] if expected else previous
        assert last == previous


def test_charts_reach_the_end_of_the_run() -> None:
    """Memory that is never freed stays in the picture."""
    events = Events(start_time=0)
    events.alloc(0x1000, 4096)
    events.add("process_end", time=1 << 40)
    figure = run_tool(MemoryTimeline, events).figures["memory_0"]
    assert len(figure.x) <= 1025 and figure.x[-1] >= (1 << 40) - figure.x[1]
    assert figure.series["device"][-1] == 4096


# ---- findings -------------------------------------------------------------------------------


def test_steadily_growing_memory_is_a_finding() -> None:
    events = Events(start_time=0, step=1000)
    events.alloc(0x20_0000, 4800, "pinned")  # once
    for number in range(16):
        events.alloc(0x1000 * number, 300)
        events.alloc(0x10_0000, 1200)
        events.free(0x10_0000)
    for number in range(16):
        events.free(0x1000 * number)  # as a program does at exit
    (found,) = run_tool(MemoryTimeline, events, options={"leaked": 4800}).findings
    assert found.where == "device 0, device memory"
    assert (found.gain, found.of) == (4800 / 6000, "the peak of device memory")
    assert "16 allocations of 300 B were live at once" in found.evidence
    assert "made between 2.00 us and 47.00 us, the end" in found.evidence
    assert not run_tool(MemoryTimeline, events, options={"leaked": 4801}).findings


def test_leaked_memory_has_its_python_line() -> None:
    events = Events()
    events.frames(1, ("/my/load.py", "stage", 4))
    for number in range(16):
        events.operator("aten::_pin_memory", stack=1)
        events.alloc(0x1000 * number, 300, "pinned")
        events.operator_end()
    tensors = next(iter(find_tools("tensors")))
    tools = [MemoryTimeline({"leaked": 1}), tensors({})]
    (found,) = run_tools(tools, events)["memory_timeline"].findings
    assert found.where == ("device 0, pinned memory, load.py:4 stage")
    assert found.remedy.startswith("load.py:4 stage: free each allocation after use")


def test_allocations_at_startup_are_not_leaks() -> None:
    events = Events()
    for number in range(16):
        events.alloc(0x1000 * number, 300)
    for _ in range(16):
        events.alloc(0x10_0000, 800)
        events.free(0x10_0000)
    assert not run_tool(MemoryTimeline, events, options={"leaked": 1}).findings


def test_unused_reserved_memory_is_a_finding() -> None:
    events = Events()
    events.alloc(0x1000, 2000)  # the caching allocator's own: no leak
    events.tensor_alloc(0x1000, 300, allocated=300, reserved=1000)
    events.tensor_alloc(0x1200, 600, allocated=900, reserved=2000)
    options = {"gap": 1100, "leaked": 1}
    (found,) = run_tool(MemoryTimeline, events, options=options).findings
    assert (found.gain, found.of) == (0.55, "reserved memory")
    assert found.where == "device 0, caching allocator"
    assert not run_tool(MemoryTimeline, events, options={**options, "gap": 1101}).findings
    assert not run_tool(MemoryTimeline, events, options={**options, "gap_share": 0.56}).findings


def test_fragmentation_finding_names_the_line() -> None:
    events = Events()
    events.alloc(0x1000, 2000)
    events.frames(1, ("/my/train.py", "main", 8))
    for number in range(20):
        events.operator("aten::empty", stack=1)
        size = 1000 + 100 * number
        events.tensor_alloc(0x1000, size, stack=1, allocated=size, reserved=2000 * (number + 1))
        events.operator_end()
        events.tensor_free(0x1000)
    tensors = next(iter(find_tools("tensors")))
    tools = [MemoryTimeline({"gap": 1}), tensors({})]
    (found,) = run_tools(tools, events)["memory_timeline"].findings
    assert found.where == "device 0, caching allocator, train.py:8 main"
    assert "20 distinct sizes were requested at that line" in found.evidence
    assert found.remedy.startswith(
        "train.py:8 main: pad tensors to a few sizes, or run with PYTORCH_"
    )


def test_memory_reserved_before_the_run_is_not_a_finding() -> None:
    """As in a block of the program that begins with a filled cache."""
    events = Events()
    events.alloc(0x9000, 100, "pinned")
    events.tensor_alloc(0x1000, 300, allocated=300, reserved=5000)
    events.tensor_alloc(0x1200, 600, allocated=900, reserved=6000)
    assert not run_tool(MemoryTimeline, events, options={"gap": 101}).findings
    (found,) = run_tool(MemoryTimeline, events, options={"gap": 100, "gap_share": 0.0}).findings
    assert found.gain == pytest.approx(100 / 6000)
