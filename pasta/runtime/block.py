"""This process as one that profiles blocks of itself: its libpasta, its ring, and who reads it.

Under pasta-preload libpasta is there, and the run's own consumer goes on reading the ring beside
ours. In any other program it is opened at the first block, for its own names only, so that it
comes before no function of the program's; the ring is ours alone then.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pasta import paths, private
from pasta.config import Config
from pasta.errors import RunError
from pasta.runtime.injection import (
    built,
    own_environment,
    own_python,
    shim_configuration,
    unprofiled_environment,
)
from pasta.runtime.session import Session

_STREAMS = 3


@dataclass(frozen=True)
class Request:
    """A block that began, as its reader is told."""

    ring: str
    number: int  # of the block
    position: int
    time: int  # CLOCK_MONOTONIC, ns
    config: dict[str, Any]
    staging: str  # directory to write the run to
    place: str | None  # where that goes then; None: it stays
    alone: bool  # the ring has no other consumer


class Library:
    """The functions of libpasta that blocks need."""

    def __init__(self, process: ctypes.PyDLL) -> None:
        def function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
            found: Any = getattr(process, f"pasta_block_{name}")
            found.restype, found.argtypes = result, arguments
            return found  # type: ignore[no-any-return]

        self.process = process
        self.ring = function("ring", ctypes.c_char_p)
        self.begin = function(
            "begin", ctypes.c_uint64, *map(ctypes.POINTER, (ctypes.c_int, ctypes.c_uint32))
        )
        self.end = function("end", ctypes.c_uint64, ctypes.c_int)
        self.forget = function("forget", None)

    @property
    def framework(self) -> int:
        """Address of the function that gives frameworks' hooks their table."""
        return ctypes.cast(self.process.pasta_framework_api, ctypes.c_void_p).value or 0


class Reader:
    """The process that reads the blocks of this one (block_reader.py), for as long as we live.

    It is no child of ours: the program may wait for its own.
    """

    def __init__(self, log: Path, session: Session | None) -> None:
        self._socket, theirs = map(_apart, socket.socketpair())
        remove = [] if session is None else ["--session", str(session.directory)]
        number = str(theirs.fileno())
        command = [*own_python("pasta.runtime.block_reader"), str(os.getpid()), number, *remove]
        try:
            with open(private.create(log, os.O_APPEND), "ab") as errors:
                subprocess.run(
                    ["/bin/sh", "-c", '"$@" &', "sh", *command],
                    stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, cwd="/", check=True,
                    env=own_environment(unprofiled_environment(os.environ)),
                    pass_fds=[theirs.fileno()], start_new_session=True,
                )  # fmt: skip
        except (OSError, subprocess.CalledProcessError) as error:
            self._socket.close()
            raise RunError(f"the reader of blocks cannot be started ({error})") from None
        finally:
            theirs.close()
        self._log = log
        self._answers = self._socket.makefile("rb")

    def begin(self, request: Request) -> None:
        self._send({"begin": asdict(request)})

    def end(self, position: int) -> Path:
        """Directory of the run of the block that ended there. Raises RunError."""
        self._send({"end": position})
        try:
            answer = self._answers.readline()
        except OSError:
            answer = b""
        if not answer.endswith(b"\n"):
            raise self._gone()
        told = json.loads(answer)
        if "problem" in told:
            raise RunError(f"the block's results could not be written: {told['problem']}")
        return Path(told["directory"])

    def _send(self, request: dict[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        except OSError:
            raise self._gone() from None

    def _gone(self) -> RunError:
        return RunError(f"the reader of blocks ended (see {self._log})")

    def close(self) -> None:
        """Lets it end."""
        self._answers.close()
        self._socket.close()


def _apart(connection: socket.socket) -> socket.socket:
    """The same with a number that is no standard stream's, in a program that has closed those."""
    with connection:
        return socket.socket(fileno=fcntl.fcntl(connection, fcntl.F_DUPFD_CLOEXEC, _STREAMS))


class Host:
    """This process, with what it has for its blocks; one for each process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.reader: Reader | None = None
        try:
            self.library = Library(ctypes.PyDLL(None))
            self.session: Session | None = None  # the launcher's is not ours to remove
        except AttributeError:  # not preloaded
            self.session = _own_session()
            self.library = Library(_opened(self.session))
        atexit.register(self._close_at_exit)

    @property
    def preloaded(self) -> bool:
        return self.session is None

    def ring(self) -> Path:
        """This process's ring, opened if need be. Raises RunError."""
        path = self.library.ring()
        if path is None:
            raise RunError(
                "this process is not profiled",
                remedy="pasta-preload was told not to follow it, or has said why",
            )
        return Path(os.fsdecode(path))

    def started_reader(self, ring: Path) -> Reader:
        if self.reader is None:
            self.reader = Reader(ring.parent.parent / "log.txt", self.session)
        return self.reader

    def drop_reader(self) -> None:
        """After a failure: the next block gets another one, and nothing is kept for this one."""
        if self.reader is not None:
            self.reader.close()
        self.reader = None
        self.library.forget()

    def _close_at_exit(self) -> None:
        if os.getpid() != self.pid:
            return
        if self.reader is not None:
            self.reader.close()
        if self.session is not None:
            self.session.remove()

    def forget_in_child(self) -> None:
        """In the child of a fork: the reader is the parent's."""
        if self.reader is not None:
            self.reader.close()
            self.reader = None


def _own_session() -> Session:
    config = Config(collector=True, start=False, children=False)
    session = Session.create(config, list(sys.orig_argv), verbosity=0)
    # The program may close our descriptors, and its forks would keep them: the reader owns it.
    return session.disown()


def _opened(session: Session) -> ctypes.PyDLL:
    """libpasta, opened now for a session of this process's own."""
    before = os.environ.get("PASTA_SHIM")
    os.environ["PASTA_SHIM"] = shim_configuration(session, os.getpid(), late=True)
    try:
        return ctypes.PyDLL(str(built(paths.LIBPASTA)))
    finally:  # read when it was opened
        if before is None:
            del os.environ["PASTA_SHIM"]
        else:
            os.environ["PASTA_SHIM"] = before


_host: Host | None = None


def this_process() -> Host:
    """Raises RunError where it cannot be profiled."""
    global _host
    if _host is None:
        _host = Host()
        os.register_at_fork(after_in_child=_host.forget_in_child)
    if _host.pid != os.getpid():
        if not _host.preloaded:
            raise RunError(
                f"process {_host.pid} has profiled a block before this one was forked from it",
                remedy="start this one anew (spawn), or the program with pasta-preload",
            )
        _host = Host()
        os.register_at_fork(after_in_child=_host.forget_in_child)
    return _host
