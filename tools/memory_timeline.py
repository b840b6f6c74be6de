"""Live memory over time, objects live at the peak, and the lifetime of every allocation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.allocator_states import AllocatorStates
from pasta.processors.batch import ABSENT_U64
from pasta.processors.codes import distinct
from pasta.processors.object_names import AllocatingOperators, python_line
from pasta.processors.path_columns import combined_paths, path_columns
from pasta.processors.timeline import LevelTimeline
from pasta.table import Figure, Table, absent_where, counted, formatted
from pasta.tool import Finding, Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.stacks import Frame

#: Kinds of memory on a device, without managed memory, which has a separate line.
_ON_DEVICE = frozenset({"device", "pool", "array", "module", "external"})
#: Kinds that a program does not free itself, or that occupy no memory.
_EXCLUDED_FROM_LEAKS = frozenset({"virtual", "module"})
#: The events from a group's first allocation to the end of the work are split into parts; a leak
#: must have allocations in at least _MIN_PARTS of them.
_PARTS, _MIN_PARTS = 8, 6
_MIN_ALLOCATIONS = 12
#: Events that count as work; excludes the frees at the program's end.
_WORK_KINDS = ("memory_alloc", "tensor_alloc", "kernel_launch", "memory_copy", "operator_begin")
#: Events whose times the charts reach at least.
_TIMED_KINDS = (*_WORK_KINDS, "memory_free", "tensor_free", "kernel_complete", "process_end")
_LAYERS = ("memory", "tensor", "virtual", "array")


@dataclass(frozen=True, order=True)
class _Key:
    """A line of the timeline; `memory` "total" sums the program's memory on a device."""

    layer: str  # memory or tensor
    device: int
    memory: str
    internal: bool


@dataclass
class _Track:
    """Live bytes of a line, and their exact highest level."""

    timeline: LevelTimeline
    live: int = 0
    peak: int = 0
    peak_time: int = 0
    peak_position: int = -1
    allocations: int = 0

    def add(self, sizes: NDArray[Any], times: NDArray[Any], positions: NDArray[Any]) -> None:
        """Follows changes: bytes (int64, negative: freed), in ring order."""
        levels = self.live + np.cumsum(sizes)
        highest = int(np.argmax(levels))
        if levels[highest] > self.peak:
            self.peak = int(levels[highest])
            self.peak_time = int(times[highest])
            self.peak_position = int(positions[highest])
        self.live = int(levels[-1])
        self.timeline.add(times, levels)


@dataclass
class _Allocator:
    """A framework's caching allocator on one device: reserved and allocated bytes."""

    before: int = 0  # reserved before a run that started in the middle of the program
    allocated: int = 0
    reserved: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    gap: int = 0  # largest reserved - allocated
    gap_reserved: int = 0
    gap_time: int = 0

    def add(self, states: NDArray[Any]) -> None:
        allocated, reserved = states["allocated"], states["reserved"]
        self.allocated, self.reserved = int(allocated[-1]), int(reserved[-1])
        self.peak_allocated = max(self.peak_allocated, int(allocated.max()))
        self.peak_reserved = max(self.peak_reserved, int(reserved.max()))
        widest = int(np.argmax(reserved - allocated))
        if reserved[widest] - allocated[widest] > self.gap:
            self.gap = int(reserved[widest] - allocated[widest])
            self.gap_reserved = int(reserved[widest])
            self.gap_time = int(states["time"][widest])


@dataclass
class _Finished:
    """Freed objects: the `limit` largest, and all that were live at a peak."""

    limit: int
    rows: list[NDArray[Any]] = field(default_factory=list)
    count: int = 0
    left_out: int = 0

    def add(self, rows: NDArray[Any], peaks: list[int]) -> None:
        self.rows.append(rows)
        self.count += len(rows)
        if self.count > 2 * self.limit:
            self.prune(peaks)

    def prune(self, peaks: list[int]) -> None:
        rows = np.concatenate(self.rows)
        # Earlier allocations first among equals: the result is independent of the time of the call.
        largest = np.lexsort((rows["alloc_position"], ~rows["bytes"]))[: self.limit]
        kept = np.zeros(len(rows), bool)
        kept[largest] = True
        for position in peaks:
            kept |= _live_at(rows, position)
        self.left_out += int(len(rows) - kept.sum())
        self.rows, self.count = [rows[kept]], int(kept.sum())


