"""PASTA's side of `pasta attach`: profiles a program that runs already, as a block of it.

The program's side (attached.py) is started by a debugger or by sys.remote_exec, connects to a
socket, opens libpasta and begins the block. The ring is read here. The session is kept while the
program runs, since its libpasta stays loaded: another `pasta attach` uses it again.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from pasta import paths, private
from pasta.config import Config
from pasta.errors import RunError
from pasta.frameworks import FRAMEWORKS
from pasta.frameworks.base import Framework, Wanted
from pasta.run.directory import RunDirectory, staging_beside
from pasta.run.naming import expand
from pasta.runtime import attached, debugger
from pasta.runtime.block import Request, create_session
from pasta.runtime.block_reader import BlockCollector
from pasta.runtime.block_tools import PRELOAD, load_block_tools, refuse_tools_of_gpus
from pasta.runtime.injection import shim_configuration
from pasta.runtime.processes import ProcessIdentity
from pasta.runtime.program import Program, mapped_files
from pasta.runtime.session import Ended, Session

if TYPE_CHECKING:
    from pasta.tool import Tool

Say = Callable[[str], None]

_INTERVAL_SECONDS = 0.02
_POLL_SECONDS = 0.5
_SLOW_SECONDS = 3.0
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: File of a session that names, and is locked by, the pasta attach that uses it.
_ATTACHED = "attached"
_SESSION = re.compile(r"(/.*/pasta-\d+-\d+-[0-9a-f]{16})/rings/[^/]+$")

#: Runs on the program's main thread, in its namespace: it leaves no name there. `threading` must be
#: imported on the main thread. An interrupt of the program meanwhile is raised in it again.
_ENTRY = """try:
 __import__("threading"), __import__("_thread").start_new_thread(exec, ({thread!r}, {{}}))
except KeyboardInterrupt:
 __import__("_thread").interrupt_main()
except BaseException:
 pass
"""
#: Runs on the thread. It fails if `pasta attach` has timed out meanwhile.
_THREAD = """try:
 names = {{"__name__": "_pasta_attached"}}
 with open({source!r}, "rb") as file:
  code = compile(file.read(), {source!r}, "exec")
 exec(code, names)
 names["main"]({directory!r})
except BaseException:
 pass
"""


def entry(directory: Path) -> str:
    """Python code that starts the program's side, which connects to the socket in a directory."""
    thread = _THREAD.format(source=attached.__file__, directory=os.fspath(directory))
    return _ENTRY.format(thread=thread)


# ---- the connection ------------------------------------------------------------------------------


class _Connection:
    """The socket to which the program's side connects, in a private temporary directory."""

    def __init__(self, program: Program, say: Say) -> None:
        self.program, self.say = program, say
        self.directory = Path(tempfile.mkdtemp(prefix="pasta-attach-"))
        self.socket = socket.socket(socket.AF_UNIX)
        folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:  # a socket's path must be short
            self.socket.bind(f"/proc/self/fd/{folder}/socket")
        finally:
            os.close(folder)
        self.socket.listen(1)
        self._received = b""

    def close(self) -> None:
        """Ends the connection, and with it the program's side."""
        self.socket.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def accept(self) -> None:
        """Starts the program's side, and waits for its connection. Raises PastaError."""
        file = self.directory / "entry.py"
        private.write_atomically(file, entry(self.directory).encode())
        debugger.run_in(self.program, file)
        slow = time.monotonic() + _SLOW_SECONDS
        while not select.select([self.socket], [], [], _POLL_SECONDS)[0]:
            self._check_alive()
            if slow and time.monotonic() > slow:
                slow = 0.0
                self.say(
                    f"waiting until the main thread of {self.program} runs Python code: it is "
                    "in a C call, such as a wait"
                )
        listening, self.socket = self.socket, self.socket.accept()[0]
        listening.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _check_alive(self) -> None:
        if not self.program.identity.lives():
            raise RunError(f"{self.program} has ended")

    def ask(self, name: str, request: object) -> dict[str, Any]:
        """The answer to a request. Raises RunError if it is refused, or the program has ended."""
        try:
            self.socket.sendall(json.dumps({name: request}).encode() + b"\n")
        except OSError:
            raise RunError(f"{self.program} has ended") from None
        while True:
            answer = self.receive(_POLL_SECONDS)
            if answer is None:
                self._check_alive()
            elif "problem" in answer:
                raise RunError(f"{self.program} cannot be profiled: {answer['problem']}")
            elif "say" in answer:
                self.say(answer["say"])
            elif "exit" in answer:
                raise RunError(f"{self.program} has ended")
            else:
                return answer

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """The next line, or None after this time; {"exit": None} if the connection is closed."""
        while b"\n" not in self._received:
            if not select.select([self.socket], [], [], seconds)[0]:
                return None
            try:
                piece = self.socket.recv(1 << 16)
            except OSError:
                piece = b""
            if not piece:
                return {"exit": None}
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


