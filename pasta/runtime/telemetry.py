"""Samples of devices while processes use them, by a thread of the launcher for each vendor.

The launcher is one of the producers of a process's ring, to which a sample is appended like any
event of the process: it survives the process and the launcher, and needs nothing of a consumer.
"""

from __future__ import annotations

import os
import select
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pasta.backends.base import Sample, Sampler
from pasta.runtime.processes import alive
from pasta.runtime.ring import Ring

#: Longest wait for the thread when the launcher ends: the driver may not answer.
_STOP_SECONDS = 2.0
#: Seconds between looks for the process's own events of its devices.
_LOOK_SECONDS = 1.0
_MAX_ANCESTORS = 64
#: pasta_device_sample, and the sentinels of its fields.
_LAYOUT = struct.Struct("=6I4H3Q2I24x")
_ABSENT = (*[2**32 - 1] * 6, *[2**16 - 1] * 4, *[2**64 - 1] * 3, *[2**32 - 1] * 2)
Log = Callable[[str], None]


@dataclass
class _Target:
    """A process whose ring gets the samples."""

    ring: Ring
    #: Ordinals by index of the device, for devices visible to the process.
    ordinals: dict[int, int] = field(default_factory=dict)
    uuids: dict[int, int] = field(default_factory=dict)  # ids of strings in the ring
    #: Ordinals by uuid from the process's own events, and the position up to which they were read.
    known: dict[str, int] = field(default_factory=dict)
    read: int = 0
    look_at: float = 0.0  # time


class DeviceSampling:
    """Samples the devices of one vendor for the processes that `follow` was called with.

    `interval` in seconds. `is_ours`: whether a pid is one of the session's processes. The first
    call of `follow` starts the thread.
    """

    def __init__(
        self, sampler: Sampler, interval: float, is_ours: Callable[[int], bool], log: Log
    ) -> None:
        self._sampler, self._interval, self._log = sampler, interval, log
        self._is_ours = is_ours
        self._others: dict[int, _Others] = {}  # by device
        self._targets: dict[str, _Target] = {}
        self._lock = threading.Lock()
        self._changed = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopped = False
        self._uuids: list[str] = []
        self._lost: set[int] = set()
        self._thread: threading.Thread | None = None

    def follow(self, name: str, ring: Ring) -> None:
        """Appends samples to the ring `name` from now on. Raises RuntimeError without a thread."""
        with self._lock:
            self._targets[name] = _Target(ring)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pasta-telemetry", daemon=True)
            self._thread.start()
        os.eventfd_write(self._changed, 1)

    def leave(self, name: str) -> None:
        """Appends nothing more to a ring, whose process has ended."""
        with self._lock:
            self._targets.pop(name, None)

    def stop(self) -> bool:
        """Ends the thread; False if it does not end, because the driver does not answer."""
        self._stopped = True
        os.eventfd_write(self._changed, 1)
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)
            if self._thread.is_alive():
                return False
        os.close(self._changed)
        return True

    def _run(self) -> None:
        try:
            self._uuids = self._sampler.open()
        except Exception as error:
            self._log(f"devices are not sampled: {type(error).__name__}: {error}")
            return
        due = time.monotonic()
        # waiting like this takes less time than threading.Event
        waiting = select.poll()
        waiting.register(self._changed, select.POLLIN)
        while not self._stopped:
            now = time.monotonic()
            if self._targets and now >= due:
                self.sample_all()
                due = max(due + self._interval, now)
            pause = max(0.0, due - time.monotonic()) if self._targets else None
            if waiting.poll(None if pause is None else 1000 * pause):
                os.eventfd_read(self._changed)
        try:
            self._sampler.close()
        except Exception as error:
            self._log(f"the library that samples devices cannot be closed: {error}")

    def sample_all(self) -> None:
        """Appends a sample of each device that a process may see to the rings of these."""
        now = time.monotonic()
        with self._lock:
            targets = list(self._targets.items())
        for _, target in targets:
            if now >= target.look_at:
                target.look_at = now + _LOOK_SECONDS
                self._locate(target)
        for device in range(len(self._uuids)):
            seeing = [each for each in targets if device in each[1].ordinals]
            if device in self._lost or not seeing:
                continue
            try:
                sample = self._sampler.sample(device)
                others = self._others.setdefault(device, _Others(self._is_ours))
                counted = others.of(sample.processes)
            except Exception as error:
                self._lost.add(device)
                why = f"{type(error).__name__}: {error}"
                self._log(f"device {self._uuids[device]} is no longer sampled: {why}")
                continue
            for name, target in seeing:
                self._append(name, target, device, sample, counted)

    def _locate(self, target: _Target) -> None:
        """Finds the ordinals of devices in a process."""
        found, target.read = target.ring.first_devices(target.read)
        if target.ordinals and not found:
            return
        target.known |= found
        ordinals = self._sampler.ordinals(target.ring.variables())
        known = {
            device: target.known[uuid]
            for device, uuid in enumerate(self._uuids)
            if uuid in target.known
        }
        taken = set(known.values())
        guessed = {
            device: -1 if ordinal in taken else ordinal for device, ordinal in ordinals.items()
        }
        target.ordinals = {**guessed, **known}

    def _append(
        self, name: str, target: _Target, device: int, sample: Sample, others: _Counted
    ) -> None:
        uuid = target.uuids.get(device)
        if not uuid:
            uuid = target.uuids[device] = target.ring.intern(self._uuids[device])
        if not uuid:
            return  # the process makes room with its next string
        payload = packed(uuid, sample, *others)
        with self._lock:  # nothing is appended after the end of a process was marked
            if name in self._targets:
                target.ring.append_sample(target.ordinals[device], payload)


