"""The roofline model: which kernels and operators memory bounds, and which arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta import abi
from pasta.lazy import np
from pasta.probes import Counter, probe
from pasta.processors.architecture import CACHE, MEMORY, units_of
from pasta.processors.flops import Flops
from pasta.processors.groups import Groups
from pasta.processors.kernel_names import kernel_names
from pasta.processors.occupancy import Devices
from pasta.processors.operator_names import GROUP_KEYS, OperatorGroups
from pasta.processors.roofline import (
    DATA_SHEET,
    LOW,
    MEASURED,
    MIN_SHARE,
    SET,
    WORK,
    Roof,
    findings,
    memory_rate,
    roof_notes,
    roofs_table,
    split,
    work_table,
)
from pasta.processors.rows import places_of
from pasta.table import Table, absent_where, counted, formatted
from pasta.tool import Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

_LAUNCH = [("ordinal", "i8"), ("name", "u4"), ("node", "i4"), ("probed", "?")]
_GIGA = 1e9
_COUNTED, _BY_SHAPES = "counted by the hardware", "in matrix products, convolutions and attention"
_FOREVER = 0xFFFF_FFFF_FFFF_FFFF


class Roofline(Tool):
    """Arithmetic intensity, and the share of the device's roof that kernels and operators reach."""

    title = "Roofline"
    topic = "time"
    estimates = True

    needs = ("operators",)
    optional_accesses = True  # counters have bytes too
    memory_roof = option(
        "0B", kind="bytes", help="bandwidth of device memory, bytes per second; 0: as measured"
    )
    compute_roof = option(0.0, help="peak rate for all types, GFLOP/s; 0: as measured", minimum=0.0)
    low = option(LOW, help="finding: maximum share of the roof", minimum=0.0)
    least_share = option(MIN_SHARE, help="… and minimum share of the device time", minimum=0.0)
    top = option(15, help="rows of each table in the text report; the tables have all", minimum=1)

    traffic = Counter(by=("launch",), fields=("bytes",))

    @property
    def asks_for_tensors(self) -> bool:
        """Always: operations follow from the shapes of operators' tensors."""
        return True

    @property
    def asks_for_roofs(self) -> bool:
        """Unless options set them all."""
        return not (self.memory_roof and self.compute_roof)

    @probe.global_memory
    def count(access: Any, maps: Any) -> None:
        """Count the bytes that a lane requests."""
        maps.traffic.add(bytes=access.bytes)

    def start(self) -> None:
        """Initialize launches, times and operations."""
        self.launched: list[NDArray[Any]] = []
        self.completed: list[NDArray[Any]] = []
        #: Bytes of launches by hardware counters, and operations by the units that do them.
        self.moved: list[NDArray[Any]] = []
        self.counted: dict[str, list[NDArray[Any]]] = {}
        self.by_shapes = Flops(dict(self.context.conventions.flops))
        self.by_type = Groups(1 << 16, "flops")
        self.devices = Devices()

    def on_devices(self, devices: NDArray[Any]) -> None:
        """Follow the properties of devices, for their roofs."""
        self.devices.add(devices)

    def on_batch(self, batch: Any) -> None:
        """Count the operations of operators by the shapes of their tensors; keep the bytes and
        operations that hardware counters have. A handler of counters would make the source collect
        some."""
        counters = batch["counter"]
        if len(counters):
            self._add_counters(counters[counters["ordinal"] != _FOREVER])
        ended = self.context.operators.ended
        nodes, flops, types = self.by_shapes.feed(batch, ended, self.context.strings)
        if len(nodes):
            self.by_type.add(nodes, types, flops=flops)

    def _add_counters(self, counters: NDArray[Any]) -> None:
        conventions = self.context.conventions
        operations = {name: (unit, each) for name, unit, each in conventions.flop_counters}
        for id in np.unique(counters["name"]).tolist():
            name = self.context.strings[id]
            if name in conventions.memory_counters:
                rows, into = _values(counters, id), self.moved
            elif name in operations:
                unit, each = operations[name]
                rows, into = _values(counters, id), self.counted.setdefault(unit, [])
                rows["value"] *= each
            else:
                continue
            into.append(rows)

    def on_launches(self, launches: NDArray[Any]) -> None:
        """Keep each launch with its operator."""
        rows = np.empty(len(launches), _LAUNCH)
        rows["ordinal"], rows["name"] = launches["ordinal"], launches["name"]
        rows["node"] = self.context.operators.at(launches)
        rows["probed"] = (launches["flags"] & abi.FLAG_PROBED) != 0
        self.launched.append(rows)

    def on_completions(self, completions: NDArray[Any]) -> None:
        """Keep the device times of launches."""
        good = (completions["end"] >= completions["start"]) & (completions["end"] != _FOREVER)
        done = completions[good]
        took = (done["end"] - done["start"]).astype(np.int64)
        self.completed.append(np.stack([done["ordinal"].astype(np.int64), took]))

    def result(self) -> Result:
        """Tables by kernel and operator, and the roofs."""
        rows = np.concatenate([np.empty(0, _LAUNCH), *self.launched])
        rows = rows[np.argsort(rows["ordinal"], kind="stable")]
        rows["probed"] &= ~self.context.sampling.missed(rows["ordinal"])
        compute = self._compute_roofs()
        roofs = [*self._memory_roofs(), *dict.fromkeys(filter(None, compute.values()))]
        work, kernels = self._work(rows, compute)
        memory = memory_rate(roofs)
        names = kernel_names(self.context, kernels)
        table = work_table(
            work, "kernel", {"kernel": names}, memory,
            title="Kernels", shown=self.top, keys=("kernel",),
        )  # fmt: skip
        tables = {"kernels": table}
        groups = OperatorGroups(self.context)
        work["group"] = groups.codes[rows["node"]]
        columns = groups.columns(np.arange(int(groups.codes.max(initial=0)) + 1))
        if len(groups.codes) > 1:
            tables["operators"] = work_table(
                work, "group", columns, memory, title="Operators", shown=self.top,
                keys=GROUP_KEYS, hidden=frozenset({"file", "backward"}),
            )  # fmt: skip
        tables["roofs"] = roofs_table(roofs)
        tables["launches"] = self._launches(rows, work, names, columns)
        return Result(
            summary=self._summary(work, table),
            tables=tables,
            findings=list(findings(table, self.low, self.least_share)),
            notes=list(self._notes(work, roofs)),
        )

    def _memory_roofs(self) -> Iterator[Roof]:
        """Bytes per second of the memory, and of the last cache before it."""
        measured = self._measured
        rates = [
            int(record["bandwidth"])
            for record in self.devices.properties.values()
            if 0 < int(record["bandwidth"]) != _FOREVER
        ]
        if self.memory_roof:
            yield Roof("memory", MEMORY, float(self.memory_roof), SET)
        elif MEMORY in measured:
            yield Roof("memory", MEMORY, measured[MEMORY], MEASURED)
        elif rates:
            yield Roof("memory", MEMORY, float(max(rates)), DATA_SHEET)
        if CACHE in measured:
            yield Roof("cache", CACHE, measured[CACHE], MEASURED)

    def _compute_roofs(self) -> dict[str, Roof | None]:
        """Operations per second by the units that did some; without counters by types of numbers,
        of the fastest units that such operations may use. None: unknown."""
        if self.compute_roof:
            return {"": Roof("compute", "arithmetic", _GIGA * self.compute_roof, SET)}
        if self.counted:
            used = sorted(unit for unit, rows in self.counted.items() if _sum(rows))
            return {unit: self._unit_roof(unit) for unit in used}
        types = {self._type(id) for _, id in self.by_type.rows}
        return {
            type: max(
                filter(None, map(self._unit_roof, units_of(type))),
                key=lambda roof: roof.rate,
                default=None,
            )
            for type in sorted(types)
        }

    def _unit_roof(self, unit: str) -> Roof | None:
        if unit in self._measured:
            return Roof("compute", unit, self._measured[unit], MEASURED)
        peak = self.devices.common_unit_peak(unit, self.context)
        return None if peak is None else Roof("compute", unit, peak, DATA_SHEET)

    @property
    def _measured(self) -> dict[str, float]:
        """Measured roofs of the device with most of them, as devices of a run are usually equal;
        among the devices that the run used, if the source reports them."""
        roofs = self.context.roofs
        records = self.devices.properties.values()
        used = {self.context.strings[int(record["uuid"])] for record in records} & roofs.keys()
        found: dict[str, float] = {}
        for uuid in used or roofs:
            for name, rate in roofs[uuid].items():
                found[name] = max(rate, found.get(name, 0.0))
        return {name: rate for name, rate in found.items() if rate > 0}

    def _type(self, id: int) -> str:
        """A type of numbers by the id of the framework's name."""
        own = self.context.strings[id]
        return dict(self.context.conventions.types).get(own, own)

    def _work(
        self, rows: NDArray[Any], roofs: Mapping[str, Roof | None]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Work of each launch, and the kernels' name ids by their numbers."""
        work = np.zeros(len(rows), WORK)
        kernels, work["kernel"] = np.unique(rows["name"], return_inverse=True)
        work["node"] = rows["node"]
        work["time"] = np.nan
        if self.completed:
            ordinals, took = np.concatenate(self.completed, axis=1)
            _put(work["time"], rows["ordinal"], ordinals, took)
        work["bytes"] = np.where(rows["probed"], 0.0, np.nan)
        if self._has_counters():  # bytes of both kinds do not add up
            work["bytes"] = np.nan
            moved = np.concatenate(self.moved)
            _put(work["bytes"], rows["ordinal"], moved["ordinal"].astype(np.int64), moved["value"])
        else:
            traffic = self.traffic.rows()
            launches = traffic["launch"].astype(np.int64)
            _put(work["bytes"], rows["ordinal"], launches, traffic["bytes"])
            work["bytes"] = self.context.sampling.completed(rows["ordinal"], work["bytes"])
        if self.counted:
            self._add_counted(work, rows["ordinal"], roofs)
        else:
            self._add_flops(work, roofs)
        return work, kernels

    def _has_counters(self) -> bool:
        return any(map(len, self.moved))

    def _add_flops(self, work: NDArray[Any], roofs: Mapping[str, Roof | None]) -> None:
        """Adds each operator node's operations to one of its launches, and divides them.

        A convolution or attention launches nothing itself: the operators that it calls do."""
        length = len(self.context.operators.nodes)
        flops, at_peak = np.zeros(length), np.zeros(length)
        for (node, id), amount in zip(
            self.by_type.rows, self.by_type.sum("flops").tolist(), strict=True
        ):
            flops[node] += amount
            at_peak[node] += amount * _time_at(roofs, self._type(id)) if amount else 0.0
        work["node"] = self.context.operators.nearest(flops > 0)[work["node"]]
        nodes, first = np.unique(work["node"], return_index=True)
        inside = nodes > 0  # 0: outside of operators
        work["flops"][first[inside]] = flops[nodes[inside]]
        work["at_peak"][first[inside]] = at_peak[nodes[inside]]
        split(work)

    def _add_counted(
        self, work: NDArray[Any], ordinals: NDArray[Any], roofs: Mapping[str, Roof | None]
    ) -> None:
        """Adds the operations that the hardware counted of each launch."""
        flops, at_peak = np.zeros(len(work)), np.zeros(len(work))
        has = np.zeros(len(work), bool)
        for unit, rows in self.counted.items():
            counted = np.concatenate(rows)
            at, known = places_of(ordinals, counted["ordinal"].astype(np.int64))
            amounts = counted["value"][known]
            np.add.at(flops, at, amounts)
            np.add.at(at_peak, at, np.where(amounts > 0, amounts * _time_at(roofs, unit), 0.0))
            has[at] = True
        work["flops"], work["at_peak"] = (
            np.where(has, flops, np.nan),
            np.where(has, at_peak, np.nan),
        )
        # another pass divides the operations of a node over its launches: each is one of its own
        work["node"] = -1 - np.arange(len(work))

    def _launches(
        self, rows: NDArray[Any], work: NDArray[Any], names: list[str], columns: dict[str, Any]
    ) -> Table:
        """Work by launch, from which two passes are joined."""
        group = work["group"].tolist()
        return Table(
            {
                "launch": rows["ordinal"],
                "kernel": [names[at] for at in work["kernel"].tolist()],
                **{name: [column[at] for at in group] for name, column in columns.items()},
                "node": work["node"],
                "bytes": absent_where(
                    np.nan_to_num(work["bytes"]).astype(np.int64), np.isnan(work["bytes"])
                ),
                "flops": work["flops"],
                "at_peak": work["at_peak"],
            },
            units={"bytes": "bytes", "at_peak": "ns"},
            labels={"at_peak": "at the compute roof"},
            keys=("kernel", "operator"),
            sums=("bytes", "flops"),
            probed={"bytes": None},
            title="Work by launch",
            shown=0,
        )

    def _summary(self, work: NDArray[Any], table: Table) -> str:
        flops = float(np.nansum(work["flops"]))
        bytes = float(np.nansum(work["bytes"]))
        operations = f"{flops / _GIGA:,.3g} GFLOP {_COUNTED if self.counted else _BY_SHAPES}"
        if not flops and not self.counted:
            operations = "operations unknown (no product, convolution or attention of a framework)"
        parts = [
            f"{counted(len(work), 'launch')} of {counted(len(table), 'kernel')}: {operations},"
            f" {formatted(int(bytes), 'bytes')}"
            f" {'of device memory' if self._has_counters() else 'requested'}"
        ]
        scope = self.context.sampling.scope_text(self.traffic.estimates())
        if scope and not self._has_counters():
            parts.append(f"bytes are estimated for {scope}")
        bounds = {"memory": 0, "compute": 0}
        for row in table.rows():
            if row["bound"]:
                bounds[row["bound"]] += row["device_time"] or 0
        if whole := sum(bounds.values()):
            parts.append(
                f"{bounds['memory'] / whole:.0%} of the device time is memory-bound, "
                f"{bounds['compute'] / whole:.0%} compute-bound"
            )
        return "; ".join(parts)

    def _notes(self, work: NDArray[Any], roofs: list[Roof]) -> Iterator[str]:
        if self._has_counters():
            yield "bytes are device memory traffic, from hardware counters"
        if self.counted:
            units = ", ".join(sorted(self.counted))
            yield f"operations are from hardware counters, which count {units}"
        yield from roof_notes(roofs)
        if not roofs:
            yield (
                "the device's roofs are unknown: set them with --set "
                "tool.roofline.memory_roof=900GB --set tool.roofline.compute_roof=19500 "
                "(GFLOP/s)"
            )
        if np.isnan(work["time"]).all() and len(work):
            yield "this pass has no device times: --passes auto joins it with one that has"


def _values(counters: NDArray[Any], name: int) -> NDArray[Any]:
    """Ordinals and values of a counter by its name's id."""
    return counters[counters["name"] == name][["ordinal", "value"]].copy()


def _sum(values: list[NDArray[Any]]) -> float:
    return sum(float(each["value"].sum()) for each in values)


def _time_at(roofs: Mapping[str, Roof | None], name: str) -> float:
    """Time of an operation at its roof, in ns; NaN if the roof is unknown. The unnamed roof applies
    to all operations."""
    roof = roofs.get(name) or roofs.get("")
    return np.nan if roof is None else _GIGA / roof.rate


def _put(
    column: NDArray[Any], ordinals: NDArray[Any], given: NDArray[Any], values: NDArray[Any]
) -> None:
    """Sets the values of given ordinals in a column by ascending ordinals."""
    at, known = places_of(ordinals, given)
    column[at] = values[known]
