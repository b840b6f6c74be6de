"""Time, kernel launches and allocations of a framework's operators by operator, module and line.

Also reports host time outside operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.codes import grown
from pasta.processors.correlate import LaunchWindow
from pasta.processors.flops import Flops
from pasta.processors.gaps import Gaps, GapSite
from pasta.processors.groups import Groups
from pasta.processors.occupancy import Devices
from pasta.processors.operator_names import user_lines
from pasta.table import Table, Unit, absent_where, counted, formatted, shares
from pasta.tool import Finding, Result, Tool, option

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.stacks import Frame

#: Counts of each operator itself, without the operators called from it.
_COUNTS = (
    "launches",
    "device_time",
    "flops",
    "allocated",
    "allocations",
    "waits",
    "wait_time",
    "synchronous_copies",
)
#: Counts for findings: waits and their time, and copies to the host with their bytes, without
#: first calls; copies between host and device.
_FINDING_COUNTS = ("steady_waits", "steady_wait_time", "reads", "read_bytes", "crossings")
#: Directions of copies between host and device, and of copies that read values back.
_HOST_DEVICE = frozenset({"host_to_device", "device_to_host"})
_TO_HOST = frozenset({"device_to_host"})
_UNITS: dict[str, Unit] = {
    "host_time": "ns",
    "own_time": "ns",
    "first_time": "ns",
    "device_time": "ns",
    "total_device_time": "ns",
    "gradient_time": "ns",
    "wait_time": "ns",
    "allocated": "bytes",
    "mfu": "share",
    "share": "share",
}
#: Operations in a GFLOP.
_GIGA = 10**9
#: Name of the row for activity outside operators.
OUTSIDE = "(outside operators)"
#: Operators, as called by programs, that change the type or layout of a tensor.
_CONVERSIONS = frozenset(
    {"aten::to", "aten::contiguous", "aten::clone", "aten::type_as", "aten::_to_copy"}
)
#: Function of PyTorch modules that initialises their parameters.
_INIT_FUNCTION = "reset_parameters"
#: Minimum time of a copy to the host (ns) and its rate (bytes/ns); the rest of its time is waiting.
_MIN_COPY_TIME, _COPY_RATE = 20_000, 1.0


class Operators(Tool):
    """Host time, launches, device time and memory by operator, module and Python line."""

    title = "Operators, modules and lines"
    topic = "operators"

    needs = ("operators", "ranges", "allocations")
    uses = ("wait_times", "device")
    least_time = option("10ms", kind="duration", help="finding: minimum steady time")
    outside_share = option(
        0.2, help="finding: minimum share of the steady time outside operators", minimum=0.0
    )
    outside_gap = option(
        "500us", kind="duration", help="… and minimum mean length of the gaps between operators"
    )
    outside_gaps = option(5, help="… and minimum number of gaps", minimum=1)
    waits = option(10, help="finding: minimum number of waits for a device at a line", minimum=1)
    wait_share = option(
        0.05, help="… and minimum share of the steady time that fewer waits may save", minimum=0.0
    )
    short = option("50us", kind="duration", help="operators shorter than this count as short")
    short_calls = option(
        1000, help="finding: minimum number of short operators at a line", minimum=1
    )
    short_share = option(0.3, help="… and their minimum share of the steady time", minimum=0.0)
    convert_share = option(
        0.25, help="finding: minimum share of the steady time spent converting tensors", minimum=0.0
    )
    flops = option(
        False,
        help="count floating-point operations from tensor shapes, which frameworks must then "
        "report; if false, they are counted only where another tool needs tensors",
    )
    top = option(15, help="rows of each table in the text report; the tables have all", minimum=1)

    @property
    def asks_for_tensors(self) -> bool:
        """With the option `flops`."""
        return self.flops or super().asks_for_tensors

    def start(self) -> None:
        """Initialize the counts by operator node."""
        self.counts = {name: np.zeros(1024, np.int64) for name in (*_COUNTS, *_FINDING_COUNTS)}
        self.steps = np.zeros(1024, bool)  # nodes called by an optimizer's step
        self.window = LaunchWindow()
        self.launches = 0
        self.gaps = Gaps()
        self.by_shapes = Flops(dict(self.context.conventions.flops))
        #: Floating-point operations by node and type of their numbers (a string id).
        self.by_type = Groups(1 << 16, "flops")
        self.devices = Devices()

    def _add(self, name: str, nodes: NDArray[Any], amounts: NDArray[Any] | None = None) -> None:
        self.counts[name] = grown(self.counts[name], len(self.context.operators.nodes))
        length = len(self.counts[name])
        if amounts is None:
            self.counts[name] += np.bincount(nodes, minlength=length)
        else:
            np.add.at(self.counts[name], nodes, amounts)

    def on_batch(self, batch: Batch) -> None:
        """Add allocations to their operator; follow the gaps between operators."""
        operators = self.context.operators
        begins = batch["operator_begin"]
        outermost = np.flatnonzero(begins["depth"] == 1)
        steps = self.context.conventions.optimizer_steps
        of_step = self.context.ranges.within(begins[outermost], steps, self.context.strings)
        self.steps = grown(self.steps, len(operators.nodes))
        self.steps[operators.began[outermost[of_step]]] = True
        new = batch["tensor_alloc"]
        nodes = operators.at(new)
        self._add("allocations", nodes)
        self._add("allocated", nodes, new["bytes"].astype(np.int64))
        nodes, flops, types = self.by_shapes.feed(batch, operators.ended, self.context.strings)
        self._add("flops", nodes, flops)
        if len(nodes):
            self.by_type.add(nodes, types, flops=flops)
        self.gaps.add_samples(operators, batch["python_sample"])
        self.gaps.end_batch(operators)

    def on_devices(self, devices: NDArray[Any]) -> None:
        """Follow the properties of devices, for their peak rates."""
        self.devices.add(devices)

    def on_launches(self, launches: NDArray[Any]) -> None:
        """Count launches by operator."""
        nodes = self.context.operators.at(launches)
        self.launches += len(nodes)
        self._add("launches", nodes)
        self.window.put(launches["ordinal"], nodes + 1)

    def on_completions(self, completions: NDArray[Any]) -> None:
        """Add device times to the operator that made the launch."""
        nodes = self.window.get(completions["ordinal"]) - 1
        start, end = completions["start"], completions["end"]
        good = (nodes >= 0) & (end >= start) & (end != np.iinfo(np.uint64).max)
        self._add("device_time", nodes[good], (end[good] - start[good]).astype(np.int64))

    def on_copies(self, copies: NDArray[Any]) -> None:
        """Count copies between host and device, and synchronous reads, by operator."""
        from pasta import abi

        names = abi.enums()["copy"].items()
        crossing = np.isin(copies["direction"], [at for at, name in names if name in _HOST_DEVICE])
        reading = np.isin(copies["direction"], [at for at, name in names if name in _TO_HOST])
        waiting = (copies["flags"] & abi.FLAG_ASYNC) == 0
        nodes = self.context.operators.at(copies)
        self._add("crossings", nodes[crossing])
        self._add("synchronous_copies", nodes[crossing & waiting])
        reads = reading & waiting & ~self.context.operators.in_first_call(copies)
        reads &= copies["bytes"] != np.iinfo(np.uint64).max
        self._add("reads", nodes[reads])
        self._add("read_bytes", nodes[reads], copies["bytes"][reads].astype(np.int64))

    def on_syncs(self, syncs: NDArray[Any]) -> None:
        """Add the host's waits to their operator, or to the gap outside operators."""
        nodes = self.context.operators.at(syncs)
        timed = syncs["duration"] != np.iinfo(np.uint64).max
        self._add("waits", nodes)
        durations = np.where(timed, syncs["duration"], 0).astype(np.int64)
        self._add("wait_time", nodes, durations)
        steady = ~self.context.operators.in_first_call(syncs) & (nodes != 0)
        self._add("steady_waits", nodes[steady])
        self._add("steady_wait_time", nodes[steady], durations[steady])
        outside = nodes == 0
        if outside.any():
            self.gaps.add_waits(self.context.operators, syncs[outside], durations[outside])

    def result(self) -> Result:
        """Tables by operator, module, line and gap, and findings."""
        tree = _Tree(self)
        tables = {
            "operators": tree.by_operator(),
            "outside": self._outside(tree),
            "modules": tree.by_module(),
            "lines": tree.by_line(),
        }
        findings = list(_Findings(self, tree).findings())
        return Result(
            summary=self._summary(tree), tables=tables, findings=findings, notes=self._notes(tree)
        )

    def _notes(self, tree: _Tree) -> list[str]:
        """Reason why the share of the peak rate is missing, for operations with device times."""
        counted = int(tree.counts["flops"].sum())
        if not counted or not tree.counts["device_time"].any() or not tree.without_peak:
            return []
        share = formatted(sum(tree.without_peak.values()) / counted, "share")
        names = [
            self.context.strings[int(each["name"])] or "unnamed device"
            for each in self.devices.properties.values()
        ]
        return [
            f"no peak rate is known for {', '.join(sorted(tree.without_peak))} on "
            f"{' and '.join(sorted(set(names))) or 'this device'}: {share} of the "
            "floating-point operations are excluded from the share of the peak"
        ]

    def _outside(self, tree: _Tree) -> Table:
        """Time outside operators, by the lines before and after it."""
        places = [place for place in tree.places if place.total]
        return Table(
            {
                "between": [place.between for place in places],
                "line": [str(place.line) if place.line else None for place in places],
                "gaps": np.asarray([place.count for place in places], np.int64),
                "time": np.asarray([place.total for place in places], np.int64),
                "first_time": np.asarray([place.first for place in places], np.int64),
                "longest": np.asarray([place.longest for place in places], np.int64),
                "wait_time": np.asarray([place.waited for place in places], np.int64),
                "share": shares([place.steady for place in places], tree.steady),
            },
            units={
                "time": "ns", "first_time": "ns", "longest": "ns", "wait_time": "ns",
                "share": "share",
            },
            labels={
                "between": "between operators at",
                "line": "mostly at",
                "first_time": "in first gaps",
                "wait_time": "waits for devices",
                "share": "of the steady time",
            },
            keys=("between",),
            sums=("gaps", "time"),
            title="Outside of operators",
            shown=min(self.top, 5),
            hidden=frozenset(
                {"wait_time"} - {"wait_time" for place in places if place.waited}
                | {"line"} - {"line" for place in places if place.line}
            ),
        )  # fmt: skip

    def _summary(self, tree: _Tree) -> str:
        calls = int(tree.nodes["calls"].sum())
        if not calls:
            return "no framework operators were recorded"
        outer = tree.nodes["parent"] == 0
        parts = [
            f"{counted(calls, 'operator')}, {int(tree.nodes['calls'][outer].sum()):,} of them"
            " outermost,"
            f" {formatted(int(tree.nodes['own'].sum()), 'ns')} of host time"
        ]
        if self.launches:
            share = 1 - int(tree.counts["launches"][0]) / self.launches
            parts.append(f"{counted(self.launches, 'launch')}, {share:.2%} of them by operators")
        allocated = int(tree.counts["allocated"].sum())
        if allocated:
            parts.append(f"{formatted(allocated, 'bytes')} allocated")
        flops, device = int(tree.counts["flops"].sum()), int(tree.counts["device_time"].sum())
        if flops:
            rate = f", {flops / device:,.3g} GFLOP/s of device time" if device else ""
            peak = int(tree.peak_time.sum())
            if device and peak:
                rate += f", {formatted(peak / device, 'share')} of the device's peak (MFU)"
            parts.append(
                f"{flops / _GIGA:,.3g} GFLOP in matrix products, convolutions and attention{rate}"
            )
        parts += self._times(tree)
        return "; ".join(parts)

    def _times(self, tree: _Tree) -> Iterator[str]:
        """Share of time outside operators, and the duration of the start-up."""
        first, last = self.context.operators.observed
        if last > first > 0:
            outside = sum(place.total for place in tree.places)
            yield (
                f"{outside / (last - first):.0%} of the {formatted(last - first, 'ns')} from the"
                " first operator to the last is outside operators"
            )
        before = first - self.context.process.start_time
        parts = []
        if self.context.process.start_time and before > 0:
            parts.append(f"{formatted(before, 'ns')} before the first operator")
        new = np.flatnonzero(tree.nodes["first_own"] > 0)
        if len(new) and tree.steady:
            time = formatted(int(tree.nodes["first_own"].sum()), "ns")
            parts.append(f"{time} in {counted(len(new), 'first call')} of operators")
        if parts:
            yield f"start-up, excluded from shares and findings: {', '.join(parts)}"


