"""Which rings share a collector, and when one is in reserve."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import Any, cast

import pytest

from pasta.config import Config
from pasta.runtime.rings import _FEW_SLOTS, Rings, _shares
from pasta.runtime.session import Session


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


@pytest.mark.parametrize(
    ("processors", "planned", "ended", "expected"),
    [
        (4, True, False, True),
        (2, True, False, False),
        (4, False, False, False),
        (4, True, True, False),
    ],
)
def test_a_collector_is_in_reserve_for_probes_from_the_start(
    monkeypatch: pytest.MonkeyPatch, processors: int, planned: bool, ended: bool, expected: bool
) -> None:
    """Where a processor has time for its imports."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    session = Session.create(Config(), ["program"], 0)
    if planned:
        session.probes.write_text("")
    rings = Rings(session, print, {}, wait_status=0 if ended else None)
    started: list[str] = []

    def start(name: str, *_given: str, pipe: bool) -> subprocess.Popen[bytes]:
        started.append(name)
        return subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE if pipe else None)

    monkeypatch.setattr(rings, "_start_process", start)
    for _ in range(2):
        rings.look()
    rings.dismiss_reserve()
    session.remove()
    assert started == ["collector_reserve"] * expected
