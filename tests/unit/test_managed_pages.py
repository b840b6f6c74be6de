"""The page simulator on sequences computed by hand; numbers as in test_managed of test_refacc.c."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pasta.processors.managed_advice import Action, Advisor, Unit, applied
from pasta.processors.managed_pages import (
    ACCESSED_BY,
    DEVICE,
    FREE,
    HOST,
    OP,
    PREFER_DEVICE,
    PREFER_HOST,
    READ_MOSTLY,
    TO_DEVICE,
    TO_HOST,
    Costs,
    simulate,
)
from pasta.processors.managed_trace import ManagedPages, Touched, Trace
from pasta.processors.objects import OBJECT

HOST_WRITES = (HOST, 0, 96, 1)
SIMPLE = Costs(fault=10, page=4, remote=16)


def ops(*rows: tuple[int, ...]) -> Any:
    """Operations: what, first, end, write, launch (-1)."""
    return np.asarray([(*row, -1)[:5] for row in rows], OP)


def totals(*rows: tuple[int, ...], pages: int = 96, capacity: int | None = None) -> dict[str, int]:
    """Totals that are not zero."""
    done = simulate(ops(*rows), np.zeros(pages, np.int64), capacity)
    from pasta.processors.managed_pages import METRICS

    return {name: done[name] for name in METRICS if done[name]}


X, FIRST_Y = (0, 32), (32, 33)
CASES: dict[str, tuple[list[tuple[int, ...]], dict[str, int]]] = {
    "first accesses of the host": ([HOST_WRITES], {}),
    # pages 0, 1, 2, 4, 8 and 16 fault, and bring 1, 1, 2, 4, 8 and 16
    "a scan": ([HOST_WRITES, (DEVICE, *X, 1)], {"device_faults": 6, "fault_in": 32}),
    "a page that is nowhere does not move": ([(DEVICE, *X, 1)], {"device_faults": 6}),
    "a second scan": (
        [HOST_WRITES, (DEVICE, *X, 1), (DEVICE, *X, 0)], {"device_faults": 6, "fault_in": 32},
    ),
    "one page": ([HOST_WRITES, (DEVICE, 32, 33, 1)], {"device_faults": 1, "fault_in": 1}),
    "a dense group": (
        [HOST_WRITES, (DEVICE, 0, 1, 0), (DEVICE, 3, 4, 0), (DEVICE, 2, 3, 0)],
        {"device_faults": 3, "fault_in": 4},  # of 0 to 3, with 2 three of four are there
    ),
    "there and back": (
        [HOST_WRITES, (DEVICE, *X, 1), (HOST, *X, 0)],
        {"device_faults": 6, "fault_in": 32, "host_faults": 6, "fault_out": 32},
    ),
    "prefetches": (
        [HOST_WRITES, (DEVICE, 32, 33, 1), (TO_DEVICE, 32, 64, 0), (TO_HOST, 32, 64, 0)],
        {"device_faults": 1, "fault_in": 1, "prefetch_in": 31, "prefetch_out": 32},
    ),
    "read mostly": (
        [HOST_WRITES, (READ_MOSTLY, *X, 1), (DEVICE, 0, 1, 0), (HOST, 0, 1, 0), (HOST, 0, 1, 1),
         (DEVICE, 0, 1, 0), (DEVICE, 0, 1, 1)],
        {"device_faults": 3, "fault_in": 2, "host_faults": 1},
    ),
    "prefers the host": (
        [HOST_WRITES, (PREFER_HOST, *X, 1), (DEVICE, 0, 1, 0), (DEVICE, 0, 1, 0)],
        {"device_faults": 1, "remote": 2},
    ),
    "accessed by the device": (
        [HOST_WRITES, (ACCESSED_BY, *X, 1), (DEVICE, 0, 2, 0)], {"remote": 2},
    ),
    "freed": (
        [HOST_WRITES, (DEVICE, *X, 1), (FREE, *X, 0), (DEVICE, *X, 1)],
        {"device_faults": 12, "fault_in": 32},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_sequences(name: str) -> None:
    given, expected = CASES[name]
    assert totals(*given) == expected


def test_the_least_recently_used_block_is_evicted() -> None:
    """Two blocks fit; of x, y and z, x was used before y."""
    given = [HOST_WRITES, (DEVICE, *X, 1), (DEVICE, 32, 64, 1), (DEVICE, 64, 96, 1)]
    assert totals(*given, capacity=64) == {"device_faults": 18, "fault_in": 96, "evicted": 32}
    again = [*given, (DEVICE, 32, 64, 0)]
    assert totals(*again, capacity=64) == totals(*given, capacity=64)
    pinned = [(PREFER_DEVICE, *X, 1), *given, (DEVICE, *X, 0)]
    assert totals(*pinned, capacity=64) == totals(*given, capacity=64)


@pytest.mark.parametrize("lost", [(PREFER_DEVICE, 32, 33, 0), (HOST, 32, 33, 1)])
def test_a_block_that_no_longer_prefers_the_device_is_evicted_in_its_turn(
    lost: tuple[int, ...],
) -> None:
    """After blocks that were used later were evicted instead of it."""
    given = [
        (PREFER_DEVICE, 32, 33, 1),
        *((DEVICE, first, first + 32, 1) for first in (32, 64, 96)),
        lost,
        (DEVICE, 128, 160, 1),
    ]
    kept = totals(*given, (DEVICE, 96, 128, 0), pages=160, capacity=64)
    assert kept == totals(*given, pages=160, capacity=64)
    again = totals(*given, (DEVICE, 64, 96, 0), pages=160, capacity=64)
    assert again["device_faults"] > kept["device_faults"]


def test_a_cycle_longer_than_the_device_misses_always() -> None:
    cycle = [(DEVICE, 32 * at, 32 * at + 32, 0) for _ in range(5) for at in range(3)]
    assert totals(*cycle, capacity=64)["device_faults"] == 15 * 6
    assert totals(*cycle)["device_faults"] == 3 * 6


def test_groups_end_with_the_allocation() -> None:
    owner = np.asarray([0] * 3 + [1] * 29, np.int64)
    done = simulate(ops((DEVICE, 0, 3, 1), (DEVICE, 3, 4, 1)), owner)
    # 0; 1 brings the third, because two of three are more than 51 %; page 3 alone
    assert done.totals[:, 0].tolist() == [2, 1]


def allocations(*sizes: int) -> ManagedPages:
    """Allocations at multiples of 2 MiB, one after the other, live from time 0."""
    rows = np.zeros(len(sizes), OBJECT)
    rows["bytes"] = sizes
    blocks = [-(-size // (2 << 20)) for size in sizes]
    rows["address"] = (1 << 40) + (np.cumsum([0, *blocks[:-1]]) << 21)
    rows["free_time"] = np.iinfo(np.uint64).max
    return ManagedPages(rows)


def test_pages_of_allocations() -> None:
    pages = allocations(3 << 20, 65536, 100)
    assert pages.counts.tolist() == [48, 1, 1] and pages.firsts.tolist() == [0, 64, 96]
    base = 1 << 40
    addresses = np.asarray([base + 65536, base + (4 << 20) + 5, base + (7 << 20), 5], np.uint64)
    found = pages.locate(addresses, np.zeros(4, np.uint64))
    assert found.tolist() == [0, 1, -1, -1]
    assert pages.page(found[:2], addresses[:2]).tolist() == [1, 64]
    assert pages.peak() == 50


def test_touched_pages_become_ranges() -> None:
    touched = Touched.of([1, 0, 0, 0, 0], [7, 3, 2, 2, 4], [0, 0, 0, 1, 0])
    ranges = touched.ranges()[["first", "end", "write", "launch"]].tolist()
    assert ranges == [(2, 3, 1, 0), (3, 5, 0, 0), (7, 8, 0, 1)]


def test_calls_of_the_program_are_operations() -> None:
    pages = allocations(2 << 20)
    calls = np.zeros(
        3, [("time", "u8"), ("address", "u8"), ("bytes", "u8"), ("advice", "u4"),
            ("destination", "i2")],
    )  # fmt: skip
    calls["time"], calls["address"], calls["bytes"] = [3, 1, 2], 1 << 40, 1 << 20
    calls["advice"], calls["destination"] = [0, 1, 3], [0, 0, -1]
    trace = Trace(pages)
    trace.add_calls(calls)
    assert trace.ops()[["what", "first", "end", "write"]].tolist() == [
        (READ_MOSTLY, 0, 16, 1), (PREFER_HOST, 0, 16, 1), (TO_DEVICE, 0, 16, 0),
    ]  # fmt: skip


def launched(*rows: tuple[int, ...]) -> Any:
    """Operations with the launch as fifth field."""
    return np.asarray(list(rows), OP)


def advised(given: Any, capacity: int | None = None, pages: int = 1) -> list[tuple[Any, ...]]:
    advisor = Advisor(given, allocations(*[2 << 20] * pages), capacity, SIMPLE)
    return [
        (each.action.name, each.action.launches, each.faults, each.bytes, each.time)
        for each in advisor.advise(Unit(0, 0, 0, 32), 1)
    ]


def test_advice_saves_what_arithmetic_says() -> None:
    page_in = 6 * 10 + 32 * 4
    write = launched((HOST, 0, 32, 1, -1), (DEVICE, 0, 32, 1, 0))
    assert advised(write) == [("prefetch", (0,), 6, 0, 60.0)]
    both_read = launched(
        (HOST, 0, 32, 1, -1), (DEVICE, 0, 32, 0, 0), (HOST, 0, 32, 0, -1),
        (DEVICE, 0, 32, 0, 1), (HOST, 0, 32, 0, -1),
    )  # fmt: skip
    assert advised(both_read) == [
        ("read_mostly", (), 18, 96, 3.0 * page_in), ("prefetch", (0,), 6, 0, 60.0),
    ]  # fmt: skip
    exchange = launched(
        (HOST, 0, 32, 1, -1), (DEVICE, 0, 32, 1, 0), (HOST, 0, 32, 0, -1), (DEVICE, 0, 32, 1, 1),
    )  # fmt: skip
    assert advised(exchange) == [
        ("prefetch", (0, 1), 12, 0, 120.0), ("evict", (0,), 6, 0, 60.0),
    ]  # fmt: skip
    one_page = launched(
        *[row for at in range(4) for row in ((HOST, 0, 1, 1, -1), (DEVICE, 0, 1, 0, at))]
    )
    # 4 faults, and 3 of the host, with as many moves; remote: 64; read mostly: as many faults
    assert advised(one_page)[0][0] == "prefetch"
    assert advised(launched((HOST, 0, 32, 1, -1))) == []


def test_pages_that_are_evicted_are_pinned() -> None:
    """Two blocks fit. One block is used again after each two that are used once: it is evicted
    three times, and pinned it stays."""
    rows = []
    for at in range(4):
        rows.append((DEVICE, 0, 32, 1, 3 * at))
        for each in (1, 2):
            first = 32 * (2 * at + each)
            rows.append((DEVICE, first, first + 32, 1, 3 * at + each))
    saved = 3 * (6 * 10 + 2 * 32 * 4)
    found = advised(launched(*rows), capacity=64, pages=9)
    assert found[0] == ("pin", (), 18, 2 * 3 * 32, float(saved))


def test_actions_of_launches_are_around_them() -> None:
    given = launched((DEVICE, 0, 1, 0, 3), (DEVICE, 5, 6, 0, 3), (DEVICE, 0, 1, 0, 4))
    made = applied(given, Unit(0, 0, 0, 32), [Action("prefetch", (4,)), Action("evict", (3,))])
    assert made["what"].tolist() == [DEVICE, DEVICE, TO_HOST, TO_DEVICE, DEVICE]
    assert applied(given, Unit(0, 0, 0, 32), [Action("prefetch", (9,))]).tolist() == given.tolist()
