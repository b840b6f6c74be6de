"""Which rings share a collector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from pasta.runtime.rings import _FEW_SLOTS, _shares


@dataclass
class Waiting:
    slots: int


@pytest.mark.parametrize(
    ("slots", "running", "limit", "expected"),
    [
        ([1], 0, 2, [1]),
        ([1] * 3, 0, 4, [1, 1, 1]),
        ([1] * 100, 0, 2, [50, 50]),
        ([1] * 100, 1, 2, [50]),  # the other 50 are for the collector that starts next
        ([1] * 100, 2, 2, []),
        ([_FEW_SLOTS] * 3, 0, 2, [1, 1]),
        ([_FEW_SLOTS // 2] * 8, 0, 2, [2, 2]),
        ([1, _FEW_SLOTS + 1, 1, 1], 0, 2, [1, 1]),
    ],
)
def test_rings_with_few_events_share_a_collector(
    slots: list[int], running: int, limit: int, expected: list[int]
) -> None:
    waiting = [Waiting(each) for each in slots]
    shares = _shares(cast("Any", waiting), running, limit)
    assert [len(each) for each in shares] == expected
    assert [ring for share in shares for ring in share] == waiting[: sum(expected)]
