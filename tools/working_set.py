"""Working set of each launch, sizes of the touched objects, and live memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pasta import abi
from pasta.lazy import np
from pasta.probes import Bitmap, probe
from pasta.processors.kernel_names import Launched, kernel_names
from pasta.processors.object_names import (
    ALIKE,
    ALIKE_HIDDEN,
    ALIKE_KEYS,
    OBJECT_HIDDEN,
    OBJECT_UNITS,
    TensorNames,
    TensorOwners,
    has_tensors,
    memory_numbers,
    object_columns,
    object_keys,
    object_names,
    object_sizes,
)
from pasta.processors.operator_names import GROUP_KEYS, OperatorGroups, kernel_operators, of_probes
from pasta.processors.rows import combined
from pasta.table import Figure, Table, Unit, absent_where, counted, formatted, shares
from pasta.tool import Finding, Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pasta.processors.snapshots import Launches

#: Measures of a launch, in bytes, with titles for tables and figures.
_MEASURES = {
    "working_set": "touched (unique bytes)",
    "tensors": "tensors touched",
    "allocations": "allocations touched",
    "footprint": "live",
}
_LARGEST_LABELS = {
    "tensors": "largest of tensors touched",
    "allocations": "largest of allocations touched",
    "footprint": "most live at a launch",
}
#: Measures that require a probed launch.
_PROBED_MEASURES = ("working_set", "tensors", "allocations")
_STATISTICS = ("min", "mean", "median", "p90", "max")
_MAX_POINTS = 1024
#: Kinds of memory that every device can access.
_SHARED_MEMORY = ("managed", "pinned", "host")


class Footprint:
    """Live bytes that a launch could touch: allocations of its device, managed and host memory.

    Tensors are part of allocations; reserved address ranges and the runtime's own memory
    are excluded. Updated in `on_memory`, queried in `on_launches` of the same batch.
    """

    def __init__(self) -> None:
        self.live: dict[int, int] = {}  # bytes by device; -1: memory of all devices

    def feed(self, objects: Any) -> None:
        """Applies the allocations and frees of the current batch."""
        device, bytes, _ = self._changes(objects)
        for each in np.unique(device).tolist():
            change = int(bytes[device == each].sum())
            self.live[each] = self.live.get(each, 0) + change

    def _changes(self, objects: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Device, bytes (negative for frees) and index of the changes in the current batch."""
        changes = objects.changes
        rows = objects.rows[changes["object"]]
        counts = _is_program_memory(rows)
        rows, changes = rows[counts], changes[counts]
        device = _devices(rows)
        sizes = object_sizes(objects, changes["object"]).astype(np.int64)
        return device, sizes * changes["sign"], changes["index"].astype(np.int64)

    def at(self, launches: NDArray[Any], objects: Any) -> NDArray[Any]:
        """Live bytes (int64) at each launch record of the current batch."""
        device, bytes, index = self._changes(objects)
        when, of = launches["index"].astype(np.int64), launches["device"].astype(np.int64)
        found = np.zeros(len(launches), np.int64)
        for each in {-1, *np.unique(of).tolist()}:
            mine = device == each
            # The total already includes later changes in the batch.
            until = np.concatenate([[0], np.cumsum(bytes[mine])])
            later = until[-1] - until[np.searchsorted(index[mine], when, "right")]
            found += np.where((of == each) | (each == -1), self.live.get(each, 0) - later, 0)
        return found


