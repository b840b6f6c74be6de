"""Collectives: bytes sent between devices, bandwidth, and work that waited for them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.activity import COMMUNICATION
from pasta.processors.arrivals import Arrivals, Thresholds, arrival, channel_of
from pasta.processors.batch import ABSENT_U64
from pasta.processors.collectives import (
    NONE,
    CommunicationCalls,
    Joined,
    Units,
    link_bandwidths,
    operations,
)
from pasta.processors.demangle import short_name
from pasta.processors.device_use import FOLLOWED, DeviceUse
from pasta.processors.operator_names import GROUP_KEYS, OperatorGroups
from pasta.table import Column, Figure, Table, absent_where, counted, formatted, shares
from pasta.tool import Finding, Result, Tool, option

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch

#: Operations in the names of kernels.
_IN_NAMES = re.compile(
    r"(AllReduce|AllGather|ReduceScatter|Broadcast|SendRecv|AlltoAll|AllToAll|Reduce)"
)
#: Columns that are empty without device times.
_TIMES = ("time", "share", "mean", "algorithm", "bus", "alone", "alone_share", "link")
_KERNELS = "communication kernels"
_OF_WHOLE = "the time from first to last work"


class _Sums:
    """Amounts of units by group: calls, bytes and, of the timed ones, times."""

    def __init__(self, units: Units, groups: NDArray[Any]) -> None:
        timed, length = units.timed, int(groups.max(initial=-1)) + 1

        def total(values: NDArray[Any]) -> NDArray[Any]:
            # floats are exact: sums are below 2**53
            return np.bincount(groups, values.astype(np.float64), length)

        self.calls = total(units.calls).astype(np.int64)
        self.units = np.bincount(groups, minlength=length)
        self.bytes = total(units.bytes).astype(np.int64)
        self.timed = np.bincount(groups, timed, length).astype(np.int64)
        self.time = total(np.where(timed, units.time, 0)).astype(np.int64)
        self.alone = total(np.where(timed, units.alone, 0)).astype(np.int64)
        #: Time of the fastest, which waited least for other ranks.
        self.least = np.full(length, np.iinfo(np.int64).max)
        np.minimum.at(self.least, groups[timed], units.time[timed])
        self._moved = total(np.where(timed, units.bytes, 0))
        self._carried = total(np.where(timed, units.bus, 0))  # NaN where one is

    def masked(self, values: NDArray[Any]) -> Column:
        """Values of times, absent where no unit is timed."""
        return absent_where(values, self.timed == 0)

    @property
    def algorithm(self) -> NDArray[Any]:
        """GB/s (bytes per ns) of the operations' sizes."""
        return np.asarray(self._moved / np.maximum(self.time, 1))

    @property
    def bus(self) -> NDArray[Any]:
        """GB/s that each link carries at least; NaN: unknown."""
        return np.asarray(self._carried / np.maximum(self.time, 1))


