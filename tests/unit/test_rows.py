"""Rows with equal keys combined into one, against a dictionary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta.processors.rows import combined

DTYPE = [("kernel", "u4"), ("object", "i8"), ("word", "u8"), ("count", "u8"), ("low", "i8")]
KEYS = ("kernel", "object", "word")
#: Small ranges fit 64 bits together, the full ones do not.
SMALL = st.tuples(st.integers(0, 3), st.integers(-2, 2), st.integers(0, 2))
LARGE = st.tuples(
    st.sampled_from([0, 1, 2**32 - 1]),
    st.sampled_from([-(2**63), -1, 2**63 - 1]),
    st.sampled_from([0, 2**64 - 1]),
)


def rows_of(values: list[tuple[tuple[int, int, int], int]]) -> np.ndarray[Any, Any]:
    return np.array([(*key, count, count) for key, count in values], DTYPE)


@given(st.lists(st.tuples(SMALL | LARGE, st.integers(0, 9))))
def test_sums_by_key_in_their_order(values: list[tuple[tuple[int, int, int], int]]) -> None:
    expected: dict[tuple[int, int, int], int] = {}
    for key, count in values:
        expected[key] = expected.get(key, 0) + count
    found = combined(rows_of(values)[[*KEYS, "count"]], KEYS)
    assert [tuple(row) for row in found.tolist()] == [
        (*key, expected[key]) for key in sorted(expected)
    ]


@pytest.mark.parametrize(("combine", "wanted"), [("minimum", 2), ("maximum", 7)])
def test_other_functions(combine: str, wanted: int) -> None:
    rows = rows_of([((1, -1, 0), 7), ((1, -1, 0), 2), ((1, 0, 0), 5)])
    found = combined(rows, KEYS, combine)
    assert found["low"].tolist() == [wanted, 5]


def test_all_rows_are_one_without_keys() -> None:
    rows = rows_of([((1, -1, 0), 7), ((2, 3, 4), 2)])
    assert combined(rows[["count"]], ())["count"].tolist() == [9]
