"""Draws events of streams, synchronization, and events of the process."""

from __future__ import annotations

from pasta import abi
from pasta.report.exports.trace.format import ABSENT_U64, Draws, Tracks, kind_text


class Work:
    """Draws everything other than launches, copies, operators, ranges and memory."""

    def __init__(self, out: Tracks) -> None:
        self.out = out

    @property
    def draws(self) -> Draws:
        """Handlers by event kind."""
        return {
            "sync": (self.sync, ("what", "duration")),
            "event_record": (self.event, ("kind", "handle")),
            "event_wait": (self.event, ("kind", "handle")),
            "process_start": (self.process_wide, ("kind",)),
            "process_end": (self.process_wide, ("kind",)),
            "profiling_start": (self.process_wide, ("kind",)),
            "profiling_stop": (self.process_wide, ("kind",)),
            "dropped": (self.dropped, ("count",)),
        }

    def sync(
        self, time: int, thread: int, device: int, stream: int, what: int, duration: int
    ) -> None:
        """Draws a synchronization call on its thread."""
        track = self.out.thread(thread)
        name = self.out.call(f"wait for {abi.enums()['sync'].get(what, 'device')}")
        if duration == ABSENT_U64:
            self.out.instant(track, time, name, track.external, category="cuda_runtime")
        else:
            self.out.whole(track, time - duration, duration, "cuda_runtime", name, track.external)

    def event(
        self, time: int, thread: int, device: int, stream: int, kind: int, handle: int
    ) -> None:
        """Draws an event record or wait on its stream."""
        track = self.out.stream(device, stream)
        self.out.instant(
            track, time, kind_text(kind), f'"event":"{handle:#x}"', category="cuda_event"
        )

    def process_wide(self, time: int, thread: int, device: int, stream: int, kind: int) -> None:
        """Draws an event of the whole process."""
        self.out.instant(self.out.thread(thread), time, kind_text(kind), scope="p")

    def dropped(self, time: int, thread: int, device: int, stream: int, count: int) -> None:
        """Draws a mark where events were dropped."""
        track = self.out.thread(thread)
        self.out.instant(track, time, '"events dropped"', f'"count":{count}', scope="g")

    def other(self, time: int, thread: int, device: int, stream: int, kind: int) -> None:
        """Draws a kind without a handler as a mark on its thread."""
        self.out.instant(self.out.thread(thread), time, kind_text(kind))
