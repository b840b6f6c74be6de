"""The parent of the target: starts it, watches its processes, has their runs finished.

The launcher stays light: it imports neither NumPy nor a tool's dependencies.  Whatever needs
them runs in a collector process per event ring: live for a process that cannot run Python
itself, and at the end of every process to write its run directory.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pasta import private
from pasta.errors import RunError
from pasta.progress import Display, read
from pasta.runtime.executable import CannotRun, Executable, is_text
from pasta.runtime.injection import own_environment, own_python, target_environment
from pasta.runtime.processes import ProcessTable, alive
from pasta.runtime.session import (
    Ended,
    Session,
    beside,
    mark_ended,
    read_ended,
    write_ended,
)
from pasta.table import counted

if TYPE_CHECKING:
    from pasta.runtime.live import LiveView

_POLL_SECONDS = 0.1
#: While a ring grows, which needs memory ahead of the producers.
_POLL_GROWING_SECONDS = 0.01
#: Signals that a supervisor sends to the launcher and means for the program.
_FORWARDED = {
    signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT,
    signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGWINCH,
}  # fmt: skip
_SI_USER = 0
_COLLECTOR_LIMIT_SECONDS = 3600.0
_REMOVED = (
    "the session directory {} was removed while the program ran (systemd does that at logout, "
    "RemoveIPC=yes, and cleaners of /dev/shm): it was made again; against it: "
    "loginctl enable-linger, or --set ring.directory=DIR"
)

Say = Callable[[str], None]


@dataclass
class WatchedRing:
    """An event ring and what the launcher did about it."""

    path: Path
    pid: int
    ring: Any
    ended: Ended | None = None
    collector: Collecting | None = None
    collector_exit: int | None = None
    plain_name: bool = False


@dataclass
class Outcome:
    """What became of one process's run."""

    pid: int
    directory: Path | None
    report: Path | None
    problem: str | None = None
    #: Directory that the run shares with runs of other processes, if it does.
    root: Path | None = None


class Collecting(Protocol):
    """A collector process, whoever started it."""

    pid: int

    def poll(self) -> int | None: ...
    def kill(self) -> None: ...