#: Number of other processes, and bytes of device memory that they use; None: unknown.
_Counted = tuple["int | None", "int | None"]


def packed(uuid: int, sample: Sample, others: int | None, memory_others: int | None) -> bytes:
    """The payload of a sample; values that are unknown or do not fit are absent."""
    values = (
        uuid, sample.power, sample.clock, sample.memory_clock, sample.max_clock, sample.throttle,
        sample.temperature, sample.utilization, sample.memory_activity, others, sample.memory_used,
        memory_others, sample.memory_total, sample.power_limit, sample.link_bandwidth,
    )  # fmt: skip
    if None not in values:
        try:
            return _LAYOUT.pack(*values)
        except struct.error:
            pass
    return _LAYOUT.pack(
        *(
            absent if value is None or not 0 <= value < absent else value
            for value, absent in zip(values, _ABSENT, strict=True)
        )
    )


class _Others:
    """Distinguishes other processes from processes of the session."""

    def __init__(self, is_ours: Callable[[int], bool]) -> None:
        self._is_ours = is_ours
        self._known: dict[int, bool] = {}  # whether a pid that was listed last is ours
        #: A sampler returns the same object until it reads the processes again.
        self._last: Mapping[int, int | None] | None = None
        self._counted: _Counted = (None, None)

    def of(self, processes: Mapping[int, int | None] | None) -> _Counted:
        """Other processes among these; unknown if a pid is from another namespace, which may be one
        of the session's."""
        if processes is None:
            return None, None
        if processes is not self._last:
            self._last, self._counted = processes, self._count(processes)
        return self._counted

    def _count(self, processes: Mapping[int, int | None]) -> _Counted:
        self._known = {
            pid: self._known[pid] if pid in self._known else self._ours(pid) for pid in processes
        }
        others = {pid: bytes for pid, bytes in processes.items() if not self._known[pid]}
        if not all(alive(pid) for pid in others):
            return None, None
        given = [each for each in others.values() if each is not None]
        return len(others), sum(given) if len(given) == len(others) else None

    def _ours(self, pid: int) -> bool:
        """Whether a process is one of the session's, or descends from its launcher."""
        launcher = os.getpid()
        for _ in range(_MAX_ANCESTORS):
            if self._is_ours(pid) or pid == launcher:
                return True
            pid = _parent(pid)
            if pid <= 1:
                break
        return False


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0