class _Tree:
    """The nodes of a run with their counts."""

    def __init__(self, tool: Operators) -> None:
        self.context, self.top = tool.context, tool.top
        self.operators = tool.context.operators
        self.nodes = self.operators.nodes
        length = len(self.nodes)
        self.counts = {name: grown(each, length)[:length] for name, each in tool.counts.items()}
        step = self.operators.within(grown(tool.steps, length)[:length])
        around = tuple(self.context.conventions.backward)
        names = self.context.strings.many(self.nodes["name"])
        inside = self.operators.within(np.asarray([name.startswith(around) for name in names]))
        backward = self.operators.backward | inside
        phases = np.where(step, "optimizer", np.where(backward, "backward", "forward"))
        self.phases = phases.tolist()
        self.places = tool.gaps.places(tool.context)
        #: Device time of the launches of each node and of the operators called from it.
        self.device_time = self.operators.with_callees(self.counts["device_time"])
        #: Device time of the gradients of each node and of the operators called from it.
        self.gradient_time = self._gradient_time()
        #: Time (ns) that the operations of each node take at the device's peak, and operations of
        #: types for which that is not known.
        self.peak_time, self.without_peak = self._peak_time(tool)
        #: Own host time of each node, without its first call.
        self.steady_own = self.nodes["own"] - self.nodes["first_own"]
        #: Host time without first calls and first gaps.
        self.steady = int(self.steady_own.sum()) + sum(place.steady for place in self.places)

    def _peak_time(self, tool: Operators) -> tuple[NDArray[Any], dict[str, int]]:
        types = dict(tool.context.conventions.types)
        times, unknown = np.zeros(len(self.nodes)), dict[str, int]()
        peaks: dict[str, float | None] = {}
        for (node, type), flops in zip(
            tool.by_type.rows, tool.by_type.sum("flops").tolist(), strict=True
        ):
            own = self.context.strings[type] or "numbers of unknown type"
            name = types.get(own, own)
            if name not in peaks:
                peaks[name] = tool.devices.common_peak(name, self.context)
            peak = peaks[name]
            if peak is not None:
                times[node] += flops / peak * 1e9
            elif flops:
                unknown[name] = unknown.get(name, 0) + flops
        return times, unknown

    def _gradient_time(self) -> NDArray[Any]:
        forward = self.operators.inherited("forward")
        times = np.zeros(len(self.nodes), np.int64)
        np.add.at(times, forward, self.counts["device_time"])
        times[0] = 0  # not a gradient, or a gradient of an unknown operator
        return self.operators.with_callees(times)

    def with_gaps(self, field: str, values: list[int]) -> NDArray[Any]:
        """A field of the nodes, with the gaps' total as the value of node 0 (outside operators)."""
        found: NDArray[Any] = self.nodes[field].copy()
        found[0] = sum(values)
        return found

    def grouped(
        self,
        keys: list[Any],
        columns: Callable[[list[Any]], dict[str, Any]],
        title: str,
        gaps: bool = False,
    ) -> Table:
        """One row per distinct key of the nodes, with sums of own times and counts."""
        codes: dict[Any, int] = {}
        code = np.asarray([codes.setdefault(key, len(codes)) for key in keys], np.int64)

        def summed(values: NDArray[Any], chosen: NDArray[Any] | slice = slice(None)) -> Any:
            sums = np.zeros(len(codes), np.int64)
            np.add.at(sums, code[chosen], values[chosen])
            return sums

        # calls from the same key are already included
        outer = self.operators.first_of(code)
        counted = {name: summed(self.counts[name]) for name in _COUNTS}
        places = self.places if gaps else []
        own_of_nodes = self.with_gaps("own", [place.total for place in places])
        first_of_nodes = self.with_gaps("first_own", [place.first for place in places])
        own, first = summed(own_of_nodes), summed(first_of_nodes)
        steady = own - first if (own - first).any() else own
        weight = counted["device_time"] if counted["device_time"].any() else steady
        total = self.with_gaps("total", [place.total for place in places])
        calls = summed(self.with_gaps("calls", [place.count for place in places]), outer)
        order = np.lexsort((-own, -steady, -weight))
        something = calls + sum(counted.values()) > 0
        order = order[something[order]]
        rows = list(codes)
        untimed = counted["device_time"] == 0
        device_time = summed(self.device_time, outer)
        gradients = summed(self.gradient_time, outer)
        # a convolution or attention launches nothing itself
        computing = np.where(untimed, device_time, counted["device_time"])
        rate = counted["flops"] / np.maximum(computing, 1)  # per ns: GFLOP/s
        peak_time = np.bincount(code, self.peak_time, len(codes))
        mfu = peak_time / np.maximum(computing, 1)
        rows_of = columns([rows[at] for at in order.tolist()])
        found = {
            **rows_of,
            "calls": calls[order],
            "own_time": own[order],
            "host_time": summed(total, outer)[order],
            "first_time": first[order],
            "launches": counted["launches"][order],
            "device_time": absent_where(counted["device_time"][order], untimed[order]),
            "total_device_time": absent_where(device_time[order], (device_time == 0)[order]),
            "gradient_time": absent_where(gradients[order], (gradients == 0)[order]),
            "gflop": counted["flops"][order] / _GIGA,
            "gflop_rate": absent_where(
                rate[order], ((computing == 0) | (counted["flops"] == 0))[order]
            ),
            "mfu": absent_where(mfu[order], ((computing == 0) | (peak_time == 0))[order]),
            "allocations": counted["allocations"][order],
            "allocated": counted["allocated"][order],
            "waits": counted["waits"][order],
            "wait_time": counted["wait_time"][order],
            "synchronous_copies": counted["synchronous_copies"][order],
            "share": shares(weight, weight.sum())[order],
        }
        hidden = {"allocations", "file"} & set(found) | {
            name for name in _COUNTS if name in found and not counted[name].any()
        }
        if not device_time.any():
            hidden |= {"total_device_time", "gflop_rate", "mfu"}
        if not peak_time.any():
            hidden |= {"mfu"}
        if not gradients.any():
            hidden |= {"gradient_time"}
        if not counted["flops"].any():
            hidden |= {"gflop", "gflop_rate"}
        return Table(
            found,
            units=_UNITS,
            labels={
                "own_time": "own host time",
                "host_time": "total host time",
                "first_time": "in first calls",
                "total_device_time": "total device time",
                "gradient_time": "of its gradients",
                "gflop": "GFLOP",
                "gflop_rate": "GFLOP/s of device time",
                "mfu": "of the device's peak",
                "waits": "waits for devices",
                "wait_time": "wait time",
                "synchronous_copies": "synchronous copies",
                "share": "of device time"
                if counted["device_time"].any()
                else "of own time without first calls",
            },
            keys=[name for name in rows_of if name != "file"],
            sums=(
                "calls",
                "own_time",
                "total_device_time",
                "gradient_time",
                "gflop",
                *(name for name in _COUNTS if name in found),
            ),
            title=title,
            shown=self.top,
            hidden=frozenset(hidden),
        )

    def _names(self) -> list[str]:
        names = self.context.strings.many(self.nodes["name"])
        names[0] = OUTSIDE
        return names

    def by_operator(self) -> Table:
        return self.grouped(
            list(zip(self._names(), self.phases, strict=True)),
            lambda rows: {
                "operator": [name for name, _ in rows],
                "phase": [phase for _, phase in rows],
            },
            "Operators",
            gaps=True,
        )

    def by_module(self) -> Table:
        texts = self.context.strings
        modules = [
            texts[id] if id else "" for id in self.operators.forward_values("module").tolist()
        ]
        return self.grouped(
            list(zip(modules, self.phases, strict=True)),
            lambda rows: {
                "module": [module or "(no module)" for module, _ in rows],
                "phase": [phase for _, phase in rows],
            },
            "Modules",
        )

    def by_line(self) -> Table:
        stacks = self.operators.forward_values("stack")
        return self.grouped(
            list(self.context.stacks.lines(stacks, self.context.strings)),
            lambda rows: {
                "line": [str(row) if row else "(no Python line)" for row in rows],
                "file": [row.file if row else None for row in rows],
            },
            "Python lines",
        )