class MemoryTimeline(Tool):
    """Live bytes per device and kind over time, objects live at the peak, and leaked objects."""

    title = "Memory over time"
    topic = "memory"

    needs = ("objects", "allocations", "call_paths")

    points = option(1024, help="maximum number of points of each line; maxima are kept", minimum=16)
    keep = option(1_000_000, help="freed allocations to keep in the table: the largest", minimum=1)
    top = option(10, help="rows of each table in the text report", minimum=1)
    leaked = option("1MiB", kind="bytes", help="finding: minimum bytes of growing allocations")
    gap = option(
        "64MiB",
        kind="bytes",
        help="finding: minimum bytes that an allocator reserved beyond its peak",
    )
    gap_share = option(0.2, help="… and their minimum share of the reserved bytes", minimum=0.0)
    sizes = option(
        16,
        help="minimum number of distinct tensor sizes for the remedy to name their line",
        minimum=1,
    )

    def start(self) -> None:
        """Initialize the timeline's lines and the allocators."""
        self.tracks: dict[_Key, _Track] = {}
        self.allocators: dict[int, _Allocator] = {}
        self.states = AllocatorStates()
        self.finished = _Finished(self.keep)
        self.unknown_sizes = 0
        self.allocating: set[int] = set()  # devices with allocated memory
        self.last_work = 0  # position
        self.last_time = 0  # ns
        self.allocated_by = AllocatingOperators()

    def on_batch(self, batch: Batch) -> None:
        """Follow allocations and frees, the allocators' states, and the last work of a device."""
        objects = self.context.objects
        changes = objects.changes
        if len(changes):
            self._follow(batch.base, changes, objects.rows[changes["object"]])
        self.allocated_by.feed(self.context, batch["memory_alloc"])
        indices = [
            int(batch[kind]["index"].max(initial=0)) for kind in _WORK_KINDS if len(batch[kind])
        ]
        if indices:
            self.last_work = batch.base + max(indices)
        times = [int(batch[kind]["time"].max(initial=0)) for kind in _TIMED_KINDS]
        self.last_time = max(self.last_time, *times)
        states = self.states.feed(batch)
        for device in distinct(states["device"]):
            mine = states[states["device"] == device]
            if device not in self.allocators:
                self.allocators[device] = _Allocator(self._reserved_before(mine[0], batch))
            self.allocators[device].add(mine)
        self.allocating |= set(_on_device(batch["memory_alloc"])["device"].tolist())

    def _reserved_before(self, state: NDArray[Any], batch: Batch) -> int:
        """Bytes that an allocator had reserved before the run, from its first state."""
        allocations = _on_device(batch["memory_alloc"])
        earlier = allocations["device"][allocations["index"] < state["index"]]
        seen = int(state["device"]) in self.allocating or bool((earlier == state["device"]).any())
        return 0 if seen else int(state["reserved"])

    def _follow(self, base: int, changes: NDArray[Any], rows: NDArray[Any]) -> None:
        unknown = rows["bytes"] == ABSENT_U64
        began = changes["sign"] > 0
        self.unknown_sizes += int((unknown & began).sum())
        sizes = np.where(unknown, 0, rows["bytes"]).astype(np.int64) * changes["sign"]
        positions = changes["index"].astype(np.uint64) + np.uint64(base)
        internal = (rows["flags"] & _internal()) != 0
        fields = [rows["layer"], rows["device"], rows["memory"], internal]
        layer, device, memory, inside = (field.astype(np.int64) for field in fields)
        packed = (layer << 50) + ((device + 1) << 33) + (memory << 1) + inside
        members: dict[_Key, NDArray[Any]] = {}
        for kind in distinct(packed):
            mine = packed == kind
            first = int(mine.argmax())
            for key in _keys(*(int(each[first]) for each in fields)):
                members[key] = members.get(key, False) | mine
        for key, mine in members.items():
            track = self.tracks.get(key)
            if track is None:
                bins = self.points + self.points % 2
                track = _Track(LevelTimeline(self.context.process.start_time, bins))
                self.tracks[key] = track
            track.allocations += int((mine & began).sum())
            track.add(sizes[mine], changes["time"][mine], positions[mine])
        self.finished.add(rows[~began], self._peaks())

    def _peaks(self) -> list[int]:
        return [
            track.peak_position
            for key, track in self.tracks.items()
            if key.memory == "total" and track.peak_position >= 0
        ]

    def result(self) -> Result:
        """Tables of peaks, objects and the timeline, a figure, and findings."""
        self.finished.count += 1  # applies the limit independently of batches
        if self.finished.rows:
            self.finished.prune(self._peaks())
        rows = self._rows()
        tables = {
            "peaks": self._peak_table(),
            "at_peak": self._at_peak(rows),
            "never_freed": self._never_freed(rows),
            "allocations": self._allocations(rows, "Allocations, largest first", shown=0),
            "timeline": self._timeline(),
            **self._call_paths(rows),
        }
        if self.allocators:
            tables["allocator"] = self._allocator_table()
        return Result(
            summary=self._summary(rows),
            tables=tables,
            findings=[*self._leaks(rows), *self._gaps(rows)],
            figures=self._figures(),
        )

    def _leaks(self, rows: NDArray[Any]) -> Iterator[Finding]:
        """Kinds of memory that grow until the end of the work by allocations of one size.

        A program may still free all of them at its very end.
        """
        numbers = {name: number for number, name in _memory_names().items()}
        for key, track in self._sorted():
            name, device = key.memory, key.device
            if key.layer == "tensor" or key.internal or name in _EXCLUDED_FROM_LEAKS | {"total"}:
                continue
            if name in _ON_DEVICE and device in self.allocators:
                continue  # a caching allocator keeps its memory
            kind = (rows["device"] == device) & (rows["memory"] == numbers.get(name, ABSENT_U64))
            kind &= rows["layer"] != _LAYERS.index("tensor")
            mine = rows[kind & _live_at(rows, track.peak_position)]
            sizes, counts = np.unique(_sizes(mine), return_counts=True)
            if not len(sizes):
                continue
            usual = int((sizes * counts.astype(np.uint64)).argmax())
            alike = mine[_sizes(mine) == sizes[usual]]
            total = int(_sizes(alike).sum())
            if total < self.leaked or not self._is_recurring(alike["alloc_position"]):
                continue
            line = self.allocated_by.line(self.context, device, numbers[name])
            line = line or self._usual_line(alike)
            times = alike["alloc_time"]
            first, last = self._since_start([times.min(), times.max()])
            yield Finding(
                what="allocations accumulate until the end of the work",
                where=f"{_place(device)}, {name} memory" + (f", {line}" if line else ""),
                evidence=f"{len(alike):,} allocations of "
                f"{formatted(int(sizes[usual]), 'bytes')} were live at once, made "
                f"between {formatted(int(first), 'ns')} and "
                f"{formatted(int(last), 'ns')}, the end of the work",
                remedy=(f"{line}: " if line else "")
                + (
                    "free each allocation after use, or allocate once before the loop and "
                    "reuse the memory"
                ),
                gain=total / track.peak,
                of=f"the peak of {name} memory",
            )

    def _usual_line(self, rows: NDArray[Any]) -> Frame | None:
        """The program's line on most call paths of allocations; None if unknown."""
        stacks, counts = np.unique(rows["stack"], return_counts=True)
        stack = int(stacks[counts.argmax()])
        return self.context.stacks.user_line(stack, self.context.strings) if stack else None

    def _is_recurring(self, positions: NDArray[Any]) -> bool:
        """Whether many allocations (by position) are spread up to the end of the work."""
        first = int(positions.min())
        parts = (positions.astype(np.int64) - first) * _PARTS // (self.last_work - first + 1)
        return len(positions) >= _MIN_ALLOCATIONS and len(np.unique(parts)) >= _MIN_PARTS

    def _gaps(self, rows: NDArray[Any]) -> Iterator[Finding]:
        """Allocators that reserved much more than they handed out, and lines with many sizes."""
        for device, each in sorted(self.allocators.items()):
            gap = each.peak_reserved - each.before - each.peak_allocated
            if gap <= 0 or gap < self.gap or gap < self.gap_share * each.peak_reserved:
                continue
            line, sizes = self._most_sizes(rows[_are_tensors(rows, device)])
            evidence = (
                f"{formatted(each.peak_reserved, 'bytes')} were reserved, but at most "
                f"{formatted(each.peak_allocated, 'bytes')} were in use at once"
            )
            remedy = "run with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
            if line and sizes >= self.sizes:
                evidence += f"; {sizes:,} distinct sizes were requested at that line"
                remedy = f"{line}: pad tensors to a few sizes, or {remedy}"
            yield Finding(
                what="the caching allocator reserves memory that it never uses",
                where=f"{_place(device)}, caching allocator" + (f", {line}" if line else ""),
                evidence=evidence,
                remedy=remedy,
                gain=gap / each.peak_reserved,
                of="reserved memory",
            )

    def _most_sizes(self, rows: NDArray[Any]) -> tuple[Frame | None, int]:
        """The line that allocates tensors of the most different sizes, and their number."""
        sizes: dict[Frame, set[int]] = {}
        for stack, bytes in np.unique(rows[["stack", "bytes"]]).tolist():
            line = python_line(self.context, stack)
            if line:
                sizes.setdefault(line, set()).add(bytes)
        most = max(sizes, key=lambda each: len(sizes[each]), default=None)
        return most, len(sizes[most]) if most else 0

    def _rows(self) -> NDArray[Any]:
        """Freed objects that were kept, and live ones; largest first."""
        objects = self.context.objects
        live = objects.rows[objects.live()]
        rows = np.concatenate([*self.finished.rows, live])
        return rows[np.lexsort((rows["alloc_position"], ~_sizes(rows)))]

    def _sorted(self) -> list[tuple[_Key, _Track]]:
        return sorted(self.tracks.items())

    def _since_start(self, times: Any) -> Any:
        return np.asarray(times, np.uint64).astype(np.int64) - self.context.process.start_time

    def _peak_table(self) -> Table:
        tracks = self._sorted()
        keys = [key for key, _ in tracks]
        return Table(
            {
                "layer": [key.layer for key in keys],
                "device": [_device(key.device) for key in keys],
                "memory": [key.memory for key in keys],
                "internal": [key.internal for key in keys],
                "peak": [track.peak for _, track in tracks],
                "peak_time": self._since_start([track.peak_time for _, track in tracks]),
                "live_at_end": [track.live for _, track in tracks],
                "allocations": [track.allocations for _, track in tracks],
            },
            units={"peak": "bytes", "live_at_end": "bytes", "peak_time": "ns"},
            labels={"peak_time": "peak at", "internal": "runtime's own"},
            keys=("layer", "device", "memory", "internal"),
            levels=("peak", "live_at_end", "allocations"),
            title="Peaks (virtual is reserved address space; total is device, pool, array, module"
            " and external memory of the program)",
            shown=4 * self.top,
        )

    def _at_peak(self, rows: NDArray[Any]) -> Table:
        parts, of, peaks = [], [], []
        for key, track in self._sorted():
            if key.memory == "total" and track.peak:
                live = rows[_live_at(rows, track.peak_position) & _in_total(rows, key)]
                parts.append(live)
                of += [key.layer] * len(live)
                peaks += [track.peak] * len(live)
        live = np.concatenate(parts) if parts else rows[:0]
        columns = self._object_columns(live)
        share = _sizes(live) / np.asarray(peaks, np.float64)
        return Table(
            {"peak_of": of, **columns, "share": share},
            units={**_OBJECT_UNITS, "share": "share"},
            labels={"share": "of the device's peak", **_line_label(columns)},
            keys=("peak_of", "device", "memory"),
            sums=("bytes",),
            title="Live at the peak of a device",
            shown=self.top,
            hidden=_OBJECT_HIDDEN,
        )

    def _never_freed(self, rows: NDArray[Any]) -> Table:
        return self._allocations(rows[_leaked(rows)], "Never freed", shown=self.top)

    def _allocations(self, rows: NDArray[Any], title: str, shown: int) -> Table:
        columns = self._object_columns(rows)
        return Table(
            columns,
            units=_OBJECT_UNITS,
            labels=_line_label(columns),
            keys=("layer", "device", "memory", "internal"),
            sums=("bytes",),
            title=title,
            shown=shown,
            hidden=_OBJECT_HIDDEN,
        )

    def _object_columns(self, rows: NDArray[Any]) -> dict[str, Any]:
        live = rows["free_time"] == ABSENT_U64
        freed = np.where(live, rows["alloc_time"], rows["free_time"])
        memories = _memory_names()
        return {
            "address": rows["address"],
            "bytes": absent_where(rows["bytes"], rows["bytes"] == ABSENT_U64),
            "layer": [_LAYERS[layer] for layer in rows["layer"].tolist()],
            "device": absent_where(rows["device"], rows["device"] < 0),
            "memory": [memories.get(memory, "unknown") for memory in rows["memory"].tolist()],
            "internal": (rows["flags"] & _internal()) != 0,
            "allocated": self._since_start(rows["alloc_time"]),
            "freed": absent_where(self._since_start(freed), live),
            # A free may be published with an earlier time than the allocation by another thread.
            "lifetime": absent_where(
                np.maximum(freed.astype(np.int64) - rows["alloc_time"].astype(np.int64), 0), live
            ),
            "free_missed": rows["stale"] != 0,
            "thread": rows["thread"],
            "stack": absent_where(rows["stack"], rows["stack"] == 0),
            **self._lines(rows),
        }

    def _lines(self, rows: NDArray[Any]) -> dict[str, Any]:
        """Columns of the objects' call paths; empty without any."""
        if not self._is_native(rows).any():
            return {}
        return path_columns(self.context, rows["stack"].tolist())

    def _is_native(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Which objects have call paths of the host."""
        stacks, of = np.unique(rows["stack"], return_inverse=True)
        native = [self.context.stacks.is_native(stack) for stack in stacks.tolist()]
        return np.asarray(native, bool)[of.reshape(-1)]

    def _call_paths(self, rows: NDArray[Any]) -> dict[str, Table]:
        """Allocations by call path; empty without any."""
        rows = rows[self._is_native(rows)]
        if not len(rows):
            return {}
        pairs = np.unique(rows[["layer", "device", "memory", "stack"]], return_inverse=True)
        found = np.zeros(len(pairs[0]), [*_PATH_FIELDS, ("count", "i8"), ("bytes", "i8")])
        for name, _ in _PATH_FIELDS:
            found[name] = pairs[0][name]
        of = pairs[1].reshape(-1)
        found["count"] = np.bincount(of, minlength=len(found))
        np.add.at(found["bytes"], of, _sizes(rows).astype(np.int64))
        columns, found = combined_paths(self.context, found)
        memories = _memory_names()
        return {
            "call_paths": Table(
                {
                    "layer": [_LAYERS[layer] for layer in found["layer"].tolist()],
                    "device": absent_where(found["device"], found["device"] < 0),
                    "memory": [memories.get(each, "unknown") for each in found["memory"].tolist()],
                    "allocations": found["count"],
                    "bytes": found["bytes"],
                    **columns,
                },
                units={"bytes": "bytes"},
                labels={"line": "allocated at"},
                keys=("layer", "device", "memory", "call_path"),
                sums=("allocations", "bytes"),
                title="Call paths of allocations",
                shown=self.top,
            )
        }

    def _timeline(self) -> Table:
        tracks = self._sorted()
        lengths = [track.timeline.used for _, track in tracks]

        def each(values: list[Any]) -> list[Any]:
            pairs = zip(values, lengths, strict=True)
            return [value for value, length in pairs for _ in range(length)]

        def joined(arrays: list[Any]) -> Any:
            return np.concatenate([np.zeros(0, np.int64), *arrays])

        return Table(
            {
                "layer": each([key.layer for key, _ in tracks]),
                "device": each([_device(key.device) for key, _ in tracks]),
                "memory": each([key.memory for key, _ in tracks]),
                "internal": each([key.internal for key, _ in tracks]),
                "time": joined([track.timeline.times for _, track in tracks]),
                "highest": joined([track.timeline.highest for _, track in tracks]),
                "last": joined([track.timeline.last for _, track in tracks]),
            },
            units={"time": "ns", "highest": "bytes", "last": "bytes"},
            keys=(),
            sums=(),
            title="Live bytes over time",
            shown=0,
        )

    def _allocator_table(self) -> Table:
        devices = sorted(self.allocators)
        allocators = [self.allocators[device] for device in devices]
        gaps = np.asarray([each.gap for each in allocators])
        reserved = np.asarray([each.gap_reserved for each in allocators])
        return Table(
            {
                "device": [_device(device) for device in devices],
                "peak_allocated": [each.peak_allocated for each in allocators],
                "peak_reserved": [each.peak_reserved for each in allocators],
                "largest_gap": gaps,
                "share": gaps / np.maximum(reserved, 1),
                "gap_time": self._since_start([each.gap_time for each in allocators]),
                "allocated_at_end": [each.allocated for each in allocators],
                "reserved_at_end": [each.reserved for each in allocators],
            },
            units={
                "peak_allocated": "bytes",
                "peak_reserved": "bytes",
                "largest_gap": "bytes",
                "share": "share",
                "gap_time": "ns",
                "allocated_at_end": "bytes",
                "reserved_at_end": "bytes",
            },
            labels={
                "largest_gap": "largest reserved - allocated",
                "share": "of the reserved bytes then",
                "gap_time": "at",
            },
            keys=("device",),
            levels=("peak_allocated", "peak_reserved", "largest_gap", "reserved_at_end"),
            title="Caching allocator",
            shown=self.top,
        )

    def _figures(self) -> dict[str, Figure]:
        """A chart for each device and layer, until the last event; its lines share the widest
        line's bins."""
        groups: dict[tuple[str, int], list[tuple[_Key, _Track]]] = {}
        for key, track in self._sorted():
            if track.timeline.used and key.memory != "virtual":
                groups.setdefault((key.layer, key.device), []).append((key, track))
        figures = {}
        end = max(self.last_time - self.context.process.start_time, 0)
        for (layer, device), tracks in groups.items():
            width = max(track.timeline.shift for _, track in tracks)
            width = max(width, (end // self.points).bit_length())
            last = max(end, *(int(track.timeline.times[-1]) for _, track in tracks))
            length = 1 + (last >> width)
            series = {}
            for key, track in tracks:
                bins = track.timeline.times >> width
                highest = np.zeros(length, np.int64)
                np.maximum.at(highest, bins, track.timeline.highest)
                highest[bins[-1] + 1 :] = track.live
                series[key.memory + (" (runtime's own)" if key.internal else "")] = highest
            if len(series) == 2 and np.array_equal(*series.values()):
                series.pop("total", None)  # of the only kind of memory
            where = _place(device)
            figures[f"{layer}_{'host' if device < 0 else device}"] = Figure(
                "step",
                f"Live {'tensors' if layer == 'tensor' else 'memory'}: {where}",
                np.arange(length, dtype=np.int64) << width,
                series,
                x_label="time since start",
                x_unit="ns",
                y_label="live bytes, highest in each step",
                y_unit="bytes",
            )
        return figures

    def _summary(self, rows: NDArray[Any]) -> str:
        if not self.tracks:
            return "no memory was allocated"
        parts = []
        for key, track in self._sorted():
            if key.memory == "total" and track.peak:
                what = "tensors" if key.layer == "tensor" else "memory"
                where = "host" if key.device < 0 else f"device {key.device}"
                when = formatted(track.peak_time - self.context.process.start_time, "ns")
                parts.append(f"{where}: peak of {what} {formatted(track.peak, 'bytes')} at {when}")
        leaked = rows[_leaked(rows)]
        if len(leaked):
            size = formatted(int(_sizes(leaked).sum()), "bytes")
            parts.append(f"{counted(len(leaked), 'allocation')} of {size} never freed")
        objects = self.context.objects
        for count, text in (
            (objects.stale, "frees were missed (detected when the memory was allocated again)"),
            (objects.unmatched, "frees of memory whose allocation was not recorded"),
            (self.unknown_sizes, "allocations of unknown size count as 0 bytes"),
            (self.finished.left_out, "smaller freed allocations are not in the table"),
        ):
            if count:
                parts.append(f"{count:,} {text}")
        allocations = sum(track.allocations for track in self.tracks.values())
        return "; ".join(parts) or counted(allocations, "allocation")


_OBJECT_UNITS: Any = {
    "address": "address",
    "bytes": "bytes",
    "allocated": "ns",
    "freed": "ns",
    "lifetime": "ns",
}
_OBJECT_HIDDEN = frozenset(
    {"free_missed", "thread", "stack", "internal", "layer", "freed", "call_path"}
)
_PATH_FIELDS = [("layer", "u1"), ("device", "i2"), ("memory", "u4"), ("stack", "u4")]


def _line_label(columns: dict[str, Any]) -> dict[str, str]:
    return {"line": "allocated at"} if "line" in columns else {}


def _memory_names() -> dict[int, str]:
    from pasta import abi

    return abi.enums()["memory"]


def _internal() -> int:
    from pasta import abi

    return abi.FLAG_INTERNAL


def _keys(layer: int, device: int, memory: int, internal: int) -> list[_Key]:
    """Tracks to which an object's bytes are added."""
    name = _memory_names().get(memory, "unknown")
    layer_name = "tensor" if _LAYERS[layer] == "tensor" else "memory"
    keys = [_Key(layer_name, device, name, bool(internal))]
    if layer_name == "tensor" or (name in _ON_DEVICE and not internal):
        keys.append(_Key(layer_name, device, "total", False))
    return keys


def _in_total(rows: NDArray[Any], total: _Key) -> NDArray[Any]:
    """Which objects count for a total line, consistent with `_keys`."""
    mine = rows["device"] == total.device
    tensors = rows["layer"] == _LAYERS.index("tensor")
    if total.layer == "tensor":
        return np.asarray(mine & tensors)
    on_device = [number for number, name in _memory_names().items() if name in _ON_DEVICE]
    program = (rows["flags"] & _internal()) == 0
    return np.asarray(mine & ~tensors & program & np.isin(rows["memory"], on_device))


def _on_device(allocations: NDArray[Any]) -> NDArray[Any]:
    """Allocations of memory on a device."""
    numbers = [number for number, name in _memory_names().items() if name in _ON_DEVICE]
    return allocations[np.isin(allocations["memory"], numbers)]


def _are_tensors(rows: NDArray[Any], device: int) -> NDArray[Any]:
    """Which objects are tensors of a device."""
    of_layer = rows["layer"] == _LAYERS.index("tensor")
    return np.asarray(of_layer & (rows["device"] == device))


def _leaked(rows: NDArray[Any]) -> NDArray[Any]:
    exempt = [number for number, name in _memory_names().items() if name in _EXCLUDED_FROM_LEAKS]
    return np.asarray(
        (rows["free_time"] == ABSENT_U64)
        & (rows["layer"] != _LAYERS.index("tensor"))
        & ((rows["flags"] & _internal()) == 0)
        & ~np.isin(rows["memory"], exempt)
    )


def _live_at(rows: NDArray[Any], position: int) -> NDArray[Any]:
    at = np.uint64(position)
    return np.asarray((rows["alloc_position"] <= at) & (rows["free_position"] > at))


def _sizes(rows: NDArray[Any]) -> NDArray[Any]:
    return np.where(rows["bytes"] == ABSENT_U64, np.uint64(0), rows["bytes"])


def _place(device: int) -> str:
    return "the host" if device < 0 else f"device {device}"


def _device(device: int) -> int | None:
    return None if device < 0 else device
