"""Totals of caching allocators, from few records of them."""

from __future__ import annotations

import pickle
from collections.abc import Iterable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pasta import abi
from pasta.processors.allocator_states import ALLOCATOR_STATE, AllocatorStates
from pasta.testing import Events
from tests.support.allocators import CachingAllocator, allocating
from tests.support.examples import examples

Row = tuple[int, int, int, int]  # position, device, allocated, reserved


def followed(events: Events, splits: Iterable[int] = ()) -> list[Row]:
    """The rows of all batches, each of which is followed by another, pickled, object."""
    states, found = AllocatorStates(), []
    for batch in events.batches(splits):
        rows = states.feed(batch)
        assert rows.dtype == np.dtype(ALLOCATOR_STATE)
        found += [
            (batch.base + index, device, allocated, reserved)
            for index, _, device, allocated, reserved in rows.tolist()
        ]
        states = pickle.loads(pickle.dumps(states))
    return found


def totals(events: Events, splits: Iterable[int] = ()) -> list[tuple[int, int]]:
    return [row[2:] for row in followed(events, splits)]


def state(events: Events, allocated: int, reserved: int, device: int = 0, thread: int = 1) -> None:
    totals = {"allocated": allocated, "reserved": reserved}
    events.add("allocator_state", device=device, thread=thread, **totals)


def test_totals_follow_from_tensors() -> None:
    expected = [(300, 1000), (900, 2000), (600, 2000), (700, 2000), (950, 2000), (350, 1500)]
    dense, sparse = allocating(dense=True), allocating(dense=False)
    assert (len(dense), len(sparse)) == (12, 9)
    assert totals(dense) == totals(sparse) == expected


def test_a_row_has_the_place_and_time_of_its_record() -> None:
    events = Events(start_time=0, step=10)
    events.push("")
    events.tensor_alloc(0x1000, 100, allocated=100, reserved=500)
    events.tensor_alloc(0x2000, 50)
    batch = events.batch()
    (first, second) = AllocatorStates().feed(batch)
    assert first["index"] == batch["allocator_state"]["index"][0]
    assert second["index"] == batch["tensor_alloc"]["index"][1]
    assert (first["time"], second["time"]) == (20, 30)


def test_one_row_for_each_of_dense_states() -> None:
    events = allocating(dense=True)
    states = events.batch()["allocator_state"]
    for splits in ([], range(len(events))):
        assert [row[0] for row in followed(events, splits)] == states["index"].tolist()


def test_devices_are_separate() -> None:
    events = Events()
    one, two = (CachingAllocator(events, device=device) for device in (0, 1))
    one.change(100, 1000)
    two.change(7, 70)
    one.change(200, 1000)
    two.change(-7, 70)
    assert [row[1:] for row in followed(events)] == [
        (0, 100, 1000), (1, 7, 70), (0, 300, 1000), (1, 0, 70),
    ]  # fmt: skip


def test_a_state_includes_the_tensor_of_its_thread() -> None:
    events = Events()
    state(events, 100, 1000, thread=1)
    events.tensor_alloc(0x2000, 30, thread=2)  # not included
    events.tensor_alloc(0x1000, 100, thread=1)  # included
    events.tensor_free(0x1000, bytes=100, thread=1)  # not included
    assert totals(events) == [(100, 1000), (130, 1000), (30, 1000)]
    for split in range(len(events)):
        assert totals(events, [split]) == totals(events)


def test_a_state_includes_the_tensor_of_its_device() -> None:
    events = Events()
    state(events, 5, 50, device=1)
    state(events, 100, 1000, device=0)
    events.tensor_alloc(0x1000, 5, device=1)
    events.tensor_alloc(0x2000, 100, device=0)
    events.tensor_alloc(0x3000, 1, device=1)
    assert [row[1:] for row in followed(events)] == [(1, 5, 50), (0, 100, 1000), (1, 6, 50)]


def test_a_batch_ends_between_state_and_tensor() -> None:
    events = allocating(dense=False)
    for split in range(len(events)):
        assert followed(events, [split]) == followed(events)


def test_other_records_come_between_state_and_tensor() -> None:
    events = Events()
    state(events, 100, 1000)
    events.push("")
    events.tensor_alloc(0x9000, 64, "host", device=-1)
    events.tensor_alloc(0x1000, 100)
    assert totals(events) == totals(events, [1, 2, 3]) == [(100, 1000)]