# ---- the profile ---------------------------------------------------------------------------------


class Attachment:
    """The profile of a running program; the program continues after the `with` block."""

    def __init__(self, program: Program, config: Config, say: Say) -> None:
        self.program, self.config, self.say = program, config, say
        #: What the run does not have, as lines.
        self.unseen: list[str] = []
        self._own: Session | None = None
        self._ends = 0  # position of the program's end, if known

    def __enter__(self) -> Attachment:
        with ExitStack() as undo:
            undo.callback(self._release_session)
            self._connection = _Connection(self.program, self.say)
            undo.callback(self._connection.close)
            self._connection.accept()
            self._begin(undo)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _begin(self, undo: ExitStack) -> None:
        about = self._open()
        preloaded = about["preloaded"]
        followed = [
            each
            for each in FRAMEWORKS.known()
            if each.module in about["modules"] and each.is_followed(self.config)
        ]
        if not self.config.tools:
            self.config.tools.extend(_usual_tools(self.program, followed, preloaded=preloaded))
        tools = load_block_tools(self.config)
        if not preloaded:
            refuse_tools_of_gpus(tools)
        _check_frameworks(self.program, tools, followed)
        if "ring" not in about:
            about = self._open(self._create_session())
        ring = Path(about["ring"])
        undo.callback(os.close, _lock(Session.open(ring.parent.parent), self.program))
        begun = self._begin_block(followed, Wanted.by(tools))
        self._signals = _NotedSignals()
        undo.callback(self._signals.restore)
        self._note_unseen(begun["missed"], preloaded=preloaded)
        place = Path.cwd() / expand(
            self.config.out, program=about["program"], pid=self.program.pid,
            started=time.time_ns(), environment=self.program.environment,
        )  # fmt: skip
        staging = staging_beside(place)
        undo.callback(shutil.rmtree, staging, ignore_errors=True)
        request = Request(
            str(ring), begun["number"], begun["position"], begun["time"], self.config.document(),
            str(staging), str(place), alone=not preloaded,
        )  # fmt: skip
        self._block = BlockCollector(request, None)
        undo.callback(self._block.close)
        self._block.warnings.extend(self.unseen)

    def _open(self, configuration: str = "") -> dict[str, Any]:
        """The answer of the program's side, which opens libpasta if given a configuration."""
        return self._connection.ask(
            "open",
            {
                "library": str(paths.built(paths.LIBPASTA)),
                "configuration": configuration,
                "modules": [each.module for each in FRAMEWORKS.known()],
            },
        )

    def _create_session(self) -> str:
        """Creates a session; the configuration that libpasta needs for it."""
        self._own = create_session(self.program.command)
        return shim_configuration(self._own, self.program.pid, late=True)

    def _begin_block(self, followed: list[Framework], wanted: Wanted) -> dict[str, Any]:
        hooks = [
            {
                "name": each.title,
                "module": each.module,
                "hooks": str(each.hooks),
                "settings": each.block_settings(self.config, wanted),
            }
            for each in followed
            if wanted
        ]
        self._connection.ask("prepare", hooks)
        return self._connection.ask("begin", {})

    def _note_unseen(self, missed: list[str], *, preloaded: bool) -> None:
        self.unseen.append(
            "attached to the running program: earlier work, and memory allocated earlier, "
            "are not in this run"
        )
        if not preloaded:
            self.unseen.append(f"GPU kernels, copies and memory are not followed: {PRELOAD}")
        self.unseen += [f"not followed: {each}" for each in missed]

    def follow(self) -> None:
        """Follows the program until a signal asks for the end, `run.duration` is over, or the
        program ends."""
        until = time.monotonic() + (self.config.duration / 1000 or float("inf"))
        lives = self.program.identity.lives
        while not self._signals.received and time.monotonic() < until and lives():
            self._block.follow()
            line = self._connection.receive(_INTERVAL_SECONDS)
            if line is not None and "exit" in line:
                self._ends = line["exit"] or self._block.ring.tail
                return

    def finish(self) -> RunDirectory:
        """Ends the profile and writes the run; another Ctrl-C aborts. Raises RunError."""
        self._signals.restore()
        ended = Ended("gone")
        if not self._ends:
            try:
                self._ends = self._connection.ask("end", {})["position"]
                ended = Ended("detached")
            except RunError as error:
                self._ends = self._block.ring.tail
                if self.program.identity.lives():
                    self.say(str(error))
                    ended = Ended("detached")
        return RunDirectory(self._block.finish(self._ends, ended))

    def _release_session(self) -> None:
        """Removes the session, when the program has ended: its libpasta uses it until then."""
        if self._own is None:
            return
        if self.program.identity.lives() and any(self._own.rings()):
            if os.fork():
                return
            _remove_later(self._own, self.program.identity)
        self._own.remove()


