"""This process as the host of profiled blocks: its libpasta, its ring, and the ring's reader.

Under pasta-preload libpasta is loaded already, and the run's own consumer reads the ring as well.
In any other program the first block opens it with local symbols, so that it does not interpose any
function of the program; the block's reader is then the only consumer.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pasta import paths, private
from pasta.config import Config
from pasta.errors import RunError
from pasta.own_python import own_environment, own_python
from pasta.runtime.attached import Library, opened
from pasta.runtime.injection import (
    shim_configuration,
    unprofiled_environment,
)
from pasta.runtime.session import Session

_STREAMS = 3


@dataclass(frozen=True)
class Request:
    """The start of a block, as sent to the reader."""

    ring: str
    number: int  # of the block
    position: int
    time: int  # CLOCK_MONOTONIC, ns
    config: dict[str, Any]
    staging: str  # directory to write the run to
    place: str | None  # path to move the run to; None: it stays
    alone: bool  # whether the ring has no other consumer


class Reader:
    """The process that reads the blocks of this one (block_reader.py) until this one ends.

    It is not a child of this process, since the program may wait for all of its children.
    """

    def __init__(self, log: Path, session: Session | None) -> None:
        self._socket, remote = map(_above_standard_streams, socket.socketpair())
        remove = [] if session is None else ["--session", str(session.directory)]
        number = str(remote.fileno())
        command = [*own_python("pasta.runtime.block_reader"), str(os.getpid()), number, *remove]
        try:
            with open(private.create(log, os.O_APPEND), "ab") as errors:
                subprocess.run(
                    ["/bin/sh", "-c", '"$@" &', "sh", *command],
                    stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, cwd="/", check=True,
                    env=own_environment(unprofiled_environment(os.environ)),
                    pass_fds=[remote.fileno()], start_new_session=True,
                )  # fmt: skip
        except (OSError, subprocess.CalledProcessError) as error:
            self._socket.close()
            raise RunError(f"the reader of blocks cannot be started ({error})") from None
        finally:
            remote.close()
        self._log = log
        self._answers = self._socket.makefile("rb")

    def begin(self, request: Request) -> None:
        """Starts a block. Raises RunError if the reader has ended."""
        self._send({"begin": asdict(request)})

    def end(self, position: int) -> Path:
        """Ends the block at a position; the directory of its run. Raises RunError."""
        self._send({"end": position})
        try:
            answer = self._answers.readline()
        except OSError:
            answer = b""
        if not answer.endswith(b"\n"):
            raise self._gone()
        result = json.loads(answer)
        if "problem" in result:
            raise RunError(f"the block's results could not be written: {result['problem']}")
        return Path(result["directory"])

    def _send(self, request: dict[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        except OSError:
            raise self._gone() from None

    def _gone(self) -> RunError:
        return RunError(f"the reader of blocks ended (see {self._log})")

    def close(self) -> None:
        """Closes the connection, which ends the reader."""
        self._answers.close()
        self._socket.close()


def _above_standard_streams(connection: socket.socket) -> socket.socket:
    """The connection with a descriptor above 2, even if the program has closed standard streams."""
    with connection:
        return socket.socket(fileno=fcntl.fcntl(connection, fcntl.F_DUPFD_CLOEXEC, _STREAMS))


class Host:
    """This process, with its library, session and reader for blocks; one per process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.reader: Reader | None = None
        try:
            self.library = Library(ctypes.PyDLL(None))
            self.session: Session | None = None  # the launcher removes its session
        except AttributeError:  # not preloaded
            self.session = _own_session()
            configuration = shim_configuration(self.session, self.pid, late=True)
            self.library = opened(str(paths.built(paths.LIBPASTA)), configuration)
        atexit.register(self._close_at_exit)

    @property
    def preloaded(self) -> bool:
        """Whether the program was started with pasta-preload."""
        return self.session is None

    def ring(self) -> Path:
        """This process's ring, opened on first use. Raises RunError."""
        path = self.library.ring()
        if path is None:
            raise RunError(
                "this process is not profiled",
                remedy="pasta-preload was configured not to follow it, or has printed why",
            )
        return Path(os.fsdecode(path))

    def started_reader(self, ring: Path) -> Reader:
        """The reader process, started on first use. Raises RunError."""
        if self.reader is None:
            self.reader = Reader(ring.parent.parent / "log.txt", self.session)
        return self.reader

    def drop_reader(self) -> None:
        """Drops the reader after a failure: the next block starts a new one, and the ring keeps
        nothing for this one."""
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
        """Drops the reader in a forked child: it belongs to the parent."""
        if self.reader is not None:
            self.reader.close()
            self.reader = None


def create_session(command: list[str]) -> Session:
    """A session for blocks of a program that was started without pasta-preload."""
    config = Config(collector=True, start=False, children=False)
    return Session.create(config, command, verbosity=0)


def _own_session() -> Session:
    session = create_session(list(sys.orig_argv))
    # The reader owns the session: the program may close descriptors, and its forks inherit them.
    return session.disown()


_host: Host | None = None


def this_process() -> Host:
    """The host object of this process. Raises RunError if it cannot be profiled."""
    global _host
    if _host is None:
        _host = Host()
        os.register_at_fork(after_in_child=_host.forget_in_child)
    if _host.pid != os.getpid():
        if not _host.preloaded:
            raise RunError(
                (
                    f"process {_host.pid} had profiled a block before this process was forked "
                    "from it"
                ),
                remedy="use the start method spawn, or start the program with pasta-preload",
            )
        _host = Host()
        os.register_at_fork(after_in_child=_host.forget_in_child)
    return _host
