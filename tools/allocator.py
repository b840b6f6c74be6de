"""A framework's caching allocator: segments and blocks over time, memory by category over time, and
live tensors when memory ran out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.batch import ABSENT_U64
from pasta.processors.codes import grown
from pasta.processors.object_names import TensorNames
from pasta.table import Figure, Table, absent_where, counted, formatted
from pasta.tool import Finding, Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pasta.processors.batch import Batch

#: Maximum number of failures to describe; later ones are only counted.
_MAX_FAILURES = 4
#: Minimum share of live bytes from earlier steps for these to be the cause.
_MIN_EARLIER_SHARE = 0.5
#: Maximum number of categories to name in evidence.
_MAX_NAMED = 3
#: State of an allocator at a moment; `largest`: bytes of its largest free block.
_STATE = [
    ("position", "i8"),
    ("time", "i8"),
    ("reserved", "i8"),
    ("allocated", "i8"),
    ("segments", "i8"),
    ("blocks", "i8"),
    ("largest", "i8"),
]
#: A segment: `used`: bytes in blocks, `largest`: bytes of its largest free block.
_SEGMENT = [("address", "u8"), *((name, "i8") for name in ("bytes", "used", "blocks", "largest"))]
#: What to change, by the category that holds most of the memory.
_REMEDIES = {
    "activation": "checkpoint modules (torch.utils.checkpoint), use smaller batches, or autocast",
    "parameter": "use a smaller data type for parameters, or shard them over devices (FSDP)",
    "gradient": "call zero_grad(set_to_none=True) before the forward pass, or shard them (FSDP)",
    "optimizer state": "use an optimizer with less state, or shard it over devices"
    " (ZeroRedundancyOptimizer)",
    "input": "load smaller batches, and move each to the device only when it is needed",
    "temporary": "use in-place operations or smaller chunks",
    "workspace": "limit the workspaces of libraries (CUBLAS_WORKSPACE_CONFIG)",
}


@dataclass
class _Failure:
    """An allocation that failed."""

    position: int
    time: int
    device: int
    bytes: int
    node: int


class Allocator(Tool):
    """A caching allocator over time, tensors by category over time, what was live out of memory."""

    title = "Caching allocator"
    topic = "memory"

    needs = ("tensors", "history", "allocations")

    points = option(512, help="maximum number of samples of the allocator's state", minimum=2)
    bars = option(96, help="maximum number of samples of memory by category", minimum=2)
    top = option(15, help="rows of each table in the text report; the tables have all", minimum=1)
    reserve = option(0.2, help="finding: minimum free share of reserved segments when an "
                               "allocation fails",
                     minimum=0.0)  # fmt: skip

    def start(self) -> None:
        """Initialize owners of tensors and failures."""
        self.owner_plus_1 = np.zeros(1024, np.int64)  # segment of each tensor
        self.failures: list[_Failure] = []
        self.memory: dict[int, int] = {}  # bytes of devices
        from pasta.processors.growth import Steps  # imports Numba

        self.steps = Steps()
        #: Positions at which steps of optimizers begin, and calls of models.
        self.marks: tuple[list[NDArray[Any]], list[NDArray[Any]]] = ([], [])

    def on_batch(self, batch: Batch) -> None:
        """Follow the segments that hold tensors, totals that allocators report, and failures."""
        from pasta.processors.objects import TENSOR
        from pasta.processors.out_of_memory import failures

        objects, devices = self.context.objects, batch["device"]
        self.memory |= {
            device: bytes
            for device, bytes in zip(
                devices["device"].tolist(), devices["memory"].tolist(), strict=True
            )
            if bytes != ABSENT_U64
        }
        new, of_objects = objects.begun(TENSOR), objects.rows["device"]
        new = new[of_objects[new["object"]] >= 0]
        if len(new):
            addresses = objects.rows["address"][new["object"]]
            owners = objects.lookup(addresses, new["index"], "memory")
            self.owner_plus_1 = grown(self.owner_plus_1, len(objects.rows))
            self.owner_plus_1[new["object"]] = owners + 1
        for kept, indices in zip(self.marks, self.steps.feed(batch, self.context), strict=True):
            kept.append(indices + batch.base)
        failed = failures(batch["mark"], self.context.strings)
        if len(failed):
            nodes = self.context.operators.at(failed).tolist()
            names = ("index", "time", "device", "bytes")
            columns = (failed[name].tolist() for name in names)
            for index, time, device, bytes, node in zip(*columns, nodes, strict=True):
                self.failures.append(_Failure(batch.base + index, time, device, bytes, node))

    def result(self) -> Result:
        """Tables of states, categories over time and failures, figures, and findings."""
        found = [_Device(self, number) for number in self._devices()]
        return Result(
            summary=self._summary(found),
            tables={
                "states": self._states(found),
                "categories": self._categories(found),
                "segments": self._segments(found),
                "out_of_memory": self._out_of_memory(found),
            },
            findings=list(self._findings(found)),
            figures={
                **{f"categories_{each.name}": each.category_figure() for each in found},
                **{f"states_{each.name}": each.state_figure() for each in found if each.caching},
            },
        )

    def _devices(self) -> list[int]:
        from pasta.processors.objects import TENSOR

        rows = self.context.objects.rows
        sized = (rows["layer"] == TENSOR) & (rows["bytes"] != ABSENT_U64)
        return sorted(set(rows["device"][sized].tolist()))

    def since_start(self, times: Any) -> Any:
        """Times as ns since the start of the process."""
        return np.maximum(np.asarray(times, np.int64) - self.context.process.start_time, 0)

    def _states(self, found: list[_Device]) -> Table:
        states = np.concatenate([np.zeros(0, _STATE), *(each.states for each in found)])
        devices = np.repeat([each.number for each in found], [len(each.states) for each in found])
        devices = devices.astype(np.int64)
        free = states["reserved"] - states["allocated"]
        return Table(
            {
                "device": absent_where(devices, devices < 0),
                "time": self.since_start(states["time"]),
                **{name: states[name] for name in ("allocated", "reserved", "segments", "blocks")},
                "free": free,
                "largest": states["largest"],
                "fragmentation": 1 - states["largest"] / np.maximum(free, 1) * (free > 0)
                - (free <= 0),
            },
            units={
                "time": "ns", "reserved": "bytes", "allocated": "bytes", "free": "bytes",
                "largest": "bytes", "fragmentation": "share",
            },
            labels={
                "free": "free in segments",
                "largest": "largest free block",
                "fragmentation": "free outside the largest block",
            },
            keys=(),
            sums=(),
            title="State of the allocator over time",
            shown=0,
        )  # fmt: skip

    def _categories(self, found: list[_Device]) -> Table:
        parts: list[tuple[int, str, Any, Any]] = [
            (each.number, name, each.moment_times, levels)
            for each in found
            for name, levels in each.by_category.items()
        ]
        lengths = [len(levels) for *_, levels in parts]
        devices = np.repeat([number for number, *_ in parts], lengths).astype(np.int64)
        nothing = np.zeros(0, np.int64)
        return Table(
            {
                "device": absent_where(devices, devices < 0),
                "category": [
                    name for (_, name, *_), n in zip(parts, lengths, strict=True) for _ in range(n)
                ],
                "time": np.concatenate([nothing, *(times for *_, times, _ in parts)]),
                "bytes": np.concatenate([nothing, *(levels for *_, levels in parts)]),
            },
            units={"time": "ns", "bytes": "bytes"},
            keys=(),
            sums=(),
            title="Live tensors by category over time",
            shown=0,
        )

    def _segments(self, found: list[_Device]) -> Table:
        """Segments at the peak of live tensors."""
        parts = [each.segments_at(each.peak_position) for each in found]
        devices = np.repeat([each.number for each in found], [len(part) for part in parts])
        rows = np.concatenate([np.zeros(0, _SEGMENT), *parts])
        order = np.argsort(-rows["bytes"], kind="stable")
        rows = rows[order]
        return Table(
            {
                "device": devices.astype(np.int64)[order],
                **{name: rows[name] for name, _ in _SEGMENT},
                "share": rows["used"] / np.maximum(rows["bytes"], 1),
            },
            units={
                "address": "address", "bytes": "bytes", "used": "bytes", "largest": "bytes",
                "share": "share",
            },
            labels={"share": "of the segment", "largest": "largest free block"},
            keys=("device",),
            sums=("bytes", "used", "blocks"),
            title="Segments at the peak of live tensors",
            shown=self.top,
        )  # fmt: skip

    def _out_of_memory(self, found: list[_Device]) -> Table:
        """Live tensors at failures, alike in category, shape, type and operator."""
        columns: dict[str, list[Any]] = {name: [] for name in ("failure", "device", "requested")}
        devices = {each.number: each for each in found}
        more: dict[str, list[Any]] = {}
        for number, failure in enumerate(self.failures[:_MAX_FAILURES]):
            device = devices.get(failure.device)
            if device is None:
                continue
            names, rows = device.live_at(failure.position)
            for name, column in (
                *names.items(), ("tensors", rows["tensors"].tolist()),
                ("bytes", rows["bytes"].tolist()),
                ("share", (rows["bytes"] / max(1, int(rows["bytes"].sum()))).tolist()),
            ):  # fmt: skip
                more.setdefault(name, []).extend(column)
            place = None if failure.device < 0 else failure.device
            for name, value in zip(columns, (number, place, failure.bytes), strict=True):
                columns[name] += [value] * len(rows)
        alike = ("category", "shape", "dtype", "operator", "module", "line")
        more = more or {name: [] for name in (*alike, "file", "tensors", "bytes", "share")}
        return Table(
            {**more, **columns},
            units={"bytes": "bytes", "share": "share", "requested": "bytes"},
            labels={"share": "of live tensors"},
            keys=("failure", "device", *alike),
            sums=("tensors", "bytes"),
            title="Live tensors when an allocation failed",
            shown=self.top,
            important=("bytes", "share"),
            hidden=frozenset({"dtype", "file", "requested"}),
        )

    def _findings(self, found: list[_Device]) -> Iterator[Finding]:
        devices = {each.number: each for each in found}
        failed: set[tuple[int, int]] = set()
        for failure in self.failures:
            device = devices.get(failure.device)
            if device is None or (failure.device, failure.node) in failed:
                continue
            failed.add((failure.device, failure.node))
            yield self._failed(failure, device)

    def _failed(self, failure: _Failure, device: _Device) -> Finding:
        """What was live when an allocation failed, and what to change."""
        names, rows = device.live_at(failure.position)
        live = int(rows["bytes"].sum())
        state = device.state_at(np.asarray([failure.position], np.int64))[0]
        reserved, largest = int(state["reserved"]), int(state["largest"])
        free = reserved - int(state["allocated"])
        categories, lines = (_sums(names[name], rows["bytes"]) for name in ("category", "line"))
        evidence = (
            f"{formatted(failure.bytes, 'bytes')} requested; {formatted(live, 'bytes')} were "
            f"live in {counted(int(rows['tensors'].sum()), 'tensor')}: "
            f"{_in_words(categories, live)}"
        )
        if any(lines):
            evidence += f"; most allocated at {_in_words(lines, live, 1)}"
        if device.caching:
            evidence += (
                f"; {formatted(reserved, 'bytes')} were reserved, of which"
                f" {formatted(free, 'bytes')} were free, the largest block"
                f" {formatted(largest, 'bytes')}"
            )
        split = device.caching and free >= failure.bytes and free >= self.reserve * reserved
        most = max(categories, key=lambda name: categories[name] if name else 0, default=None)
        remedy = _REMEDIES.get(most or "", "keep less memory live at once")
        earlier = device.live_before(self._last_step(failure.position), failure.position)
        if earlier >= _MIN_EARLIER_SHARE * live:
            evidence += f"; {formatted(earlier, 'bytes')} were allocated in earlier steps"
            remedy = (
                "keep result.detach() or result.item() instead of the result, which keeps "
                "every tensor that its gradient needs; or delete it before the next step"
            )
        first = max(lines, key=lambda name: lines[name] if name else 0, default=None)
        remedy = f"{first}: {remedy}" if first else remedy
        if split:
            remedy = (
                "run with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: enough memory is "
                "free, but it is fragmented"
            )
        origin = f", in {self._origin(failure.node)}" if failure.node else ""
        return Finding(
            what="an allocation failed: out of memory",
            where=f"{device.place}{origin}",
            evidence=evidence,
            remedy=remedy,
            gain=min(1.0, failure.bytes / max(1, live)),
            of="live tensors, which must be freed for the allocation",
            confidence="high" if split else "medium",
        )

    def _last_step(self, position: int) -> int:
        """Position at which the step around a position began; 0 if no step began before."""
        for kept in self.marks:
            marks = np.concatenate([np.zeros(0, np.int64), *kept])
            if len(marks) >= 2:
                return int(marks[marks <= position].max(initial=0))
        return 0

    def _origin(self, node: int) -> str:
        """Operator, module and line of a node."""
        zero = np.zeros(1, np.int64)
        described = TensorNames(self.context).described(zero, zero, zero, np.asarray([node]))
        made = [described[name][0] for name in ("operator", "module", "line")]
        return " ".join(filter(None, made))

    def _summary(self, found: list[_Device]) -> str:
        parts = []
        for each in found:
            text = f"{each.place}: peak of tensors {formatted(each.peak, 'bytes')}"
            if each.caching:
                most = each.states[int(each.states["reserved"].argmax())]
                text += (
                    f", {formatted(int(most['reserved']), 'bytes')} reserved in"
                    f" {counted(int(most['segments']), 'segment')}"
                )
            parts.append(text)
        if self.failures:
            parts.append(f"{counted(len(self.failures), 'allocation')} failed: out of memory")
        return "; ".join(parts) or "no framework tensors were recorded"


class _Device:
    """Tensors and segments of a device over the run."""

    def __init__(self, tool: Allocator, number: int) -> None:
        from pasta.processors.objects import TENSOR

        self.tool, self.number = tool, number
        rows = tool.context.objects.rows
        self.tensors = np.flatnonzero((rows["layer"] == TENSOR) & (rows["device"] == number))
        self.tensors = self.tensors[rows["bytes"][self.tensors] != ABSENT_U64]
        self.owners = grown(tool.owner_plus_1, len(rows))[self.tensors] - 1
        held = np.unique(self.owners[self.owners >= 0])
        self.caching = len(held) > 0
        self.blocks, self.held = rows[self.tensors], rows[held]
        self._follow()
        self._sort(held)
        self._add_categories()
        self._add_states()

    @property
    def name(self) -> str:
        return "host" if self.number < 0 else str(self.number)

    @property
    def place(self) -> str:
        return "host" if self.number < 0 else f"device {self.number}"

    def _follow(self) -> None:
        """Changes of live tensors in ring order, and their peak."""
        freed = self.blocks["free_position"] != ABSENT_U64
        sizes = self.blocks["bytes"].astype(np.int64)
        positions = np.concatenate(
            [self.blocks["alloc_position"], self.blocks["free_position"][freed]]
        ).astype(np.int64)
        times = np.concatenate([self.blocks["alloc_time"], self.blocks["free_time"][freed]])
        order = np.lexsort((np.repeat([1, 0], [len(freed), int(freed.sum())]), positions))
        self.positions, self.times = positions[order], times[order].astype(np.int64)
        self.of = np.concatenate([np.arange(len(freed)), np.flatnonzero(freed)])[order]
        self.begins = order < len(freed)  # whether a change is an allocation
        self.changes = np.concatenate([sizes, -sizes[freed]])[order]
        self.levels = np.cumsum(self.changes)
        self.peak = int(self.levels.max(initial=0))
        self.peak_position = int(self.positions[int(self.levels.argmax())])

    def _sort(self, held: NDArray[Any]) -> None:
        """Orders blocks by segment (an index of `held`; -1: none) and address."""
        found = np.minimum(np.searchsorted(held, self.owners), len(held) - 1)
        in_segment = np.where(self.owners >= 0, found, -1)
        self.order = np.lexsort((self.blocks["address"], in_segment))
        self.rank = np.empty(len(self.order), np.int64)
        self.rank[self.order] = np.arange(len(self.order))
        blocks = self.blocks[self.order]
        self.segment = in_segment[self.order]
        self.starts, self.sizes = (blocks[name].astype(np.int64) for name in ("address", "bytes"))

    def _highest(self, count: int) -> NDArray[Any]:
        """Indices of at most `count` changes: the highest level in each of as many equal parts."""
        bins = np.arange(len(self.levels)) * count // len(self.levels)
        order = np.lexsort((self.levels, bins))
        last = np.append(bins[order][1:] != bins[order][:-1], True)
        return np.sort(order[last])

    def _add_categories(self) -> None:
        """Bytes of each category at moments."""
        tensors = self.tool.context.tensors
        categories = tensors.category(self.tensors)
        at = self._highest(self.tool.bars)
        self.moments, self.moment_times = at, self.tool.since_start(self.times[at])
        self.by_category = {}
        for number in sorted(set(categories.tolist()), reverse=True):
            mine = np.where(categories[self.of] == number, self.changes, 0)
            self.by_category[tensors.names[number]] = np.cumsum(mine)[at]

    def _add_states(self) -> None:
        at = self._highest(self.tool.points)
        self.changed = at
        self.states = self.state_at(self.positions[at])
        self.states["time"] = self.times[at]

    def _live(self, rows: NDArray[Any], position: int) -> NDArray[Any]:
        at = np.uint64(position)
        return np.flatnonzero((rows["alloc_position"] <= at) & (rows["free_position"] > at))

    def live_before(self, begun: int, position: int) -> int:
        """Bytes live at a position in temporary tensors and activations from before `begun`."""
        tensors = self.tool.context.tensors
        live = self._live(self.blocks, position)
        live = live[self.blocks["alloc_position"][live] < np.uint64(begun)]
        names = [tensors.names[each] for each in tensors.category(self.tensors[live]).tolist()]
        of_step = np.isin(np.asarray(names, "U"), ("activation", "temporary"))
        return int(self.blocks["bytes"][live][of_step].sum())

    def segments_at(self, position: int) -> NDArray[Any]:
        """Segments at a position (dtype _SEGMENT)."""
        live = np.zeros(len(self.order), bool)
        live[self.rank[self._live(self.blocks, position)]] = True
        return self._segments(self._live(self.held, position), live)

    def _segments(self, segments: NDArray[Any], live: NDArray[Any]) -> NDArray[Any]:
        """Live segments (dtype _SEGMENT) with their blocks (bool, in order)."""
        found = np.zeros(len(segments), _SEGMENT)
        for name in ("address", "bytes"):
            found[name] = self.held[name][segments]
        found["largest"] = found["bytes"]
        index = np.full(len(self.held) + 1, -1)  # the last one: of no segment
        index[segments] = np.arange(len(segments))
        at = np.flatnonzero(live)
        of = index[self.segment[at]]
        at, of = at[of >= 0], of[of >= 0]
        if not len(at):
            return found
        starts, sizes = self.starts[at], self.sizes[at]
        first = np.append(True, of[1:] != of[:-1])
        ends = (found["address"].astype(np.int64) + found["bytes"])[of]
        following = np.where(np.append(first[1:], True), ends, np.append(starts[1:], 0))
        found["largest"][of[first]] = starts[first] - found["address"][of[first]].astype(np.int64)
        np.maximum.at(found["largest"], of, following - starts - sizes)
        np.add.at(found["used"], of, sizes)
        np.add.at(found["blocks"], of, 1)
        return found

    def state_at(self, positions: NDArray[Any]) -> NDArray[Any]:
        """States (dtype _STATE, without times) of the allocator at ascending positions."""
        found = np.zeros(len(positions), _STATE)
        found["position"] = positions
        after = np.searchsorted(self.positions, positions, "right")  # changes up to there
        found["allocated"] = np.append(0, self.levels)[after]
        if not self.caching:
            found["reserved"] = found["allocated"]
            found["blocks"] = np.append(0, np.cumsum(np.where(self.begins, 1, -1)))[after]
            return found
        live, done = np.zeros(len(self.order), bool), 0
        for row, end in zip(found, after.tolist(), strict=True):
            # of several changes of a block the last one stays
            live[self.rank[self.of[done:end]]] = self.begins[done:end]
            done = end
            segments = self._segments(self._live(self.held, int(row["position"])), live)
            row["segments"] = len(segments)
            row["blocks"], row["reserved"] = segments["blocks"].sum(), segments["bytes"].sum()
            row["largest"] = segments["largest"].max(initial=0)
        return found

    def live_at(self, position: int) -> tuple[dict[str, list[Any]], NDArray[Any]]:
        """Tensors that were live, alike in category, shape, type and operator: columns that
        describe them, and rows with their number `tensors` and `bytes`, most bytes first."""
        live = self._live(self.blocks, position)
        rows = np.zeros(len(live), [("object", "i8"), ("bytes", "u8")])
        rows["object"], rows["bytes"] = self.tensors[live], self.blocks["bytes"][live]
        return TensorNames(self.tool.context).alike(rows, "bytes")

    def category_figure(self) -> Figure:
        """Bytes of categories over time, stacked."""
        return Figure(
            "bar",
            f"Live tensors by category: {self.place}",
            self.moments,
            self.by_category,
            x_label="allocations and frees before",
            y_label="live bytes",
            y_unit="bytes",
        )

    def state_figure(self) -> Figure:
        """Reserved and allocated bytes, and the largest free block, over time."""
        return Figure(
            "step",
            f"State of the caching allocator: {self.place}",
            self.changed,
            {
                "reserved in segments": self.states["reserved"],
                "allocated": self.states["allocated"],
                "largest free block": self.states["largest"],
            },
            x_label="allocations and frees before",
            y_label="bytes",
            y_unit="bytes",
        )


def _sums(names: list[str | None], bytes: NDArray[Any]) -> dict[str | None, int]:
    found: dict[str | None, int] = {}
    for name, amount in zip(names, bytes.tolist(), strict=True):
        found[name] = found.get(name, 0) + amount
    return found


def _in_words(sums: dict[str | None, int], whole: int, named: int = _MAX_NAMED) -> str:
    most = sorted((name for name in sums if name), key=lambda name: -sums[name])[:named]
    parts = ((name, sums[name], sums[name] / max(1, whole)) for name in most)
    return ", ".join(
        f"{name} {formatted(bytes, 'bytes')} ({formatted(share, 'share')})"
        for name, bytes, share in parts
    )
