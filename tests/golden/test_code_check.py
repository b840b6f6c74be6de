"""Violations of rules, with counts known from arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pasta.plugins import find_tools
from pasta.rules import Calls, Rules, Violation, rule
from pasta.testing import Events, run_tool
from pasta.tool import Result

(CodeCheck,) = find_tools("code_check")
A, B = 0x10_0000, 0x20_0000
MIB = 1 << 20


def broken(result: Result) -> list[tuple[str, int]]:
    return [(row["rule"], row["count"]) for row in result.tables["violations"].rows()]


def checked(events: Events, **options: Any) -> Result:
    result = run_tool(CodeCheck, events, options=options, splits=[len(events) // 3])
    assert not result.notes
    return result


def wait(events: Events, duration: int) -> None:
    events.add("sync", device=0, what=1, duration=duration)


def test_waits_after_one_of_two_kernels() -> None:
    events = Events(step=1000)
    for number in range(120):
        events.push("step")
        for _ in range(5):
            events.launch("work")
        events.launch("reduce")
        wait(events, 3000)
        if number % 2:  # not right after a launch
            wait(events, 10)
        events.pop()
    result = checked(events)
    assert broken(result) == [("wait_after_launch", 120)]
    (finding,) = result.findings
    assert finding.where == "reduce in step"
    span = (120 * 9 + 60 - 3) * 1000  # without the first push and the last pop
    assert finding.gain == pytest.approx(min(360_000, span - 360_000) / span, rel=0.01)
    assert broken(checked(events, waits=121)) == []


def test_waits_after_nearly_all_launches_are_left_to_kernel_freq() -> None:
    events = Events()
    for _ in range(200):
        events.launch("work")
        wait(events, 900)
    assert broken(checked(events)) == []


def test_allocations_that_each_step_frees_again() -> None:
    events = Events(step=1000)
    for _ in range(40):
        events.alloc(A, 4096)
        events.launch("work")
        events.free(A)
    events.alloc(B, 64)
    result = checked(events)
    assert broken(result) == [("allocation_in_loop", 40)]
    # 40 * 20 us of 120 us: all of it
    assert result.findings[0].gain == 1.0
    assert broken(checked(events, allocations=41)) == []
    assert broken(checked(events, allocation_cost="100ns")) == []  # 4 us of 120 us


def test_a_pool_that_is_filled_and_emptied_is_no_loop() -> None:
    events = Events()
    for number in range(40):
        events.alloc(A + number * 0x1000, 4096)
        events.launch("work")
    for number in range(40):
        events.free(A + number * 0x1000)
    assert broken(checked(events)) == []


def test_launches_below_one_wave() -> None:
    events = Events(start_time=0, step=1000)
    events.device(architecture="sm_90", multiprocessors=100, warp=32)  # 800 blocks of 256 threads
    full = {"block": (256, 1, 1), "registers": 32, "shared_static": 0, "shared_dynamic": 0}
    for number in range(200):
        ordinal = events.launch("small", grid=(80, 1, 1), **full)
        events.complete(ordinal, number * 2000, number * 2000 + 1000)
        events.launch("large", grid=(800, 1, 1), **full)
    result = checked(events)
    assert broken(result) == [("below_one_wave", 200)]
    assert result.findings[0].where == "small"
    # nine tenths of 200 us, of 600 events 1 us apart without the properties and the last two
    assert result.findings[0].gain == pytest.approx(180 / 599, rel=0.005)


def test_memory_of_many_sizes_that_grows() -> None:
    events = Events()
    for number in range(20):
        events.launch("begin")
        events.alloc(A + number * MIB, MIB // 4 + number * 1024)
        events.launch("work")
        events.launch("work")
    result = checked(events)
    assert broken(result) == [("growing_memory", 14)]  # from the sixth of 20 steps to the last
    growth = sum(MIB // 4 + number * 1024 for number in range(5, 19))
    levels = sum(MIB // 4 + number * 1024 for number in range(19))
    assert result.findings[0].gain == pytest.approx(growth / levels)
    assert broken(checked(events, grown=growth + 1)) == []


def test_growth_by_equal_allocations_is_left_to_memory_timeline() -> None:
    events = Events()
    for number in range(20):
        events.launch("begin")
        events.alloc(A + number * MIB, MIB // 4)
    assert broken(checked(events)) == []


def set_memory(events: Events, address: int, bytes: int, height: int = 1) -> None:
    events.add("memory_set", device=0, address=address, bytes=bytes, height=height, correlation=0)


def test_sets_that_the_next_copy_overwrites() -> None:
    events = Events()
    events.alloc(A, 8 * MIB)
    events.alloc(B, 8 * MIB, "managed")
    for _ in range(3):
        set_memory(events, A, 8 * MIB)
        events.copy("host_to_device", 0x9_0000, A, 8 * MIB, device=0, correlation=0)
        events.launch("work")
        set_memory(events, A, 8 * MIB)
        events.launch("work")  # may read it
        set_memory(events, A, 8 * MIB)
        events.copy("host_to_device", 0x9_0000, A, 4 * MIB, device=0, correlation=0)  # not all
        events.launch("work")
        set_memory(events, B, 8 * MIB)  # the host may read it
        set_memory(events, B, 8 * MIB)
        events.launch("work")
    result = checked(events)
    assert broken(result) == [("unneeded_set", 3)]
    assert result.findings[0].confidence == "high"
    assert "3 sets of 24.00 MiB" in result.findings[0].evidence


def test_sets_of_rows_with_gaps_are_not_covered() -> None:
    """As many bytes, in rows with a pitch: which of them are overwritten is not known."""
    events = Events()
    events.alloc(A, 32 * MIB)
    for first, second in ((1, 8), (8, 1), (8, 8)):
        for _ in range(2):
            set_memory(events, A, 8 * MIB, first)
            set_memory(events, A, 8 * MIB, second)
            events.launch("work")
    assert broken(checked(events, sets=1)) == []


def test_the_default_stream_between_others() -> None:
    events = Events()
    for _ in range(100):
        events.launch("a", stream=1)
        events.launch("b", stream=2)
        events.launch("c", stream=0)
    assert broken(checked(events)) == [("default_stream", 100)]
    assert broken(checked(events, switches=101)) == []


class MyRules(Rules):
    """Two rules, of which one fails."""

    @rule("copies of one byte")
    def one_byte(self, calls: Calls) -> Iterator[Violation]:
        for site, found in calls.sites(calls.of("memory_copy") & (calls.rows["bytes"] == 1)):
            yield Violation(site, len(found), "of one byte", "copy more")

    @rule("nothing")
    def fails(self, calls: Calls) -> Iterator[Violation]:
        raise RuntimeError("no such thing")


def test_a_rule_of_ones_own_has_operators_and_lines() -> None:
    events = Events()
    events.frames(7, ("/home/me/train.py", "step", 12))
    for size in (1, 1, 2):
        events.operator("aten::copy_", stack=7)
        events.copy("host_to_device", A, B, size)
        events.operator_end()
    result = run_tool(MyRules, events)
    (row,) = result.tables["violations"].rows()
    assert (row["rule"], row["count"], row["operator"]) == ("one_byte", 2, "aten::copy_")
    assert row["line"] == "train.py:12 step"
    assert result.findings[0].remedy == "train.py:12 step: copy more"
    assert result.notes == ["rule fails failed: RuntimeError: no such thing"]


def test_the_cache_of_an_allocator_that_a_loop_empties() -> None:
    events = Events()
    events.frames(7, ("/home/me/train.py", "step", 12))
    for _ in range(40):
        events.operator("aten::empty", stack=7)
        events.alloc(A, 4096)
        events.operator_end()
        events.launch("work")
        events.free(A)
    (finding,) = checked(events).findings
    assert finding.where == "aten::empty at train.py:12 step"
    assert finding.remedy.startswith("train.py:12 step: do not empty the framework")
