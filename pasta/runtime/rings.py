"""Event rings of a session: finds new ones, starts collectors for them, and keeps the outcomes.

Everything that needs NumPy or a tool's dependencies runs in collector processes: while a process
runs that cannot run Python itself, otherwise at its end, to write its run directory.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pasta import private
from pasta.errors import RunError
from pasta.own_python import own_environment, own_python
from pasta.runtime.processes import ProcessTable, alive
from pasta.runtime.session import Ended, Session, beside, mark_ended, read_ended, write_ended

if TYPE_CHECKING:
    from subprocess import Popen

    from pasta.backends.base import Backend
    from pasta.runtime.host_sampling import HostSampling
    from pasta.runtime.reserve import Reserve
    from pasta.runtime.telemetry import DeviceSampling

_REMOVED = (
    "the session directory {} was removed while the program ran (systemd does this at logout "
    "with RemoveIPC=yes, and so do cleaners of /dev/shm) and has been restored; to prevent "
    "this: loginctl enable-linger, or --set ring.directory=DIR"
)

#: Slots of the rings that share a collector: they take less time than the start of Python.
_FEW_SLOTS = 1 << 17
#: Seconds for which a process has used its ring before a collector in reserve is started for it,
#: unless there are this many processors: then one has time for its imports.
_RESERVE_SECONDS, _SPARE_PROCESSORS = 1.0, 4

Say = Callable[[str], None]


def has_spare_processors() -> bool:
    """Whether a processor has time for a collector's imports while the program starts."""
    return len(os.sched_getaffinity(0)) >= _SPARE_PROCESSORS


@dataclass
class WatchedRing:
    """An event ring, and the state of its process and collector."""

    path: Path
    pid: int
    ring: Any
    ended: Ended | None = None
    collector: Collecting | None = None
    collector_exit: int | None = None
    plain_name: bool = False
    #: Ids of the sources of the process for whose devices samples were considered.
    sources: list[int] = field(default_factory=list)
    #: Whether its process's stacks are published to it.
    on_host: bool = False
    #: Time at which it was first seen in use, s; 0: not yet.
    used_since: float = 0.0

    @property
    def unfinished(self) -> bool:
        """Whether the process has ended and its run is not written yet."""
        return bool(self.ring.used) and self.ended is not None and self.collector_exit is None

    @property
    def waits(self) -> bool:
        """Whether a collector should be started: at the process's end, or while it runs."""
        if self.collector is not None or self.collector_exit is not None or not self.ring.used:
            return False
        return self.ended is not None or (self.ring.consumer == 2 and self.path.exists())

    @property
    def slots(self) -> int:
        """Slots that its collector reads; more than `_FEW_SLOTS` if that takes unknown time."""
        if self.ended is None or beside(self.path, ".trace").exists():
            return _FEW_SLOTS + 1
        return int(self.ring.tail)


class Outcome(NamedTuple):
    """Result of writing the run of a process."""

    pid: int
    directory: Path | None
    report: Path | None
    problem: str | None = None
    #: The run's root, if it is in one.
    root: Path | None = None


class Collecting(Protocol):
    """A collector process, started by this process or another."""

    pid: int

    def poll(self) -> int | None:
        """Exit status; None while it runs."""


