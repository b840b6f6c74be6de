"""Draws ranges of threads and of the process, and marks."""

from __future__ import annotations

from pasta.report.exports.trace.format import Draws, Tracks


class Ranges:
    """Draws annotations: slices of a thread, spans of the process, and instants."""

    def __init__(self, out: Tracks) -> None:
        self.out = out
        self.open_ranges: dict[int, str] = {}

    @property
    def draws(self) -> Draws:
        """Handlers by event kind."""
        return {
            "range_push": (self.push, ("name", "domain")),
            "range_pop": (self.pop, ("domain",)),
            "range_start": (self.range_start, ("name", "id")),
            "range_end": (self.range_end, ("id",)),
            "mark": (self.mark, ("name",)),
        }

    def push(
        self, time: int, thread: int, device: int, stream: int, name: int, domain: int
    ) -> None:
        """Begins a thread range."""
        self.out.numbers += 1
        track, args = self.out.thread(thread, domain), f'"External id":{self.out.numbers}'
        self.out.begin(track, ("range", domain), time, "user_annotation", self.out.text(name), args)

    def pop(self, time: int, thread: int, device: int, stream: int, domain: int) -> None:
        """Ends the innermost thread range of a domain."""
        self.out.end(self.out.thread(thread, domain), ("range", domain), time)

    def range_start(
        self, time: int, thread: int, device: int, stream: int, name: int, id: int
    ) -> None:
        """Begins a process range; an open one with the same id ends."""
        if id in self.open_ranges:
            self.out.process_range("e", id, self.open_ranges[id], time)
        self.open_ranges[id] = self.out.text(name)
        self.out.process_range("b", id, self.open_ranges[id], time)

    def range_end(self, time: int, thread: int, device: int, stream: int, id: int) -> None:
        """Ends a process range."""
        name = self.open_ranges.pop(id, None)
        if name is not None:
            self.out.process_range("e", id, name, time)

    def mark(self, time: int, thread: int, device: int, stream: int, name: int) -> None:
        """Draws a mark."""
        self.out.instant(self.out.thread(thread), time, self.out.text(name))

    def close(self) -> None:
        """Ends the open ranges of the process."""
        for id, name in self.open_ranges.items():
            self.out.process_range("e", id, name, self.out.last)
