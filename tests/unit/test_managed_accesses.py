"""Accesses to managed memory in tables, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta.processors import managed_accesses
from pasta.processors.managed_accesses import PARTS, OtherAccesses, counted_parts, tables
from pasta.processors.rows import combined

#: Bytes of a part, and objects (_OBJECT): an allocation of 9 parts, the last of 1 byte, and tensors
#: in it: one of 3 parts, and one of a part that begins in the middle of one.
WIDTH = 64
OBJECTS = np.array(
    [(3, 3, 0, 8 * WIDTH + 1, 11, 0), (5, 3, WIDTH, 3 * WIDTH, 12, 0),
     (6, 3, 96, WIDTH, 13, 0)],
    [("object", "i8"), ("owner", "i8"), ("offset", "u8"), ("bytes", "u8"), ("content", "u8"),
     ("occurrence", "i8")],
)  # fmt: skip
SIZES = {3: 9, 5: 3, 6: 1}
LAUNCHES = np.arange(6, dtype=np.uint64)

cells = st.sampled_from([(id, bin) for id, count in SIZES.items() for bin in range(count)])
counts = st.dictionaries(
    st.tuples(st.integers(0, 5), cells), st.tuples(st.integers(0, 3), st.integers(0, 3)),
    max_size=40,
)  # fmt: skip


def parts_of(found: dict[Any, tuple[int, int]]) -> np.ndarray[Any, Any]:
    rows = [(launch, id, bin, *n) for (launch, (id, bin)), n in found.items() if any(n)]
    return combined(np.array(rows, PARTS), ("launch", "object", "bin"))


def other(parts: Any, objects: Any = OBJECTS, most: int = 1 << 20) -> OtherAccesses:
    stored = tables(parts, WIDTH, OBJECTS, most)
    probed = np.ones(len(LAUNCHES), bool)
    return OtherAccesses.of(stored, objects, LAUNCHES, LAUNCHES + np.uint64(10), probed)


@given(counts)
def test_tables_have_all_accesses(found: dict[Any, tuple[int, int]]) -> None:
    parts = parts_of(found)
    back = other(parts)
    expected = parts.copy()
    expected["launch"] += np.uint64(10)
    assert back.parts.tolist() == expected.tolist()
    assert back.probed.tolist() == list(range(10, 16))
    assert not any("partner" in note for note in back.notes())


@given(counts)
def test_few_rows_keep_sums_and_what_was_accessed(found: dict[Any, tuple[int, int]]) -> None:
    parts = parts_of(found)
    back = other(parts, most=0).parts
    for name in ("launch", "object", "bin"):
        assert (back[name] - parts[name] == (10 if name == "launch" else 0)).all()
    for name in ("reads", "writes"):
        assert ((back[name] > 0) == (parts[name] > 0)).all()
        assert back[name].sum() == parts[name].sum()


def test_a_scan_is_one_row() -> None:
    """So that 10,000 launches that scan an object are 10,000 rows, whatever its size."""
    parts = np.zeros(5 * 9, PARTS)
    parts["launch"], parts["bin"] = np.repeat(LAUNCHES[:5], 9), np.tile(np.arange(9), 5)
    parts["object"], parts["reads"] = 3, 4
    stored = tables(parts, WIDTH, OBJECTS)
    assert stored["touched"].values("parts") == [9] * 5
    assert stored["touched"].values("reads") == [36] * 5
    # of the tensors only those that were touched; all allocations
    assert stored["touched_objects"].values("object") == [3]
    assert all(table.shown == 0 for table in stored.values())


def test_the_number_of_parts_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file must not take all memory."""
    monkeypatch.setattr(managed_accesses, "_MAX_PARTS", 8)
    full = parts_of({(0, (3, bin)): (1, 0) for bin in range(9)})
    with pytest.raises(ValueError, match="table touched: more than 8 parts"):
        other(full)
    assert len(other(full[:8]).parts) == 8


def test_tensors_without_partner_are_parts_of_their_allocation() -> None:
    parts = parts_of({(0, (5, 1)): (2, 0), (1, (5, 2)): (0, 3), (2, (6, 0)): (4, 0)})
    back = other(parts, OBJECTS[:1])
    # the last tensor covers the second half of a part, and the first half of the next
    assert back.parts.tolist() == [
        (10, 3, 2, 2, 0), (11, 3, 3, 0, 3), (12, 3, 1, 2, 0), (12, 3, 2, 2, 0),
    ]  # fmt: skip
    (note,) = back.notes()
    assert note.startswith("accesses to 2 tensors without a partner")


def test_the_nth_of_equal_objects_is_the_nth_of_the_other_pass() -> None:
    objects = np.zeros(3, OBJECTS.dtype)
    objects["object"] = objects["owner"] = [4, 7, 9]
    objects["bytes"] = OBJECTS["bytes"][0]
    objects["content"], objects["occurrence"] = OBJECTS["content"][0], [1, 0, 2]
    back = other(parts_of({(0, (3, 0)): (1, 0)}), objects)
    assert back.parts["object"].tolist() == [7]
    assert list(back.notes()) == [
        "without a partner in the other pass: 2 managed allocations of times"
    ]


def test_reads_and_writes_of_a_part_are_one_row() -> None:
    counted = [("launch", "u8"), ("object", "i8"), ("bin", "u8"), ("count", "u8")]
    reads = np.array([(1, 3, 0, 5), (1, 3, 1, 6)], counted)
    writes = np.array([(1, 3, 1, 7), (0, -1, 0, 8)], counted)
    assert counted_parts(reads, writes).tolist() == [
        (0, -1, 0, 0, 8), (1, 3, 0, 5, 0), (1, 3, 1, 6, 7),
    ]  # fmt: skip
