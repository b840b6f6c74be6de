"""Sampling the host where the kernel does not allow it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pasta.config import Config
from pasta.runtime import host_sampling
from pasta.runtime.host_sampling import problem
from pasta.runtime.rings import Rings
from pasta.runtime.session import Session


def refused(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("number", "level", "remedy"),
    [
        (errno.EACCES, "4", "sysctl kernel.perf_event_paranoid=2"),
        (errno.EPERM, "2", "--cap-add PERFMON"),
        (errno.EPERM, "unreadable", "--cap-add PERFMON"),
        (errno.EMFILE, "2", "ulimit -n 4096"),
        (errno.ENOSYS, "2", "does not support perf events"),
    ],
)
def test_remedies(
    number: int, level: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "paranoid").write_text(level)
    monkeypatch.setattr(host_sampling, "_PARANOID", tmp_path / "paranoid")
    text = problem(refused(number))
    assert remedy in text and os.strerror(number) in text and "\n" not in text


def test_the_program_runs_without_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_given: object) -> None:
        raise refused(errno.EACCES)

    monkeypatch.setattr(host_sampling, "HostSampling", refuse)
    said: list[str] = []
    session = Session.create(Config(), ["program"], 0)
    rings = Rings(session, said.append, {})
    rings.sample_host(os.getpid())
    rings.stop_sampling()
    session.remove()
    assert len(said) == 1 and said[0].startswith("--perf: the host's call stacks are not sampled")
