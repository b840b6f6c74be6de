"""A session: the directory in shared memory through which launcher, targets and collectors meet.

Directories are 0700 and files 0600. Ownership is expressed by locks (flock), which the kernel
releases when a process ends in any way: the launcher, or its background process, holds the lock of
the directory, and a collector that of its ring.

session.json   the configuration, for all Python processes; written last
processes      table of pids with libpasta loaded (shim/core/processes.c)
rings/         PID-SEQUENCE: the event rings, each with temporary companion files:
               .state (state of an embedded consumer), .ended (how the process ended),
               .done (path of its run directory) or .problem (why there is none),
               .progress (of its collector), .probes (counts of patches),
               .trace (accesses for a collector)
modules/       images of loaded modules by the hash of their contents, if they are kept
interrupted    exists once a signal ended the reading of GPU code (pasta/interruption.py)
probes         the plan of probes, if any
uvm_plan       the plan for managed memory, if any
log.txt        messages of all processes
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pasta import private
from pasta.config import Config
from pasta.errors import RunError
from pasta.frameworks.base import Wanted
from pasta.runtime.processes import TABLE_BYTES, ProcessIdentity, boot_id, pid_namespace

if TYPE_CHECKING:
    from pasta.runtime.reserve import Reserve
    from pasta.runtime.ring import Ring


#: Bytes or operations per second of devices, by backend, uuid, and name of the roof.
Roofs = dict[str, dict[str, Mapping[str, float]]]

_PREFIX = "pasta-"
_MIN_FREE = 8 << 20  # bytes
_DOCUMENT = "session.json"
_TABLE = "processes"


class Ended(NamedTuple):
    """How a process ended, as its launcher saw it."""

    #: "exit", "signal", "exec", "gone" (not a child of the launcher: status unknown), or, if the
    #: process continues, "block" (only a block was profiled) or "detached" (by pasta attach).
    how: str
    status: int | None = None  # exit status or signal number

    def __str__(self) -> str:
        import signal

        if self.how == "signal" and self.status is not None:
            return f"ended by {signal.Signals(self.status).name}"
        if self.how == "block":
            return "a block of the program"
        if self.how == "detached":
            return "detached, the program continued"
        if self.how == "exit":
            return f"exited with {self.status}"
        return "replaced itself (exec)" if self.how == "exec" else "ended"


class Session(NamedTuple):
    """An open session directory."""

    directory: Path
    document: dict[str, Any]
    #: Locked descriptor of the directory, if this process owns the session.
    lock: int | None = None
    #: A collector in reserve that was started with the session.
    reserve: Reserve | None = None

    @classmethod
    def create(
        cls,
        config: Config,
        command: list[str],
        verbosity: int,
        wanted: Wanted | None = None,
        roofs: Roofs | None = None,
    ) -> Session:
        """Creates and locks the directory where there is space for rings. Raises RunError.

        `wanted`: the framework data that tools require. `roofs`: what was measured of devices.
        """
        document = {
            "config": config.document(),
            "command": command,
            "cwd": os.getcwd(),
            "started": time.time_ns(),
            "launcher": ProcessIdentity.of(os.getpid())._asdict(),
            "pid_namespace": pid_namespace(),
            "boot": boot_id(),
            "verbosity": verbosity,
            "terminal_width": _terminal_width(),
            "wanted": (wanted or Wanted()).document(),
            "roofs": roofs or {},
            "backends": {},
            "tool_owners": _owners(config.tools),
        }
        place = _place(config)
        directory = place / f"{_PREFIX}{os.getuid()}-{os.getpid()}-{os.urandom(8).hex()}"
        session = cls(directory, document)
        try:
            if not place.exists():
                private.make_directory(place)
            session = session._replace(lock=_made_and_locked(directory))
            session.complete(bytes(TABLE_BYTES))
        except OSError as error:
            session.remove()
            session.disown()
            remedy = "make room there or use another directory with --set ring.directory=DIR"
            if error.errno == errno.EFBIG:
                remedy = "raise the limit on file sizes: ulimit -f"
            raise RunError(
                f"cannot create the session directory {directory} ({error.strerror})", remedy=remedy
            ) from None
        return session

    def complete(self, table: bytes) -> None:
        """Creates missing parts; `table`: initial process table. Raises OSError."""
        for name in ("rings", "modules"):
            if not (self.directory / name).exists():
                private.make_directory(self.directory / name)
        if not (self.directory / _TABLE).exists():
            private.write_atomically(self.directory / _TABLE, table)
        if not (self.directory / _DOCUMENT).exists():
            content = json.dumps(self.document).encode()
            private.write_atomically(self.directory / _DOCUMENT, content)

    @property
    def is_complete(self) -> bool:
        """Whether all parts of the directory exist."""
        return all(
            (self.directory / name).exists() for name in ("rings", "modules", _TABLE, _DOCUMENT)
        )

    def restore(self, table: bytes) -> None:
        """Recreates removed parts and takes ownership again; rings are not restored, only their
        directory. Raises OSError."""
        if self.lock is None or not private.is_named(self.lock, self.directory):
            made = _made_and_locked(self.directory)
            if self.lock is not None:
                os.dup2(made, self.lock, inheritable=False)
                os.close(made)
        self.complete(table)

    @classmethod
    def open(cls, directory: Path) -> Session:
        """Opens a session of another owner. Raises OSError, and RunError if another user could
        have written it or it is damaged."""
        os.close(private.open_directory(directory))
        return cls(directory, _document(directory))

    @classmethod
    def take(cls, directory: Path) -> Session | None:
        """Takes ownership of a session whose owner has ended; None if it has an owner.

        The document is empty if the launcher did not complete it. Raises OSError, RunError.
        """
        lock = private.open_directory(directory)
        try:
            if private.lock(lock) and private.is_named(lock, directory):
                complete = (directory / _DOCUMENT).exists()
                return cls(directory, _document(directory) if complete else {}, lock)
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
        return None

    def disown(self) -> Session:
        """Releases the lock; the session without it."""
        if self.lock is not None:
            os.close(self.lock)
        return self._replace(lock=None)

    @property
    def config(self) -> Config:
        """The configuration of the session."""
        return Config(**self.document["config"])

    @property
    def uvm_plan(self) -> Path:
        """File of the plan for managed memory; absent without one."""
        return self.directory / "uvm_plan"

    @property
    def probes(self) -> Path:
        """File of the probe plan; absent without probes."""
        return self.directory / "probes"

    @property
    def interruption(self) -> Path:
        """File that exists once a signal asked to finish the runs quickly."""
        return self.directory / "interrupted"

    def check_tools(self) -> None:
        """Raises RunError if the owner of a tool file changed after the start, unsafely.

        Files named by the user are trusted like any program started by path, but `pasta recover`
        may run them days later.
        """
        for path, owners in self.document["tool_owners"].items():
            file = Path(path)
            if file.exists() and [file.stat().st_uid, file.parent.stat().st_uid] != owners:
                reason = private.writers_objection(file, frozenset())
                if reason:
                    raise RunError(
                        f"tool file {path} is not used: {reason}, which was not "
                        "the case at the start"
                    )

    def log(self, text: str) -> None:
        """Appends lines to the session's log; a full disk is ignored."""
        lines = "".join(f"[{os.getpid()}] {line}\n" for line in text.splitlines())
        try:
            private.append(self.directory / "log.txt", lines.encode("utf-8", "backslashreplace"))
        except OSError:
            pass

    def rings(self) -> list[Path]:
        """Files of all rings, in no particular order."""
        return [path for path in (self.directory / "rings").iterdir() if "." not in path.name]

    def remove(self) -> None:
        """Removes the directory; errors are ignored."""
        shutil.rmtree(self.directory, ignore_errors=True)


