"""Words and sectors that lanes access, against a count of each word."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta.probes import sector_counts
from pasta.probes.sector_counts import KEYS, OF_WORDS, SectorCounts

RECORD = np.dtype(
    [("block", "u8"), ("warp", "u8"), ("bytes", "u2"), ("rows", "u4"), ("stride", "i8")]
)
#: Of a record: kernel, block, warp, bytes, rows, stride; and its lanes' offsets and objects.
RECORDS = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(0, 3), st.integers(0, 2), st.sampled_from([0, 1, 4, 16, 40]),
        st.integers(0, 3), st.sampled_from([-64, 0, 36, 4096]),
        st.lists(st.tuples(st.integers(4096, 5000), st.integers(-1, 1)), max_size=6),
    ),
    max_size=30,
)  # fmt: skip
STARTS = np.asarray([0x1000_0000, 0x7000_0000_0000], np.uint64)


def accesses_of(records: list[Any]) -> Any:
    rows = [(block, warp, size, rows, stride) for _, block, warp, size, rows, stride, _ in records]
    lanes = [
        (at, offset + (int(STARTS[holder]) if holder >= 0 else 0), holder)
        for at, (*_, lanes) in enumerate(records)
        for offset, holder in lanes
    ]
    types = [("access", "i8"), ("address", "u8"), ("holder", "i8")]
    return SimpleNamespace(
        records=np.asarray(rows, RECORD),
        lanes=np.asarray(lanes, types),
        objects=lambda lanes: np.ascontiguousarray(lanes["holder"]),
    )


def words_of(records: list[Any]) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for kernel, block, warp, size, rows, stride, lanes in records:
        for offset, holder in lanes:
            for row in range(max(rows, 1)) if size else ():
                begin = offset + row * stride
                for word in range(begin // 4, (begin + size - 1) // 4 + 1):
                    found[kernel, holder, block << 16 | warp, word] += 1
    return found


@given(st.lists(RECORDS, max_size=4))
def test_every_word_of_every_lane_is_counted(batches: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sector_counts, "_FIRST_ROWS", 2)  # grows
        counts = SectorCounts()
    wanted: Counter[tuple[int, ...]] = Counter()
    for records in batches:
        kernels = np.asarray([kernel for kernel, *_ in records], np.uint32)
        counts.add(accesses_of(records), kernels, STARTS)
        wanted.update(words_of(records))
    rows = counts.rows()
    found = {
        (int(row["kernel"]), int(row["object"]), int(row["warp"]), 8 * int(row["sector"]) + at): n
        for row in rows
        for at, name in enumerate(OF_WORDS)
        if (n := int(row[name]))
    }
    assert found == wanted
    assert counts.pairs == len(wanted)
    keys = [tuple(row[name] for name in KEYS) for row in rows]
    assert keys == sorted(set(keys))
