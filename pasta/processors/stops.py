"""Times in which profiling was stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pasta.processors.batch import Batch


class Stops:
    """`past`: begin and end (ns) of each stop that has ended; `since`: begin of the one that has
    not, or None."""

    def __init__(self) -> None:
        self.past: list[tuple[int, int]] = []
        self.since: int | None = None

    def feed(self, batch: Batch) -> list[tuple[int, int]]:
        """Follow the stops of a batch. Returns those that ended in it."""
        from pasta import abi

        ended = []
        for event in batch.merged("profiling_start", "profiling_stop"):
            time = int(event["time"])
            if event["kind"] != abi.KINDS["profiling_stop"]:
                ended += self.end(time)
            elif self.since is None:
                self.since = time
        return ended

    def end(self, time: int) -> list[tuple[int, int]]:
        """End the stop that has not ended. Returns it; nothing if there is none."""
        ended = [] if self.since is None or time <= self.since else [(self.since, time)]
        self.past += ended
        self.since = None
        return ended

    def total(self, until: int) -> int:
        """Time in stops up to the last one's end or `until`, ns."""
        open_ = 0 if self.since is None else max(0, until - self.since)
        return sum(end - begin for begin, end in self.past) + open_