def test_tensors_before_the_first_state_have_no_row() -> None:
    events = Events()
    events.tensor_alloc(0x1000, 100)
    events.tensor_alloc(0x2000, 100, device=1)
    assert followed(events) == []
    events.tensor_alloc(0x3000, 10, allocated=110, reserved=1000)
    events.tensor_free(0x2000, bytes=100, device=1)
    events.tensor_free(0x1000, bytes=100)
    assert totals(events) == totals(events, [2]) == totals(events, [3]) == [(110, 1000), (10, 1000)]


def test_a_state_without_its_tensor_resets_the_totals() -> None:
    events = Events()
    state(events, 100, 1000)  # its tensor was lost
    state(events, 500, 2000)
    events.tensor_alloc(0x1000, 400)
    events.tensor_alloc(0x2000, 1)
    assert totals(events) == [(100, 1000), (500, 2000), (501, 2000)]


def test_only_cached_memory_of_known_size_counts() -> None:
    events = Events()
    state(events, 0, 1000)
    state(events, 0, 1000, thread=2)
    events.tensor_alloc(0x1000, 0)
    events.tensor_alloc(0x2000, 8, "managed")
    events.tensor_alloc(0x3000, 16, "array")
    events.tensor_alloc(0x4000, 32, "host")
    events.tensor_free(0x1000)  # of unknown size
    assert totals(events) == [(0, 1000), (0, 1000), (8, 1000), (8, 1000)]


def test_no_events() -> None:
    states = AllocatorStates()
    assert not len(states.feed(Events().batch()))
    states.feed(allocating(dense=False).batch())
    assert not len(states.feed(Events().batch()))


changes = st.tuples(
    st.integers(0, 2),  # device
    st.integers(1, 3),  # thread
    st.integers(-(1 << 40), 1 << 40).filter(bool),  # bytes
    st.sampled_from([1000, 1000, 1000, 2000]),  # reserved
    st.booleans(),  # whether totals that follow are recorded
)


@examples(200)
@given(program=st.lists(changes, max_size=40), data=st.data())
def test_each_tensor_has_the_true_totals(
    program: list[tuple[int, int, int, int, bool]], data: st.DataObject
) -> None:
    events = Events()
    allocators = [CachingAllocator(events, device=each, allocated=1 << 50) for each in range(3)]
    expected: list[Row] = []
    for device, thread, bytes, reserved, again in program:
        position = events._position  # of its first record
        allocators[device].change(bytes, reserved, again=again, thread=thread)
        expected.append((position, device, allocators[device].allocated, reserved))
    splits = data.draw(st.lists(st.integers(0, len(events)), max_size=8))
    assert followed(events, splits) == expected


def modeled(events: Events) -> list[Row]:
    """The rows, record by record."""
    totals: dict[int, tuple[int, int]] = {}
    ahead: set[tuple[int, int]] = set()
    found: list[Row] = []
    kinds = ("allocator_state", "tensor_alloc", "tensor_free")
    for record in events.batch().merged(*kinds):
        kind = kinds[[abi.KINDS[each] for each in kinds].index(record["kind"])]
        device, thread = int(record["device"]), int(record["thread"])
        if kind == "allocator_state":
            ahead.add((device, thread))
            totals[device] = int(record["allocated"]), int(record["reserved"])
        elif (device, thread) in ahead:
            ahead.remove((device, thread))
            continue
        elif device in totals:
            bytes = int(record["bytes"]) * (1 if kind == "tensor_alloc" else -1)
            totals[device] = totals[device][0] + bytes, totals[device][1]
        else:
            continue
        found.append((int(record["index"]), device, *totals[device]))
    return found


records = st.tuples(
    st.sampled_from(["state", "alloc", "free"]),
    st.integers(0, 1),  # device
    st.integers(1, 2),  # thread
    st.integers(0, 1 << 40),  # bytes
)


@examples(200)
@given(program=st.lists(records, max_size=30), data=st.data())
def test_any_order_of_records(
    program: list[tuple[str, int, int, int]], data: st.DataObject
) -> None:
    events = Events()
    for what, device, thread, bytes in program:
        if what == "state":
            state(events, bytes, 2 * bytes, device, thread)
        elif what == "alloc":
            events.tensor_alloc(0x1000, bytes, device=device, thread=thread)
        else:
            events.tensor_free(0x1000, bytes=bytes, device=device, thread=thread)
    splits = data.draw(st.lists(st.integers(0, len(events)), max_size=8))
    assert followed(events, splits) == modeled(events)
