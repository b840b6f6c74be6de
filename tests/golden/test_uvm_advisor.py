"""The tool uvm_advisor on events with counts known from arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

from pasta import abi
from pasta.processors.managed_plan import Allocation, LaunchKey
from pasta.testing import run_tool
from tests.support.managed import (
    BLOCK,
    PAGE,
    PAGE_NS,
    READ,
    TOOL,
    A,
    B,
    Program,
    exchange,
    plan,
    rows,
    training,
)


@pytest.mark.parametrize("splits", [[], range(3, 60, 7)])
def test_faults_and_moves_by_object_and_kernel(splits: Any) -> None:
    result = run_tool(TOOL, exchange(), splits=splits)
    columns = ("faults", "host_faults", "to_device", "to_host", "fault_time", "move_time")
    assert rows(result, "objects", "object_address", *columns, "reads", "writes") == [
        (A, 12, 6, 2 * BLOCK, BLOCK, 18_000, 9_600, 64, 0),
        (B, 12, 6, BLOCK, BLOCK, 18_000, 6_400, 0, 64),
    ]
    assert rows(result, "kernels", "kernel", "launches", "faults", "to_device") == [
        ("step", 2, 24, 3 * BLOCK), ("other", 1, 0, 0),
    ]  # fmt: skip
    assert rows(result, "launches", "launch", "touched", "faults", "fault_time") == [
        (0, 64 * PAGE, 12, 12_000), (1, 64 * PAGE, 12, 12_000), (2, 0, 0, 0),
    ]  # fmt: skip
    found = rows(result, "parts", "object_address", "offset", "launches", "reads", "writes")
    assert found == [(A, 0, 2, 64, 0), (B, 0, 2, 0, 64)]
    timeline = rows(result, "timeline", *columns)
    assert [sum(column) for column in zip(*timeline, strict=True)] == [
        24, 12, 3 * BLOCK, 2 * BLOCK, 36_000, 16_000,
    ]  # fmt: skip


def test_the_simulator_repeats_what_happened() -> None:
    result = run_tool(TOOL, exchange())
    found = rows(result, "simulation", "plan", "factor", "faults", "host_faults", "moved", "time")
    assert found[0] == ("no plan", 1.0, 24, 12, 5 * BLOCK, 36_000.0 + 160 * PAGE_NS)
    by_plan = {(row[0], row[1]): row for row in found}
    # a prefetch moves what faults would, without the faults of the device
    assert by_plan["object-level", 1.0][2:5] == (0, 12, 5 * BLOCK)
    assert by_plan["advice", 1.0][2:5] == (0, 0, 5 * BLOCK)
    assert "simulation with pages" in result.notes[0]


def test_advice_and_its_plan() -> None:
    result = run_tool(TOOL, exchange())
    columns = ("level", "object_address", "action", "kernels", "launches", "faults_saved")
    assert sorted(rows(result, "advice", *columns, "bytes_saved", "time_saved")) == [
        ("object-level", A, "evict", "step", 1, 6, 0, 6_000.0),
        ("object-level", A, "prefetch", "step", 2, 12, 0, 12_000.0),
        ("object-level", B, "evict", "step", 1, 6, 0, 6_000.0),
        ("object-level", B, "prefetch", "step", 2, 12, 0, 12_000.0),
    ]
    entries = {(each.action, each.allocation.occurrence): each for each in plan(result)}
    assert set(entries) == {("prefetch", 0), ("prefetch", 1), ("evict", 0), ("evict", 1)}
    prefetch, evict = entries["prefetch", 0], entries["evict", 1]
    assert (prefetch.allocation, prefetch.offset, prefetch.bytes) == (Allocation(BLOCK), 0, BLOCK)
    assert prefetch.launch == LaunchKey("step", (4, 1, 1), None)
    assert evict.launch == LaunchKey("step", (4, 1, 1), 0)
    assert "would save 36.00 us of 52.00 us" in result.summary
    (worst, *_) = result.findings
    assert worst.what == "launches fault on managed memory" and worst.confidence == "medium"
    assert "12 faults" in worst.evidence and "--apply-uvm-plan" in worst.remedy


def test_memory_that_both_only_read() -> None:
    events = Program()
    events.alloc(A, BLOCK, "managed")
    for _ in range(3):
        events.kernel("look", range(32), scans=(0,))
        events.scan(0, READ, host=True)
    result = run_tool(TOOL, events)
    first, *_ = rows(result, "advice", "action", "faults_saved", "bytes_saved", "time_saved")
    # after the first scan nothing moves: 2 of 3 scans of the device and 3 of the host are saved
    assert first == ("read_mostly", 30, 5 * BLOCK, 5 * (6_000.0 + 32 * PAGE_NS))
    assert result.findings[0].what.startswith("managed memory that launches only read")
    entry, *_ = plan(result)
    assert (entry.action, entry.launch) == ("read_mostly", None)


def test_launches_by_graphs_are_not_in_the_plan() -> None:
    """The launch of the program is the first of its kind, though a graph launched one before."""
    events = Program()
    events.alloc(A, 2 * BLOCK, "managed")
    graph = abi.FLAG_PROBED | abi.FLAG_GRAPH
    events.kernel("k", range(32), range(32), flags=graph, scans=(0,))
    events.kernel("k", range(32, 64), range(32, 64), scans=(32,))
    result = run_tool(TOOL, events)
    assert [row[0] for row in rows(result, "advice", "launches")] == [2]
    (entry,) = plan(result)
    assert entry.launch == LaunchKey("k", (4, 1, 1), 0)
    assert any("graph launches" in note for note in result.notes)


def test_without_accesses_launches_touch_what_faulted() -> None:
    with_accesses, without = exchange(), exchange()
    without._accesses.clear()
    results = [run_tool(TOOL, each) for each in (with_accesses, without)]
    simulated = [rows(each, "simulation", "plan", "factor", "faults", "moved") for each in results]
    assert simulated[1][0] == simulated[0][0]
    assert any("accesses were not recorded" in note for note in results[1].notes)
    assert "reads" in results[1].tables["objects"].hidden


def test_programs_without_managed_memory() -> None:
    events = Program()
    events.alloc(A, BLOCK)
    events.kernel("k", [0])
    assert run_tool(TOOL, events).summary == "no managed memory was allocated"
    events = Program()
    events.alloc(A, BLOCK, "managed")
    events.kernel("k", [0])
    result = run_tool(TOOL, events)
    assert "0 faults of devices" in result.summary and plan(result)[0].action == "prefetch"


def test_tensors_and_objects_side_by_side() -> None:
    result = run_tool(TOOL, training())
    assert {row[0] for row in rows(result, "advice", "level")} == {"object-level", "tensor-level"}
    moved = {
        (plan, factor): bytes
        for plan, factor, bytes in rows(result, "simulation", "plan", "factor", "moved")
    }
    # objects: each launch prefetches 8 blocks; tensors: 2, of which a third of 8 holds them
    assert moved["object-level", 1.0] == moved["tensor-level", 1.0] == 0
    assert moved["tensor-level", 3.0] < moved["object-level", 3.0]
    assert moved["tensor-level", 3.0] == moved["no plan", 3.0]
    tensors = rows(result, "tensors", "shape", "tensors", "faults", "fault_time")
    assert tensors == [("524288", 8, 48, 48_000)]
    operators = rows(result, "operators", "operator", "launches", "faults")
    assert operators == [("aten::add", 8, 48)]


def test_events_of_the_vendor_that_lack_fields() -> None:
    """Faults without an end, of unknown access, and thrashing, which is no fault."""
    events = Program()
    events.alloc(A, BLOCK, "managed")
    events.kernel("k", [0])
    events.complete(7, events.now, (1 << 64) - 1, time=events.now)  # no launch, no end
    events.add("uvm_fault", address=A, start=events.now, cause=1, count=3, time=events.now)
    events.add("uvm_thrashing", address=A, start=events.now, cause=4, time=events.now)
    result = run_tool(TOOL, events)
    assert rows(result, "objects", "faults", "host_faults", "fault_time") == [(0, 3, 0)]
    assert rows(result, "kernels", "kernel", "launches") == [("k", 1)]


@pytest.mark.parametrize("ordinals", [(0,), (0, 1)])
def test_launches_that_were_lost_charge_no_other(ordinals: tuple[int, ...]) -> None:
    """The completion of a launch whose event is missing, and a fault during it."""
    events = Program()
    events.alloc(A, BLOCK, "managed")
    for ordinal in ordinals:
        events.launch("k", ordinal=2 * ordinal, time=events.now)
        events.complete(2 * ordinal, events.now, events.now + 10, time=events.now + 10)
        events.now += 100
    events.complete(1, events.now, events.now + 5000, time=events.now)
    events.fault(0, READ)
    result = run_tool(TOOL, events)
    assert sum(faults for (faults,) in rows(result, "kernels", "faults")) == 0
    assert rows(result, "objects", "faults") == [(1,)]


def test_evidence_says_what_grows() -> None:
    from pasta.processors.managed_advice import Action, Advice, Unit
    from tools.uvm_advisor import _more_or_less

    advice = Advice(Unit(0, 0, 0, 1), Action("prefetch"), 8, -PAGE, 1.0, "")
    assert _more_or_less(advice) == "8 faults fewer, 64.00 KiB of moves more"
    assert abi.REASON_EVICTION == 4
