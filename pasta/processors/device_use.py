"""Use of devices over time, and the causes of their idle time: from records, batch by batch.

The time of a device is divided into work (kernels, copies, communication) and gaps, and each gap
into what was not submitted yet and what had been submitted and did not start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, partial
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
from pasta.processors.batch import ABSENT_U64
from pasta.processors.codes import Codes, distinct
from pasta.processors.correlate import LateNodes, Submissions
from pasta.processors.demangle import short_name
from pasta.processors.gaps import GapSite
from pasta.processors.histogram import DurationSummary
from pasta.processors.launch_waves import LaunchWaves
from pasta.processors.operator_names import user_lines
from pasta.processors.stops import Stops

if TYPE_CHECKING:
    import re

    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.context import Context
    from pasta.processors.stacks import Frame

#: Causes of idle time.
START, WAIT, READ, LOAD, HOST, LATENCY, BLOCKED, UNSUBMITTED, END = range(9)
#: What a gap is located by: nothing, an operator's node, a gap between operators, a kernel's name.
_NOWHERE, _NODE, _BETWEEN, _KERNEL = range(4)
#: Fields of what the host submitted: operator (0: none), kernel's name, thread, begin of the
#: outermost operator around it (0: none) and the gap between operators that ended there (0: none).
_PLACE = [("node", "i4"), ("name", "u4"), ("thread", "u4"), ("began", "i8"), ("row", "i4")]
#: A wait of the host may end this long before the work that it waited for, ns: device times are
#: converted to the host's clock.
CLOCK_ERROR = 1_000
#: Maximum delay of records from buffered sources, ns.
_LATE = 2_000_000_000
#: Kinds that the host's threads publish while they work.
_OF_HOST = ("kernel_launch", "memory_copy", "memory_set", "sync", "operator_end", "process_end")
_FOREVER = 1 << 62
#: Fields of the kernels that `DeviceUse.followed` keeps.
FOLLOWED = [
    ("key", "u8"), ("start", "i8"), ("end", "i8"), ("stream", "u8"), ("thread", "u4"),
    ("name", "u4"), ("node", "i4"), ("device", "i2"),
]  # fmt: skip


@cache
def _work() -> Any:
    """Work, by launch ordinal or correlation; `blocking`: a copy that the host waited for."""
    return np.dtype([("key", "u8"), *WORK, ("blocking", "?"), *_PLACE])


@cache
def _submission() -> Any:
    """Work that has not completed; a launch's `blocks` and its `shape` (of LaunchWaves), `order`
    among all submissions."""
    more = [("stream", "u8"), ("order", "i8"), ("blocks", "i8"), ("shape", "i4")]
    return np.dtype([*_work().descr, *more])


@cache
def _wait() -> Any:
    """A wait of the host for a device."""
    return np.dtype([("begin", "i8"), ("end", "i8"), *_PLACE])


@dataclass
class Gaps:
    """Gaps of one cause at one place."""

    count: int = 0
    time: int = 0
    longest: int = 0

    def add(self, count: int, time: int, longest: int) -> None:
        self.count += count
        self.time += time
        self.longest = max(self.longest, longest)


class Device:
    """Activity of a device, and its gaps by cause and place."""

    def __init__(self, begin: int, follow: int | None = None) -> None:
        self.activity = Activity(begin, _work(), follow)
        self.gaps: dict[int, Gaps] = {}
        self.starts = DurationSummary()  # of work that ended a gap, since its submission
        self.all_starts = DurationSummary()  # for all work
        #: Idle time before kernels below `short`: of the host, and launch latency.
        self.before_short = Gaps()

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
            self.gaps.setdefault(key, Gaps()).add(*amounts)

    def close(self, end: int) -> None:
        """Counts the gap that is open at the end."""
        begin, last = self.activity.open_gap
        cause = END if last["class"] != -1 else START
        self.count(cause, np.zeros(1, _work()), np.asarray([end - begin]))

    def without_kernels(self, kind: int) -> int:
        """Time of COMMUNICATION, also beside copies, or of COPY alone, while no kernel ran, ns."""
        overlap = self.activity.overlap
        beside_copies = overlap[1 << kind | 1 << COPY] if kind != COPY else 0
        return int(overlap[1 << kind] + beside_copies)

    def could_overlap(self, kind: int) -> int:
        """Time of it that kernels, which ran alone at other times, could have hidden, ns."""
        return min(self.without_kernels(kind), int(self.activity.overlap[1 << COMPUTE]))

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


class Kernels:
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

    def add(self, codes: NDArray[Any], rows: NDArray[Any], waves: NDArray[Any], short: int) -> None:
        """Adds kernels (dtype `_submission()`) that completed, and their waves (NaN: unknown)."""
        if not len(rows):
            return
        durations = rows["end"] - rows["start"]
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
class Row:
    """Gaps of a device by cause and place, for tables."""

    device: int
    cause: int
    where: str
    line: Frame | None
    gaps: Gaps = field(default_factory=Gaps)


class DeviceUse:
    """Activity of all devices, causes of their gaps, and the critical path of the run.

    `begin`: when the process started, ns, 0 if unknown; `latency`: submitted work that starts
    later waited for something, ns; `short`: kernels below are short, ns; `communicates` matches
    the names of kernels that communicate. `follow`: a class of kernels, of which `followed` keeps
    all, and `Activity.alone` the time in which nothing else ran; the critical path is left out.
    """

    def __init__(
        self,
        begin: int,
        latency: int,
        short: int,
        communicates: re.Pattern[str],
        follow: int | None = None,
    ) -> None:
        self._latency, self._short, self._communicates = latency, short, communicates
        self._follow = follow
        #: Completed kernels of the class `follow`, with the fields of `FOLLOWED`, batch by batch.
        self.followed: list[NDArray[Any]] = []
        self.devices: dict[int, Device] = {}
        self._launches = Submissions("key", _submission())
        self._copies = Submissions("key", _submission(), 1 << 16)
        self._graphs = LateNodes([("began", "i8"), ("row", "i4"), ("order", "i8")])
        self._delay = 0  # of device times, at most
        self.early = 0  # by which work started before it was submitted, at most, ns
        self.names = Codes()
        self._classes = np.zeros(0, np.int8)  # by code of the name
        self._waits = np.zeros(0, _wait())
        self._outermost: dict[int, tuple[int, int]] = {}  # by thread: begin and gap before it
        self.begin = begin
        #: Latest time in all batches, and in all but the last one.
        self.end = self._before = self.begin
        self.stops = Stops()
        self.unplaced = 0
        self.kernels: dict[int, Kernels] = {}  # by device
        self._waves = LaunchWaves()
        self.path: Any = None  # a CriticalPath
        self.last_host = (0, 0)  # time and thread of the host's last action

    def add(self, batch: Batch, context: Context) -> None:
        """Add submissions and work, and sweep the devices up to the time before which nothing can
        arrive."""
        earliest, latest = batch.span
        if not self.begin:
            self.begin = self.end = earliest
        self._before = self.end
        self.end = max(self.end, latest)
        sources = context.strings.many(batch["process_start"]["source"])
        if not self._delay and set(sources) & set(context.conventions.buffered):
            self._delay = _LATE
        for number in batch["context_create"]["device"].tolist():
            self._device(number)
        self._waves.add_devices(batch["device"])
        self._exclude(self.stops.feed(batch))
        if self._follow is None:
            self._follow_host(batch)
        self._submit(batch, context)
        self._complete(batch, context)
        self._sweep()

    def _follow_host(self, batch: Batch) -> None:
        """Add operations of the host to the critical path."""
        from pasta.processors import critical_path  # imports Numba

        if self.path is None:
            self.path = critical_path.CriticalPath(self.begin, self._latency)
        for name in _OF_HOST:
            records = batch[name]
            if len(records):
                latest = records[int(records["time"].argmax())]
                self.last_host = max(self.last_host, (int(latest["time"]), int(latest["thread"])))
        syncs = batch["sync"][batch["sync"]["duration"] != ABSENT_U64]
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
                handle = of_stream & (syncs["handle"] != ABSENT_U64)
                rows["stream"][handle] = syncs["handle"][handle]
            self.path.add_host(rows)

    def _device(self, number: int) -> Device | None:
        if number < 0:
            return None
        if number not in self.devices:
            made = Device(self.begin, self._follow)
            made.activity.add(self._stopped(self.stops.past))
            self.devices[number] = made
        return self.devices[number]

    def _exclude(self, stops: list[tuple[int, int]]) -> None:
        """Exclude times without profiling from gaps."""
        for device in self.devices.values() if stops else ():
            device.activity.add(self._stopped(stops))

    @staticmethod
    def _stopped(stops: list[tuple[int, int]]) -> NDArray[Any]:
        work = np.zeros(len(stops), _work())
        work["start"], work["end"] = np.asarray(stops, np.int64).reshape(-1, 2).T
        work["submitted"], work["class"] = work["start"], STOPPED
        return work

    def _submit(self, batch: Batch, context: Context) -> None:
        """Record what the host submitted and its waits, with their places."""
        begins = batch["operator_begin"]
        outermost = begins["depth"] == 1
        begins, before = begins[outermost], context.operators.left[outermost]
        placed = partial(self._placed, batch, context.operators, begins, before)
        graphs = batch["graph_launch"]
        self._graphs.put(graphs, placed(graphs))
        launches = batch["kernel_launch"]
        rows = placed(launches)
        rows["key"], rows["name"] = launches["ordinal"], launches["name"]
        rows["class"] = self._class_of(launches["name"], context)
        rows["shape"] = self._waves.shapes(launches)
        rows["blocks"] = launches["grid"].prod(axis=1, dtype=np.int64)
        self._launches.put(rows[rows["key"] != ABSENT_U64])
        for kind in ("memory_copy", "memory_set"):
            records = batch[kind]
            rows = placed(records)
            rows["key"], rows["class"] = records["correlation"], COPY
            rows["blocking"] = (records["flags"] & abi.FLAG_ASYNC) == 0
            rows["blocking"] &= kind == "memory_copy"
            self._copies.put(rows[rows["key"] != 0])
        syncs = batch["sync"][batch["sync"]["duration"] != ABSENT_U64]
        rows = placed(syncs)
        waits = np.zeros(len(rows), _wait())
        for name, _ in _PLACE:
            waits[name] = rows[name]
        waits["end"] = rows["submitted"]
        waits["begin"] = waits["end"] - syncs["duration"].astype(np.int64)
        self._waits = np.concatenate([self._waits, waits])
        found = zip(begins["time"].tolist(), before.tolist(), strict=True)
        self._outermost.update(zip(begins["thread"].tolist(), found, strict=True))

    def _placed(
        self,
        batch: Batch,
        operators: Any,
        begins: NDArray[Any],
        before: NDArray[Any],
        records: NDArray[Any],
    ) -> NDArray[Any]:
        """Submissions (dtype `_submission()`) with the times and places of records. `begins`: the
        outermost operators of the batch, `before`: the gaps that they end. A node of a graph that
        is recorded later has the place of its graph launch, whose time and thread it has."""
        rows = np.zeros(len(records), _submission())
        rows["submitted"], rows["thread"] = records["time"], records["thread"]
        rows["stream"], rows["order"] = records["stream"], records["index"]
        rows["order"] += batch.base
        if not len(rows):
            return rows
        rows["node"] = operators.at(records)
        # `at` returns the operator that captured the graph
        replayed = (records["flags"] & abi.FLAG_GRAPH) != 0
        rows["node"][replayed] = 0
        for thread in distinct(rows["thread"]):
            mine = np.flatnonzero(rows["thread"] == thread)
            own = begins["thread"] == thread
            at = np.searchsorted(begins["index"][own], records["index"][mine], "right")
            time, row = self._outermost.get(thread, (0, 0))
            rows["began"][mine] = np.concatenate([[time], begins["time"][own]])[at]
            rows["row"][mine] = np.concatenate([[row], before[own]])[at]
        outside = rows["node"] == 0
        rows["began"][outside] = 0
        rows["row"][outside] = operators.gap_after(records)[outside]
        self._graphs.fill(records, rows)
        return rows

    def _class_of(self, names: NDArray[Any], context: Context) -> NDArray[Any]:
        codes = self.names.encode(names)
        new = self.names.ids[len(self._classes) :]
        found = [
            COMMUNICATION if self._communicates.search(name) else COMPUTE
            for name in context.demangled(new)
        ]
        self._classes = np.concatenate([self._classes, np.asarray(found, np.int8)])
        return np.asarray(self._classes[codes])

    def _complete(self, batch: Batch, context: Context) -> None:
        """Add the work that completed to its device."""
        kernels = batch["kernel_complete"]
        rows, known = self._launches.take(kernels["ordinal"])
        rows["submitted"][~known], rows["shape"][~known] = UNKNOWN, -1
        rows["stream"][~known] = kernels["stream"][~known]
        kernels, rows = self._timed(kernels, rows)
        codes = self.names.encode(rows["name"])
        waves = self._waves.of(rows["shape"], rows["blocks"], context)
        for number in distinct(kernels["device"]):
            mine = kernels["device"] == number
            of_device = self.kernels.setdefault(number, Kernels())
            of_device.add(codes[mine], rows[mine], waves[mine], self._short)
        self._keep_followed(kernels, rows)
        self._add(kernels, rows, 1 + codes.astype(np.int64))
        copies = batch["copy_complete"]
        rows, known = self._copies.take(copies["correlation"], forget=False)
        rows["submitted"][~known], rows["class"] = UNKNOWN, COPY
        rows["stream"][~known] = copies["stream"][~known]
        copies, rows = self._timed(copies, rows)
        self._add(copies, rows, np.zeros(len(rows), np.int64))

    def _keep_followed(self, kernels: NDArray[Any], rows: NDArray[Any]) -> None:
        mine = np.flatnonzero(rows["class"] == self._follow) if self._follow is not None else ()
        if not len(mine):
            return
        kept = np.zeros(len(mine), FOLLOWED)
        for name in kept.dtype.names or ():
            kept[name] = (kernels if name == "device" else rows)[name][mine]
        self.followed.append(kept)

    @staticmethod
    def _timed(completions: NDArray[Any], rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Completions that have times, with their times in the rows."""
        good = (completions["end"] != ABSENT_U64) & (completions["end"] >= completions["start"])
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
        if self.path is None:
            return
        known = completions["device"] >= 0
        if not known.all():
            completions, rows, what = completions[known], rows[known], what[known]
        self.path.add(rows, completions["device"], what << 16 | completions["device"])

    def _sweep(self, until: int | None = None) -> None:
        """Sweep the devices, by default up to the first submission that has not completed, and to
        the end of the batch before: threads publish a little out of order."""
        if until is None:
            pending = self._launches.pending["submitted"]
            until = min(self._before, int(pending.min(initial=_FOREVER)))
            until = min(until, self.stops.since or _FOREVER) - self._delay
            swept = max((device.activity.swept for device in self.devices.values()), default=0)
            if until - swept < self._delay // 2:
                return  # work that waits is sorted at every sweep
        needed = until
        for device in self.devices.values():
            self._attribute(device, device.activity.sweep(until))
            needed = min(needed, device.activity.open_gap[0])
        self._waits = self._waits[self._waits["end"] >= needed - CLOCK_ERROR]
        if self.path is not None:
            self.path.sweep(until)

    def _attribute(self, device: Device, gaps: NDArray[Any]) -> None:
        """Divide gaps by their causes."""
        unknown = gaps["submitted"] == UNKNOWN
        device.count(UNSUBMITTED, gaps["after"][unknown], (gaps["end"] - gaps["begin"])[unknown])
        gaps = gaps[~unknown]
        late = gaps["end"] - gaps["submitted"]
        device.starts.add(np.zeros(len(late), np.int64), late)
        for cause, chosen in ((LATENCY, late <= self._latency), (BLOCKED, late > self._latency)):
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
        waits = self._waits[waited[waited >= 0]]
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
        brief = ~first & (after["end"] - after["start"] < self._short)
        brief &= (after["class"] == COMPUTE) & (late <= self._latency)
        idle = (gaps["submitted"] - begin + late)[brief]
        if len(idle):
            device.before_short.add(len(idle), int(idle.sum()), int(idle.max()))

    def _waited(self, gaps: NDArray[Any]) -> NDArray[Any]:
        """Numbers of the waits, of the thread that ended each gap, in which it began; -1: none."""
        found = np.full(len(gaps), -1)
        for thread in distinct(gaps["after"]["thread"]):
            own = np.flatnonzero(self._waits["thread"] == thread)
            if not len(own):
                continue
            mine = np.flatnonzero(gaps["after"]["thread"] == thread)
            begin, submitted = gaps["begin"][mine], gaps["submitted"][mine]
            at = np.searchsorted(self._waits["begin"][own], begin, "right") - 1
            end = self._waits["end"][own][at]
            within = (at >= 0) & (end >= begin - CLOCK_ERROR) & (end <= submitted)
            found[mine[within]] = own[at[within]]
        return found

    def finish(self) -> None:
        """Adds the remaining work at the end of the run."""
        self._exclude(self.stops.end(self.end))
        self._sweep(self.end)
        if self.path is not None:
            self.path.sweep(self.end + 1)
        for device in self.devices.values():
            device.close(self.end)

    def gaps(self, context: Context) -> list[Row]:
        """Gaps of all devices by cause and place, the longest first."""
        lines = user_lines(context)
        operators = context.strings.many(context.operators.nodes["name"])
        found: dict[Any, Row] = {}
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
                    line = site.loader or site.before or site.after
                    one_side = site.before is None or site.after is None  # "after train.py:3 f"
                    where = site.between if line and one_side else f"at {site.between}"
                    if site.loader and cause == HOST:
                        cause, where = LOAD, str(site.loader)
                row = found.setdefault((number, cause, where), Row(number, cause, where, line))
                row.gaps.add(gaps.count, gaps.time, gaps.longest)
        return sorted(found.values(), key=lambda row: -row.gaps.time)
