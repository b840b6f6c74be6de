"""`pasta recover`: finishes sessions that a killed or failed launcher left in shared memory.

Only sessions and rings without an owner or user are touched: no launcher holds the session's lock,
no collector the ring's, and no process has a ring or the process table mapped. The kernel reports
all of this, including for processes in other PID namespaces.
"""

from __future__ import annotations

import argparse
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pasta import private
from pasta.errors import RunError
from pasta.runtime.launcher import Launcher
from pasta.runtime.processes import ProcessIdentity, ProcessTable, boot_id, pid_namespace
from pasta.runtime.rings import read_done
from pasta.runtime.session import Ended, Session, beside, read_ended, write_ended

_NAME = re.compile(r"pasta-\d+-\d+-[0-9a-f]{16}")


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments to its parser."""
    parser.add_argument("sessions", nargs="*", type=Path, metavar="SESSION",
                        help="session directories (default: all idle ones)")  # fmt: skip
    parser.add_argument("--discard", action="store_true", help="delete them instead")


def places() -> list[Path]:
    """Default parent directories of sessions."""
    return [Path("/dev/shm"), Path(tempfile.gettempdir())]


def abandoned() -> Iterator[Path]:
    """Sessions of this user without an owner or user."""
    for path in _found():
        try:
            session = Session.take(path)
        except (OSError, RunError):  # another user's, or damaged
            continue
        if session is not None:
            if not any(_Use.of(session).reasons()):
                yield path
            session.disown()


def _found() -> Iterator[Path]:
    for place in places():
        for path in sorted(place.glob(f"pasta-{os.getuid()}-*")):
            if _NAME.fullmatch(path.name) and stat.S_ISDIR(path.lstat().st_mode):
                yield path


def run(options: argparse.Namespace) -> int:
    """Recovers or discards sessions; exit status 1 if a ring had to be kept. Raises RunError."""
    private.set_umask()
    status, sessions = 0, options.sessions or list(_found())
    for path in sessions:
        try:
            session = _taken(path)
        except RunError as error:
            if options.sessions:
                raise
            print(f"ignored {error}")
            continue
        if session is None:
            print(f"{path}: left alone, its launcher or another pasta recover is still running")
            continue
        try:
            status |= _discarded(session) if options.discard else _recovered(session)
        finally:
            session.disown()
    if not sessions:
        print("nothing to recover")
    return status


def _taken(path: Path) -> Session | None:
    """As Session.take. Raises RunError only."""
    try:
        if not _NAME.fullmatch(path.name):
            raise RunError(f"{path} is not a session directory")
        return Session.take(path.absolute())  # a collector runs in another directory
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}") from None


@dataclass
class _Use:
    """Why a session, and each of its rings, cannot be recovered; "" if it can."""

    session: str
    rings: dict[Path, str]

    @classmethod
    def of(cls, session: Session) -> _Use:
        if not session.document:
            return cls("", {})
        # rings first: checking the session leaves the process table open here
        rings = {path: _use_of_ring(session, path) for path in sorted(session.rings())}
        return cls(_use_of_session(session), rings)

    def reasons(self) -> list[str]:
        return [reason for reason in (self.session, *self.rings.values()) if reason]


def _use_of_ring(session: Session, ring: Path) -> str:
    if beside(ring, ".done").exists():
        return ""
    with open(private.open_file(ring), "rb") as file:
        if not private.lock(file.fileno()):
            return "a collector is still writing its run"
    if read_ended(ring) is not None:
        return ""
    used = private.is_open_elsewhere(ring)
    if used is None:
        used = _pid(ring) in _living(session) if _is_here(session) else None
    if used is None:
        return _ELSEWHERE
    return f"its program (process {_pid(ring)}) is still running" if used else ""


def _use_of_session(session: Session) -> str:
    document = session.document
    launcher = ProcessIdentity(**document["launcher"])
    if _is_here(session) and launcher.lives():
        return f"the process {launcher.pid} that created it is still running"
    table = session.directory / "processes"
    used = private.is_open_elsewhere(table) if table.exists() else False
    if not _is_here(session):
        return (
            _ELSEWHERE if used is None else "one of its processes is still running" if used else ""
        )
    living = _living(session)
    if used or living:
        return (
            f"its processes are still running ({', '.join(map(str, sorted(living))) or 'unknown'})"
        )
    return ""


_ELSEWHERE = "its processes are not visible from this PID namespace"


def _is_here(session: Session) -> bool:
    """Whether the session's pids are valid in this PID namespace."""
    document = session.document
    if document["boot"] != boot_id():
        return True  # all its processes have ended
    return int(document["pid_namespace"]) == pid_namespace()


def _living(session: Session) -> set[int]:
    if session.document["boot"] != boot_id():
        return set()
    table = ProcessTable(session.directory / "processes")
    table.update()
    return table.living() or table.arriving(0)


def _pid(ring: Path) -> int:
    return int(ring.name.partition("-")[0])


def _discarded(session: Session) -> int:
    reasons = _Use.of(session).reasons()
    if reasons:
        print(f"{session.directory}: left alone, {'; '.join(dict.fromkeys(reasons))}")
    else:
        session.remove()
        print(f"{session.directory}: discarded")
    return 0


def _recovered(session: Session) -> int:
    if not session.document:
        return _remove_incomplete(session)
    use = _Use.of(session)
    done = [ring for ring in use.rings if beside(ring, ".done").exists()]
    taken = [ring for ring, reason in use.rings.items() if not reason and ring not in done]
    for ring in done:
        print(f"process {_pid(ring)}: {read_done(ring, _pid(ring)).directory}")
    launcher = Launcher(
        session, print, dict(os.environ), taken=taken, plain_name_given=len(taken) < len(use.rings)
    )
    for ring in taken:
        beside(ring, ".problem").unlink(missing_ok=True)
        if read_ended(ring) is None:
            write_ended(ring, Ended("gone"))
    launcher.look()
    launcher.finish()
    for outcome in launcher.outcomes:
        print(outcome.problem or f"process {outcome.pid}: {outcome.directory}")
    damaged = [ring for ring in taken if ring.name not in launcher.rings and not _is_empty(ring)]
    for ring in damaged:
        print(f"{ring}: kept, damaged or from another version of PASTA")
    for ring, reason in use.rings.items():
        if reason:
            print(f"{ring}: left alone, {reason}")
    if use.session and not any(use.rings.values()):
        print(f"{session.directory}: left alone, {use.session}")
    if launcher.unsaved() or damaged:
        return 1
    if not use.reasons():
        session.remove()
    return 0


def _remove_incomplete(session: Session) -> int:
    """Removes a session whose launcher was killed while creating it, if it has no rings."""
    rings = session.directory / "rings"
    if rings.exists() and any(rings.iterdir()):
        print(f"{session.directory}: kept, session.json is missing")
        return 1
    session.remove()
    return 0


def _is_empty(ring: Path) -> bool:
    """Whether the process ended before it had initialized the ring."""
    with open(private.open_file(ring), "rb") as file:
        return file.read(8).strip(b"\0") == b""
