"""Where the host leaves a stream without new work: the longest waits between two launches."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pasta.tool import Result, Table, Tool, option


class LaunchGaps(Tool):
    """Longest times between two launches on the same stream, and which kernels they are between."""

    least = option("100us", kind="duration", help="shortest gap to report")
    top = option(10, help="gaps to keep", minimum=1)

    def start(self) -> None:
        """Initialize the state: called once, before the first event."""
        self.last: dict[int, tuple[int, int]] = {}  # stream: time and name of its last launch
        self.gaps: list[tuple[int, int, int, int]] = []  # ns, stream, name before, name after

    def on_launches(self, launches: NDArray[Any]) -> None:
        """Add the gaps of a batch and keep the longest ones."""
        for stream in np.unique(launches["stream"]).tolist():
            mine = launches[launches["stream"] == stream]
            time, name = mine["time"].astype(np.int64), mine["name"]
            if stream in self.last:
                time = np.insert(time, 0, self.last[stream][0])
                name = np.insert(name, 0, self.last[stream][1])
            self.last[stream] = (int(time[-1]), int(name[-1]))
            gaps = np.diff(time)
            for at in np.flatnonzero(gaps >= self.least):
                self.gaps.append((int(gaps[at]), stream, int(name[at]), int(name[at + 1])))
        self.gaps = sorted(self.gaps, reverse=True)[: self.top]

    def result(self) -> Result:
        """The table of gaps: called once, after the last event."""
        gaps, streams, before, after = (
            zip(*self.gaps, strict=True) if self.gaps else ((), (), (), ())
        )
        table = Table(
            {
                "gap": list(gaps),
                "stream": list(streams),
                "after": self.context.demangled(before),
                "before": self.context.demangled(after),
            },
            units={"gap": "ns", "stream": "address"},
            title="Longest gaps between launches of a stream",
            shown=self.top,
        )
        return Result(
            summary=f"{len(gaps)} gaps of {self.least:,} ns or more", tables={"gaps": table}
        )
