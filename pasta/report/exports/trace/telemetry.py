"""Draws power, clock and memory of devices as counters."""

from __future__ import annotations

from pasta.processors.batch import ABSENT_U32, ABSENT_U64
from pasta.report.exports.trace.format import Draws, Tracks

_MW = 1000
_MIB = 1 << 20


class Telemetry:
    """Draws samples of devices: a counter for each quantity of each device."""

    def __init__(self, out: Tracks) -> None:
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
            self.out.counter(f"{where}: power (W)", time, "W", power / _MW, device)
        if clock != ABSENT_U32:
            self.out.counter(f"{where}: clock (MHz)", time, "MHz", clock, device)
        if memory != ABSENT_U64:
            mib = memory // _MIB
            self.out.counter(f"{where}: memory in use (MiB)", time, "MiB", mib, device)
