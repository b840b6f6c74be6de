"""Kernels by number of launches, and by device time if the source has timestamps."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

from pasta import abi
from pasta.lazy import np
from pasta.processors.call_paths import WorkByPath, of_work
from pasta.processors.codes import Codes, RowCodes, grown, span_dtype, words_of
from pasta.processors.correlate import LaunchWindow
from pasta.processors.demangle import distinct_names, short_name
from pasta.processors.histogram import DurationSummary
from pasta.processors.occupancy import LIMITERS, Devices, resident, waves
from pasta.processors.path_columns import combined_paths, heaviest_paths
from pasta.processors.timeline import CountTimeline
from pasta.table import Figure, Table, Unit, absent_where, counted, formatted, shares
from pasta.tool import Finding, Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

#: Fields of a launch that make up its configuration; consecutive in the record.
_FIRST_FIELD, _LAST_FIELD = "name", "local"
_SIZES = ("registers", "shared_static", "shared_dynamic", "local")

_NO_TIME = 0xFFFF_FFFF_FFFF_FFFF
_MAX_NAMED = 3
_TIMES = ("total", "mean", "min", "p50", "p99", "max")
#: Columns omitted from the text report.
_HIDDEN = frozenset(
    {*_SIZES, "first_launch", "last_launch", "completions", "min_time", "p50_time"}
    | {"first_time", "steady_time"}
    | {"demangled", "name", "call_path"}
)
_SIZE_UNITS: dict[str, Unit] = {
    "shared_static": "bytes",
    "shared_dynamic": "bytes",
    "local": "bytes",
}
_OCCUPANCY_UNITS: dict[str, Unit] = {"occupancy": "share", "tail": "share"}
_OCCUPANCY_LABELS = {
    "occupancy": "of a multiprocessor's warps",
    "limiter": "limited by",
    "tail": "of the last wave idle",
}


class KernelFreq(Tool):
    """Launches per kernel, their configurations, and device times if the source has timestamps."""

    title = "Kernels"
    topic = "time"

    needs = ("call_paths",)
    uses = (*_SIZES, "cluster", "device")

    top = option(10, help="kernels in the text report; the tables have all", minimum=1)
    configurations = option(
        1 << 18,
        help="maximum number of distinct launch configurations, over all kernels",
        minimum=1,
    )
    dominant = option(0.5, help="finding: minimum share of device time in one kernel", minimum=0.0)
    least_time = option("10ms", kind="duration", help="… and minimum device time")
    launch_cost = option(
        "5us",
        kind="duration",
        help="assumed host time of a launch; shorter kernels count as tiny",
    )
    tiny_launches = option(1000, help="finding: minimum launches of tiny kernels", minimum=1)

    waits_of = option(100, help="finding: minimum number of waits for the device", minimum=1)
    wait_share = option(0.5, help="… and minimum waits per launch", minimum=0.0)
    tiny_share = option(
        0.1,
        help="finding: minimum share of time that fewer waits, or merging tiny launches, may save",
        minimum=0.0,
    )

    def start(self) -> None:
        """Initialize the counts by kernel and configuration."""
        self.names = Codes()
        self.launches = np.zeros(0, np.int64)
        self.first = np.zeros(0, np.uint64)
        self.last = np.zeros(0, np.uint64)
        self.in_graphs = np.zeros(0, np.int64)
        self.first_time, self.last_time = _NO_TIME, 0
        self.shapes = RowCodes(self.configurations)
        self.shape_launches = np.zeros(0, np.int64)
        self.shape_of = LaunchWindow()  # number of the configuration + 1, by launch
        self.shape_times = np.zeros((0, 2), np.int64)  # completions of each, and their time
        self.devices = Devices()
        self.uncounted_shapes = 0  # launches with configurations beyond the limit
        self.times = DurationSummary()
        self.first_times = np.zeros(0, np.int64)
        self.unknown_completions = 0
        self.paths = WorkByPath()
        self.waits, self.wait_time = 0, 0
        self.timeline = CountTimeline(self.context.process.start_time)

    def on_launches(self, launches: NDArray[Any]) -> None:
        """Count launches by kernel, by configuration and over time."""
        codes = self.names.encode(launches["name"])
        kernels = len(self.names)
        self.launches = grown(self.launches, kernels)
        self.first = grown(self.first, kernels, np.iinfo(np.uint64).max)
        self.last = grown(self.last, kernels)
        self.launches += np.bincount(codes, minlength=len(self.launches))
        self.in_graphs = grown(self.in_graphs, kernels)
        in_graph = (launches["flags"] & abi.FLAG_GRAPH) != 0
        self.in_graphs += np.bincount(codes[in_graph], minlength=len(self.in_graphs))
        self.first_time = min(self.first_time, int(launches["time"].min()))
        self.last_time = max(self.last_time, int(launches["time"].max()))
        ordinals = np.ascontiguousarray(launches["ordinal"])
        np.minimum.at(self.first, codes, ordinals)
        np.maximum.at(self.last, codes, ordinals)
        shapes = self.shapes.encode(words_of(launches, _FIRST_FIELD, _LAST_FIELD))
        self.shape_launches = grown(self.shape_launches, len(self.shapes))
        counts = np.bincount(shapes + 1, minlength=len(self.shape_launches) + 1)
        self.uncounted_shapes += int(counts[0])
        self.shape_launches += counts[1:]
        self.shape_of.put(launches["ordinal"], shapes + 1)
        self.timeline.add(launches["time"])

    def on_host_stacks(self, stacks: NDArray[Any]) -> None:
        """Count launches by kernel and call path."""
        stacks = of_work(stacks, "kernel_launch")
        self.paths.count(self.context.launches.names(stacks["key"]), stacks["stack"])

    def on_devices(self, devices: NDArray[Any]) -> None:
        """Follow the properties of devices, for occupancy."""
        self.devices.add(devices)

    def on_completions(self, completions: NDArray[Any]) -> None:
        """Add device times to their kernel; those without a known launch are only counted."""
        names = self.context.launches.names(completions["ordinal"])
        start, end = completions["start"], completions["end"]
        good = (names != 0) & (end >= start) & (end != np.iinfo(np.uint64).max)
        self.unknown_completions += int(len(good) - good.sum())
        codes = self.names.encode(names[good])
        durations = (end[good] - start[good]).astype(np.int64)
        self._keep_first(codes, durations)
        self.paths.add(
            names[good], self.context.call_paths.stacks_of(completions["ordinal"][good]), durations
        )
        self.times.add(codes, durations)
        ordinals = completions["ordinal"]
        shapes = self.shape_of.get(ordinals if good.all() else ordinals[good]) - 1
        self.shape_times = grown(self.shape_times, len(self.shapes))
        length = len(self.shape_times) + 1
        self.shape_times[:, 0] += np.bincount(shapes + 1, minlength=length)[1:]
        # exact: the sums of a batch are below 2**53
        self.shape_times[:, 1] += np.bincount(shapes + 1, durations, length)[1:].astype(np.int64)

    def _keep_first(self, codes: NDArray[Any], durations: NDArray[Any]) -> None:
        """Keeps the time of each kernel's first launch, which may load its code, separately."""
        count = len(self.names)
        self.first_times = grown(self.first_times, count)
        new = np.flatnonzero(grown(self.times.count, count)[codes] == 0)
        if len(new):
            kernels, at = np.unique(codes[new], return_index=True)
            self.first_times[kernels] = durations[new[at]]

    def _steady_mean(self) -> NDArray[Any]:
        """Mean device time of each kernel, excluding its first launch if there are others."""
        count = len(self.names)
        completions = grown(self.times.count, count)[:count]
        total = grown(self.times.total, count)[:count]
        more = completions > 1
        first = np.where(more, grown(self.first_times, count)[:count], 0)
        found: NDArray[Any] = (total - first) / np.maximum(completions - more, 1)
        return found

    def on_syncs(self, syncs: NDArray[Any]) -> None:
        """Sum the host's waits."""
        durations = syncs["duration"]
        timed = durations != np.iinfo(np.uint64).max
        self.waits += len(syncs)
        self.wait_time += int(durations[timed].sum())

    def result(self) -> Result:
        """Tables by kernel, configuration and time, and findings."""
        kernels = self._kernels()
        return Result(
            summary=self._summary(kernels),
            findings=[*self._dominant(kernels), *self._tiny(), *self._waits()],
            tables={
                "kernels": kernels,
                "configurations": self._configurations(),
                "timeline": Table(
                    {"time": self.timeline.times, "launches": self.timeline.counts},
                    units={"time": "ns"},
                    keys=(),
                    sums=("launches",),
                    title=f"Launches per {formatted(self.timeline.width, 'ns')}",
                    shown=0,
                ),
                **self._call_paths(),
            },
            figures={
                "timeline": Figure(
                    "step",
                    "Kernel launches over time",
                    self.timeline.times,
                    {"launches": self.timeline.counts},
                    x_label="time since start",
                    x_unit="ns",
                    y_label=f"launches per {formatted(self.timeline.width, 'ns')}",
                )
            },
        )

    def _dominant(self, kernels: Table) -> Iterator[Finding]:
        """The kernel that takes most of the device time, if there is one."""
        total = int(self.times.total.sum())
        first = next(kernels.rows(1), None)
        if first is None or not total or total < self.least_time:
            return
        if first["share_of_time"] >= self.dominant:
            yield Finding(
                what="one kernel takes most of the device time",
                where=first["kernel"]
                + (f", launched at {first['line']}" if first.get("line") else ""),
                evidence=f"{formatted(first['share_of_time'], 'share')} of"
                f" {formatted(total, 'ns')}, in {counted(first['completions'], 'launch')} of"
                f" {formatted(first['mean_time'], 'ns')} on average",
                remedy="see its instructions in the tables of coalescing"
                if "coalescing" in self.context.tools
                else "check whether its accesses are coalesced: pasta-preload -t "
                f"coalescing -k {shlex.quote(re.escape(short_name(first['name'])))} -- "
                "PROGRAM",
                confidence="low",  # the possible speedup is unknown
            )

    @property
    def _waits_often(self) -> bool:
        launches = int(self.launches.sum()) - int(self.in_graphs.sum())
        return self.waits >= max(self.waits_of, self.wait_share * launches)

    def _waits(self) -> Iterator[Finding]:
        """Waits after nearly every launch: host and device alternate instead of overlapping."""
        launches = int(self.launches.sum()) - int(self.in_graphs.sum())
        span = self.last_time - self.first_time
        if not self._waits_often or span <= 0:
            return
        if self.context.has("operators") and len(self.context.operators.nodes) > 1:
            return  # the tool operators reports the location
        gain = min(self.wait_time, max(0, span - self.wait_time)) / span
        if gain < self.tiny_share:
            return
        yield Finding(
            what="the host waits after nearly every launch",
            where=f"{self.waits:,} waits, {launches:,} launches",
            evidence=f"the host waited {formatted(self.wait_time, 'ns')} of "
            f"{formatted(span, 'ns')}; it launches nothing while it waits, and the "
            "device is idle until the next launch",
            remedy="remove cudaDeviceSynchronize and similar calls from the loop: launches "
            "in a stream run in order; wait once, before results are read",
            gain=gain,
            of="the time from first to last launch",
        )

    def _tiny(self) -> Iterator[Finding]:
        """Kernels that finish before the host can launch the next one."""
        count = len(self.names)
        completions = grown(self.times.count, count)[:count]
        mean = self._steady_mean()
        by_host = self.launches[:count] - self.in_graphs[:count]
        tiny = (completions > 0) & (mean < self.launch_cost) & (by_host > 0)
        launches = int(by_host[tiny].sum())
        span = self.last_time - self.first_time
        if launches < self.tiny_launches or span <= 0 or self._waits_often:
            return
        idle = max(0, span - int(self.times.total.sum()))  # bounds the gain
        time = float((by_host * mean)[tiny].sum())
        gain = min(launches * self.launch_cost - time, idle) / span
        if gain < self.tiny_share:
            return
        names = distinct_names(self.context.demangled(np.asarray(self.names.ids)))
        most = [
            names[at] for at in np.argsort(-by_host * tiny, kind="stable")[:_MAX_NAMED].tolist()
        ]
        left = int(tiny.sum()) - len(most)
        yield Finding(
            what="many kernels are shorter than their launch",
            where=", ".join(most[: int(tiny.sum())]) + (f" and {left:,} more" if left > 0 else ""),
            evidence=f"{counted(launches, 'launch')} of {counted(int(tiny.sum()), 'kernel')} "
            f"take {formatted(time / launches, 'ns')} each on the device, and about "
            f"{formatted(self.launch_cost, 'ns')} each on the host (launch_cost), in "
            f"{formatted(span, 'ns')}",
            remedy="capture the launches in one graph (CUDA graphs), or fuse the kernels "
            "(torch.compile)",
            gain=min(1.0, gain),
            of="the time from first to last launch",
            # if operators are followed, the tool operators reports the same with its line
            confidence="low" if self.context.has("operators") else "medium",
        )

    def _kernels(self) -> Table:
        count = len(self.names)
        launches = self.launches[:count]
        completions = grown(self.times.count, count)[:count]
        total = grown(self.times.total, count)[:count]
        order = np.lexsort((self.first[:count], -launches, -total))
        untimed = (completions == 0)[order]
        shapes = self._shapes()
        names = np.asarray(self.names.ids, np.int64)[order]

        def times(values: Any) -> Any:
            return absent_where(grown(np.asarray(values), count)[:count][order], untimed)

        def sizes(field: str) -> Any:
            return self._largest(shapes, field)[order]

        p50, p99 = self.times.quantiles(len(self.times.count), 0.5, 0.99)
        demangled = self.context.demangled(names)
        columns = {
            "kernel": distinct_names(demangled),
            "launches": launches[order],
            "share": shares(launches, launches.sum())[order],
            "first_launch": self.first[:count][order],
            "last_launch": self.last[:count][order],
            "grids": self._distinct(shapes, "grid")[order],
            "blocks": self._distinct(shapes, "block")[order],
            **{field: sizes(field) for field in _SIZES},
            **{name: column[order] for name, column in self._occupancy(shapes).items()},
            "completions": completions[order],
            "total_time": times(total),
            "share_of_time": times(shares(total, total.sum())),
            "mean_time": times(total / np.maximum(completions, 1)),
            "first_time": times(self.first_times),
            "steady_time": times(self._steady_mean()),
            "min_time": times(self.times.minimum),
            "p50_time": times(p50),
            "p99_time": times(p99),
            "max_time": times(self.times.maximum),
            **heaviest_paths(self.context, self.paths, names.tolist()),
            "demangled": demangled,
            "name": self.context.strings.many(names),
        }
        columns["limiter"] = _limiters(columns["limiter"])
        units: dict[str, Unit] = {"share": "share", **_SIZE_UNITS, **_OCCUPANCY_UNITS}
        units.update({name: "ns" for name in columns if name.endswith("_time")})
        units["share_of_time"] = "share"
        untold = set(_HIDDEN) | {
            name
            for name, column in columns.items()
            if (isinstance(column, np.ma.MaskedArray) and column.mask.all())
            or (name == "limiter" and not any(column))
        }
        return Table(
            columns,
            units=units,
            labels={
                "share": "of launches",
                "share_of_time": "of kernel time",
                **({"line": "launched at"} if "line" in columns else {}),
                **_OCCUPANCY_LABELS,
                "first_time": "first",
                "steady_time": "mean without the first",
                **{f"{which}_time": which for which in _TIMES},
            },
            keys=("kernel",),
            sums=("launches", "total_time"),
            levels=(
                "mean_time",
                "steady_time",
                "min_time",
                "p50_time",
                "p99_time",
                "max_time",
                *_SIZES,
                "occupancy",
                "waves",
                "tail",
            ),
            important=("launches", "total_time", "share_of_time", "mean_time", "share"),
            title="Kernels (launches, distinct grids and blocks, device time)",
            shown=self.top,
            hidden=frozenset(untold),
        )

    def _call_paths(self) -> dict[str, Table]:
        """Launches and device time by kernel and call path; empty without call paths."""
        rows = self.paths.rows()
        if not len(rows):
            return {}
        columns, rows = combined_paths(self.context, rows)
        demangled = self.context.demangled(rows["name"])
        untimed = rows["time"] == 0
        known, launches = int(rows["count"].sum()), int(self.launches.sum())
        return {
            "call_paths": Table(
                {
                    "kernel": distinct_names(demangled),
                    "launches": rows["count"],
                    "total_time": absent_where(rows["time"], untimed),
                    "share_of_time": absent_where(
                        shares(rows["time"], int(self.times.total.sum())), untimed
                    ),
                    **columns,
                    "name": demangled,
                },
                units={"total_time": "ns", "share_of_time": "share"},
                labels={
                    "total_time": "total",
                    "share_of_time": "of kernel time",
                    "line": "launched at",
                },
                keys=("name", "call_path"),
                sums=("launches", "total_time"),
                title="Call paths of kernels"
                + (f" ({known:,} of {launches:,} launches)" if known < launches else ""),
                shown=self.top,
                hidden=frozenset({"name"}),
            )
        }

    def _shapes(self) -> NDArray[Any]:
        """Distinct configurations as launch records; only the configuration fields are valid."""
        dtype = abi.dtype("kernel_launch")
        shapes = np.zeros(len(self.shapes), dtype)
        if len(shapes):
            rows = np.asarray(self.shapes.rows, np.uint64)
            shapes.view(span_dtype(dtype, _FIRST_FIELD, _LAST_FIELD))["words"] = rows
        return shapes

    def _occupancy(self, shapes: NDArray[Any]) -> dict[str, Any]:
        """Columns of the kernels, weighted by the launches of their configurations; the limiter is
        the one of most launches, as a number, -1: unknown."""
        codes = self.names.encode(shapes["name"])
        launches = self.shape_launches[: len(shapes)]
        found = self._occupancy_of(shapes)
        columns: dict[str, Any] = {}
        for name, values in found.items():
            known = ~np.isnan(values)
            weights = np.bincount(codes[known], launches[known], len(self.names))
            if name == "limiter":
                continue
            sums = np.bincount(codes[known], (launches * values)[known], len(self.names))
            columns[name] = absent_where(sums / np.maximum(weights, 1), weights == 0)
        by_limiter = np.zeros((len(self.names), len(LIMITERS)), np.int64)
        known = found["limiter"] >= 0
        np.add.at(
            by_limiter, (codes[known], found["limiter"][known].astype(np.int64)), launches[known]
        )
        most = np.where(by_limiter.any(axis=1), by_limiter.argmax(axis=1), -1)
        return {"occupancy": columns["occupancy"], "limiter": most, **columns}

    def _occupancy_of(self, shapes: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Occupancy, number of its limiter, waves and tail of configurations; NaN: unknown."""
        limits = self.devices.common_limits(self.context)
        found = resident(shapes, limits)
        known = found["blocks"] > 0
        count, tail = waves(shapes, found["blocks"], limits.multiprocessors if limits else 0)
        limiter = np.where(known, found["limiter"], np.nan)
        return {"occupancy": found["share"], "limiter": limiter, "waves": count, "tail": tail}

    def _distinct(self, shapes: NDArray[Any], field: str) -> NDArray[Any]:
        """Number of distinct values of a (3,) field that each kernel was launched with."""
        codes = self.names.encode(shapes["name"]).astype(np.int64)
        rows = np.unique(np.column_stack([codes, shapes[field].astype(np.int64)]), axis=0)
        return np.bincount(rows[:, 0], minlength=len(self.names))

    def _largest(self, shapes: NDArray[Any], field: str) -> Any:
        """Largest value of a field over each kernel's configurations; masked where absent."""
        codes = self.names.encode(shapes["name"])
        values = shapes[field].astype(np.int64)
        known = shapes[field] != np.iinfo(shapes.dtype[field]).max
        largest = np.full(len(self.names), -1, np.int64)
        np.maximum.at(largest, codes[known], values[known])
        return absent_where(largest, largest < 0)

    def _configurations(self) -> Table:
        shapes = self._shapes()
        launches = self.shape_launches[: len(shapes)]
        completions, time = grown(self.shape_times, len(shapes))[: len(shapes)].T
        order = np.lexsort((-launches, -time))
        shapes, launches, completions, time = (
            each[order] for each in (shapes, launches, completions, time)
        )
        occupancy = self._occupancy_of(shapes)
        clusters = shapes["cluster"]
        no_cluster = (clusters == np.iinfo(np.uint16).max).all(axis=1)
        columns = {
            "kernel": [short_name(name) for name in self.context.demangled(shapes["name"])],
            "grid": shapes["grid"].tolist(),
            "block": shapes["block"].tolist(),
            "cluster": [
                None if absent else cluster
                for absent, cluster in zip(no_cluster, clusters.tolist(), strict=True)
            ],
            **{
                field: absent_where(
                    shapes[field], shapes[field] == np.iinfo(shapes.dtype[field]).max
                )
                for field in _SIZES
            },
            "launches": launches,
            "total_time": absent_where(time, completions == 0),
            "mean_time": absent_where(time / np.maximum(completions, 1), completions == 0),
            **{
                name: absent_where(values, np.isnan(values))
                for name, values in occupancy.items()
                if name != "limiter"
            },
            "limiter": _limiters(np.nan_to_num(occupancy["limiter"], nan=-1)),
        }
        return Table(
            columns,
            units={**_SIZE_UNITS, **_OCCUPANCY_UNITS, "total_time": "ns", "mean_time": "ns"},
            labels=_OCCUPANCY_LABELS,
            keys=("kernel", "grid", "block", "cluster"),
            sums=("launches", "total_time"),
            title="Launch configurations",
            shown=0,
        )

    def _summary(self, kernels: Table) -> str:
        launches = int(self.launches.sum())
        if not launches:
            return "no launches were recorded"
        text = f"{counted(launches, 'launch')} of {counted(len(kernels), 'kernel')}"
        time = int(self.times.total.sum())
        if self.times.count.sum():
            text += f", {formatted(time, 'ns')} of kernel time"
        first = next(kernels.rows(1))
        text += f"; most: {first['kernel']}, {formatted(first['share'], 'share')} of launches"
        if first["share_of_time"] is not None:
            text += f", {formatted(first['share_of_time'], 'share')} of kernel time"
        if self.unknown_completions:
            text += (
                f"; {counted(self.unknown_completions, 'completion')} dropped: the launch is "
                "unknown"
            )
        if self.uncounted_shapes:
            text += (
                f"; {counted(self.uncounted_shapes, 'launch had', 'launches had')} "
                f"configurations beyond the first {self.configurations:,}: the numbers of "
                "distinct grids and blocks are lower bounds"
            )
        return text


def _limiters(numbers: Any) -> list[str | None]:
    """Names of limiters by number; None for -1."""
    return [LIMITERS[int(each)] if each >= 0 else None for each in numbers]
