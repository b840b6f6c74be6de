"""Which processes belong to a session, and whether they still live."""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path

#: Matches pasta_process_table in shim/core/processes.c.
TABLE_BYTES = 1 << 19
_ENTRIES = TABLE_BYTES // 8 - 1
#: A process registers when it is loaded, within milliseconds.
_ARRIVAL_SECONDS = 2


@dataclass
class ProcessTable:
    """The pids that libpasta registered, read as they come.

    A pid can be reused by a stranger, so each is remembered with its start time; a pid that is
    first seen late must also map the session's table.
    """

    path: Path
    #: Index of the entry that a pid's newest program made when it was loaded: grows by an exec.
    last_load: dict[int, int] = field(default_factory=dict)
    _read: int = 0
    _started: dict[int, int | None] = field(default_factory=dict)

    def update(self) -> None:
        """Reads the entries added since the last call."""
        with self.path.open("rb") as table:
            (count,) = struct.unpack("<Q", table.read(8))
            count = min(count, _ENTRIES)
            if count <= self._read:
                return
            table.seek(8 + 8 * self._read)
            entries = table.read(8 * (count - self._read))
        for pid, forked in struct.iter_unpack("<II", entries):
            if not pid:  # counted, not written yet: come back to it
                return
            if not forked:
                self.last_load[pid] = self._read
            self._read += 1
            if _started(pid) != self._started.get(pid) or pid not in self._started:
                self._started[pid] = _started(pid) if self._maps_table(pid) else None

    def lives(self, pid: int) -> bool:
        """Whether a registered process still runs."""
        started = self._started.get(pid)
        return started is not None and _started(pid) == started

    def living(self) -> set[int]:
        """All registered processes that still run."""
        return {pid for pid in self._started if self.lives(pid)}

    def arriving(self, root: int) -> set[int]:
        """Processes of this session that were started just now and have not registered yet.

        `root` is the pid of the launched process: theirs were given out after it.

        A program may end right after a fork or spawn, before its child has run a single
        instruction: then the table does not show yet that somebody goes on.
        """
        newest = _ticks_since_boot() - _ARRIVAL_SECONDS * os.sysconf("SC_CLK_TCK")
        last = _last_pid()
        found = set()
        for name in os.listdir("/proc"):
            pid = int(name) if name.isdigit() else 0
            later = root < pid <= last if root <= last else pid > root or 0 < pid <= last
            if not later or pid in self._started or (_started(pid) or 0) < newest:
                continue
            if self._maps_table(pid) or self._inherits_session(pid):
                found.add(pid)
        return found

    def _inherits_session(self, pid: int) -> bool:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        return b"session=" + os.fsencode(self.path.parent) in environment

    def _maps_table(self, pid: int) -> bool:
        try:
            maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        except OSError:
            return False
        return str(self.path) in maps


def _started(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None for one that is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


@dataclass(frozen=True)
class ProcessIdentity:
    """One process, not another that is given its pid later."""

    pid: int
    started: int | None

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        return cls(pid, _started(pid))

    def lives(self) -> bool:
        return self.started is not None and _started(self.pid) == self.started


def _last_pid() -> int:
    """The pid that was given out last; numbers start again from low ones at some time."""
    return int(Path("/proc/loadavg").read_text().split()[-1])


def _ticks_since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")


def alive(pid: int) -> bool:
    """Whether any process has this pid."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
