"""A session: the directory in shared memory through which launcher, targets and collectors meet.

session.json   the configuration, for every Python side
processes      table of pids that carry libpasta (shim/core/processes.c)
rings/         PID-SEQUENCE: the event rings; beside each, while it is being worked on:
               .state (what an embedded consumer had computed), .ended (how the process
               ended), .done (where its run directory is) or .problem (why there is none),
               .progress (what its collector is doing), .probes (what patches counted),
               .trace (accesses on their way to a collector)
modules/       images of loaded modules by the hash of their contents, if they are kept
probes         the plan of probes, if there are any
log.txt        lines of all of them
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pasta.config import Config
from pasta.errors import RunError
from pasta.runtime.processes import TABLE_BYTES

_PREFIX = "pasta-"
_SMALLEST = 8 << 20


@dataclass(frozen=True)
class Ended:
    """How a process ended, as its launcher saw it."""

    #: "exit", "signal", "exec", "gone" (not our child: status unknown), or "block": it goes on,
    #: and what was profiled is a block of it.
    how: str
    status: int | None = None  # exit status or signal number

    def __str__(self) -> str:
        import signal

        if self.how == "signal" and self.status is not None:
            return f"ended by {signal.Signals(self.status).name}"
        if self.how == "block":
            return "a block of the program"
        if self.how == "exit":
            return f"exited with {self.status}"
        return "replaced itself (exec)" if self.how == "exec" else "ended"


@dataclass(frozen=True)
class Session:
    """An open session directory."""

    directory: Path
    document: dict[str, Any]

    @classmethod
    def create(
        cls,
        config: Config,
        command: list[str],
        verbosity: int,
        torch: Mapping[str, bool] | None = None,
    ) -> Session:
        """Makes the directory where there is room for rings; `torch`: what tools want of it.

        Raises RunError.
        """
        name = f"{_PREFIX}{os.getuid()}-{os.getpid()}-{os.urandom(8).hex()}"
        directory = _place(config) / name
        document = {
            "config": asdict(config),
            "command": command,
            "cwd": os.getcwd(),
            "started": time.time_ns(),
            "launcher": os.getpid(),
            "verbosity": verbosity,
            "terminal_width": _terminal_width(),
            "torch": dict(torch or {}),
        }
        try:
            (directory / "rings").mkdir(parents=True, mode=0o700)
            (directory / "modules").mkdir()
            (directory / "processes").write_bytes(bytes(TABLE_BYTES))
            (directory / "session.json").write_text(json.dumps(document))
        except OSError as error:
            shutil.rmtree(directory, ignore_errors=True)
            raise RunError(
                f"cannot create the session directory {directory} ({error.strerror})",
                remedy="make room there or name another place with --set ring.directory=DIR",
            ) from None
        return cls(directory, document)

    @classmethod
    def open(cls, directory: Path) -> Session:
        return cls(directory, json.loads((directory / "session.json").read_text()))

    @property
    def config(self) -> Config:
        return Config(**self.document["config"])

    @property
    def probes(self) -> Path:
        """File of the plan of probes; absent in a run without any."""
        return self.directory / "probes"

    def log(self, text: str) -> None:
        """Adds lines to the session's log; a full disk must not stop the run."""
        try:
            with (self.directory / "log.txt").open("a") as log:
                log.writelines(f"[{os.getpid()}] {line}\n" for line in text.splitlines())
        except OSError:
            pass

    def rings(self) -> list[Path]:
        """Files of all rings, in no particular order."""
        return [path for path in (self.directory / "rings").iterdir() if "." not in path.name]

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


def _terminal_width() -> int | None:
    """Columns of the terminal that stderr is; None where it is none."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    return shutil.get_terminal_size().columns


def _place(config: Config) -> Path:
    if config.ring_directory:
        return Path(config.ring_directory).absolute()
    shared = Path("/dev/shm")
    if os.access(shared, os.W_OK) and _free(shared) >= _SMALLEST:
        return shared
    return Path(os.environ.get("TMPDIR") or "/tmp")


def _free(directory: Path) -> int:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file so that a reader sees all of it or nothing."""
    temporary = path.with_name(path.name + ".writing")
    temporary.write_bytes(content)
    temporary.replace(path)


def beside(ring: Path, suffix: str) -> Path:
    """The companion file of a ring: `.state`, `.ended` or `.done`."""
    return ring.with_name(ring.name + suffix)


def read_ended(ring: Path) -> Ended | None:
    try:
        return Ended(**json.loads(beside(ring, ".ended").read_text()))
    except FileNotFoundError:
        return None


def write_ended(ring: Path, ended: Ended) -> None:
    write_atomically(beside(ring, ".ended"), json.dumps(asdict(ended)).encode())