@dataclass
class Launcher:
    """Runs one command in a session."""

    session: Session
    say: Say
    environment: Mapping[str, str]
    #: The target's, where it is not this process's.
    umask: int | None = None
    #: Rings to be finished, where it is not all of the session (`pasta recover`).
    taken: list[Path] | None = None
    #: Whether the directory that -o names is to go to a run that is not among these.
    plain_name_given: bool = False
    root: int = 0
    rings: dict[str, WatchedRing] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    _wait_status: int | None = None
    _told: set[str] = field(default_factory=set)
    _growing: bool = False

    def __post_init__(self) -> None:
        self.processes = ProcessTable(self.session.directory / "processes")

    # ---- the target ----

    def start(self, executable: Executable, command: list[str]) -> None:
        """Starts the target. Raises CannotRun where exec fails."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED | {signal.SIGCHLD})
        # Inherited as ignored, the kernel would forget the target's status.
        on_child = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        reader, writer = os.pipe()
        self.root = os.fork()
        if self.root == 0:
            signal.signal(signal.SIGCHLD, on_child)
            if self.umask is not None:
                os.umask(self.umask)
            _become(self.session, executable, command, self.environment, before, writer)
        os.close(writer)
        with os.fdopen(reader, "rb") as failure:
            message = failure.read()
        if message:
            os.waitpid(self.root, 0)
            number = int(message)
            raise CannotRun(
                f"{executable.path}: cannot be run ({os.strerror(number)})",
                127 if number == errno.ENOENT else 126,
            )

    def wait(self) -> int:
        """Waits for the target, watching its rings and forwarding signals; its wait status."""
        wanted = _FORWARDED | {signal.SIGCHLD}
        view = self._live_view()
        try:
            while self._wait_status is None:
                pause = _POLL_GROWING_SECONDS if self._growing else _POLL_SECONDS
                received = signal.sigtimedwait(wanted, pause)
                if received and received.si_signo in _FORWARDED:
                    self._forward(received)
                pid, status = os.waitpid(self.root, os.WNOHANG)
                if pid:
                    self._wait_status = status
                self._look_without_fail(view)
        finally:
            if view is not None:
                view.close()
        return self._wait_status

    def _look_without_fail(self, view: LiveView | None = None) -> None:
        """Whatever fails here, the program goes on and its status is kept."""
        try:
            self.look()
            if view is not None:
                used = [watched for watched in self.rings.values() if watched.ring.used]
                view.show([(each.ring, beside(each.path, ".live")) for each in used])
        except Exception as error:
            self._say_once(
                f"the program cannot be watched ({type(error).__name__}: {error}): its run is "
                "written when it has ended, if that is possible then"
            )

    def _say_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.say(text)
            self.session.log(text)

    def _live_view(self) -> LiveView | None:
        if not self.session.config.live:
            return None
        from pasta.runtime.live import LiveView  # here: it imports more than others need

        return LiveView(self.say)

    def _forward(self, received: signal.struct_siginfo) -> None:
        # A key such as Ctrl-C reaches the whole process group: the program has it already.
        if received.si_code <= _SI_USER:
            try:
                os.kill(self.root, received.si_signo)
            except (ProcessLookupError, PermissionError):  # it may have become another user's
                pass

    # ---- rings ----

    def look(self) -> None:
        """Finds new rings, starts the collectors that are wanted, notes which processes ended."""
        if self.taken is None:
            if not self.session.is_complete:
                self._make_session_again()
            rings = self.session.rings()
            # After the listing: a ring's process is registered before it opens the ring.
            self.processes.update()
        else:
            rings = self.taken
        for path in (path for path in rings if path.name not in self.rings):
            self._watch(path)
        live = [each.ring for each in self.rings.values() if each.ring.used and not each.ended]
        self._growing = sum(ring.back_ahead() for ring in live) > 0
        for watched in self.rings.values():
            if watched.ended is None:
                watched.ended = self._how_it_ended(watched)
                if watched.ended is not None and watched.ring.used:
                    self._tell_ended(watched, watched.ended)
            self._attend(watched)

    def _tell_ended(self, watched: WatchedRing, ended: Ended) -> None:
        """Tells collectors, that of now and those of `pasta recover`."""
        mark_ended(watched.ring, ended)
        try:
            write_ended(watched.path, ended)
        except OSError as error:  # full: the ring says it to the collector of now
            self.session.log(f"{watched.path}.ended was not written: {error}")

    def _make_session_again(self) -> None:
        """The directory was removed: rings that are mapped here are written to the new one when
        their processes have ended."""
        self._say_once(_REMOVED.format(self.session.directory))
        self.session.make_again(self.processes.was_deleted())

    def _watch(self, path: Path) -> None:
        from pasta.runtime.ring import Ring

        pid, _, _ = path.name.partition("-")
        try:
            ring = Ring(path)
        except RunError:
            return  # not complete yet; if its process died just then, it holds nothing
        self.rings[path.name] = WatchedRing(path, int(pid), ring, read_ended(path))

    def _how_it_ended(self, watched: WatchedRing) -> Ended | None:
        # First: what replaced the program may have ended since.
        if self.processes.last_load.get(watched.pid, 0) > watched.ring.registration:
            return Ended("exec")
        if watched.pid != self.root:
            return None if self.processes.lives(watched.pid) else Ended("gone")
        if self._wait_status is None:
            return None
        if os.WIFSIGNALED(self._wait_status):
            return Ended("signal", os.WTERMSIG(self._wait_status))
        return Ended("exit", os.WEXITSTATUS(self._wait_status))

    def _attend(self, watched: WatchedRing) -> None:
        if watched.collector is None and watched.collector_exit is None and watched.ring.used:
            live = watched.ring.consumer == 2 and watched.path.exists()
            may_start = (watched.ended or live) and self._running() < _most_collectors()
            if may_start and (watched.path.exists() or self._save(watched)):
                self._start_collector(watched)
        elif watched.collector is not None:
            status = watched.collector.poll()
            if status is not None:
                watched.collector, watched.collector_exit = None, status
                self._collected(watched)

    def _save(self, watched: WatchedRing) -> bool:
        """Writes a ring whose file was removed; else its run is given up."""
        try:
            watched.ring.save(watched.path)
            return True
        except OSError as error:
            watched.collector_exit = 1
            self.outcomes.append(
                Outcome(
                    watched.pid, None, None,
                    f"the events of process {watched.pid} are lost: its ring was removed, and "
                    f"{watched.path} cannot be written ({error.strerror})",
                )
            )  # fmt: skip
            return False

    def _running(self) -> int:
        return sum(watched.collector is not None for watched in self.rings.values())

    def _start_collector(self, watched: WatchedRing) -> None:
        import subprocess  # here: a program without accelerator needs none

        first = not (
            self.plain_name_given or any(other.plain_name for other in self.rings.values())
        )
        watched.plain_name = first
        reason = watched.ring.string(watched.ring.reason) if watched.ring.reason else None
        told = self.session.config.collector or watched.ended or reason in self._told
        if reason and not told:
            self._told.add(reason)  # once, not for every worker
            self.say(f"process {watched.pid} is analysed beside itself: {reason}")
        with open(private.create(self.session.directory / "log.txt", os.O_APPEND), "ab") as log:
            watched.collector = subprocess.Popen(
                [
                    *own_python("pasta.runtime.collector"),
                    str(watched.path), *(["--plain-name"] if first else []),
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=own_environment(self.environment), cwd="/", start_new_session=True,
            )  # fmt: skip

    def _collected(self, watched: WatchedRing) -> None:
        pid, log = watched.pid, self.session.directory / "log.txt"
        try:
            self.outcomes.append(read_done(watched.path, pid))
        except FileNotFoundError:
            problem = beside(watched.path, ".problem")
            why = problem.read_text() if problem.exists() else f"status {watched.collector_exit}"
            self.outcomes.append(
                Outcome(
                    pid, None, None,
                    f"the run of process {pid} could not be finished ({why}); its events are kept "
                    f"in {watched.path}, the log is {log}; try again with: pasta recover",
                )
            )  # fmt: skip

    # ---- the end ----

    def alive(self) -> set[int]:
        """Pids of this session's processes that still live."""
        if self.session.is_complete:
            self.processes.update()
        return (self.processes.living() or self.processes.arriving(self.root)) - {self.root}

    def finish(self) -> None:
        """Has the runs of all ended processes written; gives up after a long time."""
        begin = time.monotonic()
        display = Display("writing the run", self.say) if self._verbose else None
        self.look()
        while any(self._unfinished(watched) for watched in self.rings.values()):
            waited = time.monotonic() - begin
            if waited > _COLLECTOR_LIMIT_SECONDS:
                self._kill_collectors()
            elif display is not None:
                display.show(self._doing)
            time.sleep(0.01)
            self.look()
        if display is not None:
            display.close()

    @property
    def _verbose(self) -> bool:
        return int(self.session.document["verbosity"]) >= 0

    def _doing(self) -> str:
        """What a collector is doing; how many there are."""
        waiting = [each for each in self.rings.values() if self._unfinished(each)]
        told = [text for each in waiting if (text := read(beside(each.path, ".progress")))]
        parts = [counted(len(waiting), "process"), *told[:1]]
        return ", ".join(parts if len(waiting) > 1 else told[:1])

    @staticmethod
    def _unfinished(watched: WatchedRing) -> bool:
        return (
            bool(watched.ring.used) and watched.ended is not None and watched.collector_exit is None
        )

    def _kill_collectors(self) -> None:
        for watched in self.rings.values():
            if watched.collector is not None:
                watched.collector.kill()

    def unsaved(self) -> bool:
        """Whether some ring could not be turned into a run directory and must be kept."""
        return any(
            watched.ring.used and not beside(watched.path, ".done").exists()
            for watched in self.rings.values()
        )

    def go_on_in_background(self) -> bool:
        """Leaves a process behind that finishes the runs of processes that still live.

        True in the launcher itself; the process left behind never returns.
        """
        if os.fork():
            return True
        os.setsid()
        signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        status = 0
        try:
            for watched in self.rings.values():
                if watched.collector is not None:
                    watched.collector = _Adopted(watched.collector.pid)
            while self.alive():
                time.sleep(_POLL_SECONDS * 4)
                self._look_without_fail()
            self.finish()
            if not self.unsaved():
                self.session.remove()
        except BaseException as error:
            self.session.log(f"the background launcher failed: {error!r}")
            status = 1
        os._exit(status)


