"""The processes of a session: registration, identity and liveness."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pasta import private

#: Matches pasta_process_table in shim/core/processes.c.
TABLE_BYTES = 1 << 19
_ENTRIES = TABLE_BYTES // 8 - 1
#: A process registers when it is loaded, within milliseconds.
_ARRIVAL_SECONDS = 2
_MAX_PID = 1 << 22


class _Entries:
    """Reads a growing table; never fails on its content."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "rb")
        self._read = 0
        self._gap = (-1, 0.0)  # index of a missing entry, and when it was first missed

    def content(self) -> bytes:
        return self._bytes(0, TABLE_BYTES)

    def new(self) -> Iterator[tuple[int, int, bool]]:
        """Entries added since the last call: index, pid, and whether a fork added it."""
        (count,) = struct.unpack("<Q", self._bytes(0, 8))
        count = min(count, _ENTRIES)
        if count <= self._read:
            return
        first = self._read
        entries = self._bytes(8 + 8 * first, 8 * (count - first))
        for pid, forked in struct.iter_unpack("<II", entries):
            if not pid and not self._is_lost():  # counted, not written yet: try again later
                return
            self._read += 1
            if 0 < pid <= _MAX_PID:
                yield self._read - 1, pid, bool(forked)

    def _bytes(self, offset: int, length: int) -> bytes:
        return os.pread(self._file.fileno(), length, offset).ljust(length, b"\0")

    def _is_lost(self) -> bool:
        """Whether the next entry has been missing so long that its process must have ended."""
        if self._gap[0] != self._read:
            self._gap = (self._read, time.monotonic())
        return time.monotonic() - self._gap[1] > _ARRIVAL_SECONDS


@dataclass
class ProcessTable:
    """The pids that libpasta registered, read incrementally.

    Since pids can be reused by unrelated processes, each is stored with its start time, and is
    accepted only if the process maps the session's table.
    """

    path: Path
    #: Index of a pid's latest entry from loading a program: increases on exec.
    last_load: dict[int, int] = field(default_factory=dict)
    _table: _Entries | None = None
    #: Deleted tables, to which their processes continue to write.
    _former: list[_Entries] = field(default_factory=list)
    _started: dict[int, int | None] = field(default_factory=dict)

    def update(self) -> None:
        """Reads the entries added since the last call. Raises OSError, RunError."""
        for former in self._former:
            for _, pid, _ in former.new():
                self._note(pid)
        if self._table is None:
            self._table = _Entries(private.open_file(self.path))
        for index, pid, forked in self._table.new():
            if not forked:
                self.last_load[pid] = index
            self._note(pid)

    def _note(self, pid: int) -> None:
        if _started(pid) != self._started.get(pid) or pid not in self._started:
            self._started[pid] = _started(pid) if self._maps_table(pid) else None

    def replace_deleted(self) -> bytes:
        """Switches to a new table file; its initial content, which continues the indices."""
        if self._table is None:
            return bytes(TABLE_BYTES)
        content = self._table.content()
        self._former.append(self._table)
        self._table = None
        return content

    def has(self, pid: int) -> bool:
        """Whether a process of this pid was registered; from any thread."""
        return self._started.get(pid) is not None

    def lives(self, pid: int) -> bool:
        """Whether a registered process still runs."""
        started = self._started.get(pid)
        return started is not None and _started(pid) == started

    def living(self) -> set[int]:
        """Pids of registered processes that still run."""
        return {pid for pid in self._started if self.lives(pid)}

    def arriving(self, root: int) -> set[int]:
        """Processes of this session that have just started and have not registered yet.

        `root` is the pid of the launched process: their pids were assigned after it.

        A program may end right after a fork or spawn, before its child has executed a single
        instruction: the table does not list the child yet.
        """
        newest = _ticks_since_boot() - _ARRIVAL_SECONDS * os.sysconf("SC_CLK_TCK")
        try:
            last = _last_pid()
        except OSError:  # no /proc
            return set()
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
    """Start time of a process in clock ticks since boot; None if it has ended or is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


class ProcessIdentity(NamedTuple):
    """A process, distinguished from later ones with the same pid by its start time."""

    pid: int
    started: int | None

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """The identity of the process that has this pid now."""
        return cls(pid, _started(pid))

    def lives(self) -> bool:
        """Whether the process still runs."""
        return self.started is not None and _started(self.pid) == self.started


def pid_namespace() -> int:
    """Inode number of this process's PID namespace; 0 without /proc."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def boot_id() -> str:
    """Boot id of the running kernel; "" without /proc."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _last_pid() -> int:
    """The pid assigned last; pids wrap around. Raises OSError."""
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
