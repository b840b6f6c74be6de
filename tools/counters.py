"""Hardware counters by kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.codes import grown
from pasta.processors.groups import Groups
from pasta.processors.kernel_names import kernel_names
from pasta.table import Table, counted
from pasta.tool import Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: Largest integer up to which a double represents all integers exactly.
_MAX_EXACT_INTEGER = 2.0**53


class Counters(Tool):
    """Hardware counters: sum, mean, minimum and maximum by kernel and instance."""

    title = "Hardware counters"
    topic = "time"

    top = option(20, help="rows of each table in the text report; the tables have all", minimum=1)
    instances = option(
        1 << 18, help="maximum number of distinct counter instances, over all kernels", minimum=1
    )

    def start(self) -> None:
        """Initialize the sums, minima and maxima by kernel, counter and instance."""
        self.groups = Groups(self.instances, "value", dtype="f8")
        self.least = np.zeros(0)
        self.largest = np.zeros(0)
        self.unknown = 0  # values of unknown launches

    def on_counters(self, counters: NDArray[Any]) -> None:
        """Add values to their kernel; those without a known launch are only counted."""
        names = np.asarray(self.context.launches.names(counters["ordinal"]), np.uint32)
        told = (names != 0) & ~np.isnan(counters["value"])
        self.unknown += int(len(told) - told.sum())
        counters, names, values = counters[told], names[told], counters["value"][told]
        codes = self.groups.add(names, counters["name"], counters["instance"], value=values)
        self.least = grown(self.least, len(self.groups), np.inf)
        self.largest = grown(self.largest, len(self.groups), -np.inf)
        known = codes >= 0
        np.minimum.at(self.least, codes[known], values[known])
        np.maximum.at(self.largest, codes[known], values[known])

    def result(self) -> Result:
        """Tables by kernel and by counter instance."""
        kernels = self._kernels()
        return Result(
            summary=self._summary(kernels),
            tables={"kernels": kernels, "instances": self._instances()},
        )

    def _kernels(self) -> Table:
        """Sums over instances. A launch has one value per instance and counts once in each."""
        rows = np.asarray(self.groups.rows, np.uint64).reshape(-1, 3)
        distinct, of = np.unique(rows[:, :2], axis=0, return_inverse=True)
        of = of.reshape(-1)
        launches, sums = np.zeros(len(distinct), np.int64), np.zeros(len(distinct))
        np.maximum.at(launches, of, self.groups.count)
        np.add.at(sums, of, self.groups.sum("value"))
        order = _sort_order(*self._names(distinct))
        kernels, counters = self._names(distinct[order])
        return Table(
            {
                "kernel": kernels,
                "counter": counters,
                "launches": launches[order],
                "instances": np.bincount(of, minlength=len(distinct))[order],
                "sum": _as_integers(sums[order]),
                "mean": (sums / np.maximum(launches, 1))[order],
            },
            labels={"mean": "mean per launch"},
            keys=("kernel", "counter"),
            sums=("sum",),
            levels=("mean",),
            title="Counters by kernel",
            shown=self.top,
        )

    def _instances(self) -> Table:
        rows = np.asarray(self.groups.rows, np.uint64).reshape(-1, 3)
        count, sums = self.groups.count, self.groups.sum("value")
        least, largest = (each[: len(rows)] for each in (self.least, self.largest))
        instances = self.context.strings.many(rows[:, 2].astype(np.uint32))
        order = _sort_order(*self._names(rows), instances)
        kernels, counters = self._names(rows[order])
        return Table(
            {
                "kernel": kernels,
                "counter": counters,
                "instance": [instances[at] or None for at in order.tolist()],
                "launches": count[order],
                "sum": _as_integers(sums[order]),
                "mean": (sums / np.maximum(count, 1))[order],
                "min": _as_integers(least[order]),
                "max": _as_integers(largest[order]),
            },
            keys=("kernel", "counter", "instance"),
            sums=("sum",),
            levels=("mean", "min", "max"),
            title="Counters by kernel and instance",
            shown=self.top if bool((rows[:, 2] != 0).any()) else 0,
        )

    def _names(self, rows: NDArray[Any]) -> tuple[list[str], list[str]]:
        """Kernels and counters of rows whose first columns are ids of their names."""
        counters = self.context.strings.many(rows[:, 1].astype(np.uint32))
        return kernel_names(self.context, rows[:, 0].astype(np.uint32)), counters

    def _summary(self, kernels: Table) -> str:
        if not len(kernels):
            text = "no counters were collected (amd.counters selects them)"
        else:
            names, counters = (set(kernels.columns[name]) for name in ("kernel", "counter"))
            text = f"{counted(len(counters), 'counter')} of {counted(len(names), 'kernel')}"
        if self.unknown:
            text += f"; {counted(self.unknown, 'value')} of unknown launches dropped"
        if self.groups.left_out:
            text += (
                f"; {counted(self.groups.left_out, 'value')} of instances beyond the limit dropped"
            )
        return text


def _sort_order(*texts: Sequence[str | None]) -> NDArray[Any]:
    """Sort order of rows by their texts, the first text most significant."""
    rows = [tuple(each or "" for each in row) for row in zip(*texts, strict=True)]
    return np.asarray(sorted(range(len(rows)), key=rows.__getitem__), np.intp)


def _as_integers(values: NDArray[Any]) -> NDArray[Any]:
    """The values as integers if all are integral, as those of most counters are."""
    exact = len(values) and bool(((values % 1 == 0) & (np.abs(values) < _MAX_EXACT_INTEGER)).all())
    return values.astype(np.int64) if exact else values