def _remove_later(session: Session, program: ProcessIdentity) -> None:
    """In a forked process: removes the session when the program has ended."""
    try:
        os.setsid()
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        while program.lives():
            time.sleep(_POLL_SECONDS)
        session.remove()
    finally:
        os._exit(0)


class _NotedSignals:
    """Notes the signals that ask for the end, instead of their usual effect, until `restore`."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._before = {number: signal.signal(number, self._note) for number in _ENDING_SIGNALS}

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received.append(number)

    def restore(self) -> None:
        """Restores the effects of the signals."""
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _usual_tools(
    program: Program, followed: list[Framework], *, preloaded: bool
) -> tuple[str, ...]:
    for each in followed:
        if each.usual_tools:
            return each.usual_tools
    if preloaded:
        return ("kernel_freq",)
    raise RunError(
        f"{program} has not imported {_titles()}, so only its annotations can be followed",
        remedy=f"use -t event_trace; for GPU events, {PRELOAD}",
    )


def _check_frameworks(program: Program, tools: list[Tool], followed: list[Framework]) -> None:
    """Raises RunError if a tool needs a framework that the program has not imported."""
    needing = [tool.name for tool in tools if "operators" in tool.needed()]
    if needing and not followed:
        raise RunError(
            f"tool {needing[0]} needs {_titles()}, which {program} has not imported",
            remedy="attach once it has, or leave out the tool",
        )


def _titles() -> str:
    return " or ".join(each.title for each in FRAMEWORKS.known())


# ---- one pasta attach at a time ------------------------------------------------------------------


def _lock(session: Session, program: Program) -> int:
    """Locks the session for this process; the descriptor that holds the lock. Raises RunError."""
    descriptor = private.create(session.directory / _ATTACHED, 0)
    if not private.lock(descriptor):
        holder = _holder(descriptor)
        os.close(descriptor)
        raise RunError(
            f"another pasta attach (process {holder.pid}) is profiling {program}",
            remedy=f"pasta attach --detach {program.pid}",
        )
    os.ftruncate(descriptor, 0)
    os.write(descriptor, json.dumps(ProcessIdentity.of(os.getpid())).encode())
    return descriptor


def _holder(descriptor: int) -> ProcessIdentity:
    try:
        return ProcessIdentity(*json.loads(os.pread(descriptor, 1 << 10, 0)))
    except (ValueError, TypeError):  # not yet written
        return ProcessIdentity(0, None)


def detach(pid: int) -> None:
    """Ends the profile of a `pasta attach`, and waits until its run is written. Raises RunError."""
    sessions = {found[1] for name in mapped_files(pid) if (found := _SESSION.match(name))}
    for directory in sessions:
        try:
            descriptor = private.open_file(Path(directory, _ATTACHED))
        except FileNotFoundError:
            continue
        try:
            holder = _holder(descriptor)
            if not private.lock(descriptor) and holder.lives():
                os.kill(holder.pid, signal.SIGTERM)
                private.lock(descriptor, wait=True)
                return
        finally:
            os.close(descriptor)
    raise RunError(f"no pasta attach is profiling process {pid}")