class Adopted:
    """A collector that another process started, so that waitpid does not apply."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        """0 once the process has ended, since its status is unknown; None while it runs."""
        return None if alive(self.pid) else 0


@dataclass
class Rings:
    """The rings of a session; for `pasta recover`, only those in `taken`."""

    session: Session
    say: Say
    environment: Mapping[str, str]
    taken: list[Path] | None = None
    #: Whether the directory name of -o is reserved for a run of another ring.
    plain_name_given: bool = False
    #: The target's pid, and its wait status once it has ended.
    root: int = 0
    wait_status: int | None = None
    watched: dict[str, WatchedRing] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    #: Whether a ring grows, so that its memory must be backed ahead of the producers.
    growing: bool = False
    _said: set[str] = field(default_factory=set)
    #: By name of the backend.
    _sampling: dict[str, DeviceSampling] = field(default_factory=dict)
    _host: HostSampling | None = None
    _spare: bool = field(default_factory=has_spare_processors)
    _reserve_failed: bool = False  # none could be started
    _once_reserve: set[int] = field(default_factory=set)  # pids of collectors
    _backends: list[Backend] | None = None  # recording sources; None: not known yet

    def __post_init__(self) -> None:
        self.processes = ProcessTable(self.session.directory / "processes")
        self._reserve = self.session.reserve

    def say_once(self, text: str) -> None:
        """Prints and logs a message unless it was printed before."""
        if text not in self._said:
            self._said.add(text)
            self.say(text)
            self.session.log(text)

    def look(self) -> None:
        """Finds new rings, starts collectors as needed, and records which processes ended."""
        if self.taken is None:
            if not self.session.is_complete:
                self._restore_session()
            rings = self.session.rings()
            # After the listing: a ring's process is registered before it opens the ring.
            self.processes.update()
        else:
            rings = self.taken
        for path in (path for path in rings if path.name not in self.watched):
            self._watch(path)
        live = [each.ring for each in self.watched.values() if each.ring.used and not each.ended]
        self.growing = sum(ring.back_ahead() for ring in live) > 0
        for watched in self.watched.values():
            if watched.ended is None:
                watched.ended = self._how_it_ended(watched)
                self._follow_on_host(watched)
                if watched.ended is not None and watched.ring.used:
                    for sampling in self._sampling.values():
                        sampling.leave(watched.path.name)
                    if self._host is not None:
                        self._host.leave(watched.ring)
                    self._report_end(watched, watched.ended)
                elif watched.ended is None and watched.ring.used and self.taken is None:
                    self._sample_devices(watched)
            self._poll_collector(watched)
        self._start_collectors()
        if self.taken is None and self._reserve is None and not self._reserve_failed:
            self._start_reserve()

    def _start_reserve(self) -> None:
        """Starts a collector in reserve if a process runs for whose end one will be needed."""
        now, wanted = time.monotonic(), False
        for each in self.watched.values():
            if each.ring.used and each.ended is None and each.collector is None:
                each.used_since = each.used_since or now
                wanted |= self._spare or now - each.used_since >= _RESERVE_SECONDS
        if wanted:
            self._reserve = start_reserve(self.session, self.environment)
            self._reserve_failed = self._reserve is None

    def dismiss_reserve(self) -> None:
        """Ends the collector in reserve."""
        if self._reserve is not None:
            self._reserve.dismiss()
            self._reserve = None

    def _sample_devices(self, watched: WatchedRing) -> None:
        """Samples the devices of the process's accelerators from now on."""
        sources = watched.ring.source_ids()
        if sources == watched.sources:
            return
        new = {watched.ring.string(each) for each in set(sources) - set(watched.sources)}
        watched.sources = sources
        if self._backends is None:
            config = self.session.config
            self._backends = config.backends() if config.telemetry_interval else []
        for backend in self._backends:
            if any(source.name in new for source in backend.sources):
                try:
                    self._sample(backend, watched)
                except Exception as error:
                    self.session.log(f"devices of {backend.title} are not sampled: {error!r}")

    def _sample(self, backend: Backend, watched: WatchedRing) -> None:
        if backend.name not in self._sampling:
            sampler = backend.sampler()
            if sampler is None:
                return
            from pasta.runtime.telemetry import DeviceSampling  # only where devices are used

            interval = self.session.config.telemetry_interval / 1000
            self._sampling[backend.name] = DeviceSampling(
                sampler, interval, self.processes.has, self.session.log
            )
        self._sampling[backend.name].follow(watched.path.name, watched.ring)

    def sample_host(self, pid: int) -> None:
        """Samples the call stacks of a process that has not executed its program yet; reports why
        not."""
        from pasta.runtime.host_sampling import HostSampling, problem

        config = self.session.config
        try:
            self._host = HostSampling(pid, config.host_rate, config.unwind, self.session.log)
        except OSError as error:
            self.say_once(problem(error))
            return
        except Exception as error:
            self.say_once(f"--perf: the host's call stacks are not sampled: {error!r}")
            return
        for note in self._host.notes:
            self.say_once(note)

    def _follow_on_host(self, watched: WatchedRing) -> None:
        """Publishes samples of a process's stacks from now on, also if it has just ended."""
        replaced = watched.ended is not None and watched.ended.how == "exec"
        if self._host is not None and watched.ring.used and not watched.on_host and not replaced:
            watched.on_host = True
            self._host.follow(watched.pid, watched.ring)

    def _stop_host(self) -> None:
        if self._host is not None:
            try:
                self._host.stop()
            except RuntimeError as error:
                self.session.log(str(error))
            self._host = None

    def stop_sampling(self) -> None:
        """Ends the threads that sample devices, which `look` starts again for processes that run,
        and the host, for good."""
        self._stop_host()
        for name, sampling in [*self._sampling.items()]:
            if sampling.stop():
                del self._sampling[name]
            else:
                self.session.log(f"devices of {name}: the driver does not answer")
        for watched in self.watched.values():
            watched.sources = []

    def _report_end(self, watched: WatchedRing, ended: Ended) -> None:
        """Reports an end to the running collector, and to collectors of `pasta recover`."""
        mark_ended(watched.ring, ended)
        watched.ring.release_reserve()
        try:
            write_ended(watched.path, ended)
        except OSError as error:  # disk full: the running collector reads it from the ring
            self.session.log(f"{watched.path}.ended was not written: {error}")

    def _restore_session(self) -> None:
        """Restores the removed directory: mapped rings are written to the new one when their
        processes have ended."""
        self.say_once(_REMOVED.format(self.session.directory))
        self.session.restore(self.processes.replace_deleted())

    def _watch(self, path: Path) -> None:
        from pasta.runtime.ring import Ring

        pid, _, _ = path.name.partition("-")
        try:
            ring = Ring(path)
        except RunError:
            return  # not complete yet; if its process died just then, it holds nothing
        self.watched[path.name] = WatchedRing(path, int(pid), ring, read_ended(path))

    def _how_it_ended(self, watched: WatchedRing) -> Ended | None:
        # Before other checks: the program that replaced it may have ended since.
        if self.processes.last_load.get(watched.pid, 0) > watched.ring.registration:
            return Ended("exec")
        if watched.pid != self.root:
            return None if self.processes.lives(watched.pid) else Ended("gone")
        if self.wait_status is None:
            return None
        if os.WIFSIGNALED(self.wait_status):
            return Ended("signal", os.WTERMSIG(self.wait_status))
        return Ended("exit", os.WEXITSTATUS(self.wait_status))

    def _poll_collector(self, watched: WatchedRing) -> None:
        collector = watched.collector
        status = collector.poll() if collector is not None else None
        if collector is None or status is None:
            return
        watched.collector = None
        outcome = (beside(watched.path, name).exists() for name in (".done", ".problem"))
        if status < 0 and collector.pid in self._once_reserve and not any(outcome):
            return  # it was killed, perhaps while it waited: a new collector is started
        watched.collector_exit = status
        self._collected(watched)

    def _start_collectors(self) -> None:
        running, limit = len(self._collectors()), _max_collectors()
        if running >= limit:
            return
        waiting = [watched for watched in self.watched.values() if watched.waits]
        for shared in _shares(waiting, running, limit):
            ready = [each for each in shared if each.path.exists() or self._save(each)]
            if ready:
                self._start_collector(ready)

    def _save(self, watched: WatchedRing) -> bool:
        """Writes a ring whose file was removed; False if that fails and its events are lost."""
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

    def _collectors(self) -> dict[int, Collecting]:
        """Running collectors by pid."""
        running = (watched.collector for watched in self.watched.values())
        return {each.pid: each for each in running if each is not None}

    def _start_collector(self, shared: list[WatchedRing]) -> None:
        first = shared[0]
        first.plain_name = not (
            self.plain_name_given or any(other.plain_name for other in self.watched.values())
        )
        reason = first.ring.string(first.ring.reason) if first.ring.reason else None
        known = self.session.config.collector or first.ended or reason in self._said
        if reason and not known:
            self._said.add(reason)  # print once, not for every process
            self.say(f"process {first.pid} is analysed by a collector process: {reason}")
        arguments = [str(each.path) for each in shared]
        arguments += ["--plain-name"] if first.plain_name else []
        collector = self._reserve.take(arguments) if self._reserve is not None else None
        self._reserve = None
        if collector is not None:
            self._once_reserve.add(collector.pid)
        collecting = collector or _start(
            self.session, self.environment, "collector_process", *arguments
        )
        for watched in shared:
            watched.collector = collecting

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

    def living(self) -> set[int]:
        """Pids of this session's running processes other than the target."""
        if self.session.is_complete:
            self.processes.update()
        return (self.processes.living() or self.processes.arriving(self.root)) - {self.root}

    def unfinished(self) -> list[WatchedRing]:
        """Rings of ended processes whose runs are not written yet."""
        return [watched for watched in self.watched.values() if watched.unfinished]

    def unsaved(self) -> bool:
        """Whether a ring could not be written as a run and must be kept."""
        return any(
            watched.ring.used and not beside(watched.path, ".done").exists()
            for watched in self.watched.values()
        )

    def adopt_collectors(self) -> None:
        """Replaces handles of collectors by pids, in a child of the process that started them. A
        collector in reserve ends with that process."""
        self._reserve = None
        for watched in self.watched.values():
            if watched.collector is not None:
                watched.collector = Adopted(watched.collector.pid)

    def kill_collectors(self) -> None:
        """Kills all running collectors, and the processes that they forked."""
        for pid in self._collectors():
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def _start(
    session: Session,
    environment: Mapping[str, str],
    name: str,
    *arguments: str,
    pipe: bool = False,
) -> Popen[bytes]:
    """Starts a module of pasta.runtime, with a pipe to its standard input if wanted."""
    import subprocess  # imported here: not needed for a program without accelerator

    with open(private.create(session.directory / "log.txt", os.O_APPEND), "ab") as log:
        return subprocess.Popen(
            [*own_python(f"pasta.runtime.{name}"), *arguments],
            stdin=subprocess.PIPE if pipe else subprocess.DEVNULL, stdout=log, stderr=log,
            env=own_environment(environment), cwd="/", start_new_session=True,
        )  # fmt: skip


