"""`pasta recover`: finish what a launcher that was killed, or failed, left in shared memory."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pasta.errors import PastaError
from pasta.runtime.launcher import Launcher
from pasta.runtime.processes import alive
from pasta.runtime.session import Ended, Session, beside, read_ended, write_ended


def prepare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sessions", nargs="*", type=Path, metavar="SESSION",
                        help="session directories (default: all idle ones)")  # fmt: skip
    parser.add_argument("--discard", action="store_true", help="throw them away instead")


def places() -> list[Path]:
    """Directories that sessions are made in by default."""
    return [Path("/dev/shm"), Path(tempfile.gettempdir())]


def abandoned() -> Iterator[Path]:
    """Sessions of this user whose launcher and processes are gone."""
    for place in places():
        for path in sorted(place.glob(f"pasta-{os.getuid()}-*")):
            if (path / "session.json").exists() and not _in_use(Session.open(path)):
                yield path


def _in_use(session: Session) -> bool:
    launcher = Launcher(session, lambda _: None, os.environ)
    return alive(session.document["launcher"]) or bool(launcher.alive())


def run(options: argparse.Namespace) -> int:
    status = 0
    sessions = options.sessions or list(abandoned())
    if not sessions:
        print("nothing to recover")
    for path in sessions:
        if not (path / "session.json").exists():
            raise PastaError(f"{path} is not a session directory")
        session = Session.open(path)
        if _in_use(session):
            print(f"{path}: left alone, its program or launcher still runs")
        elif options.discard:
            session.remove()
            print(f"{path}: discarded")
        else:
            status |= _recover(session)
    return status


def _recover(session: Session) -> int:
    launcher = Launcher(session, print, dict(os.environ))
    for ring in session.rings():
        for suffix in (".done", ".problem"):
            beside(ring, suffix).unlink(missing_ok=True)
        if read_ended(ring) is None:
            write_ended(ring, Ended("gone"))
    launcher.look()
    launcher.finish()
    for outcome in launcher.outcomes:
        print(outcome.problem or f"process {outcome.pid}: {outcome.directory}")
    if launcher.unsaved():
        return 1
    session.remove()
    return 0
