"""Tensors of a framework: those live at the peak, their categories, origins and lifetimes."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.allocator_states import AllocatorStates
from pasta.processors.codes import RowCodes, distinct, grown
from pasta.processors.loops import Loop
from pasta.processors.object_names import TensorNames
from pasta.processors.timeline import LevelTimeline
from pasta.table import Figure, Table, Unit, absent_where, counted, formatted, shares
from pasta.tool import Finding, Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.growth import Growth, Marks
    from pasta.processors.stacks import Frame

_UNITS: dict[str, Unit] = {
    "bytes": "bytes",
    "storage": "bytes",
    "rounding": "bytes",
    "at_peak": "bytes",
    "allocated": "bytes",
    "share": "share",
    "lifetime": "ns",
    "time": "ns",
}
#: Fields of a tensor's record, complete when it is freed or at the end.
_FIELDS = (
    "device",
    "node",
    "shape",
    "dtype",
    "name",
    "bytes",
    "storage",
    "reads",
    "flags",
    "group",
    "reader",
    "time",
    "lifetime",
)
#: Share of bytes from which a line represents all of them.
_DOMINANT_SHARE = 0.95
_TENSOR_FIELDS = ("node", "shape", "dtype", "name", "storage", "reads", "flags", "group", "reader")
#: Key of a row of the patterns.
_PATTERN = ("device", "category", "node", "shape", "dtype")
#: Key of a pattern's code, which also distinguishes the reader.
_CODE_KEY = (*_PATTERN, "reader")
#: Sums of a row of the patterns.
_AMOUNTS = ("count", "bytes", "lifetime", "reads")
#: Fields for memory over time, for `category_of` and `resolved`, and for lifetimes.
_LIVED = ("device", "node", "flags", "group", "reader", "storage", "bytes", "time", "lifetime")
#: Maximum number of freed tensors to keep: the largest.
_MAX_LIVED = 1 << 20
#: Bins of memory over time.
_POINTS = 512
#: Number of freed tensors with an undecided category at which equal ones are merged.
_MAX_UNSETTLED = 1 << 14

_FOREVER = 1 << 62

_PLURALS = {"activation": "activations", "optimizer state": "tensors of optimizer state"}
#: Keys by which runs are compared.
_KEYS = ("device", "category", "shape", "dtype", "operator", "module", "line")


@dataclass
class _Device:
    """Live bytes of tensors on a device, and the tensors that were live at their peak."""

    live: int = 0
    peak: int = 0
    peak_time: int = 0
    reserved: int = 0  # bytes reserved by the allocator at the peak; 0: unknown
    freed: list[NDArray[Any]] = field(
        default_factory=list
    )  # freed tensors that were live at the peak


class Tensors(Tool):
    """Tensors live at the peak, by category, operator, module and line; lifetimes."""

    title = "Tensors"
    topic = "memory"

    needs = ("tensors", "allocations")
    top = option(15, help="rows of each table in the text report; the tables have all", minimum=1)

    least_peak = option("64MiB", kind="bytes", help="finding: minimum peak", minimum=1)
    dominant = option(0.5, help="finding: minimum share of activations in the peak", minimum=0.0)
    state_share = option(
        0.25, help="finding: minimum share of optimizer state in the peak", minimum=0.0
    )
    grown = option("1MiB", kind="bytes", help="finding: minimum growth over all steps")
    grown_share = option(
        0.1, help="… and its minimum share of the peak; also for unused gradients", minimum=0.0
    )

    def start(self) -> None:
        """Initialize the live bytes by device and the patterns of lifetimes."""
        self.devices: dict[int, _Device] = {}
        self.at_peak = np.zeros(1024, bool)  # by object
        self.patterns = RowCodes(sys.maxsize)
        self.amounts = np.zeros((1024, len(_AMOUNTS)), np.int64)  # by pattern
        self.unsettled = _Unsettled()
        self.lived = _Lived(_MAX_LIVED)
        self.levels: dict[int, LevelTimeline] = {}  # live bytes by device
        self.states = AllocatorStates()
        self.reserved: dict[int, int] = {}  # by device, before this batch
        from pasta.processors.growth import LiveByOperator, Steps  # imports Numba

        self.steps, self.by_operator = Steps(), LiveByOperator()

    def on_batch(self, batch: Batch) -> None:
        """Follow allocations and frees of tensors, and their growth by step."""
        changes = self.context.objects.changes
        rows = self.context.objects.rows
        changes = changes[rows["layer"][changes["object"]] == _tensor_layer()]
        self._follow_growth(changes, self.steps.feed(batch, self.context))
        states = self.states.feed(batch)
        if len(changes):
            self._follow_all(changes, states)
        for number in distinct(states["device"]):
            self.reserved[number] = int(states["reserved"][states["device"] == number][-1])

    def _follow_growth(self, changes: NDArray[Any], marks: Marks) -> None:
        ids, sign = changes["object"], changes["sign"].astype(np.int64)
        nodes = self.context.tensors.rows["node"][ids]
        amounts = np.stack([sign, sign * self.context.objects.rows["bytes"][ids].view(np.int64)], 1)
        self.by_operator.feed(nodes, amounts, changes["index"], marks)

    def _follow_all(self, changes: NDArray[Any], states: NDArray[Any]) -> None:
        rows = self.context.objects.rows
        self.at_peak = grown(self.at_peak, len(rows))
        device_of = rows["device"][changes["object"]]
        for number in np.unique(device_of).tolist():
            self._follow(number, changes[device_of == number], states)
        freed = changes[changes["sign"] < 0]
        if len(freed):
            self._finish(freed["object"], freed["time"])

    def _follow(self, number: int, changes: NDArray[Any], states: NDArray[Any]) -> None:
        """Updates a device's peak, and the set of tensors live at the peak."""
        rows = self.context.objects.rows
        device = self.devices.setdefault(number, _Device())
        ids, sign = changes["object"], changes["sign"].astype(np.int64)
        levels = device.live + np.cumsum(rows["bytes"][ids].astype(np.int64) * sign)
        if number not in self.levels:
            self.levels[number] = LevelTimeline(self.context.process.start_time, _POINTS)
        self.levels[number].add(changes["time"], levels)
        highest = int(levels.argmax())
        device.live = int(levels[-1])
        if levels[highest] <= device.peak:
            return
        device.peak, device.peak_time = int(levels[highest]), int(changes["time"][highest])
        device.reserved = self._reserved(number, int(changes["index"][highest]), states)
        device.freed = []
        before = self.context.objects.live()
        mine = (rows["device"][before] == number) & (rows["layer"][before] == _tensor_layer())
        # live at the end of the batch, minus allocations and plus frees after the peak
        later, since = ids[highest + 1 :], sign[highest + 1 :]
        self.at_peak[: len(rows)][rows["device"] == number] = False
        self.at_peak[before[mine]] = True
        self.at_peak[later[since < 0]] = True
        self.at_peak[later[since > 0]] = False

    def _reserved(self, number: int, index: int, states: NDArray[Any]) -> int:
        """Bytes that a device's allocator had reserved after the allocation with this index."""
        found = states["reserved"][(states["index"] <= index) & (states["device"] == number)]
        return int(found[-1]) if len(found) else self.reserved.get(number, 0)

    def _known(self, ids: NDArray[Any], ends: NDArray[Any] | int) -> NDArray[Any]:
        rows, tensors = self.context.objects.rows[ids], self.context.tensors.rows[ids]
        known = _zeros(len(ids), _FIELDS)
        for name in _TENSOR_FIELDS:
            known[name] = tensors[name]
        known["device"], known["bytes"], known["time"] = (
            rows["device"],
            rows["bytes"],
            rows["alloc_time"],
        )
        known["lifetime"] = np.maximum(ends - known["time"], 0)
        return known

    def _finish(self, ids: NDArray[Any], times: NDArray[Any]) -> None:
        known = self._known(ids, times.astype(np.int64))
        for number in np.unique(known["device"]).tolist():
            mine = self.at_peak[ids] & (known["device"] == number)
            if mine.any():
                self.devices[number].freed.append(known[mine])
        self.at_peak[ids] = False
        self.lived.add(known)
        grouped = known["group"] != 0
        self._add_patterns(_amounts(known[~grouped]))
        if self.unsettled.add(known[grouped]):
            self._settle()

    def _settle(self) -> None:
        settled = self.context.tensors.settled(self.unsettled.rows["group"])
        self._add_patterns(self.unsettled.take(settled))

    def _add_patterns(self, rows: NDArray[Any]) -> None:
        """Adds rows with the fields of _AMOUNTS under their current categories."""
        keys = np.empty((len(rows), len(_CODE_KEY)), np.int64)
        for at, name in enumerate(_CODE_KEY):
            known = self.context.tensors.category_of(rows) if name == "category" else rows[name]
            keys[:, at] = known
        category = keys[:, _CODE_KEY.index("category")]
        keys[self.context.tensors.is_resolved(category), _CODE_KEY.index("reader")] = 0
        codes = self.patterns.encode(keys.view(np.uint64))
        self.amounts = grown(self.amounts, len(self.patterns))
        for at, name in enumerate(_AMOUNTS):
            np.add.at(self.amounts[:, at], codes, rows[name])

    def _category(self, rows: NDArray[Any]) -> NDArray[Any]:
        tensors = self.context.tensors
        return tensors.resolved(tensors.category_of(rows), rows["node"], rows["reader"])

    def _known_patterns(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Patterns (int64 of shape (patterns, fields of _PATTERN)) and their amounts."""
        keys = np.asarray(self.patterns.rows, np.uint64).reshape(-1, len(_CODE_KEY)).view(np.int64)
        category, node, reader = (_CODE_KEY.index(name) for name in ("category", "node", "reader"))
        keys[:, category] = self.context.tensors.resolved(
            keys[:, category], keys[:, node], keys[:, reader]
        )
        keys = keys[:, : len(_PATTERN)]
        distinct, first, codes = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        amounts = np.zeros((len(distinct), len(_AMOUNTS)), np.int64)
        np.add.at(amounts, codes.reshape(-1), self.amounts[: len(keys)])
        order = np.argsort(first)
        return distinct[order], amounts[order]

    def result(self) -> Result:
        """Tables of the peak by category and tensor, of lifetimes, and findings."""
        live = self.context.objects.live()
        live = live[self.context.objects.rows["layer"][live] == _tensor_layer()]
        times = self.context.objects.rows["alloc_time"][live]
        known = self._known(live, int(times.max(initial=0)))
        self._add_patterns(_amounts(known))
        self._add_patterns(self.unsettled.take(np.ones(len(self.unsettled.rows), bool)))
        peaks = {}
        for number, device in sorted(self.devices.items()):
            mine = self.at_peak[live] & (known["device"] == number)
            peaks[number] = np.concatenate([*device.freed, known[mine]])
        named = TensorNames(self.context)
        return Result(
            summary=self._summary(peaks),
            tables={
                "categories": self._categories(peaks),
                "peak": self._peak(peaks, named),
                "patterns": self._patterns(named),
            },
            findings=list(self._findings(peaks)),
            figures=dict(self._over_time(known)),
        )

    def _over_time(self, live: NDArray[Any]) -> Iterator[tuple[str, Figure]]:
        """Live bytes by category over time, for each device; `live`: tensors that are not freed."""
        known = self.lived.with_live(live)
        category = self._category(known)
        start = self.context.process.start_time
        for number, levels in sorted(self.levels.items()):
            # at the ends of bins, and at the highest level in each
            peak = self.devices[number].peak_time - start
            first = int(np.flatnonzero(levels.highest)[0]) if levels.highest.any() else 0
            times = np.union1d(levels.times[first:] + levels.width, peak)
            highest_times, highest = levels.peaks
            times = np.union1d(times, np.append(highest_times, levels.times[first]))
            mine = known["device"] == number
            series = {}
            for each in np.unique(category[mine]).tolist():
                rows = known[mine & (category == each)]
                series[self.context.tensors.names[each]] = _level(rows, times + start)
            at_peak = int(np.searchsorted(times, peak))
            series = dict(sorted(series.items(), key=lambda each: (-each[1][at_peak], each[0])))
            if self.lived.left_out:
                total = np.zeros(len(times), np.int64)
                total[np.searchsorted(times, levels.times[first:] + levels.width)] = levels.last[
                    first:
                ]
                total[np.searchsorted(times, highest_times)] = highest
                smaller = np.maximum(total - sum(series.values()), 0)
                series["smaller tensors"] = smaller
            yield (
                f"categories_{'host' if number < 0 else number}",
                Figure(
                    "area",
                    f"Tensors by category: {'the host' if number < 0 else f'device {number}'}",
                    times,
                    series,
                    x_label="time since start",
                    x_unit="ns",
                    y_label="live bytes",
                    y_unit="bytes",
                ),
            )

    def _findings(self, peaks: dict[int, NDArray[Any]]) -> Iterator[Finding]:
        from pasta.processors.growth import MIN_STEPS

        growth = self.by_operator.growth()
        loop = Loop(self.context, growth.steps // 2 if growth else MIN_STEPS // 2)
        kept = np.zeros(0, np.int64) if growth is None else growth.nodes
        if growth is not None:
            yield from self._growth(growth, loop)
        for number, known in peaks.items():
            if self.devices[number].peak:
                yield from self._unused_gradients(number, known, kept, loop)
                if self.devices[number].peak >= self.least_peak:
                    yield from self._holders(number, known, loop)

    def _growth(self, growth: Growth, loop: Loop) -> Iterator[Finding]:
        """Tensors of every step that are still live in the last one."""
        nodes = growth.nodes
        number = self._device_of(nodes)
        gain = min(1.0, growth.total / max(1, self.devices[number].peak))
        if growth.total < self.grown or gain < self.grown_share:
            return
        recorded = self.steps.recorded(len(self.context.operators.nodes))[nodes]
        from pasta.processors.growth import MIN_STEPS

        forward = ~self.context.operators.backward[nodes]
        graph = len(nodes) > 1 and bool((recorded[forward] > 0).any())
        # the last tensor created holds the graph; without a graph, the largest tensor is kept
        last = int(nodes[forward].max()) if graph else int(nodes[growth.bytes.argmax()])
        line, largest = loop.line(last), int(nodes[growth.bytes.argmax()])
        yield Finding(
            what="memory grows every step: "
            + ("results are kept with their graph" if graph else "results are kept"),
            where=f"{_place(number)}: {line or self._origin(last)}",
            evidence=f"{formatted(int(growth.bytes.sum()), 'bytes')} more in each of"
            f" {growth.steps:,} steps, in {round(float(growth.tensors.sum())):,} tensors a step;"
            f" most by {self._origin(largest)}",
            remedy=_at(line)
            + (
                "keep result.detach() or result.item() instead of the result, which keeps "
                "every tensor that its gradient needs"
                if graph
                else "keep less of each step's result, or move it to the host with .cpu()"
                if number >= 0
                else "keep less of each step's result"
            ),
            gain=gain,
            of="peak memory",
            confidence="high" if growth.steps >= 2 * MIN_STEPS else "medium",
        )

    def _unused_gradients(
        self, number: int, known: NDArray[Any], kept: NDArray[Any], loop: Loop
    ) -> Iterator[Finding]:
        """Lines of the loop at which operators prepare gradients that never run."""
        from pasta.processors.growth import MIN_STEPS

        nodes = self.context.operators.nodes
        recorded = self.steps.recorded(len(nodes))
        run = np.zeros(len(nodes), np.int64)
        gradients = nodes["forward"] != 0
        np.add.at(run, nodes["forward"][gradients], nodes["calls"][gradients])
        by_line: dict[Any, list[int]] = {}
        for node in np.flatnonzero(recorded + run).tolist():
            line = loop.line(node)
            if line is not None:
                by_line.setdefault(line, []).append(node)
        grows = {loop.line(node) for node in kept.tolist()}
        for line, members in by_line.items():
            if run[members].any() or recorded[members].max() < MIN_STEPS or line in grows:
                continue
            at_peak = [loop.line(node) == line for node in known["node"].tolist()]
            made = known[np.asarray(at_peak, bool) & _is_per_step(self._category(known))]
            total, peak = int(made["bytes"].sum()), self.devices[number].peak
            if total < self.grown or total / peak < self.grown_share:
                continue
            yield Finding(
                what="gradients are prepared but never computed",
                where=f"{_place(number)}: {line}",
                evidence=f"{counted(int(recorded[members].sum()), 'call')} of operators saved "
                "tensors for gradients that were never computed; tensors created "
                f"there hold {formatted(total, 'bytes')} of the peak of "
                f"{formatted(peak, 'bytes')}",
                remedy=f"{_at(line)}run it under torch.no_grad()",
                gain=total / peak,
                of="peak memory",
            )

    def _holders(self, number: int, known: NDArray[Any], loop: Loop) -> Iterator[Finding]:
        """Memory that training needs by design, if it is a large part of the peak."""
        peak, category = self.devices[number].peak, self._category(known)
        for name, least in (("activation", self.dominant), ("optimizer state", self.state_share)):
            mine = known[category == self.context.tensors.names.index(name)]
            total = int(mine["bytes"].sum())
            if not total or total < least * peak:
                continue
            line, share = _line_of_most(mine, loop)
            yield Finding(
                what=f"{_PLURALS[name]} hold much of the peak",
                where=f"{_place(number)}, most by {line}" if line else _place(number),
                evidence=f"{formatted(total, 'bytes')} of {formatted(peak, 'bytes')} in"
                f" {counted(len(mine), 'tensor')}; {share:.0%} of them created there",
                remedy=_at(line)
                + (
                    (
                        "use an optimizer with less state, or shard the state over devices with "
                        "ZeroRedundancyOptimizer"
                    )
                    if name == "optimizer state"
                    else "model.gradient_checkpointing_enable()"
                    if line and "/transformers/" in line.file
                    else "use torch.utils.checkpoint.checkpoint(module, …, "
                    "use_reentrant=False) instead of module(…), or smaller batches"
                ),
                gain=total / peak,
                of="peak memory",
                confidence="low",
            )

    def _device_of(self, nodes: NDArray[Any]) -> int:
        """The device on which these operators allocate most."""
        keys, amounts = self._known_patterns()
        mine = np.isin(keys[:, _PATTERN.index("node")], nodes)
        devices, bytes = keys[mine, 0], amounts[mine, _AMOUNTS.index("bytes")]
        return max(set(devices.tolist()), key=lambda each: int(bytes[devices == each].sum()))

    def _origin(self, node: int) -> str:
        """Operator, module and line of a node."""
        zero = np.zeros(1, np.int64)
        described = TensorNames(self.context).described(zero, zero, zero, np.asarray([node]))
        made = [described[name][0] for name in ("operator", "module", "line")]
        return " ".join(filter(None, made)) or "no operator"

    def _summary(self, peaks: dict[int, NDArray[Any]]) -> str:
        parts = []
        for number, device in sorted(self.devices.items()):
            where = "host" if number < 0 else f"device {number}"
            when = formatted(device.peak_time - self.context.process.start_time, "ns")
            peak = formatted(device.peak, "bytes")
            text = f"{where}: peak of {peak} in {counted(len(peaks[number]), 'tensor')} at {when}"
            if device.reserved:
                text += f", {formatted(device.reserved, 'bytes')} reserved by the allocator"
            parts.append(text)
        return "; ".join(parts) or "no framework tensors were recorded"

    def _hidden(self, *columns: str) -> frozenset[str]:
        """Columns omitted from the text report, including the device if there is only one."""
        return frozenset(columns) | ({"device"} if len(self.devices) == 1 else set())

    def _categories(self, peaks: dict[int, NDArray[Any]]) -> Table:
        totals: dict[tuple[int, int], list[int]] = {}
        keys, amounts = self._known_patterns()
        for (number, category), (count, bytes) in zip(
            keys[:, :2].tolist(), amounts[:, :2].tolist(), strict=True
        ):
            found = totals.setdefault((number, category), [0, 0])
            found[0] += count
            found[1] += bytes
        rows = []
        for (number, category), (count, bytes) in totals.items():
            peak = peaks.get(number, _zeros(0, _FIELDS))
            mine = peak[self._category(peak) == category]
            live, storage = mine["bytes"], mine["storage"]
            rounding = int((live - np.where(storage, storage, live)).sum())
            name = self.context.tensors.names[category]
            rows.append((number, name, len(mine), int(live.sum()), rounding, count, bytes))
        rows.sort(key=lambda row: (row[0], -row[3], row[1]))
        columns: list[Any] = [list(column) for column in zip(*rows, strict=True)] or [[]] * 7
        whole = {number: max(1, device.peak) for number, device in self.devices.items()}
        return _table(
            {
                "device": [None if number < 0 else number for number in columns[0]],
                "category": columns[1],
                "tensors": columns[2],
                "at_peak": columns[3],
                "share": [
                    bytes / whole[number]
                    for number, bytes in zip(columns[0], columns[3], strict=True)
                ],
                "rounding": columns[4],
                "allocations": columns[5],
                "allocated": columns[6],
            },
            labels={
                "tensors": "tensors at the peak",
                "share": "of the peak",
                "rounding": "of that, rounding",
                "allocations": "total allocations",
            },
            keys=("device", "category"),
            sums=("at_peak", "tensors", "rounding", "allocations", "allocated"),
            title="Categories of tensors",
            shown=self.top,
            hidden=self._hidden(),
        )

    def _peak(self, peaks: dict[int, NDArray[Any]], named: TensorNames) -> Table:
        known = np.concatenate([_zeros(0, _FIELDS), *peaks.values()])
        known = known[np.argsort(-known["bytes"], kind="stable")]
        whole = np.asarray(
            [self.devices[int(each)].peak for each in known["device"].tolist()], np.int64
        )
        return _table(
            {
                **_columns(named, known, self._category(known)),
                "name": named.texts(known["name"]),
                "bytes": known["bytes"],
                "share": known["bytes"] / np.maximum(whole, 1),
                "storage": absent_where(known["storage"], known["storage"] == 0),
                "reads": known["reads"],
                "time": np.maximum(known["time"] - self.context.process.start_time, 0),
            },
            labels={
                "share": "of the peak",
                "time": "allocated at",
                "reads": "operators that read it",
            },
            keys=_KEYS,
            sums=("bytes",),
            title="Live at the peak",
            shown=self.top,
            hidden=self._hidden("storage", "reads", "time", "dtype", "file", "name"),
        )

    def _patterns(self, named: TensorNames) -> Table:
        keys, amounts = self._known_patterns()
        order = np.argsort(-amounts[:, 1], kind="stable")
        keys, amounts = keys[order], amounts[order]
        known = _zeros(len(keys), _PATTERN)
        for at, name in enumerate(_PATTERN):
            known[name] = keys[:, at]
        count = np.maximum(amounts[:, 0], 1)
        return _table(
            {
                **_columns(named, known, known["category"]),
                "allocations": amounts[:, 0],
                "bytes": amounts[:, 1],
                "share": shares(amounts[:, 1], amounts[:, 1].sum()),
                "lifetime": amounts[:, 2] / count,
                "reads": amounts[:, 3] / count,
            },
            labels={
                "share": "of all bytes",
                "lifetime": "mean lifetime",
                "reads": "reads per tensor",
            },
            keys=_KEYS,
            sums=("allocations", "bytes"),
            levels=("lifetime", "reads"),
            title="Allocations",
            shown=self.top,
            hidden=self._hidden("dtype", "reads", "file"),
        )


@dataclass
class _Lived:
    """Freed tensors with their lifetimes: the `limit` largest."""

    limit: int
    rows: list[NDArray[Any]] = field(default_factory=list)
    count: int = 0
    left_out: int = 0

    def add(self, known: NDArray[Any]) -> None:
        """Adds rows with fields of _FIELDS."""
        self.rows.append(_only(known, _LIVED))
        self.count += len(known)
        if self.count > 2 * self.limit:
            rows = np.concatenate(self.rows)
            kept = np.argsort(-rows["bytes"], kind="stable")[: self.limit]
            self.left_out += len(rows) - len(kept)
            self.rows, self.count = [rows[kept]], len(kept)

    def with_live(self, live: NDArray[Any]) -> NDArray[Any]:
        """All rows, plus rows of tensors that are never freed."""
        rows = _only(live, _LIVED)
        rows["lifetime"] = _FOREVER
        return np.concatenate([*self.rows, rows])


def _level(rows: NDArray[Any], times: NDArray[Any]) -> NDArray[Any]:
    """Bytes (int64) of rows that are live at ascending times (int64 ns)."""
    found = np.zeros(len(times), np.int64)
    for sign, moments in ((1, rows["time"]), (-1, rows["time"] + rows["lifetime"])):
        order = np.argsort(moments, kind="stable")
        sums = np.append(0, np.cumsum(rows["bytes"][order]))
        found += sign * sums[np.searchsorted(moments[order], times, side="right")]
    return found


@dataclass
class _Unsettled:
    """Freed tensors that were copied from or to a live one and may yet turn out to be parameters.

    Equal ones are merged into one row.
    """

    rows: NDArray[Any] = field(default_factory=lambda: _amounts(_zeros(0, _FIELDS)))
    limit: int = _MAX_UNSETTLED

    def add(self, known: NDArray[Any]) -> bool:
        """Adds rows with fields of _FIELDS. Returns whether the limit is exceeded."""
        if len(known):
            self.rows = np.concatenate([self.rows, _amounts(known)])
        return len(self.rows) > self.limit

    def take(self, chosen: NDArray[Any]) -> NDArray[Any]:
        """Removes and returns the chosen rows, and merges equal remaining ones."""
        taken, kept = self.rows[chosen], self.rows[~chosen]
        by = [name for name in kept.dtype.names or () if name not in _AMOUNTS]
        distinct, codes = np.unique(kept[by], return_inverse=True)
        self.rows = np.zeros(len(distinct), kept.dtype)
        for name in by:
            self.rows[name] = distinct[name]
        for name in _AMOUNTS:
            np.add.at(self.rows[name], codes.reshape(-1), kept[name])
        self.limit = max(_MAX_UNSETTLED, 2 * len(self.rows))
        return taken


def _amounts(known: NDArray[Any]) -> NDArray[Any]:
    """Rows with the fields that determine their patterns, and the fields of _AMOUNTS."""
    by = ("device", "node", "shape", "dtype", "flags", "group", "reader", "storage")
    rows = _zeros(len(known), (*by, *_AMOUNTS))
    for name in (*by, *_AMOUNTS):
        rows[name] = 1 if name == "count" else known[name]
    return rows


def _line_of_most(known: NDArray[Any], loop: Loop) -> tuple[Frame | None, float]:
    """The line under which most of these bytes were allocated, and its share of them.

    It is in the outermost frame within the loop that allocates them at several lines.
    """
    nodes, codes = np.unique(known["node"], return_inverse=True)
    bytes = np.bincount(codes.reshape(-1), known["bytes"])
    lines = [loop.lines(node) for node in nodes.tolist()]
    line, share, depth = None, 0.0, 0
    while not line or share >= _DOMINANT_SHARE:
        sums: dict[Frame, float] = {}
        for each, amount in zip(lines, bytes.tolist(), strict=True):
            if len(each) > depth:
                sums[each[depth]] = sums.get(each[depth], 0.0) + amount
        if not sums:
            break
        deeper = max(sums, key=lambda each: sums[each])
        if line and sums[deeper] < bytes.sum() / 2:
            break
        line, share, depth = deeper, sums[deeper] / bytes.sum(), depth + 1
    return line, share


def _is_per_step(categories: NDArray[Any]) -> NDArray[Any]:
    """Whether tensors of these categories are allocated and freed in each step."""
    from pasta.processors.tensors import CATEGORIES

    chosen = [CATEGORIES.index(name) for name in ("temporary", "activation", "workspace")]
    return np.isin(categories, chosen)


def _at(line: Frame | None) -> str:
    """Prefix of a remedy at a line."""
    return f"{line}: " if line else ""


def _place(number: int) -> str:
    return "host" if number < 0 else f"device {number}"


def _columns(named: TensorNames, known: NDArray[Any], categories: NDArray[Any]) -> dict[str, Any]:
    return {
        "device": absent_where(known["device"], known["device"] < 0),
        **named.described(categories, known["shape"], known["dtype"], known["node"]),
    }


def _table(columns: dict[str, Any], **arguments: Any) -> Table:
    units = {name: unit for name, unit in _UNITS.items() if name in columns}
    return Table(columns, units=units, **arguments)


def _only(rows: NDArray[Any], names: tuple[str, ...]) -> NDArray[Any]:
    """A copy of rows with these columns alone."""
    found = _zeros(len(rows), names)
    for name in names:
        found[name] = rows[name]
    return found


def _zeros(length: int, names: tuple[str, ...]) -> NDArray[Any]:
    """Rows of zeros with these columns."""
    return np.zeros(length, [(name, "i8") for name in names])


def _tensor_layer() -> int:
    from pasta.processors.objects import TENSOR

    return TENSOR
