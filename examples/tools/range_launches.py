"""How many kernels each annotated part of a program launches."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pasta.tool import Result, Table, Tool


class RangeLaunches(Tool):
    """Launches by the ranges (NVTX, roctx, pasta.range) that are open around them."""

    needs = ("ranges",)

    def start(self) -> None:
        """Initialize the counts by state of the open ranges."""
        self.launches: dict[int, int] = {}

    def on_launches(self, launches: NDArray[Any]) -> None:
        """Count the launches of a batch by their open ranges."""
        states, counts = np.unique(self.context.ranges.at(launches), return_counts=True)
        for state, count in zip(states.tolist(), counts.tolist(), strict=True):
            self.launches[state] = self.launches.get(state, 0) + count

    def result(self) -> Result:
        """The table of launches by range."""
        by_path: dict[str, int] = {}
        for state, count in self.launches.items():
            path = self.context.ranges.path(state, self.context.strings) or "(no range)"
            by_path[path] = by_path.get(path, 0) + count
        paths = sorted(by_path, key=by_path.__getitem__, reverse=True)
        table = Table(
            {"range": paths, "launches": [by_path[path] for path in paths]},
            title="Launches by range",
        )
        return Result(summary=f"{len(paths)} ranges with launches", tables={"ranges": table})
