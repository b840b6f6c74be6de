"""The object table against a list that is searched from end to end."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta import abi
from pasta.processors.batch import ABSENT_U32, ABSENT_U64
from pasta.processors.objects import LEVELS, ObjectTable
from pasta.testing import Events
from tests.support.examples import examples

MEMORY = {name: number for number, name in abi.enums()["memory"].items()}
SPACE = 48  # addresses of the generated programs


@dataclass
class Thing:
    layer: str
    address: int
    bytes: int
    born: int
    died: int = 1 << 62

    @property
    def last(self) -> int:
        return self.address + (1 if self.bytes == ABSENT_U64 else self.bytes) - 1


@dataclass
class Model:
    """Reference model of the table, without an index."""

    things: list[Thing] = field(default_factory=list)
    stale: int = 0
    unmatched: int = 0

    def live(self, layer: str) -> list[Thing]:
        return [each for each in self.things if each.layer == layer and each.died == 1 << 62]

    def alloc(self, layer: str, address: int, bytes: int, position: int) -> None:
        if bytes == 0:
            return
        new = Thing(layer, address, bytes, position)
        for each in self.live(layer):
            if each.address <= new.last and new.address <= each.last:
                each.died = position
                self.stale += 1
        self.things.append(new)

    def free(self, layers: tuple[str, ...], address: int, position: int) -> None:
        for layer in layers:
            for each in self.live(layer):
                if each.address == address:
                    each.died = position
                    return
        self.unmatched += 1

    def at(self, address: int, position: int, level: str) -> tuple[int, int] | None:
        layers = {"finest": ("tensor", "memory"), "tensor": ("tensor",), "memory": ("memory",)}
        for layer in layers.get(level, ("virtual",)):
            for each in self.things:
                live = each.layer == layer and each.born <= position < each.died
                if live and each.address <= address <= each.last:
                    return each.address, each.born
        return None


KINDS = ("device", "managed", "pinned", "virtual", "array", "tensor")
events_of_a_program = st.lists(
    st.tuples(
        st.sampled_from(("alloc", "alloc", "free", "free_unknown", "query")),
        st.sampled_from(KINDS),
        st.integers(0, SPACE - 1),
        st.one_of(st.integers(0, 12), st.just(ABSENT_U64)),
    ),
    max_size=60,
)


def layer_of(kind: str) -> str:
    return kind if kind in ("virtual", "array", "tensor") else "memory"


def play(program: list[tuple[str, str, int, int]]) -> tuple[Events, Model]:
    events, model = Events(), Model()
    for what, kind, address, bytes in program:
        position = events._position
        if what == "alloc":
            if kind == "tensor":
                events.tensor_alloc(address, bytes)
            else:
                events.alloc(address, bytes, kind)
            model.alloc(layer_of(kind), address, bytes, position)
        elif what == "free" and kind == "tensor":
            events.tensor_free(address)
            model.free(("tensor",), address, position)
        elif what == "free":
            events.free(address, kind)
            model.free((layer_of(kind),), address, position)
        elif what == "free_unknown":
            events.add("memory_free", address=address, memory=ABSENT_U32)
            model.free(("memory", "virtual", "array"), address, position)
        else:
            events.launch("kernel")
    return events, model


def found(table: ObjectTable, addresses: Any, indices: Any, level: str) -> list[Any]:
    ids = table.lookup(np.asarray(addresses, np.uint64), np.asarray(indices), level)
    rows = table.rows
    return [
        None if id < 0 else (int(rows["address"][id]), int(rows["alloc_position"][id]))
        for id in ids.tolist()
    ]


@pytest.mark.parametrize("history", [False, True])
@examples(150)
@given(
    program=events_of_a_program,
    splits=st.lists(st.integers(0, 60), max_size=4),
    data=st.data(),
)
def test_lookups_match_a_linear_search(history: bool, program: Any, splits: Any, data: Any) -> None:
    events, model = play(program)
    table = ObjectTable(history=history)
    for batch in events.batches(each for each in splits if each <= len(events)):
        table.feed(batch)
        indices = sorted({int(i) for _, records in batch for i in records["index"]})
        questions = data.draw(
            st.lists(st.tuples(st.integers(0, SPACE + 16), st.sampled_from(indices)), max_size=20)
        )
        for level in LEVELS:
            expected = [model.at(a, i + batch.base, level) for a, i in questions]
            addresses = [a for a, _ in questions]
            assert found(table, addresses, [i for _, i in questions], level) == expected
        table = pickle.loads(pickle.dumps(table))
    assert (table.stale, table.unmatched) == (model.stale, model.unmatched)
    live = table.rows[table.live()]
    assert sorted(zip(live["address"].tolist(), live["alloc_position"].tolist(), strict=True)) == (
        sorted((t.address, t.born) for t in model.things if t.died == 1 << 62)
    )
    if history:
        reported = [(int(r["address"]), int(r["alloc_position"])) for r in table.rows]
        assert reported == [(each.address, each.born) for each in model.things]


def test_range_end_is_exact() -> None:
    events = Events()
    events.alloc(0x1000, 256)
    events.alloc(0x1100, 16)
    table = ObjectTable()
    table.feed(events.batch())
    addresses = [0xFFF, 0x1000, 0x10FF, 0x1100, 0x110F, 0x1110]
    assert found(table, addresses, [1000] * 6, "finest") == [
        None, (0x1000, 0), (0x1000, 0), (0x1100, 1), (0x1100, 1), None,
    ]  # fmt: skip


def test_objects_over_four_gibibytes_and_at_the_top_of_the_address_space() -> None:
    events = Events()
    events.alloc(0x7F00_0000_0000, 5 << 30)
    events.alloc((1 << 60) - 16, 1 << 30)
    events.alloc(0x10, ABSENT_U64 - 1)
    table = ObjectTable()
    table.feed(events.batch())
    assert table.stale == 2  # the last one overlaps both
    assert found(table, [(1 << 60) - 1, 1 << 60, ABSENT_U64], [99] * 3, "memory") == [
        (0x10, 2), None, None,
    ]  # fmt: skip


def test_a_pool_allocation_inside_a_reservation() -> None:
    events = Events()
    events.alloc(0x3_0200_0000, 300_245_057_536, "virtual")
    events.alloc(0x3_0200_0000, 4096, "pool")
    table = ObjectTable()
    table.feed(events.batch())
    inside, beside = 0x3_0200_0800, 0x3_0300_0000
    assert found(table, [inside, beside], [99, 99], "finest") == [(0x3_0200_0000, 1), None]
    assert found(table, [beside], [99], "virtual") == [(0x3_0200_0000, 0)]
    assert table.stale == 0


def test_a_hundred_thousand_live_objects_in_any_order() -> None:
    rng = np.random.default_rng(7)
    count = 100_000
    addresses = rng.permutation(count).astype(np.uint64) * np.uint64(64) + np.uint64(4096)
    table = ObjectTable()
    dtype = abi.dtype("memory_alloc")
    allocs = np.zeros(count, dtype)
    allocs["index"], allocs["address"], allocs["bytes"] = np.arange(count), addresses, 32
    allocs["memory"] = MEMORY["device"]
    from pasta.processors.batch import Batch

    for base in range(0, count, 16384):
        part = allocs[base : base + 16384].copy()
        part["index"] -= base
        table.feed(Batch(base, {"memory_alloc": part}))
    ids = table.lookup(addresses, np.full(count, 1 << 20))
    assert np.array_equal(table.rows["address"][ids], addresses)
    assert (table.lookup(addresses + np.uint64(32), np.full(count, 1 << 20)) == -1).all()
    frees = allocs[::2].copy()
    frees["index"] = np.arange(len(frees))
    table.feed(Batch(count, {"memory_free": frees}))
    half = table.lookup(frees["address"], frees["index"] - np.int64(1))
    assert np.array_equal(table.rows["address"][half], frees["address"])  # just before each free
    assert (table.lookup(frees["address"], frees["index"]) == -1).all()
    assert len(table.live()) == count // 2
    assert table.unmatched == 0


def test_rows_are_reused_without_history_and_kept_with_it() -> None:
    events = Events()
    for _ in range(50):
        events.alloc(0x1000, 64)
        events.free(0x1000)
    short, long = ObjectTable(), ObjectTable(history=True)
    for batch in events.batches(range(2, 100, 2)):
        short.feed(batch)
        long.feed(batch)
    assert len(short.rows) <= 2
    assert len(long.rows) == 50
