"""Hardware counters by kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.codes import grown
from pasta.processors.groups import Groups
from pasta.processors.kernel_names import kernel_names
from pasta.table import Table, absent_where, counted
from pasta.tool import Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: Ordinal of values that are not of one launch.
_NO_LAUNCH = 0xFFFF_FFFF_FFFF_FFFF
#: Largest integer up to which a double represents all integers exactly.
_MAX_EXACT_INTEGER = 2.0**53


class Counters(Tool):
    """Hardware counters: sum, mean, minimum and maximum by kernel and instance, or by range."""

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
        self.ranges = Groups(self.instances, "value", dtype="f8")  # by range and counter

    def on_counters(self, counters: NDArray[Any]) -> None:
        """Add values to their kernel or range; those without a known launch are only counted."""
        of_range = counters["ordinal"] == _NO_LAUNCH
        ranges, counters = counters[of_range], counters[~of_range]
        if len(ranges):
            self.ranges.add(ranges["instance"], ranges["name"], value=ranges["value"])
        names = np.asarray(self.context.launches.names(counters["ordinal"]), np.uint32)
        known = (names != 0) & ~np.isnan(counters["value"])
        self.unknown += int(len(known) - known.sum())
        counters, names, values = counters[known], names[known], counters["value"][known]
        codes = self.groups.add(names, counters["name"], counters["instance"], value=values)
        self.least = grown(self.least, len(self.groups), np.inf)
        self.largest = grown(self.largest, len(self.groups), -np.inf)
        known = codes >= 0
        np.minimum.at(self.least, codes[known], values[known])
        np.maximum.at(self.largest, codes[known], values[known])

    def result(self) -> Result:
        """Tables by kernel, by counter instance, and by range of launches; counters that are no
        sums, whose values are much smaller, apart from the others."""
        every = self._by_kernel()
        tables = {"kernels": self._kernels(every)}
        if any(map(_is_rate, every["counter"])):
            tables["rates"] = self._rates(every)
        tables["instances"] = self._instances()
        if len(self.ranges):
            tables |= self._of_ranges()
        return Result(summary=self._summary(every), tables=tables)

    def _by_kernel(self) -> dict[str, Any]:
        """Columns by kernel and counter, over instances. A launch has one value per instance and
        counts once in each."""
        rows = np.asarray(self.groups.rows, np.uint64).reshape(-1, 3)
        distinct, of = np.unique(rows[:, :2], axis=0, return_inverse=True)
        of = of.reshape(-1)
        launches, sums = np.zeros(len(distinct), np.int64), np.zeros(len(distinct))
        np.maximum.at(launches, of, self.groups.count)
        np.add.at(sums, of, self.groups.sum("value"))
        order = _sort_order(*self._names(distinct))
        kernels, counters = self._names(distinct[order])
        return {
            "kernel": kernels,
            "counter": counters,
            "launches": launches[order],
            "instances": np.bincount(of, minlength=len(distinct))[order],
            "sum": sums[order],
            "mean": (sums / np.maximum(launches, 1))[order],
        }

    def _kernels(self, every: dict[str, Any]) -> Table:
        columns = _chosen(every, [not _is_rate(name) for name in every["counter"]])
        return Table(
            {**columns, "sum": _as_integers(columns["sum"])},
            labels={"mean": "mean per launch"},
            keys=("kernel", "counter"),
            sums=("sum",),
            levels=("mean",),
            title="Counters by kernel",
            shown=self.top,
        )

    def _rates(self, every: dict[str, Any]) -> Table:
        columns = _chosen(every, list(map(_is_rate, every["counter"])))
        return Table(
            {name: columns[name] for name in ("kernel", "counter", "launches", "mean")},
            keys=("kernel", "counter"),
            sums=(),
            levels=("mean",),
            title="Rates and means by kernel",
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
                "sum": absent_where(
                    _as_integers(sums[order]), np.asarray(list(map(_is_rate, counters)), bool)
                ),
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

    def _of_ranges(self) -> dict[str, Table]:
        """Values of ranges of launches, in the order of the ranges."""
        rows = np.asarray(self.ranges.rows, np.uint64).reshape(-1, 2).astype(np.uint32)
        every = {
            "range": self.context.strings.many(rows[:, 0]),
            "counter": self.context.strings.many(rows[:, 1]),
            "value": self.ranges.sum("value"),
        }
        is_rate = list(map(_is_rate, every["counter"]))
        tables = {}
        for name, title, rates in (
            ("ranges", "Counters by range", False),
            ("range_rates", "Rates and means by range", True),
        ):
            columns = _chosen(every, [each == rates for each in is_rate])
            if columns["counter"]:
                tables[name] = Table(
                    {**columns, "value": _as_integers(columns["value"])},
                    keys=("range", "counter"),
                    sums=(),
                    levels=("value",),
                    title=title,
                    shown=self.top,
                )
        return tables

    def _names(self, rows: NDArray[Any]) -> tuple[list[str], list[str]]:
        """Kernels and counters of rows whose first columns are ids of their names."""
        counters = self.context.strings.many(rows[:, 1].astype(np.uint32))
        return kernel_names(self.context, rows[:, 0].astype(np.uint32)), counters

    def _summary(self, every: dict[str, Any]) -> str:
        parts = []
        if every["kernel"]:
            names, counters = (set(every[name]) for name in ("kernel", "counter"))
            parts.append(f"{counted(len(counters), 'counter')} of {counted(len(names), 'kernel')}")
        if len(self.ranges):
            ranges, counters = ({row[at] for row in self.ranges.rows} for at in (0, 1))
            parts.append(f"{counted(len(counters), 'counter')} of {counted(len(ranges), 'range')}")
        if not parts:
            parts.append(
                "no counters were collected (a backend's setting selects them, such as "
                "nvidia.counters)"
            )
        if self.unknown:
            parts.append(f"{counted(self.unknown, 'value')} dropped: the launch is unknown")
        left_out = self.groups.left_out + self.ranges.left_out
        if left_out:
            parts.append(f"{counted(left_out, 'value')} dropped: more instances than the limit")
        return "; ".join(parts)


def _sort_order(*texts: Sequence[str | None]) -> NDArray[Any]:
    """Sort order of rows by their texts, the first text most significant."""
    rows = [tuple(each or "" for each in row) for row in zip(*texts, strict=True)]
    return np.asarray(sorted(range(len(rows)), key=rows.__getitem__), np.intp)


def _is_rate(counter: str) -> bool:
    """Whether a counter is not a sum, such as the share `hits.pct` or the mean `cycles.avg`."""
    return bool(set(counter.split(".")[1:]) - {"sum"})


def _chosen(columns: dict[str, Any], rows: Sequence[bool]) -> dict[str, Any]:
    """Some rows of columns, which are lists or arrays."""
    return {
        name: [value for value, chosen in zip(column, rows, strict=True) if chosen]
        if isinstance(column, list)
        else column[np.asarray(rows, bool)]
        for name, column in columns.items()
    }


def _as_integers(values: NDArray[Any]) -> NDArray[Any]:
    """The values as integers if all are integral, as for most counters."""
    exact = len(values) and bool(((values % 1 == 0) & (np.abs(values) < _MAX_EXACT_INTEGER)).all())
    return values.astype(np.int64) if exact else values
