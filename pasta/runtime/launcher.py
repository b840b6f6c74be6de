"""The parent of the target: starts it, waits for it, and finishes the runs of its processes.

The launcher stays light: it imports neither NumPy nor a tool's dependencies.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pasta.interruption import ENDING
from pasta.progress import Display, read
from pasta.runtime.executable import Executable
from pasta.runtime.rings import Outcome, Rings, Say, WatchedRing
from pasta.runtime.session import Session, beside
from pasta.runtime.target import start_target
from pasta.table import counted

if TYPE_CHECKING:
    from pasta.runtime.live import LiveView

_POLL_SECONDS = 0.1
#: While a ring grows: the launcher backs its memory ahead of the producers.
_POLL_GROWING_SECONDS = 0.01
_POLL_FINISHING_SECONDS = 0.01
#: Signals to the launcher that are forwarded to the program.
_FORWARDED = {
    signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT,
    signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGWINCH,
}  # fmt: skip
_SI_USER = 0
_COLLECTOR_LIMIT_SECONDS = 3600.0


@dataclass
class Launcher:
    """Runs one command in a session."""

    session: Session
    say: Say
    environment: Mapping[str, str]
    #: The target's umask, if it differs from this process's.
    umask: int | None = None
    #: The target's signal mask; None: this process's.
    mask: set[int | signal.Signals] | None = None
    #: See `Rings`.
    taken: list[Path] | None = None
    plain_name_given: bool = False

    def __post_init__(self) -> None:
        self._rings = Rings(
            self.session, self.say, self.environment, self.taken, self.plain_name_given
        )
        #: Signals that this process received while the target ran.
        self.received: set[int] = set()

    @property
    def rings(self) -> dict[str, WatchedRing]:
        """Rings of the session by name."""
        return self._rings.watched

    @property
    def outcomes(self) -> list[Outcome]:
        """Results of writing the runs."""
        return self._rings.outcomes

    def start(self, executable: Executable, command: list[str]) -> None:
        """Starts the target. Raises CannotRun if exec fails."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED | {signal.SIGCHLD})
        if self.mask is not None:
            mask = self.mask
        self._rings.root = start_target(
            self.session, executable, command, self.environment, umask=self.umask, mask=mask,
            before_exec=self._rings.sample_host if self.session.config.host_rate else None,
        )  # fmt: skip

    def wait(self) -> int:
        """Waits for the target while watching rings and forwarding signals; its wait status."""
        wanted = _FORWARDED | {signal.SIGCHLD}
        view = self._live_view()
        try:
            while self._rings.wait_status is None:
                pause = _POLL_GROWING_SECONDS if self._rings.growing else _POLL_SECONDS
                received = signal.sigtimedwait(wanted, pause)
                if received and received.si_signo in _FORWARDED:
                    self.received.add(received.si_signo)
                    self._forward(received)
                pid, status = os.waitpid(self._rings.root, os.WNOHANG)
                if pid:
                    self._rings.wait_status = status
                self._look_safely(view)
        finally:
            if view is not None:
                view.close()
        while received := signal.sigtimedwait(_FORWARDED, 0):  # sent before it ended
            self.received.add(received.si_signo)
        return self._rings.wait_status

    def _look_safely(self, view: LiveView | None = None) -> None:
        """Watches the rings; a failure is reported and does not affect the program."""
        try:
            self.look()
            if view is not None:
                used = [watched for watched in self.rings.values() if watched.ring.used]
                view.show([(each.ring, beside(each.path, ".live")) for each in used])
        except Exception as error:
            self._rings.say_once(
                f"the program cannot be watched ({type(error).__name__}: {error}): its run is "
                "written after it exits, if that is still possible"
            )

    def _live_view(self) -> LiveView | None:
        if not self.session.config.live:
            return None
        from pasta.runtime.live import LiveView  # imported only if needed: it is slow

        return LiveView(self.say)

    def _forward(self, received: signal.struct_siginfo) -> None:
        # Signals from the terminal, such as Ctrl-C, reach the program directly.
        if received.si_code <= _SI_USER:
            try:
                os.kill(self._rings.root, received.si_signo)
            except (ProcessLookupError, PermissionError):  # it ended, or changed its user
                pass

    def look(self) -> None:
        """Finds new rings, starts collectors as needed, and records which processes ended."""
        self._rings.look()

    def alive(self) -> set[int]:
        """Pids of this session's running processes."""
        return self._rings.living()

    def finish(self) -> None:
        """Waits until the runs of all ended processes are written; kills collectors after 1 h.

        A signal that would end this process lets them leave out what may take long: GPU code that
        is not read yet."""
        begin = time.monotonic()
        display = Display("writing the run", self.say) if self._verbose else None
        self.look()
        while self._rings.unfinished():
            waited = time.monotonic() - begin
            if waited > _COLLECTOR_LIMIT_SECONDS:
                self._rings.kill_collectors()
            elif display is not None:
                display.show(self._doing)
            self._pause()
            self.look()
        self._rings.dismiss_reserve()
        if display is not None:
            display.close()

    def _pause(self) -> None:
        if not self._rings.root:  # pasta recover, which signals end
            time.sleep(_POLL_FINISHING_SECONDS)
        elif received := signal.sigtimedwait(ENDING, _POLL_FINISHING_SECONDS):
            self.received.add(received.si_signo)
            self._interrupt(signal.Signals(received.si_signo).name)

    def _interrupt(self, name: str) -> None:
        """Collectors leave out what may take long."""
        try:
            self.session.interruption.touch()
            self._rings.say_once(
                f"{name}: the run is written now, without GPU code that is not read yet"
            )
        except OSError as error:
            self.session.log(f"{name} was not passed on to collectors: {error}")

    @property
    def _verbose(self) -> bool:
        return int(self.session.document["verbosity"]) >= 0

    def _doing(self) -> str:
        """Progress of a collector, and the number of processes."""
        waiting = self._rings.unfinished()
        texts = [text for each in waiting if (text := read(beside(each.path, ".progress")))]
        parts = [counted(len(waiting), "process"), *texts[:1]]
        return ", ".join(parts if len(waiting) > 1 else texts[:1])

    def stop_sampling(self) -> None:
        """Ends the threads that sample devices and the host."""
        self._rings.stop_sampling()

    def unsaved(self) -> bool:
        """Whether a ring could not be written as a run and must be kept."""
        return self._rings.unsaved()

    def continue_in_background(self) -> bool:
        """Forks a background process that finishes the runs of the remaining processes.

        True in the launcher; the background process never returns.
        """
        self._rings.stop_sampling()  # a fork while a thread holds a lock would block the child
        if os.fork():
            return True
        os.setsid()
        signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        status = 0
        try:
            self._rings.adopt_collectors()
            while self.alive():
                time.sleep(_POLL_SECONDS * 4)
                self._look_safely()
            self.finish()
            if not self.unsaved():
                self.session.remove()
        except BaseException as error:
            self.session.log(f"the background launcher failed: {error!r}")
            status = 1
        os._exit(status)