def start_reserve(session: Session, environment: Mapping[str, str]) -> Reserve | None:
    """Starts a collector in reserve; None if that fails."""
    from pasta.runtime.reserve import Reserve  # not needed for short programs

    try:
        # the session is for those who look at command lines
        return Reserve(
            _start(session, environment, "collector_reserve", str(session.directory), pipe=True)
        )
    except OSError as error:  # a limit of processes
        session.log(f"no collector in reserve: {error}")
        return None


def read_done(ring: Path, pid: int) -> Outcome:
    """The run that a collector wrote for a ring. Raises FileNotFoundError if it wrote none."""
    done = json.loads(private.read(beside(ring, ".done")))
    directory, report, root = (done[key] for key in ("directory", "report", "root"))
    return Outcome(pid, Path(directory), Path(report), root=Path(root) if root else None)


def _max_collectors() -> int:
    return max(2, len(os.sched_getaffinity(0)))


def _shares(waiting: list[WatchedRing], running: int, limit: int) -> list[list[WatchedRing]]:
    """The rings for each new collector, with which at most `limit` run; the others wait.

    Rings with few events share one; all collectors get equal numbers of them.
    """
    shares: list[list[WatchedRing]] = []
    most, slots = -(-len(waiting) // limit), 0
    for watched in waiting:
        slots += watched.slots
        if shares and len(shares[-1]) < most and slots <= _FEW_SLOTS:
            shares[-1].append(watched)
        elif running + len(shares) < limit:
            shares.append([watched])
            slots = watched.slots
        else:
            break
    return shares
