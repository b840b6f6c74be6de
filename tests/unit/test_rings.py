"""Which rings share a collector, and when one is in reserve."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import pytest

from pasta.cli import preload
from pasta.config import Config
from pasta.plugins import load_tools
from pasta.runtime import probe_plan
from pasta.runtime.launcher import Launcher
from pasta.runtime.reserve import Reserve
from pasta.runtime.rings import _FEW_SLOTS, Rings, _shares, start_reserve
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
    ("processors", "tool", "expected"),
    [(4, "access_count", True), (2, "access_count", False), (4, "kernel_freq", False)],
)
def test_a_collector_is_in_reserve_while_probes_are_compiled(
    monkeypatch: pytest.MonkeyPatch, processors: int, tool: str, expected: bool
) -> None:
    """Where a processor has time for its imports."""
    session = Session.create(Config(), ["program"], 0)
    done: list[str] = []

    def start(session: Session, _environment: object) -> Reserve:
        assert session.directory.exists()
        done.append("reserve")
        return Reserve(subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL))

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    monkeypatch.setattr(preload, "start_reserve", start)
    monkeypatch.setattr(probe_plan, "write_plan", lambda *_: done.append("plan"))
    prepared = preload._prepare_probes(session, Config(), load_tools([tool]), quiet=True)
    rings = Rings(prepared, print, {})
    rings.look()  # starts no second one
    process = None if prepared.reserve is None else prepared.reserve._process
    rings.dismiss_reserve()
    session.remove()
    assert done == ["reserve"] * expected + ["plan"] * (tool == "access_count")
    assert (process is not None) == expected
    assert process is None or process.returncode == -signal.SIGKILL


def test_a_reserve_that_cannot_start_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session.create(Config(), ["program"], 0)

    def refused(*_arguments: object, **_settings: object) -> NoReturn:
        raise BlockingIOError(11, "too many processes")

    monkeypatch.setattr(subprocess, "Popen", refused)
    found = start_reserve(session, {})
    log = (session.directory / "log.txt").read_text()
    session.remove()
    assert found is None and "no collector in reserve: " in log and "too many processes" in log


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_while_runs_are_written_is_passed_on_to_collectors(number: signal.Signals) -> None:
    session = Session.create(Config(), ["program"], 0)
    said: list[str] = []
    launcher = Launcher(session, said.append, {})
    launcher._rings.root = 1
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        launcher._pause()
        assert not session.interruption.exists()
        for _ in range(2):
            signal.pthread_kill(threading.get_ident(), number)
            launcher._pause()
        assert session.interruption.exists()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        session.remove()
    assert launcher.received == {number}
    assert said == [f"{number.name}: the run is written now, without GPU code that is not read yet"]