class WorkingSet(Tool):
    """Unique bytes each launch touches, sizes of the objects it touches, and live memory."""

    title = "Working set"
    topic = "accesses"

    estimates = True
    top = option(10, help="rows of each table in the text report; the tables have all", minimum=1)
    granularity = option("32B", kind="bytes", help="granularity of touched bytes", minimum=1)
    untouched = option(
        "64MiB", kind="bytes", help="finding: minimum live memory that no launch touches"
    )
    touched = Bitmap(by=("launch", "object"), granularity=granularity)

    @probe.global_memory
    def touch(access: Any, maps: Any) -> None:
        """Mark the bytes that a lane accesses."""
        maps.touched.touch(access)

    def start(self) -> None:
        """Initialize the footprint and the launches."""
        self.footprint = Footprint()
        self.owners = TensorOwners()
        self.launched = Launched(footprint="i8", probed="?")
        self.most = _PeakLaunch()

    def on_memory(self, memory: NDArray[Any]) -> None:
        """Update the live bytes."""
        self.footprint.feed(self.context.objects)

    def on_tensors(self, tensors: NDArray[Any]) -> None:
        """Update the owners of tensors."""
        self.owners.feed(self.context.objects)

    def on_launches(self, launches: NDArray[Any]) -> None:
        """Keep each launch's footprint, and the launch with the most live memory."""
        live = self.footprint.at(launches, self.context.objects)
        probed = (launches["flags"] & abi.FLAG_PROBED) != 0
        self.launched.add(launches, footprint=live, probed=probed)
        at = int(live.argmax())
        if live[at] > self.most.bytes:
            launch = launches[at]
            self.most = _PeakLaunch(int(live[at]), int(launch["time"]), int(launch["device"]))

    def result(self) -> Result:
        """Tables of the run, kernels, objects and launches, and findings."""
        touched = self.touched.rows()
        launches = self._measured(touched)
        tables = {
            "run": self._run(launches),
            "kernels": self._kernels(launches),
            "objects": self._objects(touched),
            "launches": self._launches(launches),
        }
        if (nodes := of_probes(self.context)) is not None:
            tables["operators"] = self._operators(launches, nodes)
        if has_tensors(self.context):
            tables["tensors"] = self._tensors(touched)
        return Result(
            summary=self._summary(launches),
            tables=tables,
            findings=list(self._findings(touched)),
            figures={"launches": self._figure(launches)},
        )

    def _findings(self, touched: NDArray[Any]) -> Iterator[Finding]:
        """Memory live at the launch with the largest footprint that no launch ever touched."""
        from pasta.processors.objects import MEMORY

        if not self.context.sampling.exact or not self.most.bytes:
            return  # unprobed launches may have touched it
        rows = self.context.objects.rows
        used = np.zeros(len(rows), bool)
        objects = touched["object"][touched["object"] >= 0]
        used[objects] = True
        used[self.owners.allocations(objects)] = True
        time = np.uint64(self.most.time)
        live = (rows["alloc_time"] <= time) & (rows["free_time"] > time)
        live &= _is_program_memory(rows) & (_devices(rows) == self.most.device) & ~used
        live &= rows["layer"] == MEMORY  # accesses to arrays are not visible
        ids = np.flatnonzero(live)
        sizes = object_sizes(self.context.objects, ids)
        bytes = int(sizes.sum())
        if not bytes or bytes < self.untouched:
            return
        (largest,) = object_names(self.context, ids[sizes.argmax()][None])
        more = f" and {len(ids) - 1:,} more" if len(ids) > 1 else ""
        yield Finding(
            what="live memory is never touched by a launch",
            where=f"{largest}{more}",
            evidence=f"{formatted(bytes, 'bytes')} of {formatted(self.most.bytes, 'bytes')} "
            " live at the launch with the most live memory; copies are not considered",
            remedy="find where and when it is allocated: pasta-preload -t memory_timeline -t "
            "tensors -- PROGRAM; then allocate it later or free it earlier",
            gain=bytes / self.most.bytes,
            of="live memory",
            confidence="low",
        )

    def _measured(self, touched: NDArray[Any]) -> NDArray[Any]:
        """A row for each launch, in order: kernel, measures, touched and unknown objects."""
        launched = self.launched.rows()
        more = ("working_set", "tensors", "allocations", "objects", "unknown")
        types = [*launched.dtype.descr, *((name, "u8") for name in more)]
        found = np.zeros(len(launched), types)
        for name in launched.dtype.names or ():
            found[name] = launched[name]
        at = np.searchsorted(found["launch"], touched["launch"])
        np.add.at(found["working_set"], at, touched["bytes"])
        np.add.at(found["unknown"], at, touched["unknown"])
        found["probed"] &= ~self.context.sampling.missed(found["launch"])
        known = touched["object"] >= 0
        np.add.at(found["objects"], at[known], 1)
        for name, launch, object in self._layers(at[known], touched["object"][known]):
            np.add.at(found[name], launch, object_sizes(self.context.objects, object))
        return found

    def _layers(
        self, launches: NDArray[Any], objects: NDArray[Any]
    ) -> list[tuple[str, NDArray[Any], NDArray[Any]]]:
        """Pairs of a launch and a tensor that it touches, and the same for allocations; unique."""
        from pasta.processors.objects import TENSOR

        tensors = self.context.objects.rows["layer"][objects] == TENSOR
        pairs = np.column_stack([launches, self.owners.allocations(objects)]).astype(np.int64)
        pairs = np.unique(pairs[self._is_allocation(pairs[:, 1])], axis=0)
        return [
            ("tensors", launches[tensors], objects[tensors]),
            ("allocations", pairs[:, 0], pairs[:, 1]),
        ]

    def _is_allocation(self, objects: NDArray[Any]) -> NDArray[Any]:
        from pasta.processors.objects import TENSOR

        return np.asarray(self.context.objects.rows["layer"][objects] != TENSOR)

    def _statistics_of(self, launches: NDArray[Any], name: str) -> dict[str, int | None]:
        """Statistics of a measure; probed launches are weighted by the launches they stand for."""
        values = _known_values(launches, name)
        if name not in _PROBED_MEASURES:
            return _statistics(values, np.ones(len(values), np.int64))
        probed = launches["launch"][launches["probed"]]
        return _statistics(values, self.context.sampling.weights(probed))

    def _in_all_launches(self, touched: NDArray[Any]) -> NDArray[Any]:
        """Objects: launches that touch them, and the sum of the unique bytes in each launch."""
        names = ("launch", "touches", "total")
        rows = np.zeros(len(touched), [("object", "i8"), *((name, "u8") for name in names)])
        for name, values in (("launch", "launch"), ("object", "object"), ("total", "bytes")):
            rows[name] = touched[values]
        rows["touches"] = 1
        return self.context.sampling.totals(rows, "object")

    def _hidden(self) -> frozenset[str]:
        return frozenset() if self.owners.tensors else frozenset({"tensors"})

    def _run(self, launches: NDArray[Any]) -> Table:
        names = [name for name in _MEASURES if name not in self._hidden()]
        rows = [self._statistics_of(launches, name) for name in names] if len(launches) else []
        return Table(
            {
                "measure": [_MEASURES[name] for name in names[: len(rows)]],
                **{each: [row[each] for row in rows] for each in _STATISTICS},
            },
            units=dict.fromkeys(_STATISTICS, "bytes"),
            levels=_STATISTICS,
            title=f"Bytes per launch, over {counted(len(launches), 'launch')}",
        )

    def _kernels(self, launches: NDArray[Any]) -> Table:
        ids, counts = np.unique(launches["kernel"], return_counts=True)
        groups = [launches[launches["kernel"] == name] for name in ids.tolist()]
        sets = [self._statistics_of(group, "working_set") for group in groups]
        order = sorted(range(len(ids)), key=lambda at: (-(sets[at]["max"] or 0), at))
        names = kernel_names(self.context, ids)
        columns: dict[str, Any] = {
            "kernel": [names[at] for at in order],
            **kernel_operators(self.context, [(int(ids[at]),) for at in order]),
            "launches": [int(counts[at]) for at in order],
            **{each: [sets[at][each] for at in order] for each in _STATISTICS},
        }
        for name in ("tensors", "allocations", "footprint"):
            columns[name] = [_maximum(groups[at], name) for at in order]
        measures = (*_STATISTICS, "tensors", "allocations", "footprint")
        units: dict[str, Unit] = dict.fromkeys(measures, "bytes")
        return Table(
            columns,
            units=units,
            labels=_LARGEST_LABELS,
            keys=("kernel",),
            sums=("launches",),
            levels=measures,
            title="Working set by kernel: unique bytes that a launch touches",
            shown=self.top,
            hidden=self._hidden() | {"operators", "min", "median"},
        )

    def _operators(self, launches: NDArray[Any], nodes: Launches) -> Table:
        groups = OperatorGroups(self.context)
        codes = groups.codes[nodes.nodes(launches["launch"])]
        distinct, counts = np.unique(codes, return_counts=True)
        of_each = [launches[codes == code] for code in distinct.tolist()]
        sets = [self._statistics_of(group, "working_set") for group in of_each]
        order = sorted(range(len(distinct)), key=lambda at: (-(sets[at]["max"] or 0), at))
        measures = ("tensors", "allocations", "footprint")
        return Table(
            {
                **groups.columns(distinct[order]),
                "launches": counts[order],
                **{each: [sets[at][each] for at in order] for each in _STATISTICS},
                **{name: [_maximum(of_each[at], name) for at in order] for name in measures},
            },
            units=dict.fromkeys((*_STATISTICS, *measures), "bytes"),
            labels=_LARGEST_LABELS,
            keys=GROUP_KEYS,
            sums=("launches",),
            levels=(*_STATISTICS, *measures),
            title="Working set by operator: unique bytes that a launch touches",
            shown=self.top,
            hidden=frozenset({"min", "median", "allocations", "footprint", "file"}),
        )

    def _tensors(self, touched: NDArray[Any]) -> Table:
        columns, found = TensorNames(self.context).alike(self._in_all_launches(touched), "total")
        return Table(
            {
                **columns,
                **{name: found[name] for name in ("tensors", "touches", "total")},
                "mean": found["total"] // np.maximum(found["touches"], 1),
            },
            units={"total": "bytes", "mean": "bytes"},
            labels={
                "touches": "launches that touch one",
                "total": "unique bytes, of all launches",
                "mean": "mean per launch",
            },
            keys=ALIKE_KEYS,
            sums=("total", "touches", "tensors"),
            title=f"Unique bytes touched of tensors, {ALIKE}",
            shown=self.top,
            hidden=ALIKE_HIDDEN,
        )

    def _objects(self, touched: NDArray[Any]) -> Table:
        """Objects by the unique bytes of the launch that touched most of them."""
        known = touched[touched["object"] >= 0]
        counted = self._in_all_launches(known)
        most = combined(known[["object", "bytes"]], ["object"], "maximum")
        sizes = object_sizes(self.context.objects, most["object"])
        order = np.argsort(-most["bytes"].astype(np.float64), kind="stable")
        return Table(
            {
                **object_columns(self.context, most["object"][order]),
                "launches": counted["touches"][order],
                "most": most["bytes"][order],
                "share": (most["bytes"] / np.maximum(sizes, 1))[order],
                "mean": (counted["total"] // np.maximum(counted["touches"], 1))[order],
            },
            units={"most": "bytes", "mean": "bytes", "share": "share", **OBJECT_UNITS},
            labels={
                "launches": "launches that touch it",
                "most": "most by one launch",
                "share": "of the object",
                "mean": "mean per such launch",
            },
            keys=object_keys(self.context),
            sums=("most", "launches"),
            title="Unique bytes touched, by object",
            shown=self.top,
            hidden=OBJECT_HIDDEN,
        )

    def _launches(self, launches: NDArray[Any]) -> Table:
        footprint, unprobed = launches["footprint"], ~launches["probed"]
        counted = {
            name: absent_where(launches[name], unprobed)
            for name in (*_PROBED_MEASURES, "objects", "unknown")
        }
        return Table(
            {
                "launch": launches["launch"],
                "kernel": kernel_names(self.context, launches["kernel"]),
                **{name: counted.get(name, footprint) for name in _MEASURES},
                "objects": counted["objects"],
                "share": absent_where(
                    launches["working_set"] / np.maximum(footprint, 1),
                    (footprint <= 0) | unprobed,
                ),
                "unknown": counted["unknown"],
            },
            units={**dict.fromkeys(_MEASURES, "bytes"), "share": "share"},
            labels={
                **_MEASURES,
                "objects": "objects touched",
                "share": "working set of what is live",
                "unknown": "accesses outside known objects",
            },
            keys=("kernel",),
            sums=("working_set", "objects", "unknown"),
            probed=dict.fromkeys(("working_set", "objects", "unknown")),
            title="Working set by launch",
            shown=0,
        )

    def _figure(self, launches: NDArray[Any]) -> Figure:
        width = -(-max(len(launches), 1) // _MAX_POINTS)
        starts = np.arange(0, len(launches), width)
        return Figure(
            "step",
            "Working set and live memory over launches"
            + (f" (largest of each {width:,})" if width > 1 else ""),
            launches["launch"][starts],
            {
                text: _largest_of_each(launches, name, starts)
                for name, text in _MEASURES.items()
                if name not in self._hidden()
            },
            x_label="launch",
            y_label="bytes",
            y_unit="bytes",
        )

    def _summary(self, launches: NDArray[Any]) -> str:
        if not len(launches):
            return "no launches were recorded"
        launches = launches[launches["probed"]]
        if not len(launches):
            return "the working set is unknown"
        at = int(launches["working_set"].argmax())
        largest = launches[at]
        (name,) = kernel_names(self.context, launches["kernel"][at : at + 1])
        size, live = int(largest["working_set"]), int(largest["footprint"])
        probed = "" if self.context.sampling.exact else "probed "
        text = (
            f"{counted(len(launches), f'{probed}launch touches', f'{probed}launches touch')} at"
            f" most {formatted(size, 'bytes')} ({name}, launch {largest['launch']:,})"
        )
        if live > 0:
            text += (
                f", {formatted(shares([size], live)[0], 'share')} of the"
                f" {formatted(live, 'bytes')} live then"
            )
        parts = [text, f"counted in units of {formatted(self.granularity, 'bytes')}"]
        if probed:
            parts.append("others may touch more")
        unknown = int(launches["unknown"].sum())
        if unknown:
            parts.append(f"{counted(unknown, 'access')} outside known objects not included")
        return "; ".join(parts)


@dataclass(frozen=True)
class _PeakLaunch:
    """The launch with the most live memory."""

    bytes: int = 0
    time: int = 0
    device: int = 0


def _is_program_memory(rows: NDArray[Any]) -> NDArray[Any]:
    """Whether objects are memory of the program."""
    from pasta.processors.objects import ARRAY, MEMORY

    internal = (rows["flags"] & abi.FLAG_INTERNAL) != 0
    return np.asarray(~internal & ((rows["layer"] == MEMORY) | (rows["layer"] == ARRAY)))


def _devices(rows: NDArray[Any]) -> NDArray[Any]:
    """Devices of objects; -1 for memory that all devices can access."""
    shared = memory_numbers(_SHARED_MEMORY)
    return np.where(np.isin(rows["memory"], shared), -1, rows["device"].astype(np.int64))


def _known_values(launches: NDArray[Any], name: str) -> NDArray[Any]:
    """A measure of the launches for which it is known."""
    return np.asarray(
        launches[name][launches["probed"]] if name in _PROBED_MEASURES else launches[name]
    )


def _maximum(launches: NDArray[Any], name: str) -> int | None:
    values = _known_values(launches, name)
    return int(values.max()) if len(values) else None


def _largest_of_each(launches: NDArray[Any], name: str, starts: NDArray[Any]) -> Any:
    """The largest value of each run of launches; NaN if none is known."""
    values = launches[name]
    if name in _PROBED_MEASURES and not launches["probed"].all():
        values = np.where(launches["probed"], values.astype(np.float64), np.nan)
    return np.fmax.reduceat(values, starts) if len(starts) else []


def _statistics(values: NDArray[Any], weights: NDArray[Any]) -> dict[str, int | None]:
    """Statistics of values by nearest rank, and their mean, in whole bytes; None if empty.
    `weights`: how many values each stands for."""
    if not len(values):
        return dict.fromkeys(_STATISTICS)
    order = np.argsort(values, kind="stable")
    ordered, until = values[order], np.cumsum(weights[order])
    whole = until[-1].item()

    def ranked(percent: int) -> int:
        # quotients add up to a little less or more than the number of launches
        rank = percent * whole * (1 - 1e-9)
        return int(ordered[min(np.searchsorted(100 * until, rank), len(ordered) - 1)])

    total = sum(
        value * weight
        for value, weight in zip(ordered.tolist(), weights[order].tolist(), strict=True)
    )
    return {
        "min": int(ordered[0]),
        "mean": total // whole if isinstance(total, int) else round(total / whole),
        "median": ranked(50),
        "p90": ranked(90),
        "max": int(ordered[-1]),
    }