@dataclass
class _Line:
    """Outermost operators called from a line, without first calls; times in ns."""

    frame: Frame
    calls: int = 0
    time: int = 0  # with inner operators
    longest: int = 0  # part of the longest call of each node, and the longest gap of each place
    longest_calls: int = 0
    convert_calls: int = 0
    convert_time: int = 0
    init_calls: int = 0
    init_time: int = 0
    init_last: int = 0
    phases: set[str] = field(default_factory=set)


@dataclass
class _Wait:
    """Waits for a device in one operator called from a line, without first calls."""

    waits: int = 0
    time: int = 0
    reads: int = 0  # copies of values to the host


class _Findings:
    """Findings from host times: time outside operators, waits, short operators."""

    def __init__(self, tool: Operators, tree: _Tree) -> None:
        self.tool, self.tree = tool, tree
        self.nodes, self.steady = tree.nodes, tree.steady
        self.device = int(tree.counts["device_time"].sum())
        context = tool.context
        stacks = context.operators.forward_values("stack").tolist()
        self.frames = user_lines(context)
        self.stacks = stacks
        self.names = tree._names()
        parents = self.nodes["parent"].tolist()
        self.roots = list(range(len(parents)))  # outermost node around each node
        for node, parent in enumerate(parents):
            if parent:
                self.roots[node] = self.roots[parent]

    def findings(self) -> Iterator[Finding]:
        if not self.steady or self.steady < self.tool.least_time:
            return
        for place in self.tree.places:
            yield from self._outside(place)
        yield from self._waits()
        lines = self._lines()
        yield from self._rebuilt_modules(lines)
        for line in lines:
            yield from self._converted(line)
            yield from self._short(line)

    def _gain(self, time: int) -> float:
        """Gain if the host saves `time`, bounded by the device's idle time, as a share."""
        return min(time, max(0, self.steady - self.device)) / self.steady

    def _outside(self, place: GapSite) -> Iterator[Finding]:
        tool = self.tool
        if place.after is None or place.backward > place.lines.total():
            return  # a thread without Python was running, such as the autograd thread
        gain = self._gain(place.steady)
        if gain < tool.outside_share or place.repeats < tool.outside_gaps:
            return
        if place.steady < tool.outside_gap * place.repeats:
            return
        if place.waited * 3 >= place.steady or place.waits >= place.count > place.waited:
            return  # waits are a separate finding
        line = place.line
        if place.loader:
            what = "the program waits for data loading"
            running = line or place.after
            where = str(place.loader)
            where += f", loading at {running}" if running != place.loader else ""
            remedy = (
                f"{place.loader}: use more DataLoader workers (num_workers, prefetch_factor), "
                "or do less work for each item"
                if place.workers
                else f"{place.loader}: let the DataLoader load during the step: DataLoader(…, "
                "num_workers=4, persistent_workers=True, pin_memory=True)"
            )
        else:
            what = "much time is spent outside operators"
            where = f"{line} ({place.between})" if line else place.between
            remedy = (
                f"{line or place.after}: do this less often, or concurrently in a thread or "
                "DataLoader worker"
            )
        found = ""
        if line:
            found = f"; {place.lines[line]:,} of {counted(place.lines.total(), 'sample')} at {line}"
        between_threads = place.handed * 2 > place.count and not line
        yield Finding(
            what=what,
            where=where,
            evidence=f"{formatted(place.steady, 'ns')} of {formatted(self.steady, 'ns')} "
            f"without start-up, in {counted(place.repeats, 'gap')} of "
            f"{formatted(place.steady / place.repeats, 'ns')} without an operator"
            f"{found}",
            remedy=remedy,
            gain=gain,
            of="host time",
            confidence="low" if between_threads else "high" if line or place.loader else "medium",
        )

    def _waits(self) -> Iterator[Finding]:
        """Lines that wait for the device many times: host and device do not overlap."""
        counts, tree = self.tree.counts, self.tree
        found: dict[tuple[str, Frame | None], _Wait] = {}
        for node in np.flatnonzero(counts["steady_waits"] + counts["reads"]).tolist():
            if not node:
                continue
            wait = found.setdefault((self.names[self.roots[node]], self.frames[node]), _Wait())
            wait.waits += int(counts["steady_waits"][node])
            wait.time += int(counts["steady_wait_time"][node])
            reads = int(counts["reads"][node])
            copying = reads * _MIN_COPY_TIME + int(counts["read_bytes"][node] / _COPY_RATE)
            wait.reads += reads
            if reads and not counts["steady_waits"][node]:
                wait.time += max(0, int(tree.steady_own[node]) - copying)
        for (name, frame), wait in found.items():
            number = max(wait.waits, wait.reads)
            words = ("read of a value", "reads of values") if wait.reads else ("wait", "waits")
            how = counted(number, *words)
            where = f"{name} at {frame}" if frame else name
            yield from self._wait(where, frame, number, wait.time, how)
        for place in tree.places:
            if place.waits:
                frame = place.line or place.before or place.after
                where = f"outside operators, {place.between}"
                how = (
                    f"{counted(place.waits, 'wait')} in {counted(place.repeats, 'gap')}"
                    " between operators"
                )
                if not place.waited:
                    how += ", each at most as long as its gap"
                yield from self._wait(
                    where, frame, place.repeats, place.waited or place.steady, how
                )

    def _wait(
        self, where: str, frame: Frame | None, number: int, time: int, how: str
    ) -> Iterator[Finding]:
        # at best the host works during its current waits, and no longer waits
        saved = min(time, max(0, self.steady - time)) / self.steady
        if number < self.tool.waits or saved < self.tool.wait_share:
            return
        line = f"{frame}: " if frame else ""
        yield Finding(
            what="the host waits for the device repeatedly",
            where=where,
            evidence=f"{how}, {formatted(time, 'ns')} of {formatted(self.steady, 'ns')} "
            "without start-up; the host submits nothing while it waits, and the "
            "device is idle until the next launch",
            remedy=f"{line}remove the wait, or keep values on the device and read them every 100"
            " steps",
            gain=saved,
            of="host time",
        )

    def _lines(self) -> list[_Line]:
        """Lines of the program that call operators of the forward pass, by their time."""
        nodes, context = self.nodes, self.tool.context
        found: dict[Frame, _Line] = {}
        steady = nodes["total"] - nodes["first_total"]
        crossings = np.zeros(len(nodes), np.int64)
        np.add.at(crossings, self.roots, self.tree.counts["crossings"])
        for node in np.flatnonzero(nodes["parent"] == 0).tolist():
            frame = self.frames[node]
            if not node or frame is None:
                continue
            line = found.setdefault(frame, _Line(frame))
            calls, time = int(nodes["calls"][node]) - 1, int(steady[node])
            line.calls += calls
            line.time += time
            if calls > 0:
                line.longest += int(nodes["longest"][node])
                line.longest_calls += 1
            line.phases.add(self.tree.phases[node])
            if self.names[node] in _CONVERSIONS and not crossings[node]:
                line.convert_calls += calls
                line.convert_time += time
            if context.stacks.calls(self.stacks[node], _INIT_FUNCTION, context.strings):
                line.init_calls += calls
                line.init_time += time
                line.init_last = max(line.init_last, int(nodes["last"][node]))
        for place in self.tree.places:  # Python time between two operators of a line
            if place.before is not None and place.before == place.after and place.before in found:
                found[place.before].time += place.steady
                found[place.before].longest += place.longest_repeat
        return sorted(found.values(), key=lambda line: -line.time)

    def _converted(self, line: _Line) -> Iterator[Finding]:
        gain = self._gain(line.convert_time)
        if line.convert_calls < self.tool.waits or gain < self.tool.convert_share:
            return
        yield Finding(
            what="tensors are converted or copied repeatedly",
            where=str(line.frame),
            evidence=f"{line.convert_calls:,} calls that change the type or layout of a "
            f"tensor take {formatted(line.convert_time, 'ns')} of "
            f"{formatted(self.steady, 'ns')} without start-up",
            remedy=f"{line.frame}: convert once, before the loop, if the tensor does not "
            "change; otherwise create it with the type and layout in which it is used",
            gain=gain,
            of="host time",
        )

    def _short(self, line: _Line) -> Iterator[Finding]:
        # without the longest ones: one during which the machine paused is not short, the others are
        time, calls = line.time - line.longest, line.calls - line.longest_calls
        gain = self._gain(time)
        if calls < self.tool.short_calls or time > self.tool.short * calls:
            return
        if gain < self.tool.short_share or line.phases != {"forward"}:
            return
        yield Finding(
            what="many short operators",
            where=str(line.frame),
            evidence=f"{calls:,} operators of {formatted(time / calls, 'ns')} "
            "each, with the Python code between them, take "
            f"{formatted(time, 'ns')} of {formatted(self.steady, 'ns')} without "
            "start-up, mostly call overhead",
            remedy=f"{line.frame}: process many rows or samples per call (a larger batch), or "
            "compile the enclosing function with torch.compile",
            gain=gain,
            of="host time",
        )

    def _rebuilt_modules(self, lines: list[_Line]) -> Iterator[Finding]:
        """Parameters initialised while the program already trains or infers."""
        nodes = self.nodes
        working = (nodes["module"] != 0) | (self.tool.context.operators.backward)
        if not working.any():
            return
        began = int(nodes["began"][working].min())
        for line in lines:
            gain = self._gain(line.init_time)
            if line.init_calls < self.tool.waits or line.init_last < began or gain < 0.1:
                continue
            yield Finding(
                what="a module is built repeatedly",
                where=str(line.frame),
                evidence=f"its parameters were initialised {line.init_calls:,} times after it "
                f"was first built, in {formatted(line.init_time, 'ns')} of "
                f"{formatted(self.steady, 'ns')} without start-up",
                remedy=f"{line.frame}: build the module and its optimizer before the loop",
                gain=gain,
                of="host time",
                confidence="high",
            )
