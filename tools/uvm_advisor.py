"""Managed memory: what faults and moves, and what prefetches and advice would save."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.probes import Histogram, probe
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
    object_columns,
    object_keys,
    object_names,
)
from pasta.processors.operator_names import GROUP_KEYS, OperatorGroups, of_probes
from pasta.processors.rows import combined, places_of
from pasta.table import Figure, Table, Unit, absent_where, counted, formatted
from pasta.tool import Finding, OtherPass, Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import BinaryIO

    from numpy.typing import NDArray

    from pasta.processors.managed_accesses import OtherAccesses
    from pasta.processors.managed_advice import Advice
    from pasta.processors.managed_pages import Costs, Simulated
    from pasta.processors.managed_plan import Entry
    from pasta.processors.managed_trace import ManagedPages

_PAGE = "64KiB"
_PART = 32  # pages
_MAX_BINS = 256
_MAX_SERIES = 8
_FACTORS = (1.0, 1.5, 2.0, 3.0, 4.0)
_NO_PLAN, _OBJECTS, _TENSORS, _ADVISED = "no plan", "object-level", "tensor-level", "advice"
_MAX_LAUNCHES = 64
#: Numbers in a fault's vendor_flags.
_READ, _WRITE, _ATOMIC = 1, 2, 3
_MOVES = ("to_device", "to_host", "evicted")
_MOVE_LABELS = {
    "to_device": "moved to device",
    "to_host": "moved to host",
    "evicted": "of these evicted",
    "faults": "faults of devices",
    "host_faults": "faults of the host",
    "fault_time": "time of faults",
    "move_time": "time of moves",
}
_MOVE_UNITS: dict[str, Unit] = {
    **dict.fromkeys(_MOVES, "bytes"), "fault_time": "ns", "move_time": "ns",
}  # fmt: skip
_SUMS = ("faults", "host_faults", *_MOVES, "fault_time", "move_time")


class UvmAdvisor(Tool):
    """Faults and migrations of managed memory, and a plan of prefetches and advice against them."""

    title = "Managed memory"
    topic = "memory"

    needs = ("history",)
    optional_accesses = True
    both_passes = True
    top = option(10, help="rows of each table in the text report; the tables have all", minimum=1)
    advised = option(16, help="objects to compute advice for, costliest first", minimum=1)
    capacity = option(
        "0B", kind="bytes", help="device memory for managed pages; 0: as much as the run shows"
    )
    cost = option(
        0.02,
        help="finding: minimum share saved of the time of launches and host faults",
        minimum=0.0,
    )
    part = option(_PAGE, kind="bytes", help="bytes of a part; at least a page", minimum=65536)
    reads = Histogram(by=("launch", "object"), bin=part)
    writes = Histogram(by=("launch", "object"), bin=part)

    @probe.global_memory
    def touch(access: Any, maps: Any) -> None:
        """Count a lane's access by launch, object and part."""
        if access.known:
            if access.is_read:
                maps.reads.add(access.object, access.offset)
            if access.is_write:
                maps.writes.add(access.object, access.offset)

    @classmethod
    def wants(cls) -> frozenset[str]:
        """Without thrashing, which only some sources report and no result needs."""
        return super().wants() - {"uvm_thrashing"}

    def start(self) -> None:
        """Start with no launch and no activity."""
        self.other: OtherAccesses | None = None
        self.owners = TensorOwners()
        self.launched = Launched(time="u8", device="i2", probed="?", grid="(3,)u4", graph="?")
        self.times: list[NDArray[Any]] = []
        self.activity: list[NDArray[Any]] = []
        self.calls: list[NDArray[Any]] = []

    def on_tensors(self, tensors: NDArray[Any]) -> None:
        """Update the owners of tensors."""
        self.owners.feed(self.context.objects)

    def on_launches(self, launches: NDArray[Any]) -> None:
        """Keep the launches."""
        from pasta import abi

        self.launched.add(
            launches, time=launches["time"], device=launches["device"], grid=launches["grid"],
            probed=(launches["flags"] & abi.FLAG_PROBED) != 0,
            graph=(launches["flags"] & abi.FLAG_GRAPH) != 0,
        )  # fmt: skip

    def on_completions(self, completions: NDArray[Any]) -> None:
        """Keep the device times that are known."""
        start, end = completions["start"], completions["end"]
        completions = completions[(end >= start) & (end != np.iinfo(np.uint64).max)]
        self.times.append(completions[["ordinal", "device", "start", "end"]].copy())

    def on_uvm(self, calls: NDArray[Any]) -> None:
        """Keep the program's prefetches and advice."""
        from pasta import abi

        calls = calls[np.isin(calls["kind"], [abi.KINDS["uvm_prefetch"], abi.KINDS["uvm_advise"]])]
        rows = np.zeros(len(calls), _CALL)
        for name in ("time", "address", "bytes", "destination"):
            rows[name] = calls[name]
        advises = calls["kind"] == abi.KINDS["uvm_advise"]
        rows["advice"] = np.where(advises, calls["advice"], 0)
        self.calls.append(rows)

    def on_uvm_activity(self, activity: NDArray[Any]) -> None:
        """Keep faults and migrations, with the tensors they are on."""
        from pasta import abi

        activity = activity[activity["kind"] != abi.KINDS["uvm_thrashing"]]
        rows = np.zeros(len(activity), _ACTIVITY)
        for name in ("address", "start", "source", "destination", "device"):
            rows[name] = activity[name]
        rows["fault"] = activity["kind"] == abi.KINDS["uvm_fault"]
        for name in ("bytes", "count", "end"):
            absent = activity[name] == np.iinfo(activity[name].dtype).max
            rows[name] = np.where(absent, {"bytes": 0, "count": 1, "end": 0}[name], activity[name])
        rows["reason"] = activity["vendor_flags"]
        level = "tensor" if self.context.has("tensors") else "memory"
        rows["object"] = self.context.objects.lookup(
            activity["address"], activity["index"].astype(np.int64), level
        )
        self.activity.append(rows)

    def join(self, other: OtherPass) -> None:
        """Take the accesses of the other pass. Raises ValueError for damaged tables."""
        from pasta.processors.managed_accesses import OtherAccesses, identified, managed_ids

        if "objects" not in other.tables:  # no managed memory there
            return
        objects = identified(self.context, self.owners, managed_ids(self.context))
        self.other = OtherAccesses.of(
            other.tables, objects, other.other_launches, other.own_launches, other.probed
        )

    def result(self) -> Result:
        """Tables of faults, migrations and accesses; advice, its plan, and simulations."""
        run = _Run(self)
        if not len(run.pages.rows):
            return Result("no managed memory was allocated")
        tables = {"objects": self._objects(run), "kernels": self._kernels(run)}
        if (nodes := of_probes(self.context)) is not None:
            tables["operators"] = self._operators(run, nodes)
        if has_tensors(self.context):
            tables["tensors"] = self._tensors(run)
        advice = {_OBJECTS: self._advise(run, run.object_units(self.advised))}
        if has_tensors(self.context):
            advice[_TENSORS] = self._advise(run, run.tensor_units(self.advised))
        best = min(advice.values(), key=lambda each: run.time_of(run.with_advice(each)))
        tables["advice"] = self._advice(run, advice)
        tables["simulation"], figure = self._simulation(run, best)
        tables["parts"] = self._parts(run)
        tables["timeline"] = self._timeline(run)
        tables["launches"] = self._launches(run)
        if self.other is None and run.probed.any():
            tables.update(run.for_another_pass())
        entries = run.entries(best)
        return Result(
            summary=self._summary(run, best),
            tables=tables,
            findings=list(self._findings(run, best)),
            figures={"timeline": self._over_time(run, tables["timeline"]), "simulation": figure},
            files={"plan.toml": partial(_write_plan, entries, self.context.process.program)},
            notes=list(run.notes()),
        )

    def _advise(self, run: _Run, units: Iterable[Any]) -> list[Advice]:
        from pasta.processors.managed_pages import PAGE

        found = [each for unit in units for each in run.advisor.advise(unit, PAGE)]
        return sorted(found, key=lambda each: -each.time)

    # ---- tables ----

    def _objects(self, run: _Run) -> Table:
        sums = run.sums(run.activity["owner"])
        order = np.argsort(-(sums["fault_time"] + sums["move_time"]), kind="stable")
        sums = sums[order]
        reads, writes = run.accesses_by_owner()
        return Table(
            {
                **object_columns(self.context, run.ids[order]),
                **{name: sums[name] for name in _SUMS},
                "reads": reads[order],
                "writes": writes[order],
            },
            units={**_MOVE_UNITS, **OBJECT_UNITS},
            labels=_MOVE_LABELS,
            keys=object_keys(self.context),
            sums=(*_SUMS, "reads", "writes"),
            probed=dict.fromkeys(("reads", "writes")),
            title="Managed allocations by the time of their faults and moves",
            shown=self.top,
            hidden=OBJECT_HIDDEN | run.unknown_accesses,
        )

    def _kernels(self, run: _Run) -> Table:
        ids, inverse = np.unique(run.launches["kernel"], return_inverse=True)
        sums, launches = run.launch_sums(inverse.reshape(-1), len(ids))
        order = np.argsort(-(sums["fault_time"] + sums["move_time"]), kind="stable")
        sums = sums[order]
        return Table(
            {
                "kernel": kernel_names(self.context, ids[order]),
                "launches": launches[order],
                **{
                    name: sums[name]
                    for name in ("faults", "to_device", "evicted", "fault_time", "move_time")
                },
                "share": run.shares(sums, order, inverse.reshape(-1), len(ids)),
            },
            units={**{n: u for n, u in _MOVE_UNITS.items() if n != "to_host"}, "share": "share"},
            labels={
                **{n: t for n, t in _MOVE_LABELS.items() if n not in ("to_host", "host_faults")},
                "share": "of the kernel's time",
            },
            keys=("kernel",),
            sums=("launches", "faults", "to_device", "evicted", "fault_time", "move_time"),
            levels=("share",),
            probed={},
            title="Kernels by the time of their faults and the moves that these cause",
            shown=self.top,
        )

    def _operators(self, run: _Run, nodes: Any) -> Table:
        groups = OperatorGroups(self.context)
        codes = groups.codes[nodes.nodes(run.launches["launch"])]
        distinct, inverse = np.unique(codes, return_inverse=True)
        sums, launches = run.launch_sums(inverse.reshape(-1), len(distinct))
        order = np.argsort(-(sums["fault_time"] + sums["move_time"]), kind="stable")
        columns = ("faults", "to_device", "evicted", "fault_time", "move_time")
        return Table(
            {
                **groups.columns(distinct[order]),
                "launches": launches[order],
                **{name: sums[name][order] for name in columns},
            },
            units={name: _MOVE_UNITS[name] for name in columns if name in _MOVE_UNITS},
            labels={name: _MOVE_LABELS[name] for name in columns},
            keys=GROUP_KEYS,
            sums=("launches", *columns),
            probed={},
            title="Operators by the time of faults and moves in their launches",
            shown=self.top,
            hidden=frozenset({"file"}),
        )

    def _tensors(self, run: _Run) -> Table:
        known = run.activity[run.activity["object"] >= 0]
        rows = np.zeros(len(known), [("object", "i8"), *((name, "i8") for name in _SUMS)])
        rows["object"] = known["object"]
        for name, values in _measures(known).items():
            rows[name] = values
        rows = combined(rows, ("object",))
        columns, found = TensorNames(self.context).alike(rows, "fault_time")
        return Table(
            {**columns, "tensors": found["tensors"], **{name: found[name] for name in _SUMS}},
            units=_MOVE_UNITS,
            labels=_MOVE_LABELS,
            keys=ALIKE_KEYS,
            sums=("tensors", *_SUMS),
            probed={},
            title=f"Tensors, {ALIKE}, by the time of their faults",
            shown=self.top,
            hidden=ALIKE_HIDDEN,
        )

    def _advice(self, run: _Run, advice: dict[str, list[Advice]]) -> Table:
        rows = [(level, each) for level, found in advice.items() for each in found]
        objects = np.asarray([each.unit.object for _, each in rows], np.int64)
        kernels = [run.kernels_of(each.action.launches) for _, each in rows]
        return Table(
            {
                "level": [level for level, _ in rows],
                **object_columns(self.context, objects),
                "action": [each.action.name for _, each in rows],
                "kernels": kernels,
                "launches": [len(each.action.launches) for _, each in rows],
                "faults_saved": [each.faults for _, each in rows],
                "bytes_saved": [each.bytes for _, each in rows],
                "time_saved": np.asarray([each.time for _, each in rows], np.float64),
                "reason": [each.reason for _, each in rows],
            },
            units={"bytes_saved": "bytes", "time_saved": "ns", **OBJECT_UNITS},
            labels={
                "kernels": "at launches of",
                "faults_saved": "faults saved",
                "bytes_saved": "moves saved",
                "time_saved": "time saved",
            },
            keys=("level", *object_keys(self.context), "action", "kernels"),
            sums=("launches", "faults_saved", "bytes_saved"),
            levels=("time_saved",),
            important=("time_saved", "bytes_saved"),
            title="Advice, by what each entry saves in the simulator beyond the entries "
            "above it for the same object",
            shown=self.top,
            hidden=OBJECT_HIDDEN | {"launches"},
        )

    def _simulation(self, run: _Run, best: list[Advice]) -> tuple[Table, Figure]:
        footprint = run.pages.peak()
        variants = run.variants(best)
        rows: list[tuple[str, float, Simulated]] = []
        for factor in _FACTORS:
            capacity = -(-footprint // factor)
            for name, ops in variants.items():
                rows.append((name, factor, run.simulated(ops, int(capacity))))
        table = Table(
            {
                "plan": [name for name, *_ in rows],
                "factor": [factor for _, factor, _ in rows],
                "faults": [each["device_faults"] for *_, each in rows],
                "host_faults": [each["host_faults"] for *_, each in rows],
                "moved": [each.moved for *_, each in rows],
                "evicted": [each["evicted"] * 65536 for *_, each in rows],
                "time": np.asarray([run.cost(each) for *_, each in rows], np.float64),
            },
            units={"moved": "bytes", "evicted": "bytes", "time": "ns"},
            labels={
                "factor": "oversubscription",
                "faults": "faults of devices",
                "host_faults": "faults of the host",
                "evicted": "of these evicted",
            },
            keys=("plan", "factor"),
            sums=("faults", "host_faults", "moved", "evicted"),
            levels=("time",),
            important=("moved", "time"),
            title="SIMULATION of a device that holds part of the "
            f"{formatted(footprint * 65536, 'bytes')} live at once",
            shown=len(rows),
        )
        return table, Figure(
            "line",
            "Simulated moves of managed memory, by plan",
            list(_FACTORS),
            {name: [each.moved for plan, _, each in rows if plan == name] for name in variants},
            x_label="oversubscription",
            y_label="moved",
            y_unit="bytes",
        )

    def _parts(self, run: _Run) -> Table:
        rows = run.by_block()
        order = np.argsort(-(rows["reads"] + rows["writes"]), kind="stable")
        rows = rows[order]
        return Table(
            {
                **object_columns(self.context, run.ids[rows["owner"]]),
                "offset": rows["offset"],
                **{name: rows[name] for name in ("launches", "reads", "writes", "faults", "moved")},
            },
            units={"offset": "address", "moved": "bytes", **OBJECT_UNITS},
            labels={"faults": "faults of devices", "launches": "launches that touch it"},
            keys=(*object_keys(self.context), "offset"),
            sums=("reads", "writes", "faults", "moved"),
            probed=dict.fromkeys(("reads", "writes")),
            title="Parts of 2 MiB by accesses",
            shown=0,
            hidden=OBJECT_HIDDEN,
        )

    def _timeline(self, run: _Run) -> Table:
        rows, width = run.over_time()
        return Table(
            {
                "time": rows["bin"] * width,
                **object_columns(self.context, run.ids[rows["owner"]]),
                **{name: rows[name] for name in _SUMS},
            },
            units={"time": "ns", **_MOVE_UNITS, **OBJECT_UNITS},
            labels=_MOVE_LABELS,
            keys=object_keys(self.context),
            sums=_SUMS,
            probed={},
            title=f"Allocations over time, in steps of {formatted(width, 'ns')}",
            shown=0,
            hidden=OBJECT_HIDDEN,
        )

    def _over_time(self, run: _Run, table: Table) -> Figure:
        rows, width = run.over_time()
        moved = rows["to_device"] + rows["to_host"]
        totals = np.bincount(rows["owner"], moved, len(run.ids))
        largest = np.argsort(-totals, kind="stable")[:_MAX_SERIES]
        count = int(rows["bin"].max(initial=-1)) + 1
        series = {}
        for owner, name in zip(
            largest.tolist(), object_names(self.context, run.ids[largest]), strict=True
        ):
            mine = rows["owner"] == owner
            series[name] = np.bincount(
                rows["bin"][mine].astype(np.int64), moved[mine], count
            ).astype(np.int64)
        return Figure(
            "line",
            "Managed memory moved over time",
            np.arange(count) * width,
            series,
            x_label="time",
            x_unit="ns",
            y_label=f"moved in {formatted(width, 'ns')}",
            y_unit="bytes",
        )

    def _launches(self, run: _Run) -> Table:
        sums, _ = run.launch_sums(np.arange(len(run.launches)), len(run.launches))
        touched = run.touched_pages()
        columns = ("faults", "to_device", "evicted", "fault_time", "move_time")
        return Table(
            {
                "launch": run.launches["launch"],
                "kernel": kernel_names(self.context, run.launches["kernel"]),
                "touched": touched * 65536,
                **{name: sums[name] for name in columns},
            },
            units={"touched": "bytes", **{n: _MOVE_UNITS[n] for n in columns if n in _MOVE_UNITS}},
            labels={"touched": "pages touched", **{n: _MOVE_LABELS[n] for n in columns}},
            keys=("kernel",),
            sums=("touched", *columns),
            probed={"touched": None},
            title="Launches",
            shown=0,
        )

    # ---- findings, summary ----

    def _findings(self, run: _Run, advice: list[Advice]) -> Iterator[Finding]:
        whole = run.device_time + run.host_time
        for each in advice[: self.top]:
            gain = min(each.time / whole, 1.0) if whole else None
            if gain is None or gain < self.cost:
                continue
            (name,) = object_names(self.context, np.asarray([each.unit.object]))
            kernels = run.kernels_of(each.action.launches)
            yield Finding(
                what=_WHAT[each.action.name],
                where=name + (f", {kernels}" if kernels else ""),
                evidence=f"{each.reason}; in the simulator, {_WHEN[each.action.name]} saves"
                f" {formatted(each.time, 'ns')} of {formatted(whole, 'ns')} of launches and host"
                f" faults: {_more_or_less(each)}",
                remedy=f"{_REMEDY[each.action.name]}; or let PASTA do it: pasta-preload"
                " --apply-uvm-plan RUN/results/uvm_advisor/plan.toml -- PROGRAM",
                gain=gain,
                of="time of launches and host faults",
                confidence="medium" if run.exact else "low",
            )

    def _summary(self, run: _Run, advice: list[Advice]) -> str:
        total = run.sums(np.zeros(len(run.activity), np.int64), 1)[0]
        parts = [
            f"{counted(len(run.ids), 'managed allocation')},"
            f" {formatted(int(run.pages.rows['bytes'].sum()), 'bytes')}",
            f"{counted(int(total['faults']), 'fault')} of devices and"
            f" {int(total['host_faults']):,} of the host;"
            f" {formatted(int(total['to_device']), 'bytes')} moved to devices,"
            f" {formatted(int(total['to_host']), 'bytes')} to the host, in"
            f" {formatted(int(total['fault_time'] + total['move_time']), 'ns')}",
        ]
        if advice:
            before, after = run.time_of(run.ops), run.time_of(run.with_advice(advice))
            parts.append(
                f"the plan would save {formatted(before - after, 'ns')} of "
                f"{formatted(before, 'ns')} (simulated)"
            )
        elif not len(run.activity):
            parts.append("no faults or migrations were recorded")
        return "; ".join(parts)


_WHAT = {
    "prefetch": "launches fault on managed memory",
    "evict": "the host faults on managed memory after launches",
    "read_mostly": "managed memory that launches only read moves back and forth",
    "preferred_host": "managed memory moves to the device for few accesses",
    "pin": "managed memory is evicted and returns",
}
_WHEN = {
    "prefetch": "prefetching to the device before these launches",
    "evict": "prefetching to the host after these launches",
    "read_mostly": "the advice read-mostly",
    "preferred_host": "the host as preferred location, with access by the device,",
    "pin": "the device as preferred location",
}
_REMEDY = {
    "prefetch": "prefetch it to the device in the launch's stream, before the launch",
    "evict": "prefetch it to the host in the launch's stream, after the launch",
    "read_mostly": "advise read-mostly after its allocation",
    "preferred_host": "set its preferred location to the host, and advise access by the device",
    "pin": "set its preferred location to the device",
}

_CALL = [
    ("time", "u8"), ("address", "u8"), ("bytes", "u8"), ("advice", "u4"), ("destination", "i2"),
]  # fmt: skip
_ACTIVITY = [
    ("address", "u8"), ("bytes", "u8"), ("start", "u8"), ("end", "u8"), ("count", "u4"),
    ("reason", "u4"), ("source", "i2"), ("destination", "i2"), ("device", "i2"), ("fault", "?"),
    ("object", "i8"), ("owner", "i8"), ("launch", "i8"),
]  # fmt: skip


def _more_or_less(advice: Advice) -> str:
    """By how much faults and moves change: `8 faults fewer, 2 MiB of moves more`."""
    changes = (
        (counted(abs(advice.faults), "fault"), advice.faults, "fewer"),
        (f"{formatted(abs(advice.bytes), 'bytes')} of moves", advice.bytes, "less"),
    )
    return ", ".join(f"{text} {less if saved >= 0 else 'more'}" for text, saved, less in changes)


def _measures(activity: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """The measures `_SUMS` (int64) of each fault and migration."""
    from pasta import abi

    fault, by_host = activity["fault"], activity["source"] < 0
    took = np.maximum(activity["end"].astype(np.int64) - activity["start"].astype(np.int64), 0)
    took[activity["end"] == 0] = 0
    bytes = activity["bytes"].astype(np.int64)
    count = activity["count"].astype(np.int64)
    to_host = ~fault & (activity["destination"] < 0)
    return {
        "faults": np.where(fault & ~by_host, count, 0),
        "host_faults": np.where(fault & by_host, count, 0),
        "to_device": np.where(~fault & ~to_host, bytes, 0),
        "to_host": np.where(to_host, bytes, 0),
        "evicted": np.where(to_host & (activity["reason"] == abi.REASON_EVICTION), bytes, 0),
        "fault_time": np.where(fault, took, 0),
        "move_time": np.where(~fault, took, 0),
    }


def _by_faults(moves: NDArray[Any]) -> NDArray[Any]:
    """Mask of migrations caused by faults, including what the driver prefetched around them."""
    from pasta import abi

    return np.isin(moves["reason"], (abi.REASON_COHERENCE, abi.REASON_PREFETCH))


def _summed(measures: dict[str, NDArray[Any]], codes: NDArray[Any], count: int) -> NDArray[Any]:
    """Sums of measures (int64, a field for each of `_SUMS`) by code."""
    found = np.zeros(count, [(name, "i8") for name in _SUMS])
    for name, values in measures.items():
        np.add.at(found[name], codes, values)
    return found


@dataclass
class _Run:
    """What a run did to its managed memory."""

    tool: UvmAdvisor

    def __post_init__(self) -> None:
        from pasta.processors.managed_accesses import managed_ids
        from pasta.processors.managed_trace import ManagedPages

        self.context = self.tool.context
        #: Ids of the managed allocations, in the order of their allocation.
        self.ids = managed_ids(self.context)
        self.pages: ManagedPages = ManagedPages(self.context.objects.rows[self.ids])
        self.launches = self.tool.launched.rows()
        self.activity = self._attributed()
        self.measures = _measures(self.activity)

    def _attributed(self) -> NDArray[Any]:
        """Faults and migrations of managed allocations with `owner`, their index, and `launch`,
        the row of the launch that they happened in; -1: none."""
        rows = np.concatenate([np.zeros(0, _ACTIVITY), *self.tool.activity])
        rows["owner"] = self.pages.locate(rows["address"], rows["start"])
        rows = rows[rows["owner"] >= 0]
        rows["launch"] = -1
        times = self.times
        for device in np.unique(times["device"]).tolist():
            mine = times[times["device"] == device]
            mine = mine[np.argsort(mine["start"], kind="stable")]
            on = np.flatnonzero(rows["device"] == device)
            at = np.searchsorted(mine["start"], rows["start"][on], "right") - 1
            inside = (at >= 0) & (len(mine) > 0)
            inside[inside] = rows["start"][on][inside] <= mine["end"][at[inside]]
            found, known = places_of(self.launches["launch"], mine["ordinal"][at[inside]])
            rows["launch"][on[inside][known]] = found
        of_host = rows["fault"] & (rows["source"] < 0)
        rows["launch"][of_host] = -1
        return rows

    @cached_property
    def times(self) -> NDArray[Any]:
        types = [("ordinal", "u8"), ("device", "i2"), ("start", "u8"), ("end", "u8")]
        return np.concatenate(
            [np.zeros(0, types), *(each.astype(types) for each in self.tool.times)]
        )

    @property
    def device_time(self) -> float:
        """Nanoseconds of all launches with device times."""
        return float((self.times["end"] - self.times["start"]).sum())

    @property
    def host_time(self) -> float:
        """Nanoseconds of the host's faults, and of the moves that they caused."""
        outside = self.activity[self.activity["launch"] < 0]
        measures = _measures(outside)
        faults = measures["fault_time"][outside["source"] < 0].sum()
        return float(faults + measures["move_time"][outside["destination"] < 0].sum())

    # ---- sums ----

    def sums(self, codes: NDArray[Any], count: int | None = None) -> NDArray[Any]:
        """Measures (int64) of the activity, by code."""
        return _summed(self.measures, codes, len(self.ids) if count is None else count)

    def launch_sums(self, groups: NDArray[Any], count: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Measures of groups of launches, and the number of launches in each."""
        inside = self.activity["launch"] >= 0
        activity = self.activity[inside]
        found = _summed(_measures(activity), groups[activity["launch"]], count)
        return found, np.bincount(groups, minlength=count)

    def shares(self, sums: NDArray[Any], order: Any, groups: NDArray[Any], count: int) -> Any:
        """Fault and move time of groups as shares of their device time; absent without times."""
        found, known = places_of(self.launches["launch"], self.times["ordinal"])
        whole = np.bincount(groups[found], (self.times["end"] - self.times["start"])[known], count)[
            order
        ]
        part = sums["fault_time"] + sums["move_time"]
        return absent_where(np.minimum(part / np.maximum(whole, 1), 1.0), whole == 0)

    @cached_property
    def parts(self) -> NDArray[Any]:
        """Accesses to parts of managed objects (PARTS), as counted in this run or in the other
        pass."""
        from pasta.processors.managed_accesses import counted_parts

        if self.tool.other is not None:
            return self.tool.other.parts
        rows = counted_parts(self.tool.reads.rows(), self.tool.writes.rows())
        rows = rows[rows["object"] >= 0]
        return rows[np.isin(self.tool.owners.allocations(rows["object"]), self.ids)]

    @property
    def width(self) -> int:
        """Bytes of a part."""
        return int(self.tool.part) if self.tool.other is None else self.tool.other.width

    def for_another_pass(self) -> dict[str, Table]:
        """Tables by which another pass of the program gets the accesses of this one."""
        from pasta.processors.managed_accesses import identified, tables

        objects = identified(self.context, self.tool.owners, self.ids)
        return tables(self.parts, self.width, objects)

    @cached_property
    def accesses(self) -> NDArray[Any]:
        """Accesses to managed memory: launch, owner, page, object, reads, writes; a row for each
        page."""
        from pasta.processors.managed_pages import PAGE

        objects, rows = self.context.objects.rows, self.parts
        of_id = np.full(len(objects) + 1, -1, np.int64)
        of_id[self.ids] = np.arange(len(self.ids))
        owner = of_id[self.tool.owners.allocations(rows["object"])]
        width = np.uint64(self.width)
        size = np.maximum(objects["bytes"][rows["object"]], np.uint64(1))
        offset = np.minimum(rows["bin"] * width, size - np.uint64(1))
        start = objects["address"][rows["object"]] + offset
        pages, index = self.pages.expanded(owner, start, np.minimum(width, size - offset))
        found = np.zeros(len(pages), _ACCESS)
        for field in ("launch", "object"):
            found[field] = rows[field][index]
        found["owner"], found["page"] = owner[index], pages
        for name in ("reads", "writes"):
            each = np.maximum(rows[name] // np.uint64(max(self.width // PAGE, 1)), 1)
            found[name] = np.where(rows[name] > 0, each, 0)[index]
        return combined(found, ("launch", "owner", "page", "object"))

    @property
    def unknown_accesses(self) -> frozenset[str]:
        return frozenset() if len(self.accesses) else frozenset({"reads", "writes"})

    @cached_property
    def probed(self) -> NDArray[Any]:
        """Which launches (bool) were probed, in this run or in the other pass."""
        if self.tool.other is None:
            missed = self.tool.context.sampling.missed(self.launches["launch"])
            return np.asarray(self.launches["probed"] & ~missed)
        return np.isin(self.launches["launch"], self.tool.other.probed)

    @property
    def exact(self) -> bool:
        """Whether accesses of all launches, faults and accesses of the host are known."""
        everything = bool(self.probed.all()) and len(self.accesses) > 0
        return everything and len(self.activity) > 0 and not self.moves_by_itself

    @property
    def moves_by_itself(self) -> bool:
        """Whether the program prefetches."""
        return any(bool((each["advice"] == 0).any()) for each in self.tool.calls)

    def accesses_by_owner(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Reads and writes of each allocation (int64)."""
        rows, count = self.accesses, len(self.ids)
        return (
            np.bincount(rows["owner"], rows["reads"], count).astype(np.int64),
            np.bincount(rows["owner"], rows["writes"], count).astype(np.int64),
        )

    def touched_pages(self) -> NDArray[Any]:
        """Pages (int64) that each launch touched."""
        at, _ = places_of(self.launches["launch"], self.touched.rows["launch"])
        return np.bincount(at, minlength=len(self.launches))

    def by_block(self) -> NDArray[Any]:
        """Accesses, faults and moves by allocation and part of 2 MiB."""
        rows = self.accesses
        types = [("owner", "i8"), ("offset", "u8"), ("launches", "i8"), ("reads", "i8"),
                 ("writes", "i8"), ("faults", "i8"), ("moved", "i8")]  # fmt: skip
        launches = np.zeros(len(rows), [("owner", "i8"), ("offset", "u8"), ("launch", "u8")])
        launches["owner"], launches["launch"] = rows["owner"], rows["launch"]
        launches["offset"] = self._part(rows["owner"], rows["page"])
        launches = combined(launches, ("owner", "offset", "launch"))
        found = np.zeros(len(launches) + len(rows) + len(self.activity), types)
        a, b, c = np.split(found, [len(launches), len(launches) + len(rows)])
        a["owner"], a["offset"], a["launches"] = launches["owner"], launches["offset"], 1
        b["owner"], b["offset"] = rows["owner"], self._part(rows["owner"], rows["page"])
        b["reads"], b["writes"] = rows["reads"], rows["writes"]
        owner = self.activity["owner"]
        c["owner"] = owner
        c["offset"] = self._part(owner, self.pages.page(owner, self.activity["address"]))
        c["faults"] = self.measures["faults"]
        c["moved"] = self.measures["to_device"] + self.measures["to_host"]
        return combined(found, ("owner", "offset"))

    def _part(self, owner: NDArray[Any], page: NDArray[Any]) -> NDArray[Any]:
        return np.asarray((page - self.pages.firsts[owner]) // _PART * _PART * 65536).astype(
            np.uint64
        )

    def over_time(self) -> tuple[NDArray[Any], int]:
        """Measures by bin of time and allocation, and the width of a bin, ns."""
        start = self.context.process.start_time
        since = np.maximum(self.activity["start"].astype(np.int64) - start, 0)
        width = 1 << max(0, (int(since.max(initial=0)) // _MAX_BINS).bit_length())
        rows = np.zeros(len(since), [("bin", "i8"), ("owner", "i8"), *((n, "i8") for n in _SUMS)])
        rows["bin"], rows["owner"] = since // width, self.activity["owner"]
        for name, values in self.measures.items():
            rows[name] = values
        return combined(rows, ("bin", "owner")), width

    # ---- the simulator ----

    @cached_property
    def touched(self) -> Any:
        """Pages that launches touched: of probed ones as accessed, of others as they faulted, or as
        faults moved them."""
        from pasta.processors.managed_trace import Touched

        known = np.unique(self.accesses["launch"])
        rows = self.activity[self.activity["launch"] >= 0]
        moved = ~rows["fault"] & (rows["destination"] >= 0) & _by_faults(rows)
        rows = rows[(rows["fault"] & (rows["source"] >= 0)) | moved]
        launches = self.launches["launch"][rows["launch"]]
        other = ~np.isin(launches, known)
        rows, launches = rows[other], launches[other]
        size = np.where(rows["fault"], np.uint64(1), rows["bytes"])
        pages, index = self.pages.expanded(rows["owner"], rows["address"], size)
        writes = rows["fault"] & ((rows["reason"] == _WRITE) | (rows["reason"] == _ATOMIC))
        return Touched.of(
            np.concatenate([self.accesses["launch"], launches[index]]),
            np.concatenate([self.accesses["page"], pages]),
            np.concatenate([self.accesses["writes"] > 0, writes[index]]),
        )

    @cached_property
    def ops(self) -> NDArray[Any]:
        """What the run did, as operations of the simulator."""
        from pasta.processors.managed_pages import HOST
        from pasta.processors.managed_trace import Trace

        trace = Trace(self.pages)
        trace.add_launches(self.touched, partial(self.tool.launched.of, field="time"))
        host = self.activity[self.activity["fault"] & (self.activity["source"] < 0)]
        host = host[np.argsort(host["start"], kind="stable")]
        page = self.pages.page(host["owner"], host["address"])
        writes = host["reason"] != _READ
        trace.add(HOST, host["start"], page, page + 1, writes)
        self._add_brought(trace, host["start"], writes)
        moves = self.activity[~self.activity["fault"]]
        first = np.zeros(
            len(moves), [("address", "u8"), ("bytes", "u8"), ("start", "u8"), ("to_device", "?")]
        )
        for name in ("address", "bytes", "start"):
            first[name] = moves[name]
        first["to_device"] = moves["destination"] >= 0
        trace.add_initial(first, moves["owner"])
        calls = np.concatenate([np.zeros(0, _CALL), *self.tool.calls])
        trace.add_calls(calls)
        trace.add_frees()
        return trace.ops()

    def _add_brought(self, trace: Any, starts: NDArray[Any], writes: NDArray[Any]) -> None:
        """The host is taken to access all pages that its faults brought, as it did the page that
        it faulted on: `starts` and `writes` of its faults."""
        from pasta.processors.managed_pages import HOST

        if not len(starts):
            return
        moves = self.activity[~self.activity["fault"] & (self.activity["destination"] < 0)]
        moves = moves[_by_faults(moves)]
        last = np.searchsorted(starts, moves["start"], "right") - 1
        moves, last = moves[last >= 0], last[last >= 0]
        page, index = self.pages.expanded(moves["owner"], moves["address"], moves["bytes"])
        trace.add(HOST, moves["start"][index], page, page + 1, writes[last][index])

    @cached_property
    def space(self) -> int | None:
        """Pages that the device holds: those with which the simulator evicts as much as the run
        did; None: all fit."""
        from pasta.processors.managed_pages import PAGE

        if self.tool.capacity:
            return int(self.tool.capacity) // PAGE
        evicted = int(self.measures["evicted"].sum()) // PAGE
        if not evicted:
            return None
        low, high = 1, -(-len(self.pages.owner) // _PART)  # blocks
        while low < high:  # the most blocks with which as much is evicted
            middle = (low + high + 1) // 2
            if self.simulated(self.ops, middle * _PART)["evicted"] >= evicted:
                low = middle
            else:
                high = middle - 1
        return low * _PART

    @cached_property
    def costs(self) -> Costs:
        """As measured in this run, where it was."""
        from pasta.processors.managed_pages import PAGE, Costs

        usual = Costs()
        total = self.sums(np.zeros(len(self.activity), np.int64), 1)[0]
        faults = int(total["faults"] + total["host_faults"])
        moved = int(total["to_device"] + total["to_host"])
        page = float(total["move_time"]) / moved * PAGE if total["move_time"] else usual.page
        fault = float(total["fault_time"]) / faults if total["fault_time"] else usual.fault
        return Costs(fault, page, usual.remote / usual.page * page)

    @cached_property
    def advisor(self) -> Any:
        from pasta.processors.managed_advice import Advisor

        return Advisor(self.ops, self.pages, self.space, self.costs)

    def simulated(self, ops: NDArray[Any], capacity: int | None) -> Simulated:
        from pasta.processors.managed_pages import simulate

        return simulate(ops, self.pages.owner, capacity)

    def cost(self, simulated: Simulated) -> float:
        return float(self.costs.of(simulated.totals).sum())

    def time_of(self, ops: NDArray[Any]) -> float:
        """Simulated ns of faults and moves."""
        return self.cost(self.simulated(ops, self.space))

    def with_advice(self, advice: list[Advice]) -> NDArray[Any]:
        return np.asarray(self.advisor.all_applied(advice))

    def object_units(self, limit: int) -> Iterator[Any]:
        from pasta.processors.managed_advice import Unit

        cost = self.costs.of(self.simulated(self.ops, self.space).totals)
        for at in np.argsort(-cost, kind="stable")[:limit].tolist():
            if cost[at]:
                first = int(self.pages.firsts[at])
                yield Unit(int(self.ids[at]), at, first, first + int(self.pages.counts[at]))

    def _tensor_ranges(self) -> NDArray[Any]:
        """Pages of each tensor that launches accessed: object, owner, first, end, by object."""
        from pasta.processors.objects import TENSOR

        rows = self.accesses
        rows = rows[self.context.objects.rows["layer"][rows["object"]] == TENSOR]
        found = np.zeros(
            len(rows), [("object", "i8"), ("owner", "i8"), ("first", "i8"), ("end", "i8")]
        )
        found["object"], found["owner"] = rows["object"], rows["owner"]
        found["first"], found["end"] = rows["page"], rows["page"] + 1
        lowest = combined(found[["object", "owner", "first"]], ("object", "owner"), "minimum")
        highest = combined(found[["object", "owner", "end"]], ("object", "owner"), "maximum")
        ranges = np.zeros(len(lowest), found.dtype)
        for name in ("object", "owner", "first"):
            ranges[name] = lowest[name]
        ranges["end"] = highest["end"]
        return ranges

    def tensor_units(self, limit: int) -> Iterator[Any]:
        from pasta.processors.managed_advice import Unit

        ranges = self._tensor_ranges()
        cost = np.bincount(self.accesses["object"], minlength=len(self.context.objects.rows))
        known = self.activity[self.activity["object"] >= 0]
        np.add.at(cost, known["object"], _measures(known)["fault_time"] + known["count"])
        cost = cost[ranges["object"]]
        for at in np.argsort(-cost, kind="stable")[:limit].tolist():
            row = ranges[at]
            yield Unit(int(row["object"]), int(row["owner"]), int(row["first"]), int(row["end"]))

    def variants(self, best: list[Advice]) -> dict[str, NDArray[Any]]:
        """Operations of the plans that are compared."""
        from pasta.processors.managed_trace import with_prefetches

        rows = self.touched.rows
        pairs = np.unique(
            np.stack([rows["launch"].astype(np.int64), self.pages.owner[rows["page"]]], 1), axis=0
        )
        first = self.pages.firsts[pairs[:, 1]]
        found = {
            _NO_PLAN: self.ops,
            _OBJECTS: with_prefetches(
                self.ops, first, first + self.pages.counts[pairs[:, 1]], pairs[:, 0]
            ),
        }
        if has_tensors(self.context):
            ranges = self._tensor_ranges()
            touched = self.accesses[["launch", "object"]]
            touched = combined(
                touched[np.isin(touched["object"], ranges["object"])], ("launch", "object")
            )
            at = np.searchsorted(ranges["object"], touched["object"])
            found[_TENSORS] = with_prefetches(
                self.ops, ranges["first"][at], ranges["end"][at], touched["launch"].astype(np.int64)
            )
        if best:
            found[_ADVISED] = self.with_advice(best)
        return found

    # ---- the plan ----

    def kernels_of(self, launches: tuple[int, ...]) -> str | None:
        """Names of the kernels of launches."""
        if not launches:
            return None
        ids = np.unique(self.tool.launched.of(np.asarray(launches, np.uint64)))
        return ", ".join(kernel_names(self.context, ids))

    @cached_property
    def _launch_keys(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Content of each launch (a hash of kernel and grid), and its number among equal ones. A
        graph's launch is not a call of the program: it is counted separately."""
        from pasta.processors.launch_keys import mixed, occurrences

        rows = self.launches
        grid = (rows["grid"][:, axis] for axis in range(3))
        keys = mixed(rows["kernel"], *grid, rows["graph"])
        return keys, occurrences(keys)

    def entries(self, advice: list[Advice]) -> list[Entry]:
        """The plan's entries."""
        from pasta.processors.launch_keys import occurrences
        from pasta.processors.managed_plan import Allocation, Entry

        rows = self.pages.rows
        numbers = occurrences(rows["bytes"])
        found = []
        for each in advice:
            unit = each.unit
            size = int(rows["bytes"][unit.allocation])
            key = Allocation(size, int(numbers[unit.allocation]))
            inside = int(rows["address"][unit.allocation]) % 65536
            first = unit.first - int(self.pages.firsts[unit.allocation])
            offset = max(first * 65536 - inside, 0)
            length = min(first * 65536 - inside + (unit.end - unit.first) * 65536, size) - offset
            (name,) = object_names(self.context, np.asarray([unit.object]))
            why = f"{name.split(' at 0x')[0]}: {each.reason}; saves {formatted(each.time, 'ns')}"
            for action, launch in self._keys(each):
                found.append(Entry(action, key, offset, length, launch, why))
        return found

    def _keys(self, advice: Advice) -> Iterator[tuple[str, Any]]:
        from pasta.processors.managed_plan import LaunchKey

        action = advice.action
        if not action.launches:
            names = (
                ("preferred_host", "accessed_by")
                if action.name == "preferred_host"
                else (action.name,)
            )
            for name in names:
                yield name, None
            return
        contents, numbers = self._launch_keys
        at = np.searchsorted(self.launches["launch"], np.asarray(action.launches, np.uint64))
        _, firsts = np.unique(contents[at], return_index=True)
        for first in np.sort(firsts).tolist():  # not by hash: it differs between runs
            content = contents[at[first]]
            mine = at[contents[at] == content]
            row = self.launches[mine[0]]
            if row["graph"]:
                continue
            kernel = self.context.strings[int(row["kernel"])]
            grid = tuple(row["grid"].tolist())
            equal = int((contents == content).sum())
            # most of many: prefetching resident memory costs little
            if (len(mine) > 1 and 2 * len(mine) >= equal) or len(mine) > _MAX_LAUNCHES:
                yield action.name, LaunchKey(kernel, grid, None)
                continue
            for number in numbers[mine].tolist():
                yield action.name, LaunchKey(kernel, grid, int(number))

    def notes(self) -> Iterator[str]:
        """What the results are based on."""
        yield (
            "advice and the comparison of plans come from a simulation with pages of 64 KiB, "
            "blocks of 2 MiB and the costs of this run"
        )
        if self.launches["graph"].any():
            yield "the plan has no entries for graph launches"
        if self.tool.other is not None:
            yield from self.tool.other.notes()
        if not len(self.accesses):
            yield (
                "accesses were not recorded: launches are assumed to touch what faulted or moved"
            )
        elif not self.exact:
            if not self.probed.all():
                alone = int((~self.probed).sum())
                yield (
                    "launches that were not probed are assumed to touch what faulted or "
                    f"moved: {alone:,} of {len(self.probed):,}"
                )
            if not len(self.activity):
                yield "no faults or migrations were recorded: all moves are simulated"
            if self.moves_by_itself:
                yield "the program prefetches: host accesses without faults are unknown"


_ACCESS = [
    ("launch", "u8"), ("owner", "i8"), ("page", "i8"), ("object", "i8"), ("reads", "u8"),
    ("writes", "u8"),
]  # fmt: skip


def _write_plan(entries: list[Entry], program: str, file: BinaryIO) -> None:
    from pasta.processors.managed_plan import written

    comment = (
        "A plan for managed memory, by the tool uvm_advisor:\n"
        f"pasta-preload --apply-uvm-plan plan.toml -- {program.rpartition('/')[2] or 'PROGRAM'}"
    )
    file.write(written(entries, comment).encode())
