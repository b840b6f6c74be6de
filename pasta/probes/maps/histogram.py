"""Sums by bins of objects, over the run or by launch, kernel or window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.probes.accumulators import Accumulator
from pasta.probes.maps.base import IMPLICIT, By, Map, Number, amounts
from pasta.probes.placements import PerBin, Placement, Recorded
from pasta.probes.specs import MapSpec, Method, Parameter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.probes.tables import Table


@dataclass(frozen=True, kw_only=True)
class HistogramSpec(MapSpec):
    """A histogram for one tool instance: `bin` in bytes, `window` in amounts, 0: none.

    The key `offset` becomes the column `bin` = offset // bin, clamped to the object's bins (0 for
    object -1).
    """

    bin: int
    window: int

    @property
    def placement(self) -> Placement:
        """Placement of the counts on a device."""
        # bins by launch would take the bins of all objects for each launch in flight
        return Recorded() if self.per_launch else PerBin(self.bin)

    def key_lines(self) -> list[str]:
        """The statement that computes the bin."""
        return [f"bin = offset // {self.bin} if object >= 0 else 0"]


class HistogramAccumulator(Accumulator):
    """Sums by bin, and by the window that a launch is in."""

    spec: HistogramSpec

    @property
    def _keeps_launch(self) -> bool:
        return super()._keeps_launch or bool(self.spec.window)

    def take(self, table: Table, sizes: NDArray[Any]) -> None:
        """Adds the counts in a table, with bins clamped to the objects, and clears it."""
        columns = table.columns()
        known = columns["object"] >= 0
        # clamped here, not at every access
        bytes = sizes[columns["object"][known]].view(np.int64)
        last = (np.maximum(bytes, 1) - 1) // self.spec.bin
        columns["bin"][known] = np.clip(columns["bin"][known], 0, last)
        self.accumulate(columns)
        table.clear()

    def _key_columns(self) -> list[str]:
        return [*(["window"] if self.spec.window else []), *super()._key_columns()]

    def _column(self, name: str, rows: NDArray[Any]) -> NDArray[Any]:
        return self._windows(rows) if name == "window" else super()._column(name, rows)

    def _windows(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Window of each row, by the sum of the amounts of earlier launches."""
        launches, inverse = np.unique(rows["launch"], return_inverse=True)
        of_launch = np.zeros(len(launches), np.uint64)
        np.add.at(of_launch, inverse.reshape(-1), rows[self.spec.fields[0]])
        before = np.cumsum(of_launch, dtype=np.uint64) - of_launch
        return np.asarray((before // np.uint64(self.spec.window))[inverse.reshape(-1)])


class Histogram(Map[HistogramAccumulator]):
    """Sums per bin of each object: `maps.heat.add(access.object, access.offset, amount=1)`.

    `by` is "object", with "launch" or "kernel" or both; `bin` is in bytes. Accesses outside objects
    count in bin 0 of object -1. With `window=N` there is a column `window`: consecutive launches
    that together added N; 0: none.
    """

    storage = HistogramAccumulator

    def __init__(
        self, *, by: By = "object", bin: Number = "4KiB", window: Number | None = None
    ) -> None:
        super().__init__()
        parts = self._checked_by(by, [*IMPLICIT, "object"])
        if "object" not in parts:
            raise self._wrong(f"by {by!r}", 'use "object", alone or with "launch" or "kernel"')
        self.by = tuple(str(part) for part in parts)
        self.bin = self._number(bin, "bin")
        self.window = None if window is None else self._number(window, "window")
        keys = (Parameter("object", field=True), Parameter("offset", field=True))
        self.method = Method("add", (*keys, *amounts(("count",))))

    def spec(self, options: Mapping[str, Any]) -> HistogramSpec:
        """The map with the values of a tool's options. Raises ToolError."""
        window = 0 if self.window is None else self._value(self.window, options, low=0)
        return self._spec(
            HistogramSpec,
            keys=("object", "bin"),
            fields=("count",),
            per_launch=bool(window) or len(self.by) > 1,
            bin=self._value(self.bin, options),
            window=window,
        )
