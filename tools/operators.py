"""Where a framework's operators spend time, launch kernels and allocate memory: by operator, module
and Python line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.codes import grown
from pasta.processors.correlate import OPTIMIZER_STEP, LaunchWindow
from pasta.processors.operator_names import NO_OPERATOR
from pasta.table import Table, Unit, absent_where, formatted, shares
from pasta.tool import Finding, Result, Tool, option

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch

#: What is counted for each operator, in the operators called from it too or not.
_COUNTS = (
    "launches",
    "device_time",
    "allocated",
    "allocations",
    "waits",
    "wait_time",
    "synchronous_copies",
)
#: Directions of copies that the host may wait for.
_CROSSING = frozenset({"host_to_device", "device_to_host"})
_UNITS: dict[str, Unit] = {
    "host_time": "ns",
    "own_time": "ns",
    "device_time": "ns",
    "wait_time": "ns",
    "allocated": "bytes",
    "share": "share",
}


class Operators(Tool):
    """Host time, launches, device time and memory by operator, module and Python line."""

    needs_operators = True
    needs_allocations = True
    needs_ranges = True
    uses = ("wait_times",)
    least_time = option(
        "10ms", kind="duration", help="host time in operators from which there are findings"
    )
    host_share = option(
        0.25, help="share of it, outside of kernels and waits, that is a finding", minimum=0.0
    )
    waits = option(10, help="waits for a device in an operator that are a finding", minimum=1)
    wait_share = option(0.05, help="…if they are this share of the host time", minimum=0.0)
    top = option(15, help="rows of each table in the text report; the tables have all", minimum=1)

    def start(self) -> None:
        self.counts = {name: np.zeros(1024, np.int64) for name in _COUNTS}
        self.steps = np.zeros(1024, bool)  # nodes that an optimizer's step called
        self.window = LaunchWindow()
        self.launches = 0

    def _add(self, name: str, nodes: NDArray[Any], amounts: NDArray[Any] | None = None) -> None:
        self.counts[name] = grown(self.counts[name], len(self.context.operators.nodes))
        length = len(self.counts[name])
        if amounts is None:
            self.counts[name] += np.bincount(nodes, minlength=length)
        else:
            np.add.at(self.counts[name], nodes, amounts)

    def on_batch(self, batch: Batch) -> None:
        operators = self.context.operators
        begins = batch["operator_begin"]
        outermost = np.flatnonzero(begins["depth"] == 1)
        of_step = self.context.ranges.within(
            begins[outermost], OPTIMIZER_STEP, self.context.strings
        )
        self.steps = grown(self.steps, len(operators.nodes))
        self.steps[operators.began[outermost[of_step]]] = True
        new = batch["tensor_alloc"]
        nodes = operators.at(new)
        self._add("allocations", nodes)
        self._add("allocated", nodes, new["bytes"].astype(np.int64))

    def on_launches(self, launches: NDArray[Any]) -> None:
        nodes = self.context.operators.at(launches)
        self.launches += len(nodes)
        self._add("launches", nodes)
        self.window.put(launches["ordinal"], nodes + 1)

    def on_completions(self, completions: NDArray[Any]) -> None:
        nodes = self.window.get(completions["ordinal"]) - 1
        start, end = completions["start"], completions["end"]
        good = (nodes >= 0) & (end >= start) & (end != np.iinfo(np.uint64).max)
        self._add("device_time", nodes[good], (end[good] - start[good]).astype(np.int64))

    def on_copies(self, copies: NDArray[Any]) -> None:
        from pasta import abi

        crossing = [number for number, name in abi.ENUMS["copy"].items() if name in _CROSSING]
        waiting = np.isin(copies["direction"], crossing)
        waiting &= (copies["flags"] & abi.FLAG_ASYNC) == 0
        self._add("synchronous_copies", self.context.operators.at(copies)[waiting])

    def on_syncs(self, syncs: NDArray[Any]) -> None:
        nodes = self.context.operators.at(syncs)
        timed = syncs["duration"] != np.iinfo(np.uint64).max
        self._add("waits", nodes)
        self._add("wait_time", nodes[timed], syncs["duration"][timed].astype(np.int64))

    def result(self) -> Result:
        tree = _Tree(self)
        tables = {
            "operators": tree.by_operator(),
            "modules": tree.by_module(),
            "lines": tree.by_line(),
        }
        findings = list(tree.findings(self, tables["operators"]))
        return Result(summary=self._summary(tree), tables=tables, findings=findings)

    def _summary(self, tree: _Tree) -> str:
        calls = int(tree.nodes["calls"].sum())
        if not calls:
            return (
                "no operator of a framework was seen: "
                "PyTorch is followed in programs that import it after they were started"
            )
        outer = tree.nodes["parent"] == 0
        parts = [
            f"{calls:,} operators, {int(tree.nodes['calls'][outer].sum()):,} of them outermost,"
            f" {formatted(int(tree.nodes['own'].sum()), 'ns')} of host time"
        ]
        if self.launches:
            share = 1 - int(tree.counts["launches"][0]) / self.launches
            parts.append(f"{self.launches:,} launches, {share:.2%} of them by operators")
        allocated = int(tree.counts["allocated"].sum())
        if allocated:
            parts.append(f"{formatted(allocated, 'bytes')} allocated")
        return "; ".join(parts)


class _Tree:
    """The nodes of a run, with what was counted for each."""

    def __init__(self, tool: Operators) -> None:
        self.context, self.top = tool.context, tool.top
        self.operators = tool.context.operators
        self.nodes = self.operators.nodes
        length = len(self.nodes)
        self.counts = {name: grown(each, length)[:length] for name, each in tool.counts.items()}
        step = self.operators.within(grown(tool.steps, length)[:length])
        phases = np.where(
            step, "optimizer", np.where(self.operators.backward, "backward", "forward")
        )
        self.phases = phases.tolist()

    def grouped(
        self, keys: list[Any], columns: Callable[[list[Any]], dict[str, Any]], title: str
    ) -> Table:
        """A row for each key that nodes have, by own time and what operators count themselves."""
        codes: dict[Any, int] = {}
        code = np.asarray([codes.setdefault(key, len(codes)) for key in keys], np.int64)
        nodes = self.nodes

        def summed(values: NDArray[Any], chosen: NDArray[Any] | slice = slice(None)) -> Any:
            sums = np.zeros(len(codes), np.int64)
            np.add.at(sums, code[chosen], values[chosen])
            return sums

        # what is called from the same key is in it already
        outer = self.operators.first_of(code)
        counted = {name: summed(values) for name, values in self.counts.items()}
        own = summed(nodes["own"])
        weight = counted["device_time"] if counted["device_time"].any() else own
        calls = summed(nodes["calls"], outer)
        order = np.lexsort((-own, -weight))
        something = calls + sum(counted.values()) > 0
        order = order[something[order]]
        rows = list(codes)
        untimed = counted["device_time"] == 0
        rows_of = columns([rows[at] for at in order.tolist()])
        found = {
            **rows_of,
            "calls": calls[order],
            "own_time": own[order],
            "host_time": summed(nodes["total"], outer)[order],
            "launches": counted["launches"][order],
            "device_time": absent_where(counted["device_time"][order], untimed[order]),
            "allocations": counted["allocations"][order],
            "allocated": counted["allocated"][order],
            "waits": counted["waits"][order],
            "wait_time": counted["wait_time"][order],
            "synchronous_copies": counted["synchronous_copies"][order],
            "share": shares(weight, weight.sum())[order],
        }
        hidden = {"allocations", "file"} & set(found) | {
            name for name in _COUNTS if not counted[name].any()
        }
        return Table(
            found,
            units=_UNITS,
            labels={
                "own_time": "own host time",
                "host_time": "with operators inside",
                "waits": "waits for devices",
                "wait_time": "time of waits",
                "synchronous_copies": "copies that wait",
                "share": "of device time" if counted["device_time"].any() else "of own host time",
            },
            keys=[name for name in rows_of if name != "file"],
            sums=("calls", "own_time", *_COUNTS),
            title=title,
            shown=self.top,
            hidden=frozenset(hidden),
        )

    def findings(self, tool: Operators, operators: Table) -> Iterator[Finding]:
        """The operator that the host spends most time in, and those that wait for devices."""
        host = int(self.nodes["own"].sum())
        if not host or host < tool.least_time:
            return
        rows = list(operators.rows())
        device = int(self.counts["device_time"].sum())
        if device < host:  # else the host is waited for by nobody
            yield from self._host_bound(tool, rows, host, device)
        for row in rows:
            if max(row["waits"], row["synchronous_copies"]) < tool.waits:
                continue
            # how long a synchronous copy waits is not told: not longer than its operator takes
            waited = row["own_time"] if row["synchronous_copies"] else row["wait_time"]
            if waited < tool.wait_share * host:
                continue
            yield Finding(
                what="an operator waits for the device",
                where=self._place(
                    row, "synchronous_copies" if row["synchronous_copies"] else "waits"
                ),
                evidence=f"{_waits(row)}, of {formatted(host, 'ns')} of host time in operators",
                remedy="read values (.item(), .cpu(), if tensor:) less often, or later",
                gain=waited / host,
                of="host time in operators",
                confidence="low" if row["synchronous_copies"] else "medium",
            )

    def _host_bound(
        self, tool: Operators, rows: list[dict[str, Any]], host: int, device: int
    ) -> Iterator[Finding]:
        def outside(row: dict[str, Any]) -> int:
            """Host time of an operator's own in which neither it waits nor its kernels run."""
            return int(row["own_time"] - row["wait_time"] - (row["device_time"] or 0))

        most = max(
            (row for row in rows if not row["synchronous_copies"]), key=outside, default=None
        )
        if most is None:
            return
        if outside(most) <= 0 or outside(most) < tool.host_share * host:
            return
        kernels = f", its kernels take {formatted(most['device_time'] or 0, 'ns')}"
        yield Finding(
            what="an operator takes much of the host's time",
            where=self._place(most, "own"),
            evidence=f"{formatted(most['own_time'], 'ns')} in {most['calls']:,} calls, of"
            f" {formatted(host, 'ns')} in all operators{kernels if device else ''}",
            remedy="call it less often, on larger tensors, or compile what is around it",
            gain=outside(most) / host,
            of="host time in operators",
            confidence="medium" if device else "low",
        )

    def _place(self, row: dict[str, Any], weight: str) -> str:
        """An operator with the Python line that most of a weight is of."""
        names = self._names()
        mine = np.asarray(
            [(name, phase) == (row["operator"], row["phase"])
             for name, phase in zip(names, self.phases, strict=True)], bool
        )  # fmt: skip
        values = self.nodes["own"] if weight == "own" else self.counts[weight]
        sums: dict[Any, int] = {}
        nodes = np.flatnonzero(mine)
        lines = self.context.stacks.lines(
            self.operators.of_forward("stack")[nodes], self.context.strings
        )
        for line, value in zip(lines, values[nodes].tolist(), strict=True):
            sums[line] = sums.get(line, 0) + value
        line = max(sums, key=sums.__getitem__)
        return f"{row['operator']} ({row['phase']})" + (f" at {line}" if line else "")

    def _names(self) -> list[str]:
        names = self.context.strings.many(self.nodes["name"])
        names[0] = NO_OPERATOR
        return names

    def by_operator(self) -> Table:
        return self.grouped(
            list(zip(self._names(), self.phases, strict=True)),
            lambda rows: {
                "operator": [name for name, _ in rows],
                "phase": [phase for _, phase in rows],
            },
            "Operators",
        )

    def by_module(self) -> Table:
        texts = self.context.strings
        modules = [texts[id] if id else "" for id in self.operators.of_forward("module").tolist()]
        return self.grouped(
            list(zip(modules, self.phases, strict=True)),
            lambda rows: {
                "module": [module or "(no module)" for module, _ in rows],
                "phase": [phase for _, phase in rows],
            },
            "Modules",
        )

    def by_line(self) -> Table:
        stacks = self.operators.of_forward("stack")
        return self.grouped(
            list(self.context.stacks.lines(stacks, self.context.strings)),
            lambda rows: {
                "line": [str(row) if row else "(no Python line)" for row in rows],
                "file": [row.file if row else None for row in rows],
            },
            "Python lines",
        )


def _waits(row: dict[str, Any]) -> str:
    """What an operator waits for, in words."""
    parts = []
    if row["waits"]:
        parts.append(f"{row['waits']:,} waits of {formatted(row['wait_time'], 'ns')}")
    if row["synchronous_copies"]:
        own = formatted(row["own_time"], "ns")
        parts.append(f"{row['synchronous_copies']:,} synchronous copies in {own} of its own")
    return ", ".join(parts)