def _made_and_locked(directory: Path) -> int:
    private.make_directory(directory)
    try:
        descriptor = private.open_directory(directory)
        private.lock(descriptor, wait=True)  # a concurrent `pasta doctor` or `recover` looks at it
        if private.is_named(descriptor, directory):
            return descriptor
        os.close(descriptor)
    except FileNotFoundError:
        pass
    return _made_and_locked(directory)  # `pasta recover` removed it as abandoned


def _document(directory: Path) -> dict[str, Any]:
    path = directory / _DOCUMENT
    try:
        document: Any = json.loads(private.read(path))
        Config(**document["config"])
        ProcessIdentity(**document["launcher"])
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: damaged ({type(error).__name__}: {error})") from None
    found: dict[str, Any] = document
    return found


def _owners(tools: list[str]) -> dict[str, list[int]]:
    """Owners (uid) of tool files given by path, and of their directories."""
    found = {}
    for tool in tools:
        file = Path(tool.partition(":")[0])
        if file.is_file():
            found[str(file)] = [file.stat().st_uid, file.parent.stat().st_uid]
    return found


def _terminal_width() -> int | None:
    """Columns of the terminal on stderr; None if stderr is not a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    return shutil.get_terminal_size().columns


def _place(config: Config) -> Path:
    if config.ring_directory:
        return Path(config.ring_directory).absolute()
    shared = Path("/dev/shm")
    if os.access(shared, os.W_OK) and _free(shared) >= _MIN_FREE:
        return shared
    return Path(os.environ.get("TMPDIR") or "/tmp")


def _free(directory: Path) -> int:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def beside(ring: Path, suffix: str) -> Path:
    """A companion file of a ring, such as `.state`."""
    return ring.with_name(ring.name + suffix)


def read_ended(ring: Path) -> Ended | None:
    """How the process of a ring ended; None if unknown. Raises OSError, NotPrivate."""
    try:
        return Ended(**json.loads(private.read(beside(ring, ".ended"))))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):  # damaged: but the process has ended
        return Ended("gone")


def write_ended(ring: Path, ended: Ended) -> None:
    """Records beside a ring how its process ended. Raises OSError."""
    private.write_atomically(beside(ring, ".ended"), json.dumps(ended._asdict()).encode())


#: Values of `Ended.how`; a ring stores the index plus 1.
_HOW = ("exit", "signal", "exec", "gone", "block", "detached")


def mark_ended(ring: Ring, ended: Ended) -> None:
    """Records the end in the ring itself, which works even if the file system is full."""
    ring.mark_ended(1 + _HOW.index(ended.how), -1 if ended.status is None else ended.status)


def marked_ended(ring: Ring) -> Ended | None:
    """The end that `mark_ended` recorded; None if it recorded none."""
    if not 0 < ring.ended <= len(_HOW):
        return None
    return Ended(_HOW[ring.ended - 1], None if ring.ended_status < 0 else ring.ended_status)
