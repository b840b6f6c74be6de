"""What each device did over time, and why it did nothing in between.

The time of a device is divided into work (kernels, copies, communication) and gaps, and each gap
into what was not submitted yet and what had been submitted and did not start. All of it adds up to
the time of the run, and so does the critical path.
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
from pasta.processors.correlate import LateNodes, Submissions
from pasta.processors.demangle import distinct_names, short_name
from pasta.processors.gaps import GapSite
from pasta.processors.histogram import DurationSummary
from pasta.processors.launch_waves import LaunchWaves
from pasta.processors.operator_names import user_lines
from pasta.table import Figure, Table, Unit, absent_where, counted, formatted, shares
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
#: Intervals of the critical path that are no work, by kind.
_ON_PATH = (
    "host", "launch latency", "between work and the next", "submitted work waited",
    "between work and the host that waited for it",
)  # fmt: skip
#: What submitted work waits for, by number.
_HOW = ("work before it in its stream", "event", "default stream")
_MAX_NAMED = 3
_CLASSES = {COMPUTE: "kernels", COPY: "copies", COMMUNICATION: "communication"}
#: Fields of what the host submitted: operator (0: none), kernel's name, thread, begin of the
#: outermost operator around it (0: none) and the gap between operators that ended there (0: none).
_PLACE = [("node", "i4"), ("name", "u4"), ("thread", "u4"), ("began", "i8"), ("row", "i4")]
#: A wait of the host may end this long before the work that it waited for, ns: device times are
#: converted to the host's clock.
_CLOCK_ERROR = 1_000
#: What buffered sources record may come this much later, ns.
_LATE = 2_000_000_000
#: Kinds that the host's threads publish while they work.
_OF_HOST = ("kernel_launch", "memory_copy", "memory_set", "sync", "operator_end", "process_end")
_ABSENT = 0xFFFF_FFFF_FFFF_FFFF
_FOREVER = 1 << 62


@cache
def _work() -> Any:
    """Work; `blocking`: a copy that the host waited for."""
    return np.dtype([*WORK, ("blocking", "?"), *_PLACE])


@cache
def _submission() -> Any:
    """Work that has not completed, by launch ordinal or correlation; `waves` of its blocks (NaN:
    unknown), `order` among all submissions."""
    more = [("stream", "u8"), ("order", "i8"), ("waves", "f8")]
    return np.dtype([("key", "u8"), *_work().descr, *more])


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
        self.all_starts = DurationSummary()  # of all work
        #: Idle time before kernels below `short`: of the host, and launch latency.
        self.before_short = _Gaps()

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


class _Kernels:
    """Device times of kernels by code of the name, and what their last waves waste."""

    #: Number and time of launches, of all and of short ones; number of those with known waves; time
    #: of the idle part of last waves, of launches with more than one, their number and time.
    AMOUNTS = (
        "launches", "time", "short", "short_time", "timed_waves", "tail_time", "tailed",
        "tailed_time",
    )  # fmt: skip

    def __init__(self) -> None:
        self.counts = np.zeros((len(self.AMOUNTS), 0), np.int64)
        self.waves = np.zeros(0)

    def add(self, codes: NDArray[Any], rows: NDArray[Any], short: int) -> None:
        """Adds kernels (dtype `_submission()`) that completed."""
        if not len(rows):
            return
        durations, waves = rows["end"] - rows["start"], rows["waves"]
        brief, known = durations < short, ~np.isnan(waves)
        waves = np.where(known, waves, 1)
        whole = np.ceil(waves)
        several = known & (whole > 1)
        lost = np.where(several, durations * (1 - waves / whole), 0).astype(np.int64)
        length = max(len(self.waves), int(codes.max()) + 1)
        self.counts = np.pad(self.counts, ((0, 0), (0, length - len(self.waves))))
        self.waves = np.pad(self.waves, (0, length - len(self.waves)))
        amounts = (
            None, durations, brief, brief * durations, known, lost, several, several * durations,
        )  # fmt: skip
        for at, values in enumerate(amounts):  # floats are exact: sums are below 2**53
            self.counts[at] += np.bincount(codes, values, length).astype(np.int64)
        self.waves += np.bincount(codes, np.where(known, waves, 0), length)

    def of(self, name: str) -> NDArray[Any]:
        """One of the amounts (int64), by code."""
        return np.asarray(self.counts[self.AMOUNTS.index(name)])


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

    title = "Device use and idle time"
    topic = "time"

    needs = ("operators",)
    uses = (
        "kernel_complete", "copy_complete", "wait_times", "device", "registers", "event_record",
        "event_wait",
    )  # fmt: skip

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
    short_kernels = option(1000, help="finding: minimum number of short kernels", minimum=1)
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
        self.copies = Submissions("key", _submission(), 1 << 16)
        self.graphs = LateNodes([("began", "i8"), ("row", "i4"), ("order", "i8")])
        self.delay = 0  # of device times, at most
        self.early = 0  # by which work started before it was submitted, at most, ns
        self.names = Codes()
        self.classes = np.zeros(0, np.int8)  # by code of the name
        self.waits = np.zeros(0, _wait())
        self.outermost: dict[int, tuple[int, int]] = {}  # by thread: begin and gap before it
        self.begin = self.context.process.start_time
        #: Latest time in all batches, and in all but the last one.
        self.end = self.before = self.begin
        self.stopped_since: int | None = None
        self.stops: list[tuple[int, int]] = []
        self.unplaced = 0
        self.kernels: dict[int, _Kernels] = {}  # by device
        self.waves = LaunchWaves()
        self.path: Any = None  # a CriticalPath
        self.last_host = (0, 0)  # time and thread of what the host did last

    def on_batch(self, batch: Batch) -> None:
        """Add submissions and work, and sweep the devices as far as nothing earlier can come."""
        earliest, latest = batch.span
        if not self.begin:
            self.begin = self.end = earliest
        self.before = self.end
        self.end = max(self.end, latest)
        sources = self.context.strings.many(batch["process_start"]["source"])
        if not self.delay and set(sources) & set(self.context.conventions.buffered):
            self.delay = _LATE
        for context in batch["context_create"]["device"].tolist():
            self._device(context)
        self.waves.add_devices(batch["device"])
        self._follow_stops(batch)
        self._follow_host(batch)
        self._submit(batch)
        self._complete(batch)
        self._sweep()

    def _follow_host(self, batch: Batch) -> None:
        """Add operations of the host to the critical path."""
        from pasta.processors import critical_path  # imports Numba

        if self.path is None:
            self.path = critical_path.CriticalPath(self.begin, self.latency)
        for kind in _OF_HOST:
            records = batch[kind]
            if len(records):
                latest = records[int(records["time"].argmax())]
                self.last_host = max(self.last_host, (int(latest["time"]), int(latest["thread"])))
        syncs = batch["sync"][batch["sync"]["duration"] != _ABSENT]
        for kind, records in (
            (critical_path.SYNC, syncs),
            (critical_path.RECORD, batch["event_record"]),
            (critical_path.EVENT_WAIT, batch["event_wait"]),
        ):
            rows = np.zeros(len(records), critical_path.HOSTS)
            for name in ("time", "thread", "stream", "device"):
                rows[name] = records[name]
            rows["kind"] = kind
            if kind != critical_path.SYNC:
                rows["event"] = records["handle"]
            rows["order"] = batch.base + records["index"].astype(np.int64)
            if kind == critical_path.SYNC:
                rows["begin"] = rows["time"] - syncs["duration"].astype(np.int64)
                names = abi.enums()["sync"]
                rows["target"] = critical_path.OF_DEVICE
                of_stream = np.isin(syncs["what"], [n for n in names if names[n] == "stream"])
                of_event = np.isin(syncs["what"], [n for n in names if names[n] == "event"])
                rows["target"][of_stream] = critical_path.OF_STREAM
                rows["target"][of_event] = critical_path.OF_EVENT
                rows["event"][of_event] = syncs["handle"][of_event]
                handle = of_stream & (syncs["handle"] != _ABSENT)
                rows["stream"][handle] = syncs["handle"][handle]
            self.path.add_host(rows)

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
        graphs = batch["graph_launch"]
        self.graphs.put(graphs, self._placed(batch, graphs, begins, before))
        launches = batch["kernel_launch"]
        rows = self._placed(batch, launches, begins, before)
        rows["key"], rows["name"] = launches["ordinal"], launches["name"]
        rows["class"] = self._class_of(launches["name"])
        rows["waves"] = self.waves.of(launches, self.context)
        self.launches.put(rows[rows["key"] != _ABSENT])
        for kind in ("memory_copy", "memory_set"):
            records = batch[kind]
            rows = self._placed(batch, records, begins, before)
            rows["key"], rows["class"] = records["correlation"], COPY
            rows["blocking"] = (records["flags"] & abi.FLAG_ASYNC) == 0
            rows["blocking"] &= kind == "memory_copy"
            self.copies.put(rows[rows["key"] != 0])
        syncs = batch["sync"][batch["sync"]["duration"] != _ABSENT]
        rows = self._placed(batch, syncs, begins, before)
        waits = np.zeros(len(rows), _wait())
        for name, _ in _PLACE:
            waits[name] = rows[name]
        waits["end"] = rows["submitted"]
        waits["begin"] = waits["end"] - syncs["duration"].astype(np.int64)
        self.waits = np.concatenate([self.waits, waits])
        found = zip(begins["time"].tolist(), before.tolist(), strict=True)
        self.outermost.update(zip(begins["thread"].tolist(), found, strict=True))

    def _placed(
        self, batch: Batch, records: NDArray[Any], begins: NDArray[Any], before: NDArray[Any]
    ) -> NDArray[Any]:
        """Submissions (dtype `_submission()`) with the times and places of records. `begins`: the
        outermost operators of the batch, `before`: the gaps that they end. A node of a graph that
        is recorded later has the place of its graph launch, whose time and thread it has."""
        operators = self.context.operators
        rows = np.zeros(len(records), _submission())
        rows["submitted"], rows["thread"] = records["time"], records["thread"]
        rows["stream"], rows["order"] = records["stream"], records["index"]
        rows["order"] += batch.base
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
        self.graphs.fill(records, rows)
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
        rows["submitted"][~known], rows["waves"][~known] = UNKNOWN, np.nan
        rows["stream"][~known] = kernels["stream"][~known]
        kernels, rows = self._timed(kernels, rows)
        codes = self.names.encode(rows["name"])
        for number in distinct(kernels["device"]):
            mine = kernels["device"] == number
            self.kernels.setdefault(number, _Kernels()).add(codes[mine], rows[mine], self.short)
        self._add(kernels, rows, 1 + codes.astype(np.int64))
        copies = batch["copy_complete"]
        rows, known = self.copies.take(copies["correlation"], forget=False)
        rows["submitted"][~known], rows["class"] = UNKNOWN, COPY
        rows["stream"][~known] = copies["stream"][~known]
        copies, rows = self._timed(copies, rows)
        self._add(copies, rows, np.zeros(len(rows), np.int64))

    @staticmethod
    def _timed(completions: NDArray[Any], rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Completions that have times, with their times in the rows."""
        good = (completions["end"] != _ABSENT) & (completions["end"] >= completions["start"])
        completions, rows = completions[good], rows[good]
        rows["start"], rows["end"] = completions["start"], completions["end"]
        return completions, rows

    def _add(self, completions: NDArray[Any], rows: NDArray[Any], what: NDArray[Any]) -> None:
        """Adds work to its device, and to the critical path as `what`: 0 for a copy, otherwise 1
        and the code of its name."""
        self._add_to_path(completions, rows, what)
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
            started = rows[mine & (rows["submitted"] != UNKNOWN)]
            late = started["start"] - started["submitted"]
            self.early = max(self.early, -int(late.min(initial=0)))
            late = np.maximum(late, 0)
            device.all_starts.add(np.zeros(len(late), np.int64), late)
        self.end = max(self.end, int(rows["end"].max(initial=0)))

    def _add_to_path(
        self, completions: NDArray[Any], rows: NDArray[Any], what: NDArray[Any]
    ) -> None:
        known = completions["device"] >= 0
        if not known.all():
            completions, rows, what = completions[known], rows[known], what[known]
        self.path.add(rows, completions["device"], what << 16 | completions["device"])

    def _sweep(self, until: int | None = None) -> None:
        """Sweep the devices, by default up to the first submission that has not completed, and to
        the end of the batch before: threads publish a little out of order."""
        if until is None:
            pending = self.launches.pending["submitted"]
            until = min(self.before, int(pending.min(initial=_FOREVER)))
            until = min(until, self.stopped_since or _FOREVER) - self.delay
            swept = max((device.activity.swept for device in self.devices.values()), default=0)
            if until - swept < self.delay // 2:
                return  # work that waits is sorted at every sweep
        needed = until
        for device in self.devices.values():
            self._attribute(device, device.activity.sweep(until))
            needed = min(needed, device.activity.open_gap[0])
        self.waits = self.waits[self.waits["end"] >= needed - _CLOCK_ERROR]
        if self.path is not None:
            self.path.sweep(until)

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
        brief = ~first & (after["end"] - after["start"] < self.short)
        brief &= (after["class"] == COMPUTE) & (late <= self.latency)
        idle = (gaps["submitted"] - begin + late)[brief]
        if len(idle):
            device.before_short.add(len(idle), int(idle.sum()), int(idle.max()))

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
        if self.path is not None:
            self.path.sweep(self.end + 1)
        for device in self.devices.values():
            device.close(self.end)
        rows = self._rows()
        path, waits = self._critical_path(), self._stream_waits()
        findings = [
            *self._tiny(), *self._tails(), *self._findings(rows), *self._alone(),
            *self._serialised(),
        ]  # fmt: skip
        return Result(
            summary=self._summary(rows, path),
            tables={
                "devices": self._devices(rows),
                "gaps": self._gaps(rows),
                "critical_path": path,
                "overlap": self._overlap(),
                "kernels": self._kernels(),
                "waits": waits,
            },
            figures=self._figures(),
            findings=sorted(findings, key=lambda each: -each.rank),
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
        for which, starts in (
            ("latency", [device.starts for _, device in devices]),
            ("start", [device.all_starts for _, device in devices]),
        ):
            quantiles = [
                each.quantiles(1, 0.5, 0.99) if each.count.any() else [] for each in starts
            ]
            for at, name in enumerate((f"p50_{which}", f"p99_{which}")):
                values = [int(found[at][0]) if found else 0 for found in quantiles]
                columns[name] = absent_where(values, [not found for found in quantiles])
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
                "p50_start": "p50 from submission to start, all work",
                "p99_start": "p99",
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

    def _kernels(self) -> Table:
        """Kernels of all devices by their time."""
        names = self.context.demangled(np.asarray(self.names.ids, np.int64))
        found = [
            (number, code, kernels)
            for number, kernels in self.kernels.items()
            for code in np.flatnonzero(kernels.of("launches")).tolist()
        ]
        of = {
            name: np.asarray([each.of(name)[code] for _, code, each in found], np.int64)
            for name in _Kernels.AMOUNTS
        }
        waves = np.asarray([each.waves[code] for _, code, each in found], np.float64)
        shown = distinct_names(names)
        places = sorted((shown[code], number, at) for at, (number, code, _) in enumerate(found))
        order = np.asarray([at for *_, at in places], np.int64)
        order = order[np.lexsort((-of["launches"][order], -of["time"][order]))]
        of = {name: values[order] for name, values in of.items()}
        unknown = of["timed_waves"] == 0
        return Table(
            {
                "kernel": [shown[found[at][1]] for at in order.tolist()],
                "device": [found[at][0] for at in order.tolist()],
                "launches": of["launches"],
                "time": of["time"],
                "share": shares(of["time"], of["time"].sum()),
                "short": of["short"],
                "short_time": of["short_time"],
                "waves": absent_where(waves[order] / np.maximum(of["timed_waves"], 1), unknown),
                "tail_time": absent_where(of["tail_time"], unknown),
            },
            units={"time": "ns", "share": "share", "short_time": "ns", "tail_time": "ns"},
            labels={
                "share": "of kernel time",
                "short": f"below {formatted(self.short, 'ns')}",
                "short_time": "their time",
                "tail_time": "lost in last waves",
            },
            keys=("kernel", "device"),
            sums=("launches", "time", "short", "short_time", "tail_time"),
            important=("time", "share", "tail_time"),
            title="Kernels: short ones, and waves of blocks",
            shown=self.top,
            hidden=frozenset({"waves", "tail_time"} if unknown.all() else ()),
        )

    def _named(self, what: int) -> str:
        """Name of work on the critical path, or that other work waited for."""
        if what < 0:
            return "other work"
        code = what >> 16
        return (
            short_name(self.context.demangled([self.names.ids[code - 1]])[0]) if code else "copies"
        )

    def _critical_path(self) -> Table:
        """The intervals of the chain that ends last, by what they are."""
        from pasta.processors import critical_path

        total = self.end - self.begin
        found: dict[tuple[int | None, str], list[int]] = {}
        rows = self.path.path(self.end, self.last_host[1]) if self.path is not None else []
        for what, time, count in ((int(r["what"]), int(r["time"]), int(r["count"])) for r in rows):
            work = what - critical_path.WORK
            key = (work & 0xFFFF, self._named(work)) if work >= 0 else (None, _ON_PATH[what])
            sums = found.setdefault(key, [0, 0])
            sums[0] += time
            sums[1] += count
        order = sorted(found, key=lambda key: (-found[key][0], key[1], key[0] or 0))
        time = np.asarray([found[key][0] for key in order], np.int64)
        return Table(
            {
                "what": [what for _, what in order],
                "device": [device for device, _ in order],
                "intervals": [found[key][1] for key in order],
                "time": time,
                "share": shares(time, total),
            },
            units={"time": "ns", "share": "share"},
            labels={"share": "of the run's time"},
            keys=("what", "device"),
            sums=("intervals", "time"),
            important=("time", "share"),
            title="Critical path: what the end of the run waited for",
            shown=self.top,
        )

    def _stream_names(self) -> list[str]:
        """Names of streams by slot: their numbers on the device, in order of their handles."""
        streams = self.path.streams()
        names = ["default stream"] * len(streams)
        seen: dict[int, int] = {}
        for device, handle, slot in sorted((*each[:2], at) for at, each in enumerate(streams)):
            if handle:
                seen[device] = seen.get(device, 0) + 1
                names[slot] = f"stream {seen[device]}"
        return names

    def _stream_waits(self) -> Table:
        """What submitted work waited for, by stream."""
        waits = {} if self.path is None else self.path.waits
        streams = [] if self.path is None else self.path.streams()
        names = self._stream_names() if streams else []
        found: dict[Any, list[int]] = {}
        for (stream, other, how, what), (count, time) in waits.items():
            key = (streams[stream][0], names[stream], _HOW[how], names[other], self._named(what))
            sums = found.setdefault(key, [0, 0])
            sums[0] += count
            sums[1] += time
        order = sorted(found, key=lambda key: (-found[key][1], key))
        columns = {
            name: [key[at] for key in order]
            for at, name in enumerate(("device", "stream", "how", "waits_for", "work"))
        }
        return Table(
            {
                **columns,
                "waits": [found[key][0] for key in order],
                "time": [found[key][1] for key in order],
            },
            units={"time": "ns"},
            labels={"how": "waited for", "waits_for": "of"},
            keys=tuple(columns),
            sums=("waits", "time"),
            important=("time", "waits"),
            title="What submitted work waited for",
            shown=self.top,
        )

    def _worth(self, time: int, span: int) -> bool:
        """Whether time that may be gained is enough for a finding."""
        return time >= max(1, self.least_time) and time >= self.least_share * max(1, span)

    def _most(self, kernels: _Kernels, amount: str) -> str:
        """Names of up to three kernels with the most of an amount."""
        values = kernels.of(amount)
        names = distinct_names(self.context.demangled(np.asarray(self.names.ids, np.int64)))
        order = np.argsort(-values, kind="stable").tolist()
        some = [names[code] for code in order if values[code]]
        left = len(some) - _MAX_NAMED
        return ", ".join(some[:_MAX_NAMED]) + (f" and {left:,} more" if left > 0 else "")

    def _tiny(self) -> Iterator[Finding]:
        """Short kernels between which the device waits for the next launch."""
        for number, kernels in sorted(self.kernels.items()):
            device = self.devices.get(number)
            short, every = int(kernels.of("short").sum()), int(kernels.of("launches").sum())
            if device is None or short < self.short_kernels:
                continue
            before, time = device.before_short, int(kernels.of("short_time").sum())
            idle = before.time - before.longest
            if not self._worth(idle, device.span):
                continue
            yield Finding(
                what="the device waits for launches of tiny kernels",
                where=self._most(kernels, "short"),
                evidence=f"{short:,} of {counted(every, 'kernel')} take less than"
                f" {formatted(self.short, 'ns')}, {formatted(time / max(1, device.busy), 'share')}"
                f" of the busy time of device {number}, which was idle for {formatted(idle, 'ns')}"
                f" of {formatted(device.span, 'ns')} before them: launching takes longer",
                remedy="launch them as one graph, or fuse them, so that a launch has more work",
                gain=idle / device.span,
                of="the time from first to last work",
            )

    def _tails(self) -> Iterator[Finding]:
        """Last waves of blocks that leave much of a device idle."""
        for number, kernels in sorted(self.kernels.items()):
            device, lost = self.devices.get(number), int(kernels.of("tail_time").sum())
            if device is None or not self._worth(lost, device.span):
                continue
            launches = int(kernels.of("tailed").sum())
            time = int(kernels.of("tailed_time").sum())
            yield Finding(
                what="the last wave of blocks leaves much of the device idle",
                where=self._most(kernels, "tail_time"),
                evidence=f"{counted(launches, 'launch')} of {formatted(time, 'ns')} have more"
                f" blocks than device {number} holds at once; idle places in their last waves are"
                f" worth {formatted(lost, 'ns')} of {formatted(device.busy, 'ns')} of busy time, if"
                " all blocks take equally long",
                remedy="choose a size of blocks or tiles whose number fills whole waves (see the"
                " column waves), or as many blocks as the device holds, each for several tiles",
                gain=lost / device.span,
                of="the time from first to last work",
            )

    def _serialised(self) -> Iterator[Finding]:
        """Streams of a device that wait for each other and never overlap."""
        if self.path is None:
            return
        streams, names = self.path.streams(), self._stream_names()
        for number, device in sorted(self.devices.items()):
            busy = {slot: each[2] for slot, each in enumerate(streams) if each[0] == number}
            could = sum(busy.values()) - max(busy.values(), default=0)
            if self.path.overlap(number) * 10 > could:
                continue
            times: dict[tuple[str, str, int], int] = {}
            gaps = 0
            for (stream, other, how, _), (count, time) in self.path.waits.items():
                if stream != other and stream in busy:
                    one, two = sorted((names[stream], names[other]))
                    key = (one, two, how)
                    times[key] = times.get(key, 0) + time
                    gaps += count
            gain = min(could, sum(times.values()))
            if gaps < self.least_gaps or not self._worth(gain, device.span):
                continue
            one, two, how = min(times, key=lambda key: (-times[key], key))
            by_default = _HOW[how] == "default stream"
            yield Finding(
                what="streams wait for each other and never overlap",
                where=f"{one} and {two} of device {number}",
                evidence=f"work waited {counted(gaps, 'time')} for work of another stream,"
                f" {formatted(sum(times.values()), 'ns')} in all, mostly"
                f" {'as all streams wait for the default stream' if by_default else 'for events'};"
                f" streams overlapped for {formatted(self.path.overlap(number), 'ns')} of"
                f" {formatted(device.busy, 'ns')}",
                remedy="create the streams as non-blocking ones and submit nothing to the default"
                " stream, if their work is independent"
                if by_default
                else "record the event directly after the work that the other stream needs, if"
                " other work follows before it; split the work if it is one piece",
                gain=gain / device.span,
                of="the time from first to last work",
                confidence="medium" if by_default else "low",
            )

    def _alone(self) -> Iterator[Finding]:
        """Communication and copies that ran while no kernel did."""
        for number, device in sorted(self.devices.items()):
            overlap = device.activity.overlap
            compute = int(overlap[1 << COMPUTE])
            alone = int(overlap[1 << COMMUNICATION] + overlap[1 << COMMUNICATION | 1 << COPY])
            copies = int(overlap[1 << COPY])
            for time, confidence, what, all_of_it, remedy in (
                (
                    alone,
                    "medium",
                    "communication does not overlap with kernels",
                    device.time(COMMUNICATION),
                    "start it on a stream of its own as soon as its data is there, and compute what"
                    " does not need its result meanwhile (smaller buckets, prefetching)",
                ),
                (
                    copies,
                    "low",
                    "copies do not overlap with kernels",
                    device.time(COPY),
                    "copy asynchronously, between pinned memory and the device and on a stream of"
                    " its own, while kernels work on other data",
                ),
            ):
                gain = min(time, compute)
                if not self._worth(gain, device.span):
                    continue
                yield Finding(
                    what=what,
                    where=f"device {number}",
                    evidence=f"{formatted(time, 'ns')} of {formatted(all_of_it, 'ns')} ran while no"
                    f" kernel did; kernels ran alone for {formatted(compute, 'ns')} of"
                    f" {formatted(device.span, 'ns')}",
                    remedy=remedy,
                    gain=gain / device.span,
                    of="the time from first to last work",
                    confidence=confidence,
                )

    def _summary(self, rows: list[_Row], path: Table) -> str:
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
        first = next(path.rows(1), None)
        if first is not None:
            share = formatted(first["share"], "share")
            texts.append(f"critical path: {share} {first['what']}")
        return "; ".join(texts)

    def _notes(self) -> list[str]:
        notes = []
        every, short = (
            sum(int(each.of(name).sum()) for each in self.kernels.values())
            for name in ("launches", "short")
        )
        if short:
            share = formatted(short / every, "share")
            notes.append(
                f"{short:,} of {counted(every, 'kernel')} ({share}) took less"
                f" than {formatted(self.short, 'ns')}"
            )
        if self.stops:
            notes.append("time without profiling is time of the host on the critical path")
        if self.unplaced:
            notes.append(f"{counted(self.unplaced, 'completion')} of unknown devices left out")
        if self.early > _CLOCK_ERROR:
            notes.append(
                f"work started up to {formatted(self.early, 'ns')} before it was submitted: device"
                " times on the host's clock are at least that inexact"
            )
        late = sum(device.activity.late for device in self.devices.values())
        if late:
            notes.append(f"{formatted(late, 'ns')} of work was reported too late and left out")
        return notes