class Collectives(Tool):
    """Collectives between devices: bytes, bandwidth, overlap with other work, late ranks."""

    title = "Collectives"
    topic = "time"

    needs = ("operators",)
    uses = ("kernel_complete",)

    communication = option(
        r"\b(nccl|rccl|nvshmem|rocshmem|oneccl)",
        kind="regex",
        help="names of communication kernels",
    )
    link_bandwidth = option(
        0.0, help="bandwidth of a device's links in one direction in GB/s, to compare with; "
                  "0: as the driver reports", minimum=0.0,
    )  # fmt: skip
    calls = option(1_000_000, help="maximum number of calls in the table of all calls", minimum=0)
    small = option("1MiB", kind="bytes", help="finding: operations up to this size count as small")
    small_calls = option(100, help="… minimum number of them", minimum=1)
    slow_share = option(
        0.5, help="finding: large operations below this share of the links' bandwidth", minimum=0.0
    )
    last_share = option(
        0.5,
        help="finding: minimum share of operations in which the same rank comes last",
        minimum=0.0,
    )
    least_share = option(
        0.02, help="finding: minimum share of the time from first to last work", minimum=0.0
    )
    least_time = option("10ms", kind="duration", help="… and minimum time")

    def start(self) -> None:
        """Nothing was called yet."""
        self.of = CommunicationCalls()
        self.links: dict[int, int] = {}
        self.use = DeviceUse(
            self.context.process.start_time, 0, 0, re.compile(self.communication), COMMUNICATION
        )

    def on_batch(self, batch: Batch) -> None:
        """Add calls, and the work of devices."""
        self.use.add(batch, self.context)
        self.of.add(batch, self.context)
        self.links.update(link_bandwidths(batch))

    # ---- results ----

    def result(self) -> Result:
        """Tables of operations, communicators, operators and calls, and findings."""
        self.use.finish()
        alone = [each for of in self.use.devices.values() for each in of.activity.alone]
        nothing = np.zeros(0, [("key", "u8"), ("time", "i8")])
        joined = self.of.joined(
            np.concatenate([np.zeros(0, FOLLOWED), *self.use.followed]),
            np.concatenate([nothing, *alone]),
        )
        self.names = self._communicator_names()
        self.link = self._link()
        self.span = max((device.span for device in self.use.devices.values()), default=0)
        table, kinds, sums = self._operations(joined)
        tables = {"collectives": table, "communicators": self._communicators(joined)}
        if len(self.context.operators.nodes) > 1:
            tables["operators"] = self._operators(joined)
            tables["framework"] = self._framework()
        if joined.unclaimed.any():
            tables["kernels"] = self._kernels(joined)
        arrivals = self._arrivals(joined)
        if len(arrivals):
            tables.update(arrivals.tables())
        tables["calls"] = self._calls(joined)
        limits = Thresholds(self.last_share, self.least_time, self.least_share)
        findings = [
            *arrivals.findings(limits), *self._small(kinds, sums), *self._slow(kinds, sums),
        ]  # fmt: skip
        return Result(
            summary=self._summary(joined),
            tables={name: each for name, each in tables.items() if len(each)},
            findings=sorted(findings, key=lambda each: -each.rank),
            figures=self._figures(kinds, sums),
            notes=list(self._notes(joined)),
        )

    def _communicator_names(self) -> dict[int, str]:
        """Names of communicators by number: several ranks of one in this process share its name."""
        names: dict[int, str] = {}
        by_id: dict[int, str] = {}
        for number, each in sorted(self.of.communicators.items()):
            ranks = counted(each.size, "rank") if each.size != NONE else "unknown ranks"
            name = f"#{len(set(names.values())) + 1}, {ranks}"
            names[number] = name if each.id == ABSENT_U64 else by_id.setdefault(each.id, name)
        return names

    def _link(self) -> float:
        """GB/s of a device's links in one direction, of the slowest one that has a communicator; 0:
        unknown."""
        members = {each.device for each in self.of.communicators.values()}
        of_members = [each for device, each in self.links.items() if device in members]
        return self.link_bandwidth or min(of_members or self.links.values(), default=0) / 1000

    def _name(self, number: int) -> str:
        return self.names.get(number, "unknown")

    def _operations(self, joined: Joined) -> tuple[Table, list[tuple[str, str, int]], _Sums]:
        """Units by operation, communicator and size, with these three and their sums."""
        units, names = joined.units, {number: name for name, number in operations().items()}
        # the number of the power of two that a size does not exceed
        size = np.ceil(np.log2(np.maximum(units.bytes, 1))).astype(np.int64)
        labels = sorted({self._name(number) for number in np.unique(units.communicator).tolist()})
        known = np.unique(units.communicator)
        label = np.asarray([labels.index(self._name(each)) for each in known.tolist()], np.int64)
        codes = label[np.searchsorted(known, units.communicator)] if len(known) else units.calls
        keys, groups = np.unique((codes * 256 + units.operation) * 64 + size, return_inverse=True)
        kinds = [
            (names[key // 64 % 256], labels[key // 64 // 256], 1 << key % 64)
            for key in keys.tolist()
        ]
        sums = _Sums(units, groups)
        order = np.lexsort((np.arange(len(keys)), -sums.bytes, -sums.time))
        rows = [kinds[at] for at in order.tolist()]
        columns: dict[str, Column] = {
            "operation": [name for name, *_ in rows],
            "communicator": [name for _, name, _ in rows],
            "size": np.asarray([size for *_, size in rows], np.int64),
            "calls": sums.calls[order],
            "bytes": sums.bytes[order],
            "time": sums.masked(sums.time)[order],
            "share": sums.masked(shares(sums.time, sums.time.sum()))[order],
            "mean": sums.masked(sums.time // np.maximum(sums.timed, 1))[order],
            "algorithm": sums.masked(sums.algorithm)[order],
            "bus": absent_where(sums.bus, (sums.timed == 0) | np.isnan(sums.bus))[order],
            "alone": sums.masked(sums.alone)[order],
            "alone_share": sums.masked(sums.alone / np.maximum(sums.time, 1))[order],
        }
        if self.link:
            columns["link"] = columns["bus"] / self.link
        labels_of = {
            "size": "up to", "share": "of total time", "algorithm": "algorithm GB/s",
            "bus": "bus GB/s", "link": "of the link", "alone": "nothing else ran",
            "alone_share": "of the time",
        }  # fmt: skip
        table = Table(
            columns,
            units={
                "size": "bytes", "bytes": "bytes", "time": "ns", "share": "share", "mean": "ns",
                "alone": "ns", "alone_share": "share",
                **({"link": "share"} if self.link else {}),
            },
            labels={name: text for name, text in labels_of.items() if name in columns},
            keys=("operation", "communicator", "size"),
            sums=("calls", "bytes", "time", "alone"),
            levels=("mean", "algorithm", "bus"),
            important=("time", "bus", "alone"),
            title="Operations by communicator and size",
            hidden=frozenset() if sums.timed.any() else frozenset(_TIMES),
            shown=20,
        )  # fmt: skip
        return table, kinds, sums

    def _communicators(self, joined: Joined) -> Table:
        units = joined.units
        numbers = sorted(self.of.communicators)
        if not numbers:
            return Table({})
        at = np.searchsorted(numbers, units.communicator)
        found = np.isin(units.communicator, numbers)
        sums = _Sums(units, np.where(found, at, len(numbers)))
        of = [self.of.communicators[number] for number in numbers]
        size = len(numbers)

        def padded(values: NDArray[Any]) -> NDArray[Any]:
            return np.pad(values, (0, max(0, size - len(values))))[:size]

        return Table(
            {
                "communicator": [self._name(number) for number in numbers],
                "member": [_known(each.rank) for each in of],
                "ranks": [_known(each.size) for each in of],
                "device": [_known(each.device) for each in of],
                "from": [self.names.get(each.parent) for each in of],
                "library": [each.library or None for each in of],
                "calls": padded(sums.calls),
                "bytes": padded(sums.bytes),
                "time": absent_where(padded(sums.time), padded(sums.timed) == 0),
                "alone": absent_where(padded(sums.alone), padded(sums.timed) == 0),
            },
            units={"bytes": "bytes", "time": "ns", "alone": "ns"},
            labels={"member": "rank in it", "from": "split from", "alone": "nothing else ran"},
            keys=("communicator", "member"),
            sums=("calls", "bytes", "time", "alone"),
            levels=(),
            important=("time", "bytes"),
            title="Communicators",
        )

    def _operators(self, joined: Joined) -> Table:
        """Units by the framework operator that made the first call, and by operation."""
        units, of = joined.units, OperatorGroups(self.context)
        names = {number: name for name, number in operations().items()}
        keys, groups = np.unique(of.codes[units.node] * 256 + units.operation, return_inverse=True)
        sums = _Sums(units, groups)
        order = np.lexsort((np.arange(len(keys)), -sums.bytes, -sums.time))
        keys = keys[order]
        return Table(
            {
                **of.columns(keys // 256),
                "operation": [names[key % 256] for key in keys.tolist()],
                "calls": sums.calls[order],
                "bytes": sums.bytes[order],
                "time": sums.masked(sums.time)[order],
                "bus": absent_where(sums.bus, (sums.timed == 0) | np.isnan(sums.bus))[order],
                "alone": sums.masked(sums.alone)[order],
            },
            units={"bytes": "bytes", "time": "ns", "alone": "ns"},
            labels={"bus": "bus GB/s", "alone": "nothing else ran"},
            keys=(*GROUP_KEYS, "operation"),
            sums=("calls", "bytes", "time", "alone"),
            levels=("bus",),
            hidden=frozenset({"file"}),
            important=("time", "bytes"),
            title="Operations by the operator that called them",
        )

    def _framework(self) -> Table:
        """Operators of the framework that communicate, whatever the library."""
        nodes = self.context.operators.nodes
        prefixes = self.context.conventions.communication
        texts = self.context.strings.many(nodes["name"])
        mine = np.asarray(
            [at for at, text in enumerate(texts) if text.startswith(prefixes)], np.int64
        ) if prefixes else np.zeros(0, np.int64)  # fmt: skip
        of = OperatorGroups(self.context)
        keys, at = np.unique(of.codes[mine], return_inverse=True)
        calls = np.bincount(at, nodes["calls"][mine], len(keys)).astype(np.int64)
        time = np.bincount(at, nodes["total"][mine], len(keys)).astype(np.int64)
        order = np.argsort(-time, kind="stable")
        return Table(
            {**of.columns(keys[order]), "calls": calls[order], "host_time": time[order]},
            units={"host_time": "ns"},
            keys=GROUP_KEYS,
            sums=("calls", "host_time"),
            hidden=frozenset({"file"}),
            title="Framework operators that communicate",
        )

    def _kernels(self, joined: Joined) -> Table:
        """Kernels of no recorded call: of graphs, of threads of the library, of calls not seen."""
        mine = joined.kernels[joined.unclaimed]
        ids, at = np.unique(mine["name"], return_inverse=True)
        names = self.context.demangled(ids)
        count = np.bincount(at)
        time = np.bincount(at, mine["end"] - mine["start"]).astype(np.int64)
        alone = np.bincount(at, joined.alone[joined.unclaimed]).astype(np.int64)
        order = np.argsort(-time, kind="stable").tolist()
        return Table(
            {
                "kernel": [short_name(names[each]) for each in order],
                "operation": [_operation_in(names[each]) for each in order],
                "launches": count[order],
                "time": time[order],
                "alone": alone[order],
            },
            units={"time": "ns", "alone": "ns"},
            labels={"alone": "nothing else ran"},
            keys=("kernel",),
            sums=("launches", "time", "alone"),
            important=("time", "launches"),
            title="Communication kernels without a recorded call",
        )

    def _calls(self, joined: Joined) -> Table:
        """Every call, from which `pasta merge` finds what ranks wait for."""
        rows = joined.calls[: self.calls]
        units, unit = joined.units, joined.unit[: self.calls]
        member, size = joined.member[: self.calls], joined.size[: self.calls]
        names = {number: name for name, number in operations().items()}
        begin = self.context.process.start_time
        known = units.timed[unit]
        strings = dict.fromkeys(np.unique(rows["type"]).tolist())
        types = {each: self.context.strings[each] or None for each in strings}
        ids = {number: each.id for number, each in self.of.communicators.items()}
        numbers, at = np.unique(rows["communicator"], return_inverse=True)
        id = np.asarray([ids.get(each, ABSENT_U64) for each in numbers.tolist()], np.uint64)
        labels = [self._name(each) for each in numbers.tolist()]
        return Table(
            {
                "operation": [names[each] for each in rows["operation"].tolist()],
                "communicator": [labels[each] for each in at.tolist()],
                "order": absent_where(rows["order"], rows["order"] < 0),
                "peer": absent_where(rows["peer"], rows["peer"] < 0),
                "bytes": joined.bytes[: self.calls],
                "type": [types[each] for each in rows["type"].tolist()],
                "begin": rows["begin"] - begin,
                "start": absent_where(units.start[unit] - begin, ~known),
                "end": absent_where(units.end[unit] - begin, ~known),
                "id": absent_where(id[at], id[at] == ABSENT_U64),
                "member": absent_where(member, member < 0),
                "ranks": absent_where(size, size < 0),
            },
            units={"bytes": "bytes", "begin": "ns", "start": "ns", "end": "ns", "id": "address"},
            labels={"peer": "root or peer", "begin": "called", "start": "started", "end": "ended",
                    "member": "rank in communicator"},
            keys=(),
            sums=(),
            levels=(),
            title="Calls, since the start of the process",
            shown=0,
        )  # fmt: skip

    def _arrivals(self, joined: Joined) -> Arrivals:
        """Arrivals of ranks that are in this process."""
        calls, of = joined.calls, self.of.communicators
        rows = np.zeros(len(calls), arrival())
        numbers, at = np.unique(calls["communicator"], return_inverse=True)
        ids = [of[each].id if each in of else ABSENT_U64 for each in numbers.tolist()]
        rows["id"] = np.asarray(ids, np.uint64)[at]
        for name in ("order", "operation", "type"):
            rows[name] = calls[name]
        rows["root"], rows["bytes"] = calls["peer"], joined.bytes
        rows["member"], rows["size"] = joined.member, joined.size
        kinds = operations()
        sends, receives = (calls["operation"] == kinds[name] for name in ("send", "recv"))
        rows["channel"] = channel_of(sends, receives, joined.member, calls["peer"])
        started, ended = joined.units.start[joined.unit], joined.units.end[joined.unit]
        rows["start"] = np.where(started >= 0, started, calls["begin"])
        rows["end"] = ended
        several = {
            id for id in ids if len({each.rank for each in of.values() if each.id == id}) > 1
        }
        rows = rows[np.isin(rows["id"], np.asarray(sorted(several), np.uint64))]
        names = {each.id: self._name(number) for number, each in sorted(of.items())}
        by_number = {number: name for name, number in kinds.items()}
        return Arrivals(
            rows,
            [by_number.get(number, "") for number in range(256)],
            group=lambda id: names[id],
            rank=lambda _, member: f"rank {member}",
        )

    # ---- findings ----

    def _small(self, kinds: list[tuple[str, str, int]], sums: _Sums) -> Iterator[Finding]:
        """Operations of one kind and communicator that are many and small."""
        for name, group in dict.fromkeys((name, group) for name, group, _ in kinds):
            if name in ("send", "recv", "exchange", "mixed"):
                continue
            mine = [at for at, kind in enumerate(kinds) if kind[:2] == (name, group)]
            small = [at for at in mine if kinds[at][2] <= self.small]
            count, time, bytes, alone = (
                int(values[small].sum())
                for values in (sums.units, sums.time, sums.bytes, sums.alone)
            )
            if count < self.small_calls or not time:
                continue
            least = int(sums.least[mine].min())
            merged = -(-bytes // max(1, self.small))
            saved = (count - merged) * least * alone / time
            if saved < max(self.least_time, self.least_share * self.span):
                continue
            yield Finding(
                what="many small collectives",
                where=f"{name} of {group}",
                evidence=f"{counted(count, name)} of at most "
                f"{formatted(max(kinds[at][2] for at in small), 'bytes')} take "
                f"{formatted(time, 'ns')}, in {formatted(alone, 'ns')} of which "
                f"nothing else ran; each takes at least {formatted(least, 'ns')}: "
                f"{merged:,} of {formatted(self.small, 'bytes')} would carry as much",
                remedy="combine them: larger gradient buckets, one flat buffer, or one group "
                "of calls",
                gain=min(1.0, saved / max(1, self.span)),
                of=_OF_WHOLE,
            )

    def _slow(self, kinds: list[tuple[str, str, int]], sums: _Sums) -> Iterator[Finding]:
        """Large operations far below the bandwidth of the links."""
        if not self.link:
            return
        for at, (name, group, size) in enumerate(kinds):
            bus, time = float(sums.bus[at]), int(sums.time[at])
            if size <= self.small or not time or not 0 < bus < self.slow_share * self.link:
                continue
            saved = int(sums.alone[at]) * (1 - bus / self.link)
            if saved < max(self.least_time, self.least_share * self.span):
                continue
            yield Finding(
                what="collectives use little of the links' bandwidth",
                where=f"{name} of {group}, up to {formatted(size, 'bytes')}",
                evidence=f"{formatted(bus)} of {self.link:g} GB/s bus bandwidth, in "
                f"{formatted(time, 'ns')}, which includes waits for late ranks",
                remedy="merge the ranks (pasta merge) to see whether one is late; otherwise "
                "check which paths the library chose (its debug log) and what else "
                "uses the links",
                gain=min(1.0, saved / max(1, self.span)),
                of=_OF_WHOLE,
                confidence="low",
            )

    # ---- the rest ----

    def _figures(self, kinds: list[tuple[str, str, int]], sums: _Sums) -> dict[str, Figure]:
        """Bandwidth by size, and time with and without other work."""
        timed = [at for at in range(len(kinds)) if sums.timed[at]]
        if not timed:
            return {}
        sizes = sorted({kinds[at][2] for at in timed})
        series: dict[str, list[float | None]] = {}
        bars: dict[str, list[int]] = {}
        for at in timed:
            name, group, size = kinds[at]
            label = f"{name} of {group}"
            bus = float(sums.bus[at])
            curve = series.setdefault(label, [None] * len(sizes))
            curve[sizes.index(size)] = None if np.isnan(bus) else bus
            bar = bars.setdefault(label, [0, 0])
            bar[0] += int(sums.alone[at])
            bar[1] += int(sums.time[at] - sums.alone[at])
        return {
            "bandwidth": Figure(
                "line", "Bus bandwidth by size", sizes, series, x_label="up to", x_unit="bytes",
                y_label="GB/s",
            ),
            "hidden": Figure(
                "bar", "Time of operations", list(bars),
                {"nothing else ran": [bar[0] for bar in bars.values()],
                 "overlapped with other work": [bar[1] for bar in bars.values()]},
                y_label="time", y_unit="ns",
            ),
        }  # fmt: skip

    def _summary(self, joined: Joined) -> str:
        units = joined.units
        calls, bytes = len(joined.calls), int(units.bytes.sum())
        if not calls:
            kernels = counted(int(joined.unclaimed.sum()), "communication kernel", _KERNELS)
            return f"no communication library calls were recorded, and {kernels}"
        text = f"{counted(calls, 'call')}, {formatted(bytes, 'bytes')}"
        groups = len({self._name(number) for number in self.of.communicators})
        text += f" on {counted(groups, 'communicator')}"
        timed = units.timed
        if timed.any():
            time, alone = int(units.time[timed].sum()), int(units.alone[timed].sum())
            text += (
                f": {formatted(time, 'ns')}, in {formatted(alone, 'ns')} of which nothing else ran"
            )
        return text

    def _notes(self, joined: Joined) -> Iterator[str]:
        if self.of.failed:
            yield f"{counted(self.of.failed, 'call')} failed, and left out"
        if self.link and not self.link_bandwidth:
            yield f"links have {self.link:g} GB/s in one direction, as the driver reports"
        without = int((~joined.units.timed).sum())
        if without and self.use.followed:
            yield (
                f"{counted(without, 'operation')} without a recorded kernel: captured into a "
                "graph, or launched by a thread of the library"
            )
        more = len(joined.calls) - self.calls
        if more > 0:
            yield (f"{counted(more, 'call')} beyond collectives.calls left out of the table calls")


def _known(number: int) -> int | None:
    return number if number >= 0 else None


def _operation_in(kernel: str) -> str | None:
    """The operation in a kernel's name, as "all_reduce"."""
    found = _IN_NAMES.search(kernel)
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", found[1]).lower() if found else None
