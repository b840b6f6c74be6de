"""Draws power, clock and memory of devices as counters."""

from __future__ import annotations

import json

from pasta.processors.batch import ABSENT_U32, ABSENT_U64
from pasta.report.exports.trace.format import Draws, TraceFormat

_MW = 1000
_MIB = 1 << 20


class Telemetry:
    """Draws samples of devices: a counter for each quantity of each device."""

    def __init__(self, out: TraceFormat) -> None:
        self.out = out

    @property
    def draws(self) -> Draws:
        """Handlers by event kind."""
        return {"device_sample": (self.sample, ("uuid", "power", "clock", "memory_used"))}

    def sample(
        self, time: int, thread: int, device: int, stream: int, uuid: int, power: int, clock: int,
        memory: int,
    ) -> None:  # fmt: skip
        """Draws the values of a sample that are known."""
        where = f"device {device}" if device >= 0 else self.out.strings[uuid] or "unknown device"
        if power != ABSENT_U32:
            self._count(f"{where}: power (W)", time, "W", f"{power / _MW:g}")
        if clock != ABSENT_U32:
            self._count(f"{where}: clock (MHz)", time, "MHz", str(clock))
        if memory != ABSENT_U64:
            self._count(f"{where}: memory in use (MiB)", time, "MiB", str(memory // _MIB))

    def _count(self, name: str, time: int, unit: str, value: str) -> None:
        head = f'"ph":"C","name":{json.dumps(name)},"pid":{self.out.process.pid}'
        self.out.emit(head, self.out.ts(time), f'"args":{{"{unit}":{value}}}')
