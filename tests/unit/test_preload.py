"""pasta-preload before the program starts, and how tests find the sessions of theirs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pasta.cli import preload
from pasta.cli.parser import INTERRUPTED, USAGE
from pasta.errors import RunError
from tests.support.preload import Preload


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), INTERRUPTED), (RunError("no"), USAGE)]
)
def test_no_session_is_left_where_a_backend_is_not_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int
) -> None:
    places = []

    def prepare(session: preload.Session, _program: str) -> None:
        places.append(session.directory)
        raise error

    monkeypatch.setattr(preload, "_prepare_backends", prepare)
    monkeypatch.chdir(tmp_path)
    umask = os.umask(0o077)
    try:
        given = preload.main(["--set", f"ring.directory={tmp_path}", "--", "true"])
    finally:
        os.umask(umask)
    assert given == status
    assert len(places) == 1 and places[0].parent == tmp_path and not places[0].exists()


def test_sessions_of_former_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed test leaves its session, and pids come again."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    pid = 1 << 22  # no process has it
    (tmp_path / f"pasta-{os.getuid()}-{pid}-0000000000000000").mkdir()
    started = Preload(tmp_path)
    started.launchers.append(pid)
    assert started.sessions() == []
    mine = tmp_path / f"pasta-{os.getuid()}-{pid}-0000000000000001"
    (mine / "rings").mkdir(parents=True)
    assert started.sessions() == [mine]
    assert f"{mine}: rings" in started.explained()
