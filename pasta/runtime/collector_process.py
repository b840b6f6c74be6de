"""The collector process: follows an event ring and writes its run directory.

Started by the launcher: while the target runs, if the target cannot run Python itself; otherwise
after it has ended.  Rings of several ended processes may share a collector, since starting
Python takes most of the time of a run with few events: a child is forked for each ring, so that
tools find a new process and a crash affects one run only.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import json
import os
import shutil
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from pasta import interruption, private
from pasta.errors import PastaError, RunError
from pasta.progress import FileListener, listening
from pasta.run.directory import MANIFEST, RunDirectory, is_run, places
from pasta.runtime.collector import Collector
from pasta.runtime.ring import Ring
from pasta.runtime.session import Session, beside
from pasta.runtime.staging import SPILL, STAGED, destination_of, staging_directory

#: Columns of the prefix "pasta: " of every report line on the terminal.
_PREFIX_COLUMNS = 7


def collect(ring_path: Path, *, plain_name: bool) -> dict[str, Any]:
    """Follows a ring and writes its run; the document for the launcher.

    Raises RunError if another collector has the ring.
    """
    session = Session.open(ring_path.parent.parent)
    interruption.follow(session.interruption)
    with open(private.open_file(ring_path), "rb") as owned:
        if not private.lock(owned.fileno()):
            raise RunError(
                f"another collector is reading {ring_path}", remedy="wait until it has finished"
            )
        return _collect(session, Ring(ring_path), plain_name)


def _collect(session: Session, ring: Ring, plain_name: bool) -> dict[str, Any]:
    report, width = None, session.document["terminal_width"]
    moved = _already_moved(session, ring)
    if moved is None:
        run = _written(session, ring)
        if width is not None:
            report = _terminal_report(session, ring, run, width - _PREFIX_COLUMNS)
        moved = _moved(session, ring, run, plain_name)
    run, root = moved
    done = {"directory": str(run.path), "report": str(report or run.report), "root": root}
    private.write_atomically(beside(ring.path, ".done"), json.dumps(done).encode())
    return done


def _written(session: Session, ring: Ring) -> RunDirectory:
    """The complete run of a ring, in its staging directory."""
    run = RunDirectory(staging_directory(session, ring))
    if (run.path / MANIFEST).exists():  # a collector was killed just before moving it
        private.make_or_check_directory(run.path)
        from pasta.report.text import write_text_report

        write_text_report(run)
    else:
        session.check_tools()
        collector = Collector(session, ring)
        run = collector.write(*collector.collect())
    for source in (SPILL, STAGED):
        shutil.rmtree(run.path / source, ignore_errors=True)
    return run


def _terminal_report(session: Session, ring: Ring, run: RunDirectory, columns: int) -> Path | None:
    """File of the report formatted for the terminal; None if that fails."""
    from pasta.report.text import write_terminal_report

    path = beside(ring.path, ".report")
    try:
        write_terminal_report(run, path, columns)
    except Exception:
        session.log(f"the terminal's report failed:\n{traceback.format_exc()}")
        return None
    return path


class _Moved(NamedTuple):
    """A run at its destination, and its root, if any."""

    run: RunDirectory
    root: str | None


def _moved(session: Session, ring: Ring, run: RunDirectory, plain_name: bool) -> _Moved:
    config, manifest = session.config, run.manifest()
    place = destination_of(
        session,
        ring,
        manifest.get("executable") or session.document["command"][0],
        manifest.get("environment", {}),
    )
    wanted = place.path
    if place.root is None and not plain_name and "%p" not in config.out:
        wanted = wanted.with_name(f"{wanted.name}-{ring.pid}")
    force = config.force and place.root is None
    suffix = str(ring.sequence) if place.root else f"{ring.pid}-{ring.sequence}"
    root = str(place.root) if place.root else None
    moving = {"wanted": str(wanted), "suffix": suffix, "root": root}
    private.write_atomically(beside(ring.path, ".moving"), json.dumps(moving).encode())
    return _Moved(run.move_to(wanted, force=force, suffix=suffix), root)


def _already_moved(session: Session, ring: Ring) -> _Moved | None:
    """The moved run of a collector that was killed before it reported the path."""
    path = beside(ring.path, ".moving")
    if not path.exists() or staging_directory(session, ring).exists():
        return None
    moving = json.loads(private.read(path))
    for place in places(Path(moving["wanted"]), moving["suffix"]):
        if not place.exists():
            return None
        manifest = RunDirectory(place).manifest() if is_run(place) else {}
        of = manifest.get("pid"), manifest.get("start", {}).get("monotonic_ns")
        if of == (ring.pid, ring.start_time):
            return _Moved(RunDirectory(place), moving["root"])
    return None


def main() -> NoReturn:
    """Entry point of the collector process, which ends here."""
    _end(_run())


def _run() -> int:
    """Collects the rings of the command line; the exit status."""
    parser = argparse.ArgumentParser(prog="pasta collector")
    parser.add_argument("rings", type=Path, nargs="+")
    parser.add_argument("--plain-name", action="store_true", help="of the first ring's run")
    arguments = parser.parse_args()
    private.set_umask()
    # A blocked SIGALRM is inherited from the launcher, and time limits would never expire.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored: waitpid would fail
    first, *others = arguments.rings
    if not others:
        return _work(first, arguments.plain_name)
    import_slow_modules()
    gc.freeze()  # children collecting garbage would copy its pages
    for ring in arguments.rings:
        pid = os.fork()
        if not pid:
            return _work(ring, arguments.plain_name and ring == first)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status < 0:
            _problem(ring, f"status {status}")
    return 0


def import_slow_modules() -> None:
    """Imports once what every collector imports at some point; no tools."""
    for name in ("numpy.ma", "pasta.report.text"):
        importlib.import_module(name)


def _work(ring: Path, plain_name: bool) -> int:
    """Collects one ring; this process's exit status."""
    try:
        with listening(FileListener(beside(ring, ".progress"))):
            collect(ring, plain_name=plain_name)
    except PastaError as error:
        return _problem(ring, str(error))
    except Exception as error:
        traceback.print_exc()
        return _problem(ring, f"{type(error).__name__}: {error}")
    return 0


def _end(status: int) -> NoReturn:
    """Ends this process without Python's finalization, which takes as long as a report and joins
    threads that a tool has left."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # a tool may have closed or replaced it
            stream.flush()
    os._exit(status)


def _problem(ring: Path, text: str) -> int:
    """Reports to the launcher why there is no run; the ring is kept."""
    private.write_atomically(beside(ring, ".problem"), text.encode())
    return 1


if __name__ == "__main__":
    main()
