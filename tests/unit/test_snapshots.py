"""Objects live at a launch, against the object table queried at that launch."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta import abi
from pasta.probes.columns import lookup
from pasta.processors.batch import ABSENT_U64
from pasta.processors.objects import MEMORY, TENSOR, ObjectTable
from pasta.processors.past import Past
from pasta.processors.snapshots import (
    DROPPED,
    SELECTED,
    UNSEEN,
    Launches,
    Snapshot,
    Snapshots,
)
from pasta.testing import Events
from tests.support.examples import examples

SPACE = 60
KINDS = ("device", "managed", "pinned", "virtual", "array", "tensor")
programs = st.lists(
    st.tuples(
        st.sampled_from(("alloc", "alloc", "free", "launch", "launch")),
        st.sampled_from(KINDS),
        st.integers(0, SPACE - 1),
        st.one_of(st.integers(0, 20), st.just(ABSENT_U64)),
    ),
    max_size=60,
)


def play(program: list[tuple[str, str, int, int]]) -> Events:
    events = Events()
    for what, kind, address, bytes in program:
        if what == "launch":
            events.launch("kernel")
        elif kind == "tensor":
            (
                events.tensor_alloc(address, bytes)
                if what == "alloc"
                else events.tensor_free(address)
            )
        elif what == "alloc":
            events.alloc(address, bytes, kind)
        else:
            events.free(address, kind)
    return events


ADDRESSES = np.arange(SPACE + 30, dtype=np.uint64)


@examples(200)
@given(
    programs,
    st.lists(st.integers(1, 60), max_size=4, unique=True),
    st.lists(st.integers(0, 1000), min_size=1, max_size=30),
    st.integers(1, 4),
)
def test_every_address_at_every_launch(
    program: Any, splits: list[int], order: list[int], kept: int
) -> None:
    """In any order of launches, even if only few snapshots are kept."""
    events = play(program)
    table = ObjectTable(history=True)
    snapshots, launches = Snapshots(table), Launches()
    snapshots.MAX_KEPT = kept  # type: ignore[misc]
    expected = []
    for batch in events.batches([split for split in splits if split < len(events)]):
        table.feed(batch)
        snapshots.feed(batch)
        records = batch["kernel_launch"]
        launches.feed(batch, records["ordinal"])
        for index in records["index"].tolist():
            indices = np.full(len(ADDRESSES), index)
            found = table.lookup(ADDRESSES, indices)
            reserved = table.lookup(ADDRESSES, indices, "virtual")
            expected.append(np.where(found >= 0, found, reserved).tolist())
        if len(expected):  # queried during the run
            check(snapshots, launches, expected, len(expected) - 1)
    for number in order:
        if expected:
            check(snapshots, launches, expected, number % len(expected))
    snapshots = pickle.loads(pickle.dumps(snapshots))
    for number in range(len(expected)):
        check(snapshots, launches, expected, number)


def check(snapshots: Snapshots, launches: Launches, expected: Any, number: int) -> None:
    (position,) = launches.positions(np.asarray([number], np.uint64)).tolist()
    assert lookup(snapshots.at(position), ADDRESSES).tolist() == expected[number]


@examples(200)
@given(programs, st.lists(st.integers(1, 60), max_size=4, unique=True), st.randoms())
def test_history_matches_snapshots(program: Any, splits: list[int], random: Any) -> None:
    """In any order of queries, also during the run."""
    events = play(program)
    table = ObjectTable(history=True)
    snapshots = Snapshots(table)
    past, changes = Past(snapshots), 0
    between = [0]  # versions between two records
    for batch in events.batches([split for split in splits if split < len(events)]):
        table.feed(batch)
        snapshots.feed(batch)
        begins = np.flatnonzero(np.diff(table.changes["index"].astype(np.int64))) + 1
        changes += len(table.changes)
        between += [changes - len(table.changes) + at for at in begins.tolist()] + [changes]
        for layer, number in ((TENSOR, 0), (MEMORY, 1)):
            versions = np.asarray([random.choice(between) for _ in ADDRESSES])
            found = past.lookup(ADDRESSES, versions, layer)
            for address, version, id in zip(ADDRESSES, versions, found, strict=True):
                live = snapshots.of(int(version)).layers[number]
                at = int(np.searchsorted(live.starts, address, "right")) - 1
                assert id == (live.ids[at] if at >= 0 and live.lasts[at] >= address else -1)


def test_snapshots_are_shared_without_changes() -> None:
    events = Events()
    events.alloc(0, 8)
    for _ in range(3):
        events.launch("kernel")
    events.free(0)
    events.launch("kernel")
    table = ObjectTable(history=True)
    snapshots, batch = Snapshots(table), events.batch()
    table.feed(batch)
    snapshots.feed(batch)
    positions = batch.positions(batch["kernel_launch"])
    found = [snapshots.at(position) for position in positions.tolist()]
    assert found[0] is found[1] is found[2] is not found[3]
    assert [len(each.layers[1].ids) for each in found] == [1, 1, 1, 0]


def test_an_unchanged_layer_is_not_copied() -> None:
    events = Events()
    events.alloc(0, 1000)
    events.launch("kernel")
    events.tensor_alloc(0, 10)
    events.launch("kernel")
    table = ObjectTable(history=True)
    snapshots, batch = Snapshots(table), events.batch()
    table.feed(batch)
    snapshots.feed(batch)
    first, second = map(snapshots.of, (1, 2))
    assert first.layers[1] is second.layers[1]
    assert first.layers[0] is not second.layers[0]


def test_table_without_history_is_rejected() -> None:
    with pytest.raises(ValueError, match="history"):
        Snapshots(ObjectTable())


def test_objects_up_to_the_end_of_the_address_space() -> None:
    events = Events()
    events.alloc((1 << 60) - 16, 1 << 63)
    events.launch("kernel")
    table = ObjectTable(history=True)
    snapshots, batch = Snapshots(table), events.batch()
    table.feed(batch)
    snapshots.feed(batch)
    addresses = np.asarray([(1 << 60) - 17, (1 << 60) - 16, (1 << 60) - 1], np.uint64)
    assert lookup(snapshots.of(1), addresses).tolist() == [-1, 0, 0]


def test_launches_by_ordinal() -> None:
    events = Events()
    for ordinal in (5, 3, 1 << 63):
        events.launch(f"kernel {ordinal}", ordinal=ordinal)
    batch = events.batch()
    launches = Launches()
    asked = np.asarray([0, 3, 4, 5, 6, 1 << 63, ABSENT_U64], np.uint64)
    assert launches.states(asked).tolist() == [UNSEEN] * 7
    selected = batch.records["kernel_launch"][:1]
    launched = batch["kernel_launch"]["ordinal"]
    launches.feed(type(batch)(batch.base, {"kernel_launch": selected}), launched)
    assert launches.states(asked).tolist() == [
        UNSEEN, DROPPED, UNSEEN, SELECTED, UNSEEN, UNSEEN, UNSEEN,
    ]  # fmt: skip
    assert launches.names(asked).tolist() == [0, 0, 0, events.string("kernel 5"), 0, 0, 0]
    assert launches.positions(asked[3:4]).tolist() == batch.positions(selected).tolist()


def test_complete_launches_from_the_first_on() -> None:
    events, launches = Events(), Launches()

    def complete(*ordinals: int) -> int:
        for ordinal in ordinals:
            events.complete(ordinal, 0, 0)
        *_, batch = events.batches([len(events) - len(ordinals)])
        launches.feed(batch, batch["kernel_launch"]["ordinal"])
        return launches.all_complete()

    for _ in range(2000):
        events.launch("kernel")
    launches.feed(events.batch(), events.batch()["kernel_launch"]["ordinal"])
    assert launches.all_complete() == 0
    assert complete(1, 2) == 0
    assert complete(0) == 3
    assert complete(*range(4, 2000)) == 3
    assert complete(3) == 2000


def test_launches_without_a_change_between_them_share_a_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """100,000 live objects; one more between launches costs a copy, not a rebuild."""
    count = 100_000
    table = ObjectTable(history=True)
    snapshots = Snapshots(table)
    records = np.zeros(count, abi.dtype("memory_alloc"))
    records["index"] = np.arange(count)
    records["address"] = np.arange(count) * 512
    records["bytes"] = 512
    records["memory"] = next(n for n, name in abi.enums()["memory"].items() if name == "device")
    from pasta.processors.batch import Batch

    batch = Batch(0, {"memory_alloc": records})
    table.feed(batch)
    snapshots.feed(batch)
    objects: list[int] = []
    change = Snapshots._changed

    def counted(self: Snapshots, base: Snapshot, changed: Any, version: int) -> Snapshot:
        objects.append(len(changed))
        return change(self, base, changed, version)

    monkeypatch.setattr(Snapshots, "_changed", counted)
    first = snapshots.at(count + 1)
    assert all(snapshots.at(at) is first for at in range(count + 2, count + 2001))
    assert objects == [count]
    for version in range(count - 1, count - 101, -1):
        snapshots.of(version)
    assert objects == [count] + [1] * 100
