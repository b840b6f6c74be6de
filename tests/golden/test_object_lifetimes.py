"""Patterns of lifetimes and savings of peak memory known from arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pasta.plugins import find_tools
from pasta.processors.packing import Packing
from pasta.testing import Events, run_tool
from pasta.tool import Result

(ObjectLifetimes,) = find_tools("object_lifetimes")
A, B, C, D, E = (0x10_0000 * each for each in range(1, 6))
KIB = 1024
SMALL = {"least": "1KiB"}


def rows(result: Result) -> dict[tuple[str, int], dict[str, Any]]:
    return {(row["pattern"], row["object_address"]): row for row in result.tables["objects"].rows()}


def use(events: Events, kernel: str, *addresses: int) -> None:
    events.launch(kernel)
    for address in addresses:
        events.access("global", [address])


def every_pattern() -> Events:
    """Launches 0 to 4. A: 4 KiB used by 0 and 4; B: 8 KiB, first used by 3, never freed; C: 2 KiB,
    used by 0, freed after 3; D: 1 KiB, never used; E: 2 KiB, used by 2, allocated while C lives."""
    events = Events()
    events.alloc(A, 4 * KIB)
    events.alloc(B, 8 * KIB)
    events.alloc(C, 2 * KIB)
    events.alloc(D, 1 * KIB)
    use(events, "first", A, C)
    use(events, "other")
    events.alloc(E, 2 * KIB)
    use(events, "other", E)
    use(events, "third", B)
    events.free(C)
    use(events, "last", A)
    events.free(E)
    events.free(D)
    events.free(A)
    return events


def test_patterns_have_distances_in_launches() -> None:
    result = run_tool(ObjectLifetimes, every_pattern(), splits=[3, 9])
    found = {key: row["launches"] for key, row in rows(result).items()}
    assert found == {
        ("early allocation", B): 3,
        ("leak", B): 1,
        ("late free", C): 3,
        ("unused allocation", D): 5,
        ("temporary idleness", A): 3,
        ("late free", E): 2,
        ("redundant allocation", E): 1,
    }
    idle = rows(result)["temporary idleness", A]
    assert (idle["before"], idle["after"], idle["times"]) == (0, 4, 1)
    assert rows(result)["redundant allocation", E]["partner"].startswith("device 2.00 KiB")


def test_savings_come_from_the_packed_timeline() -> None:
    result = run_tool(ObjectLifetimes, every_pattern(), options=SMALL)
    saved = {key: row["saved"] for key, row in rows(result).items()}
    # 17 KiB are live from the allocation of E to the free of C, 15 KiB before and after
    assert saved == {
        ("early allocation", B): 0,  # launch 3 uses it before C is freed
        ("leak", B): 0,
        ("late free", C): 2 * KIB,
        ("unused allocation", D): 1 * KIB,
        ("temporary idleness", A): 2 * KIB,  # not 4: 15 KiB at launch 0
        ("late free", E): 0,
        ("redundant allocation", E): 2 * KIB,
    }
    (peak,) = result.tables["peaks"].rows()
    assert (peak["peak"], peak["peak_after"]) == (17 * KIB, 8 * KIB)  # B alone, at launch 3
    figure = result.figures["memory_0"]
    assert list(figure.x) == [0, 1, 2, 3, 4, 5]  # launches before
    assert [each // KIB for each in figure.series["live"]] == [15, 15, 17, 17, 17, 15]
    assert [each // KIB for each in figure.series["with all changes"]] == [6, 6, 2, 8, 8, 4]
    groups = {
        row["pattern"]: (row["objects"], row["saved"], row["beside"])
        for row in result.tables["patterns"].rows()
    }
    assert groups == {
        "early allocation": (1, 0, 6 * KIB),  # all others: A, B and C at launch 0
        "late free": (2, 2 * KIB, 4 * KIB),  # B, C and E at launch 3
        "leak": (1, 0, 4 * KIB),  # A and B at launch 4
        "temporary idleness": (1, 2 * KIB, 4 * KIB),
        "redundant allocation": (1, 2 * KIB, 0),  # C is freed before
        "unused allocation": (1, 1 * KIB, 1 * KIB),
    }
    assert [(each.what, each.gain) for each in result.findings] == [
        ("memory is allocated long before its first use", 6 / 17),
        ("memory is freed long after its last use", 4 / 17),
        ("memory is never freed after its last use", 4 / 17),
        ("memory is held while unused, and used again later", 4 / 17),
        ("memory is allocated although memory of the same size is no longer used", 2 / 17),
        ("memory is allocated and never used", 1 / 17),
    ]
    assert "first (launch 0), to the free" in result.findings[1].evidence
    assert "8.00 KiB with all changes, and 12.00 KiB without" in result.findings[1].evidence


def test_several_objects_of_a_site_save_together() -> None:
    events = Events()
    for number in range(4):
        events.alloc(A + number * KIB, KIB)
    for _ in range(2):
        use(events, "k", *(A + number * KIB for number in range(4)))
    use(events, "other")
    events.alloc(B, KIB)
    use(events, "k", B)
    for number in range(4):
        events.free(A + number * KIB)
    events.free(B)
    result = run_tool(ObjectLifetimes, events, options=SMALL)
    (late,) = (row for row in result.tables["patterns"].rows() if row["pattern"] == "late free")
    # 5 KiB at the allocation of B, 4 KiB at the first launch
    assert (late["objects"], late["saved"], late["beside"]) == (4, 1 * KIB, 1 * KIB)
    assert late["object"] == "device 1.00 KiB"


def test_devices_count_their_own_launches_and_the_threshold_is_inclusive() -> None:
    events = Events()
    events.alloc(A, KIB)
    use(events, "k", A)
    for _ in range(5):
        events.launch("other", device=1)
    events.alloc(B, 2 * KIB)
    use(events, "k", B)
    use(events, "k", B)
    events.free(B)
    events.free(A)
    for threshold, expected in ((2, {("late free", A)}), (3, set())):
        result = run_tool(ObjectLifetimes, events, options={"threshold": threshold})
        assert set(rows(result)) == expected


def test_copies_and_sets_are_uses_and_their_repeated_writes_are_dead() -> None:
    events = Events()
    events.alloc(A, KIB)
    events.add("memory_set", device=0, address=A, bytes=KIB)
    events.launch("other")
    events.copy("host_to_device", 0x9_0000, A, KIB, height=1)  # covers the set
    events.copy("host_to_device", 0x9_0000, A, KIB // 2, height=1)  # does not cover it
    events.copy("host_to_device", 0x9_0000, A, KIB, height=1, depth=4)  # may have gaps
    events.copy("device_to_host", A, 0x9_0000, KIB, height=1)
    events.free(A)
    result = run_tool(ObjectLifetimes, events)
    assert {key: row["launches"] for key, row in rows(result).items()} == {
        ("temporary idleness", A): 1,
        ("dead write", A): 1,
    }
    dead = rows(result)["dead write", A]
    assert (dead["times"], dead["written"]) == (1, KIB)


def test_without_accesses_only_copies_and_sets_are_uses() -> None:
    events = Events()
    events.alloc(A, KIB)
    events.alloc(B, KIB)
    events.launch("k", flags=0)
    events.copy("host_to_device", 0x9_0000, A, KIB)
    events.free(A)
    events.free(B)
    result = run_tool(ObjectLifetimes, events, options=SMALL)
    assert set(rows(result)) == {("early allocation", A)}  # nothing is said of B
    assert {each.confidence for each in result.findings} <= {"low"}
    assert "from copies and sets only" in result.notes[0]


@pytest.mark.parametrize("device", [0, 1])
def test_launches_that_were_not_probed_may_use_everything(device: int) -> None:
    """Also memory of another device."""
    events = Events()
    events.alloc(A, KIB)
    events.alloc(B, KIB)
    use(events, "k", A)
    events.launch("k")
    events.launch("k", flags=0, device=device)
    events.launch("k")
    events.free(A)
    assert rows(run_tool(ObjectLifetimes, events)) == {}


def test_the_last_launches_of_a_killed_program_may_not_have_run() -> None:
    events = Events()
    events.alloc(A, KIB)
    use(events, "k", A)
    events.alloc(B, KIB)
    events.launch("k")
    assert rows(run_tool(ObjectLifetimes, events)) == {}


def test_memory_of_a_caching_allocator_is_left_to_its_tensors() -> None:
    events = Events()
    events.alloc(A, 8 * KIB)
    events.tensor_alloc(A, KIB)
    events.tensor_alloc(A + KIB, 2 * KIB)
    use(events, "k", A)
    use(events, "k", A)
    events.tensor_free(A)
    use(events, "k", A + KIB)
    events.tensor_free(A + KIB)
    result = run_tool(ObjectLifetimes, events, options=SMALL)
    assert set(rows(result)) == {("early allocation", A + KIB)}
    peaks = {
        row["layer"]: (row["peak"], row["peak_after"]) for row in result.tables["peaks"].rows()
    }
    assert peaks == {"memory": (8 * KIB, 8 * KIB), "tensor": (3 * KIB, 2 * KIB)}


def simulated(objects: list[tuple[int, ...]], removed: set[int]) -> int:
    """Peak of objects (begin, end, size, start, stop), some without their [start, stop)."""
    levels = [0] * 200
    for at, (begin, end, size, start, stop) in enumerate(objects):
        for time in range(begin, end):
            if at not in removed or not start <= time < stop:
                levels[time] += size
    return max(levels)


def test_packing_equals_a_simulation() -> None:
    rng = np.random.default_rng(7)
    for _ in range(30):
        count = int(rng.integers(1, 12))
        begins = rng.permutation(100)[:count].astype(np.int64)
        ends = begins + rng.integers(1, 40, count)
        sizes = rng.integers(1, 9, count)
        starts = np.minimum(begins + rng.integers(0, 20, count), ends)
        stops = np.minimum(starts + rng.integers(0, 20, count), ends)
        packing = Packing(begins, ends, sizes, np.concatenate([starts, stops]))
        columns = (begins, ends, sizes, starts, stops)
        objects = list(zip(*(each.tolist() for each in columns), strict=True))
        peak = simulated(objects, set())
        assert packing.peak == peak
        alone = packing.saved_alone(starts, stops, sizes)
        assert alone.tolist() == [peak - simulated(objects, {at}) for at in range(count)]
        without = packing.peak_without(starts, stops, sizes)
        assert without == simulated(objects, set(range(count)))


def test_reuse_pairs_equal_the_greedy_choice() -> None:
    from pasta.processors.object_uses import USE, DeviceLaunches, ObjectUses

    rng = np.random.default_rng(3)
    for _ in range(40):
        count = int(rng.integers(2, 14))
        first = rng.permutation(200)[:count].astype(np.int64) + 1
        last = first + rng.integers(0, 60, count)
        groups = rng.integers(0, 3, count)
        found = np.zeros(2 * count, USE)
        found["object"] = np.tile(np.arange(count), 2)
        found["position"] = np.concatenate([first, last])
        nothing = np.zeros(0, np.int64)
        uses = ObjectUses(
            np.arange(count), np.zeros(count, np.int64), np.full(count, 1000),
            np.zeros(count, np.int64), found, DeviceLaunches(nothing, nothing, nothing > 0),
        )  # fmt: skip
        expected = set()
        for group in range(3):
            mine = np.flatnonzero(groups == group)
            ended = sorted(mine.tolist(), key=lambda at: last[at])
            for second in sorted(mine.tolist(), key=lambda at: first[at]):
                if ended and last[ended[0]] < first[second]:
                    expected.add((ended.pop(0), second))
        assert set(zip(*(each.tolist() for each in uses.reusable(groups)), strict=True)) == expected
