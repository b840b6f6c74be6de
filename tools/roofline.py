"""The roofline model: which kernels and operators memory bounds, and which arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta import abi
from pasta.lazy import np
from pasta.probes import Counter, probe
from pasta.processors.flops import Flops
from pasta.processors.groups import Groups
from pasta.processors.kernel_names import kernel_names
from pasta.processors.occupancy import Devices
from pasta.processors.operator_names import GROUP_KEYS, OperatorGroups
from pasta.processors.roofline import (
    LEAST_SHARE,
    LOW,
    WORK,
    Roof,
    findings,
    memory_rate,
    roofs_table,
    split,
    work_table,
)
from pasta.table import Table, absent_where, counted, formatted
from pasta.tool import Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_LAUNCH = [("ordinal", "i8"), ("name", "u4"), ("node", "i4"), ("probed", "?")]
_GIGA = 1e9
_SET, _DERIVED = "set by an option", "derived from the device's attributes, not measured"
_FOREVER = 0xFFFF_FFFF_FFFF_FFFF


class Roofline(Tool):
    """Arithmetic intensity, and the share of the device's roof that kernels and operators reach."""

    title = "Roofline"
    topic = "time"

    needs = ("operators",)
    memory_roof = option(
        "0B", kind="bytes", help="bytes per second of the device's memory; 0: from its attributes"
    )
    compute_roof = option(
        0.0, help="GFLOP/s of the device for all types; 0: from its attributes", minimum=0.0
    )
    low = option(LOW, help="finding: maximum share of the roof", minimum=0.0)
    least_share = option(LEAST_SHARE, help="… and minimum share of the device time", minimum=0.0)
    top = option(15, help="rows of each table in the text report; the tables have all", minimum=1)

    traffic = Counter(by=("launch",), fields=("bytes",))

    @property
    def asks_for_tensors(self) -> bool:
        """Always: operations follow from the shapes of operators' tensors."""
        return True

    @probe.global_memory
    def count(access: Any, maps: Any) -> None:
        """Count the bytes that a lane requests."""
        maps.traffic.add(bytes=access.bytes)

    def start(self) -> None:
        """Initialize launches, times and operations."""
        self.launched: list[NDArray[Any]] = []
        self.completed: list[NDArray[Any]] = []
        self.moved: list[NDArray[Any]] = []  # bytes of launches by hardware counters
        self.by_shapes = Flops(dict(self.context.conventions.flops))
        self.by_type = Groups(1 << 16, "flops")
        self.devices = Devices()

    def on_devices(self, devices: NDArray[Any]) -> None:
        """Follow the properties of devices, for their roofs."""
        self.devices.add(devices)

    def on_batch(self, batch: Any) -> None:
        """Count the operations of operators by the shapes of their tensors; keep the bytes that
        hardware counters have. A handler of counters would make the source collect some."""
        counters = batch["counter"]
        if len(counters):
            ids = np.unique(counters["name"])
            known = self.context.conventions.memory_counters
            wanted = [name in known for name in self.context.strings.many(ids)]
            of_launch = np.isin(counters["name"], ids[np.asarray(wanted, bool)])
            of_launch &= counters["ordinal"] != _FOREVER
            self.moved.append(counters[of_launch][["ordinal", "value"]])
        ended = self.context.operators.ended
        nodes, flops, types = self.by_shapes.feed(batch, ended, self.context.strings)
        if len(nodes):
            self.by_type.add(nodes, types, flops=flops)

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
        roofs = list(self._roofs())
        rows = np.concatenate([np.empty(0, _LAUNCH), *self.launched])
        rows = rows[np.argsort(rows["ordinal"], kind="stable")]
        work, kernels = self._work(rows, roofs)
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

    def _roofs(self) -> Iterator[Roof]:
        """Roofs of the device with most multiprocessors; all devices of a run are usually equal."""
        rates = [
            int(record["bandwidth"])
            for record in self.devices.properties.values()
            if 0 < int(record["bandwidth"]) != _FOREVER
        ]
        if self.memory_roof:
            yield Roof("memory", "memory", float(self.memory_roof), _SET)
        elif rates:
            yield Roof("memory", "memory", float(max(rates)), _DERIVED)
        if self.compute_roof:
            yield Roof("compute", "arithmetic", _GIGA * self.compute_roof, _SET)
            return
        types = dict(self.context.conventions.types)
        for id in dict.fromkeys(type for _, type in self.by_type.rows):
            own = self.context.strings[id]
            name = types.get(own, own)
            peak = self.devices.common_peak(name, self.context)
            if peak is not None:
                yield Roof("compute", name, peak, _DERIVED)

    def _work(self, rows: NDArray[Any], roofs: list[Roof]) -> tuple[NDArray[Any], NDArray[Any]]:
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
        self._add_flops(work, roofs)
        return work, kernels

    def _has_counters(self) -> bool:
        return any(map(len, self.moved))

    def _add_flops(self, work: NDArray[Any], roofs: list[Roof]) -> None:
        """Adds each operator node's operations to one of its launches, and divides them."""
        peaks = {roof.label: roof.rate for roof in roofs if roof.kind == "compute"}
        types = dict(self.context.conventions.types)
        length = len(self.context.operators.nodes)
        flops, at_peak = np.zeros(length), np.zeros(length)
        for (node, type), amount in zip(
            self.by_type.rows, self.by_type.sum("flops").tolist(), strict=True
        ):
            own = self.context.strings[type]
            peak = peaks.get(types.get(own, own)) or peaks.get("arithmetic")
            flops[node] += amount
            at_peak[node] += amount / peak * _GIGA if peak else np.nan if amount else 0.0
        nodes, first = np.unique(work["node"], return_index=True)
        inside = nodes > 0  # 0: outside of operators
        work["flops"][first[inside]] = flops[nodes[inside]]
        work["at_peak"][first[inside]] = at_peak[nodes[inside]]
        split(work)

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
            title="Work by launch",
            shown=0,
        )

    def _summary(self, work: NDArray[Any], table: Table) -> str:
        flops = float(work["flops"].sum())
        bytes = float(np.nansum(work["bytes"]))
        parts = [
            f"{counted(len(work), 'launch')} of {counted(len(table), 'kernel')}:"
            f" {flops / _GIGA:,.3g} GFLOP in products, convolutions and attention,"
            f" {formatted(int(bytes), 'bytes')}"
            f" {'of device memory' if self._has_counters() else 'requested'}"
        ]
        bounds = {"memory": 0, "compute": 0}
        for row in table.rows():
            if row["bound"]:
                bounds[row["bound"]] += row["device_time"] or 0
        if whole := sum(bounds.values()):
            parts.append(
                f"{bounds['memory'] / whole:.0%} of the device time is bound by memory,"
                f" {bounds['compute'] / whole:.0%} by arithmetic"
            )
        return "; ".join(parts)

    def _notes(self, work: NDArray[Any], roofs: list[Roof]) -> Iterator[str]:
        if self._has_counters():
            yield "bytes are those of device memory, by hardware counters"
        if any(roof.how == _DERIVED for roof in roofs):
            yield "roofs are derived from the device's attributes: no kernel reaches all of them"
        if not roofs:
            yield (
                "the device's roofs are not known: give them, --set tool.roofline.memory_roof=900GB"
                " --set tool.roofline.compute_roof=19500 (GFLOP/s)"
            )
        if np.isnan(work["time"]).all() and len(work):
            yield "no device times in this pass: --passes auto joins them with those of another one"


def _put(
    column: NDArray[Any], ordinals: NDArray[Any], given: NDArray[Any], values: NDArray[Any]
) -> None:
    """Sets the values of given ordinals in a column by ascending ordinals."""
    at = np.searchsorted(ordinals, given)
    known = at < len(ordinals)
    known[known] = ordinals[at[known]] == given[known]
    column[at[known]] = values[known]
