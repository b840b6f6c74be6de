"""What each device did over time, and why it did nothing in between.

The time of a device is divided into work (kernels, copies, communication) and gaps, and each gap
into what was not submitted yet and what had been submitted and did not start. All of it adds up to
the time of the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from pasta import abi
from pasta.lazy import np
from pasta.processors.activity import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    STOPPED,
    UNKNOWN,
    WORK,
    Activity,
)
from pasta.processors.codes import Codes, distinct
from pasta.processors.correlate import Submissions
from pasta.processors.demangle import short_name
from pasta.processors.gaps import GapSite
from pasta.processors.histogram import DurationSummary
from pasta.processors.operator_names import user_lines
from pasta.table import Figure, Table, Unit, counted, formatted
from pasta.tool import Finding, Result, Tool, option

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.stacks import Frame

#: Causes of idle time, in the order of the columns.
START, WAIT, READ, LOAD, HOST, LATENCY, BLOCKED, UNSUBMITTED, END = range(9)
_CAUSES = {
    START: "start-up",
    WAIT: "host waited for the device",
    READ: "host waited for a copy",
    LOAD: "host loaded data",
    HOST: "host had submitted nothing",
    LATENCY: "launch latency",
    BLOCKED: "submitted work waited",
    UNSUBMITTED: "time of submission unknown",
    END: "after the last work",
}
#: Their columns.
_COLUMNS = {
    START: "start_up",
    WAIT: "host_waits",
    READ: "host_copies",
    LOAD: "data_loading",
    HOST: "host_behind",
    LATENCY: "launch_latency",
    BLOCKED: "work_waits",
    UNSUBMITTED: "unknown_submission",
    END: "after_last",
}
#: What a gap is located by: nothing, an operator's node, a gap between operators, a kernel's name.
_NOWHERE, _NODE, _BETWEEN, _KERNEL = range(4)
_CLASSES = {COMPUTE: "kernels", COPY: "copies", COMMUNICATION: "communication"}
#: Fields of what the host submitted: operator (0: none), kernel's name, thread, begin of the
#: outermost operator around it (0: none) and the gap between operators that ended there (0: none).
_PLACE = [("node", "i4"), ("name", "u4"), ("thread", "u4"), ("began", "i8"), ("row", "i4")]
#: A wait of the host may end this long before the work that it waited for, ns: device times are
#: converted to the host's clock.
_CLOCK_ERROR = 1_000
_ABSENT = 0xFFFF_FFFF_FFFF_FFFF
_FOREVER = 1 << 62


@cache
def _work() -> Any:
    """Work; `blocking`: a copy that the host waited for."""
    return np.dtype([*WORK, ("blocking", "?"), *_PLACE])


@cache
def _submission() -> Any:
    """Work that has not completed, by launch ordinal or correlation."""
    return np.dtype([("key", "u8"), *_work().descr])


@cache
def _wait() -> Any:
    """A wait of the host for a device."""
    return np.dtype([("begin", "i8"), ("end", "i8"), *_PLACE])


@dataclass
class _Gaps:
    """Gaps of one cause at one place."""

    count: int = 0
    time: int = 0
    longest: int = 0

    def add(self, count: int, time: int, longest: int) -> None:
        self.count += count
        self.time += time
        self.longest = max(self.longest, longest)


class _Device:
    """Activity of a device, and its gaps by cause and place."""

    def __init__(self, begin: int) -> None:
        self.activity = Activity(begin, _work())
        self.gaps: dict[int, _Gaps] = {}
        self.starts = DurationSummary()  # of work that ended a gap, since its submission

    def count(self, cause: int, places: NDArray[Any], times: NDArray[Any]) -> None:
        """Adds idle times (int64, ns) to a cause; `places` have the fields of `_PLACE`."""
        places, times = places[times > 0], times[times > 0]
        if not len(times):
            return
        kind = np.full(len(times), _NOWHERE)
        value = np.zeros(len(times), np.int64)
        for number, name in ((_KERNEL, "name"), (_BETWEEN, "row"), (_NODE, "node")):
            given = places[name] != 0
            kind[given], value[given] = number, places[name][given]
        keys, at = np.unique((cause * 4 + kind) << 32 | value, return_inverse=True)
        counts = np.bincount(at)
        total, longest = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
        np.add.at(total, at, times)
        np.maximum.at(longest, at, times)
        rows = (keys.tolist(), counts.tolist(), total.tolist(), longest.tolist())
        for key, *amounts in zip(*rows, strict=True):
            self.gaps.setdefault(key, _Gaps()).add(*amounts)

    def close(self, end: int) -> None:
        """Counts the gap that is open at the end."""
        begin, last = self.activity.open_gap
        cause = END if last["class"] != -1 else START
        self.count(cause, np.zeros(1, _work()), np.asarray([end - begin]))

    def time(self, *classes: int) -> int:
        """Time in which work of any of these classes ran, ns; without classes all observed time."""
        masks = np.arange(1 << STOPPED)
        wanted = sum(1 << each for each in classes)
        chosen = (masks & wanted) != 0 if classes else masks >= 0
        return int(self.activity.overlap[: 1 << STOPPED][chosen].sum())

    @property
    def busy(self) -> int:
        """Time in which any work ran, ns."""
        return self.time(COMPUTE, COPY, COMMUNICATION)

    @property
    def span(self) -> int:
        """Observed time from the first to the last work, ns."""
        outside = (gaps.time for key, gaps in self.gaps.items() if key >> 34 in (START, END))
        return self.time() - sum(outside)


@dataclass
class _Row:
    """Gaps of a device by cause and place, for tables."""

    device: int
    cause: int
    where: str
    line: Frame | None
    gaps: _Gaps = field(default_factory=_Gaps)


#: What findings say of a cause, and the remedy.
_ADVICE = {
    WAIT: (
        "the device is idle while the host waits for it",
        "remove the wait, or keep values on the device and read them every 100 steps",
    ),
    READ: (
        "the device is idle while the host copies",
        "copy asynchronously, from or to pinned memory (non_blocking=True), and less often",
    ),
    LOAD: (
        "the device is idle while data loads",
        "more workers for the DataLoader (num_workers, prefetch_factor), or less work per item",
    ),
    HOST: (
        "the device waits for the host to submit work",
        "give the device more work for each call (a larger batch, fused operators), or submit it as"
        " a graph",
    ),
}


class Utilization(Tool):
    """Busy time of each device, and the cause of every gap: host, waits, copies, latency."""

    needs = ("operators",)
    uses = ("kernel_complete", "copy_complete", "wait_times")

    top = option(12, help="gaps in the text report; the table has all", minimum=1)
    communication = option(
        r"\b(nccl|rccl|nvshmem|rocshmem|oneccl)",
        kind="regex",
        help="names of kernels that communicate",
    )
    latency = option(
        "50us", kind="duration", help="submitted work that starts later waited for something"
    )
    short = option("5us", kind="duration", help="kernels below this are short")
    least_share = option(
        0.1, help="finding: minimum share of the time from first to last work", minimum=0.0
    )
    least_time = option(
        "10ms", kind="duration", help="… and minimum idle time of one cause and place"
    )
    least_gaps = option(
        5, help="… and minimum number of gaps; the longest, often of start-up, does not count",
        minimum=1,
    )  # fmt: skip

    def start(self) -> None:
        """Initialize the devices."""
        self.communicates = re.compile(self.communication)
        self.devices: dict[int, _Device] = {}
        self.launches = Submissions("key", _submission())
        self.copies = Submissions("key", _submission(), 1 << 14)
        self.names = Codes()
        self.classes = np.zeros(0, np.int8)  # by code of the name
        self.waits = np.zeros(0, _wait())
        self.outermost: dict[int, tuple[int, int]] = {}  # by thread: begin and gap before it
        self.begin = self.context.process.start_time
        #: Latest time in all batches, and in all but the last one.
        self.end = self.before = self.begin
        self.stopped_since: int | None = None
        self.stops: list[tuple[int, int]] = []
        self.kernels = self.short_kernels = self.unplaced = 0

    def on_batch(self, batch: Batch) -> None:
        """Add submissions and work, and sweep the devices as far as nothing earlier can come."""
        times = [
            (int(each["time"].min()), int(each["time"].max())) for _, each in batch if len(each)
        ]
        if not self.begin:
            self.begin = self.end = min(times, default=(0, 0))[0]
        self.before = self.end
        self.end = max([self.end, *(latest for _, latest in times)])
        for context in batch["context_create"]["device"].tolist():
            self._device(context)
        self._follow_stops(batch)
        self._submit(batch)
        self._complete(batch)
        self._sweep()

    def _device(self, number: int) -> _Device | None:
        if number < 0:
            return None
        if number not in self.devices:
            made = _Device(self.begin)
            made.activity.add(self._stopped(self.stops))
            self.devices[number] = made
        return self.devices[number]

    def _follow_stops(self, batch: Batch) -> None:
        """Times without profiling are no gaps."""
        for event in batch.merged("profiling_start", "profiling_stop"):
            time = int(event["time"])
            if event["kind"] == abi.KINDS["profiling_stop"]:
                self.stopped_since = time if self.stopped_since is None else self.stopped_since
            elif self.stopped_since is not None:
                self._stop_until(time)

    def _stop_until(self, time: int) -> None:
        if self.stopped_since is not None and time > self.stopped_since:
            self.stops.append((self.stopped_since, time))
            for device in self.devices.values():
                device.activity.add(self._stopped(self.stops[-1:]))
        self.stopped_since = None

    @staticmethod
    def _stopped(stops: list[tuple[int, int]]) -> NDArray[Any]:
        work = np.zeros(len(stops), _work())
        work["start"], work["end"] = np.asarray(stops, np.int64).reshape(-1, 2).T
        work["submitted"], work["class"] = work["start"], STOPPED
        return work

    def _submit(self, batch: Batch) -> None:
        """Note what the host submitted, and its waits, with where it was."""
        begins = batch["operator_begin"]
        outermost = begins["depth"] == 1
        begins, before = begins[outermost], self.context.operators.left[outermost]
        launches = batch["kernel_launch"]
        rows = self._placed(launches, begins, before)
        rows["key"], rows["name"] = launches["ordinal"], launches["name"]
        rows["class"] = self._class_of(launches["name"])
        self.launches.put(rows[rows["key"] != _ABSENT])
        for kind in ("memory_copy", "memory_set"):
            records = batch[kind]
            rows = self._placed(records, begins, before)
            rows["key"], rows["class"] = records["correlation"], COPY
            rows["blocking"] = (records["flags"] & abi.FLAG_ASYNC) == 0
            rows["blocking"] &= kind == "memory_copy"
            self.copies.put(rows[rows["key"] != 0])
        syncs = batch["sync"][batch["sync"]["duration"] != _ABSENT]
        rows = self._placed(syncs, begins, before)
        waits = np.zeros(len(rows), _wait())
        for name, _ in _PLACE:
            waits[name] = rows[name]
        waits["end"] = rows["submitted"]
        waits["begin"] = waits["end"] - syncs["duration"].astype(np.int64)
        self.waits = np.concatenate([self.waits, waits])
        found = zip(begins["time"].tolist(), before.tolist(), strict=True)
        self.outermost.update(zip(begins["thread"].tolist(), found, strict=True))

    def _placed(
        self, records: NDArray[Any], begins: NDArray[Any], before: NDArray[Any]
    ) -> NDArray[Any]:
        """Submissions (dtype `_submission()`) with the times and places of records. `begins`: the
        outermost operators of the batch, `before`: the gaps that they end."""
        operators = self.context.operators
        rows = np.zeros(len(records), _submission())
        rows["submitted"], rows["thread"] = records["time"], records["thread"]
        if not len(rows):
            return rows
        rows["node"] = operators.at(records)
        # `at` gives the operator that captured the graph
        replayed = (records["flags"] & abi.FLAG_GRAPH) != 0
        rows["node"][replayed] = 0
        for thread in distinct(rows["thread"]):
            mine = np.flatnonzero(rows["thread"] == thread)
            own = begins["thread"] == thread
            at = np.searchsorted(begins["index"][own], records["index"][mine], "right")
            time, row = self.outermost.get(thread, (0, 0))
            rows["began"][mine] = np.concatenate([[time], begins["time"][own]])[at]
            rows["row"][mine] = np.concatenate([[row], before[own]])[at]
        outside = rows["node"] == 0
        rows["began"][outside] = 0
        rows["row"][outside] = operators.gap_after(records)[outside]
        return rows

    def _class_of(self, names: NDArray[Any]) -> NDArray[Any]:
        codes = self.names.encode(names)
        new = self.names.ids[len(self.classes) :]
        found = [
            COMMUNICATION if self.communicates.search(name) else COMPUTE
            for name in self.context.demangled(new)
        ]
        self.classes = np.concatenate([self.classes, np.asarray(found, np.int8)])
        return np.asarray(self.classes[codes])

    def _complete(self, batch: Batch) -> None:
        """Add the work that completed to its device."""
        kernels = batch["kernel_complete"]
        rows, known = self.launches.take(kernels["ordinal"])
        rows["submitted"][~known] = UNKNOWN
        kernels, rows = self._timed(kernels, rows)
        self.kernels += len(kernels)
        durations = rows["end"] - rows["start"]
        self.short_kernels += int((durations < self.short).sum())
        self._add(kernels, rows)
        copies = batch["copy_complete"]
        rows, known = self.copies.take(copies["correlation"], forget=False)
        rows["submitted"][~known], rows["class"] = UNKNOWN, COPY
        self._add(*self._timed(copies, rows))

    @staticmethod
    def _timed(completions: NDArray[Any], rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Completions that have times, with their times in the rows."""
        good = (completions["end"] != _ABSENT) & (completions["end"] >= completions["start"])
        completions, rows = completions[good], rows[good]
        rows["start"], rows["end"] = completions["start"], completions["end"]
        return completions, rows

    def _add(self, completions: NDArray[Any], rows: NDArray[Any]) -> None:
        work = np.zeros(len(rows), _work())
        for name in _work().names or ():
            work[name] = rows[name]
        for number in distinct(completions["device"]):
            mine = completions["device"] == number
            device = self._device(number)
            if device is None:
                self.unplaced += int(mine.sum())
                continue
            device.activity.add(work[mine])
        self.end = max(self.end, int(rows["end"].max(initial=0)))

    def _sweep(self, until: int | None = None) -> None:
        """Sweep the devices, by default up to the first submission that has not completed, and to
        the end of the batch before: threads publish a little out of order."""
        if until is None:
            pending = self.launches.pending["submitted"]
            until = min(self.before, int(pending.min(initial=_FOREVER)))
            until = min(until, self.stopped_since or _FOREVER)
        needed = until
        for device in self.devices.values():
            self._attribute(device, device.activity.sweep(until))
            needed = min(needed, device.activity.open_gap[0])
        self.waits = self.waits[self.waits["end"] >= needed - _CLOCK_ERROR]

    def _attribute(self, device: _Device, gaps: NDArray[Any]) -> None:
        """Divide gaps by their causes."""
        unknown = gaps["submitted"] == UNKNOWN
        device.count(UNSUBMITTED, gaps["after"][unknown], (gaps["end"] - gaps["begin"])[unknown])
        gaps = gaps[~unknown]
        late = gaps["end"] - gaps["submitted"]
        device.starts.add(np.zeros(len(late), np.int64), late)
        for cause, chosen in ((LATENCY, late <= self.latency), (BLOCKED, late > self.latency)):
            device.count(cause, gaps["after"][chosen], late[chosen])
        host = gaps["submitted"] - gaps["begin"]
        before, after = gaps["before"], gaps["after"]
        first = before["class"] == -1
        device.count(START, np.zeros(int(first.sum()), _work()), host[first])
        # The host would have submitted the work as much earlier as it was blocked.
        waited = np.where(first, -1, self._waited(gaps))
        reading = before["blocking"] & (before["thread"] == after["thread"])
        reading &= ~first & (waited < 0)
        blocked = np.zeros(len(gaps), np.int64)
        waits = self.waits[waited[waited >= 0]]
        blocked[waited >= 0] = waits["end"] - waits["begin"]
        blocked[reading] = (before["end"] - before["submitted"])[reading]
        blocked = np.minimum(blocked, host)
        device.count(WAIT, waits, blocked[waited >= 0])
        device.count(READ, before[reading], blocked[reading])
        begin = np.where(first, gaps["submitted"], gaps["begin"] + blocked)
        began = np.where(after["node"] != 0, after["began"], gaps["submitted"])
        began = np.clip(began, begin, gaps["submitted"])
        device.count(HOST, after, gaps["submitted"] - began)  # in the operator that submitted it
        outside = after.copy()
        outside["node"] = 0
        device.count(HOST, outside, began - begin)

    def _waited(self, gaps: NDArray[Any]) -> NDArray[Any]:
        """Numbers of the waits, of the thread that ended each gap, in which it began; -1: none."""
        found = np.full(len(gaps), -1)
        for thread in distinct(gaps["after"]["thread"]):
            own = np.flatnonzero(self.waits["thread"] == thread)
            if not len(own):
                continue
            mine = np.flatnonzero(gaps["after"]["thread"] == thread)
            begin, submitted = gaps["begin"][mine], gaps["submitted"][mine]
            at = np.searchsorted(self.waits["begin"][own], begin, "right") - 1
            end = self.waits["end"][own][at]
            within = (at >= 0) & (end >= begin - _CLOCK_ERROR) & (end <= submitted)
            found[mine[within]] = own[at[within]]
        return found

    def result(self) -> Result:
        """Tables of devices, gaps and overlap, and findings."""
        if self.stopped_since is not None:
            self._stop_until(self.end)
        self._sweep(self.end)
        for device in self.devices.values():
            device.close(self.end)
        rows = self._rows()
        devices = self._devices(rows)
        return Result(
            summary=self._summary(rows),
            tables={"devices": devices, "gaps": self._gaps(rows), "overlap": self._overlap()},
            figures=self._figures(),
            findings=[*self._findings(rows)],
            notes=self._notes(),
        )

    def _rows(self) -> list[_Row]:
        """Gaps of all devices by cause and place, the longest first."""
        context = self.context
        lines = user_lines(context)
        operators = context.strings.many(context.operators.nodes["name"])
        found: dict[Any, _Row] = {}
        for number, device in sorted(self.devices.items()):
            for key, gaps in device.gaps.items():
                (cause, kind), value = divmod(key >> 32, 4), key & 0xFFFF_FFFF
                line, where = None, ""
                if kind == _NODE:
                    line, where = lines[value], operators[value]
                    where += f" at {line}" if line else ""
                elif kind == _KERNEL:
                    where = f"before {short_name(context.demangled([value])[0])}"
                elif kind == _BETWEEN:
                    gap = context.operators.gaps[value]
                    site = GapSite.between_stacks(int(gap["before"]), int(gap["after"]), context)
                    line, where = site.loader or site.before or site.after, f"at {site.between}"
                    if site.loader and cause == HOST:
                        cause, where = LOAD, str(site.loader)
                row = found.setdefault((number, cause, where), _Row(number, cause, where, line))
                row.gaps.add(gaps.count, gaps.time, gaps.longest)
        return sorted(found.values(), key=lambda row: -row.gaps.time)

    def _devices(self, rows: list[_Row]) -> Table:
        idle = {(number, cause): 0 for number in self.devices for cause in _CAUSES}
        for row in rows:
            idle[row.device, row.cause] += row.gaps.time
        devices = sorted(self.devices.items())
        span = np.asarray([device.span for _, device in devices], np.int64)
        busy = np.asarray([device.busy for _, device in devices], np.int64)
        columns: dict[str, Any] = {
            "device": [number for number, _ in devices],
            "observed": [device.time() for _, device in devices],
            "span": span,
            "busy": busy,
            "share": busy / np.maximum(span, 1),
            **{name: [each.time(bit) for _, each in devices] for bit, name in _CLASSES.items()},
            **{
                name: [idle[number, cause] for number, _ in devices]
                for cause, name in _COLUMNS.items()
            },
        }
        quantiles = [device.starts.quantiles(1, 0.5, 0.99) for _, device in devices]
        for at, name in enumerate(("p50_latency", "p99_latency")):
            columns[name] = [found[at][0] if len(found[at]) else 0 for found in quantiles]
        units: dict[str, Unit] = {name: "ns" for name in columns if name != "device"}
        return Table(
            columns,
            units={**units, "share": "share"},
            labels={
                "span": "first to last work",
                "share": "of it",
                **{name: _CAUSES[cause] for cause, name in _COLUMNS.items()},
                "p50_latency": "p50 from submission to start, idle device",
                "p99_latency": "p99",
            },
            keys=("device",),
            sums=("observed", "span", "busy", *_CLASSES.values(), *_COLUMNS.values()),
            important=("span", "busy", "share", _COLUMNS[HOST]),
            title="Devices: busy time, and idle time by cause",
            hidden=frozenset(
                {name for name, column in columns.items() if name != "device" and not any(column)}
            ),
        )

    def _gaps(self, rows: list[_Row]) -> Table:
        spans = {number: max(1, device.span) for number, device in self.devices.items()}
        return Table(
            {
                "cause": [_CAUSES[row.cause] for row in rows],
                "where": [row.where or None for row in rows],
                "device": [row.device for row in rows],
                "gaps": [row.gaps.count for row in rows],
                "time": [row.gaps.time for row in rows],
                "share": [
                    None if row.cause in (START, END) else row.gaps.time / spans[row.device]
                    for row in rows
                ],
                "longest": [row.gaps.longest for row in rows],
            },
            units={"time": "ns", "share": "share", "longest": "ns"},
            labels={"share": "from first to last work"},
            keys=("device", "cause", "where"),
            sums=("gaps", "time"),
            important=("time", "share"),
            title="Idle time of devices by cause and place",
            shown=self.top,
        )

    def _overlap(self) -> Table:
        rows = []
        for number, device in sorted(self.devices.items()):
            for mask in range(1 << STOPPED):
                time = int(device.activity.overlap[mask])
                names = [name for bit, name in _CLASSES.items() if mask >> bit & 1]
                if not mask:
                    time -= device.time() - device.span
                if time:
                    rows.append((number, " + ".join(names) or "idle", time, time / device.span))
        rows.sort(key=lambda row: (row[0], -row[2]))
        columns = [[row[at] for row in rows] for at in range(4)]
        return Table(
            dict(zip(("device", "running", "time", "share"), columns, strict=True)),
            units={"time": "ns", "share": "share"},
            labels={"share": "from first to last work"},
            keys=("device", "running"),
            sums=("time",),
            title="What ran at once, from first to last work",
        )

    def _figures(self) -> dict[str, Figure]:
        """Busy share of each device over time."""
        timelines = {n: each.activity.timeline for n, each in sorted(self.devices.items())}
        if not timelines:
            return {}
        shape = next(iter(timelines.values()))  # all devices are swept up to the same time
        lengths = np.minimum(self.end - self.begin - shape.times, shape.width)
        used = lengths > 0
        series = {
            f"device {number}": np.clip((each.growth / np.maximum(lengths, 1))[used], 0, 1)
            for number, each in timelines.items()
        }
        return {
            "busy": Figure(
                "step",
                "Busy share of each device",
                shape.times[used],
                series,
                x_label="time since start",
                x_unit="ns",
                y_label=f"busy share in {formatted(shape.width, 'ns')}",
                y_unit="share",
            )
        }

    def _findings(self, rows: list[_Row]) -> Iterator[Finding]:
        for row in rows:
            advice = _ADVICE.get(row.cause)
            gaps, time = row.gaps.count - 1, row.gaps.time - row.gaps.longest
            span = self.devices[row.device].span - row.gaps.longest
            if advice is None or gaps < self.least_gaps or time < self.least_time:
                continue
            if time < self.least_share * span:
                continue
            yield Finding(
                what=advice[0],
                where=row.where or f"device {row.device}",
                evidence=f"device {row.device} was idle for {formatted(time, 'ns')} of"
                f" {formatted(span, 'ns')} from its first to its last work, in"
                f" {counted(gaps, 'gap')} of {formatted(time / gaps, 'ns')}, without the longest"
                f" one of {formatted(row.gaps.longest, 'ns')}",
                remedy=f"{row.line}: {advice[1]}" if row.line else advice[1],
                gain=time / span,
                of="the time from first to last work",
            )

    def _summary(self, rows: list[_Row]) -> str:
        if not any(device.busy for device in self.devices.values()):
            return "no work of a device has times"
        texts = []
        for number, device in sorted(self.devices.items()):
            share = formatted(device.busy / max(1, device.span), "share")
            text = f"device {number} was busy for {share} of {formatted(device.span, 'ns')}"
            text += " from its first to its last work"
            mine = (row for row in rows if row.device == number)
            most = next((row for row in mine if row.cause not in (START, END)), None)
            if most is not None:
                share = formatted(most.gaps.time / device.span, "share")
                where = f" ({most.where})" if most.where else ""
                text += f"; idle most: {share} {_CAUSES[most.cause]}{where}"
            texts.append(text)
        return "; ".join(texts)

    def _notes(self) -> list[str]:
        notes = []
        if self.kernels and self.short_kernels:
            share = formatted(self.short_kernels / self.kernels, "share")
            notes.append(
                f"{self.short_kernels:,} of {counted(self.kernels, 'kernel')} ({share}) took less"
                f" than {formatted(self.short, 'ns')}"
            )
        if self.unplaced:
            notes.append(f"{counted(self.unplaced, 'completion')} of unknown devices left out")
        late = sum(device.activity.late for device in self.devices.values())
        if late:
            notes.append(f"{formatted(late, 'ns')} of work was reported too late and left out")
        return notes