def read_done(ring: Path, pid: int) -> Outcome:
    """The run that a collector made of a ring. Raises FileNotFoundError where there is none."""
    done = json.loads(private.read(beside(ring, ".done")))
    directory, report, root = (done[key] for key in ("directory", "report", "root"))
    return Outcome(pid, Path(directory), Path(report), root=Path(root) if root else None)


def _become(
    session: Session,
    executable: Executable,
    command: list[str],
    environment: Mapping[str, str],
    mask: set[int | signal.Signals],
    failure: int,
) -> None:
    """In the child: turn into the target. Never returns."""
    number, path = errno.EIO, executable.path
    try:
        preload = executable.preloadable
        target = target_environment(session, environment, os.getpid(), preload=preload)
        # Python ignores these for itself; the program must find them as it would without us.
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            os.execve(path, command, target)
        except OSError as error:
            if error.errno != errno.ENOEXEC or not is_text(path):
                raise
            # a script that names no interpreter: as shells and env do
            os.execve("/bin/sh", ["/bin/sh", path, *command[1:]], target)
    except OSError as error:
        number = error.errno or errno.EIO
    finally:
        os.write(failure, str(number).encode())
        os._exit(127)


class _Adopted:
    """A collector that another process started, so that it cannot be waited for."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        return None if alive(self.pid) else 0

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _most_collectors() -> int:
    return max(2, os.cpu_count() or 1)
