"""Schedule of blocks: which multiprocessor executed which block of a launch, and when."""

from __future__ import annotations

import json
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, BinaryIO

from pasta.lazy import np
from pasta.probes import Trace, probe
from pasta.probes.accumulators import Sums
from pasta.probes.kinds import KIND
from pasta.processors.batch import ABSENT_U32
from pasta.processors.kernel_names import Launched, kernel_names
from pasta.processors.rows import combined, group_starts
from pasta.table import Figure, Table, counted, formatted, shares
from pasta.tool import Finding, Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pasta.probes.records import Accesses
    from pasta.table import Unit

_ENTER = KIND["block_enter"].number
_MAX_FINDINGS = 5
#: Rows to combine at once: one per warp, two for the first warp of a block.
_PENDING = 1 << 20
_POINTS = 256
_UNITS: dict[str, Unit] = {
    "span": "ns", "busy": "ns", "tail": "ns", "duration": "ns", "begin": "ns",
    "idle_share": "share", "tail_share": "share", "share": "share",
}  # fmt: skip


class BlockSchedule(Tool):
    """Blocks over multiprocessors and time: imbalance, tail, and blocks resident at a time."""

    title = "Block schedule"
    topic = "time"

    top = option(10, help="rows of each table in the text report; the tables have all", minimum=1)
    blocks = option(
        4_000_000,
        help="maximum number of blocks to keep; launches beyond it are not recorded",
        minimum=1,
    )
    timelines = option(
        4, help="launches to trace block by block: the longest launch of each kernel"
    )
    imbalance = option(
        1.25,
        help="finding: minimum imbalance of multiprocessors, busiest / mean busy time",
        minimum=1.0,
    )
    tail = option(0.2, help="finding: minimum share of launch time in the tail")
    at_least = option(
        0.05, help="… both findings: minimum share of the time of all launches in one kernel"
    )
    warps = Trace()

    @probe.block_enter(per="warp")
    def enter(access: Any, maps: Any) -> None:
        """Record the begin of a block's first warp."""
        if access.warp == 0:
            maps.warps.write(access)

    @probe.block_exit(per="warp")
    def leave(access: Any, maps: Any) -> None:
        """Record the end of a warp: the last one ends the block."""
        maps.warps.write(access)

    def start(self) -> None:
        """Initialize the tables of launches and blocks."""
        self.launched = Launched(device="i2")
        self.multiprocessors: dict[int, int] = {}
        # the earliest begin, and the latest end as its complement
        self.seen = Sums(("launch", "block"), ("begin", "rest", "sm"), "minimum", _PENDING)
        self.left_out = 0
        self.untimed = 0

    def on_launches(self, launches: NDArray[Any]) -> None:
        """Keep the device of each launch."""
        self.launched.add(launches, device=launches["device"])

    def on_devices(self, devices: NDArray[Any]) -> None:
        """Keep the number of multiprocessors of each device."""
        for device in devices:
            count = int(device["multiprocessors"])
            self.multiprocessors[int(device["device"])] = 0 if count == ABSENT_U32 else count

    def on_accesses(self, accesses: Accesses) -> None:
        """Add the begin or end of warps."""
        columns = accesses.columns
        time, enters = columns["address"], columns["kind"] == _ENTER
        if not time.all():  # of a source without a device clock
            self.untimed += int((enters & (time == 0)).sum())
            return
        if len(self.seen) > self.blocks + _PENDING:
            self.left_out += int(enters.sum())
            return
        self.seen.add(
            {
                "launch": columns["launch"],
                "block": columns["block"],
                "begin": np.where(enters, time, ~np.uint64(0)),
                "rest": np.where(enters, ~np.uint64(0), ~time),
                "sm": columns["sm"].astype(np.uint64),
            }
        )

    def result(self) -> Result:
        """Tables of kernels, launches and multiprocessors, a trace of the longest launches, and
        findings."""
        rows = self.seen.rows()
        begun = rows["begin"] != ~np.uint64(0)
        ended = rows["rest"] != ~np.uint64(0)
        whole = rows[begun & ended]
        if not len(whole):
            if self.untimed:
                blocks = counted(self.untimed, "block")
                return Result(f"{blocks}, without times: the source has no device clock")
            return Result("no blocks were recorded")
        schedule = Schedule.of(whole)
        launches = self._launches(schedule)
        kernels = self._kernels(launches)
        shown = self._shown(launches)
        lost = len(rows) - len(whole) + self.left_out
        tables = {
            "kernels": kernels,
            "launches": self._launch_table(launches),
            "multiprocessors": self._multiprocessors(schedule),
            "blocks": self._blocks(schedule, shown),
            "resident": self._resident(schedule),
        }
        return Result(
            summary=self._summary(len(whole), launches),
            tables=tables,
            findings=list(self._findings(kernels)),
            figures=self._figures(schedule, launches),
            files={"blocks.json": lambda file: self._write(schedule, shown, file)},
            notes=[f"{counted(lost, 'block')} left out: the begin or end is missing, or "
                   "block_schedule.blocks was reached"] if lost else [],
        )  # fmt: skip

    # ---- launches and kernels

    def _launches(self, schedule: Schedule) -> NDArray[Any]:
        """A row for each launch, in order."""
        found = schedule.launches()
        devices = self.launched.of(found["launch"], "device").tolist()
        known = [self.multiprocessors.get(each, 0) for each in devices]
        count = np.maximum(np.asarray(known, np.int64), found["used"])
        found["multiprocessors"] = count
        found["imbalance"] = found["most"] / np.maximum(found["busy"] / count, 1)
        return found

    def _kernels(self, launches: NDArray[Any]) -> Table:
        names = self.launched.of(launches["launch"])
        fields = ("launches", "blocks", "span", "busy", "most", "tail", "offered", "resident_ns")
        rows = np.zeros(len(launches), [("kernel", "u4"), *((name, "f8") for name in fields)])
        rows["kernel"], rows["launches"] = names, 1
        for name in ("blocks", "span", "busy", "most", "tail", "resident_ns"):
            rows[name] = launches[name]
        rows["offered"] = launches["span"] * launches["multiprocessors"]
        mean = launches["busy"] / launches["multiprocessors"]
        rows = combined(rows, ("kernel",))
        means = combined(_pairs(names, mean), ("kernel",))["mean"]
        order = np.argsort(-rows["span"], kind="stable")
        rows, means = rows[order], means[order]
        return _table(
            {
                "kernel": kernel_names(self.context, rows["kernel"]),
                "launches": rows["launches"].astype(np.uint64),
                "blocks": rows["blocks"].astype(np.uint64),
                "span": rows["span"].astype(np.uint64),
                "share": shares(rows["span"], float(rows["span"].sum())),
                "imbalance": rows["most"] / np.maximum(means, 1),
                "idle_share": 1 - rows["busy"] / np.maximum(rows["offered"], 1),
                "tail_share": rows["tail"] / np.maximum(rows["span"], 1),
                "resident": rows["resident_ns"] / np.maximum(rows["busy"], 1),
            },
            labels={
                "span": "time of launches",
                "share": "of time of launches",
                "imbalance": "busiest / mean",
                "idle_share": "multiprocessors idle",
                "tail_share": "in tails",
                "resident": "blocks resident",
            },
            keys=("kernel",),
            sums=("launches", "blocks", "span"),
            levels=("imbalance", "idle_share", "tail_share", "resident"),
            important=("launches", "span", "imbalance", "tail_share"),
            title="Kernels by time from the start of the first block to the end of the last",
            shown=self.top,
        )

    def _launch_table(self, launches: NDArray[Any]) -> Table:
        launches = launches[np.argsort(-launches["span"].astype(np.float64), kind="stable")]
        span = np.maximum(launches["span"], 1)
        return _table(
            {
                "launch": launches["launch"],
                "kernel": kernel_names(self.context, self.launched.of(launches["launch"])),
                "blocks": launches["blocks"],
                "span": launches["span"],
                "multiprocessors": launches["used"],
                "imbalance": launches["imbalance"],
                "idle_share": 1 - launches["busy"] / (span * launches["multiprocessors"]),
                "tail": launches["tail"],
                "tail_share": launches["tail"] / span,
                "resident": launches["resident_ns"] / np.maximum(launches["busy"], 1),
                "most_resident": launches["most_resident"],
            },
            labels={
                "span": "time",
                "multiprocessors": "multiprocessors used",
                "imbalance": "busiest / mean",
                "idle_share": "idle",
                "tail_share": "of its time",
                "resident": "blocks resident",
                "most_resident": "at most",
            },
            keys=("kernel", "launch"),
            sums=("blocks", "span"),
            levels=("imbalance", "tail_share", "resident"),
            important=("span", "imbalance", "tail"),
            title="Launches, longest first",
            shown=self.top,
        )

    def _multiprocessors(self, schedule: Schedule) -> Table:
        """Blocks and busy time of each multiprocessor, over all launches."""
        groups, sums = schedule.groups, ("blocks", "busy")
        rows = np.zeros(len(groups), [("device", "i2"), ("sm", "u8"), *((n, "u8") for n in sums)])
        rows["device"] = self.launched.of(groups["launch"], "device")
        for name in ("sm", *sums):
            rows[name] = groups[name]
        rows = combined(rows, ("device", "sm"))
        return _table(
            {
                "device": rows["device"],
                "sm": rows["sm"],
                "blocks": rows["blocks"],
                "busy": rows["busy"],
                "share": shares(rows["busy"], int(rows["busy"].max(initial=0))),
            },
            labels={"sm": "multiprocessor", "share": "of the busiest"},
            keys=("device", "sm"),
            sums=sums,
            title="Multiprocessors, over all launches",
            shown=self.top,
            hidden=frozenset({"device"} if len(np.unique(rows["device"])) == 1 else ()),
        )

    # ---- blocks of single launches

    def _shown(self, launches: NDArray[Any]) -> NDArray[Any]:
        """Ordinals of the longest launch of each kernel, the longest first."""
        longest = launches[np.argsort(-launches["span"].astype(np.float64), kind="stable")]
        names = self.launched.of(longest["launch"])
        _, first = np.unique(names, return_index=True)
        return np.asarray(longest["launch"][np.sort(first)][: self.timelines])

    def _blocks(self, schedule: Schedule, shown: NDArray[Any]) -> Table:
        rows = schedule.of_launches(shown)
        rows = rows[np.argsort(-(rows["end"] - rows["begin"]).astype(np.float64), kind="stable")]
        return _table(
            {
                "launch": rows["launch"],
                "kernel": kernel_names(self.context, self.launched.of(rows["launch"])),
                "block": rows["block"],
                "sm": rows["sm"],
                "begin": rows["begin"],
                "duration": rows["end"] - rows["begin"],
            },
            labels={"sm": "multiprocessor", "begin": "after the first block"},
            keys=("kernel", "launch", "block"),
            sums=(),
            levels=("duration",),
            title="Blocks of the longest launch of each kernel, longest first",
            shown=self.top,
        )

    def _resident(self, schedule: Schedule) -> Table:
        """Numbers of resident blocks over time, for all launches, for the report's timeline."""
        rows = schedule.resident
        return _table(
            {
                "launch": rows["launch"],
                "kernel": kernel_names(self.context, self.launched.of(rows["launch"])),
                "device": self.launched.of(rows["launch"], "device"),
                "sm": rows["sm"],
                "clock": schedule.clocks(rows["launch"]) + rows["begin"],
                "duration": rows["end"] - rows["begin"],
                "blocks": rows["blocks"],
            },
            labels={"sm": "multiprocessor", "clock": "begin on the device's clock, ns"},
            keys=(),
            sums=(),
            title="Blocks resident on multiprocessors over time",
            shown=0,
        )

    def _write(self, schedule: Schedule, shown: NDArray[Any], file: BinaryIO) -> None:
        """Those launches as a trace (JSON) for ui.perfetto.dev: a process for each launch, a thread
        for each multiprocessor and block resident there at a time."""
        names = kernel_names(self.context, self.launched.of(shown))
        events: list[dict[str, Any]] = []
        for number, (launch, name) in enumerate(zip(shown.tolist(), names, strict=True)):
            label = {"name": f"{name}, launch {launch}"}
            events.append({"ph": "M", "name": "process_name", "pid": number, "args": label})
            rows = schedule.of_launches(np.asarray([launch], np.uint64))
            lanes = _lanes(rows)
            per_sm = max(lanes) + 1
            for row, lane in zip(rows.tolist(), lanes, strict=True):
                _, block, begin, end, sm = row
                thread = per_sm * sm + lane
                events.append(
                    {"ph": "X", "name": f"block {block}", "pid": number, "tid": thread,
                     "ts": begin / 1000, "dur": (end - begin) / 1000}
                )  # fmt: skip
            for sm, lane in sorted(set(zip(rows["sm"].tolist(), lanes, strict=True))):
                label = {"name": f"multiprocessor {sm}" + (f", {lane + 1}" if lane else "")}
                events.append(
                    {"ph": "M", "name": "thread_name", "pid": number, "tid": per_sm * sm + lane,
                     "args": label}
                )  # fmt: skip
        file.write(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}).encode())

    def _figures(self, schedule: Schedule, launches: NDArray[Any]) -> dict[str, Figure]:
        """Of the longest launch: blocks and busy multiprocessors over time, and the busy time of
        each multiprocessor."""
        longest = launches[np.argmax(launches["span"])]
        (name,) = kernel_names(self.context, self.launched.of(longest["launch"][None]))
        rows = schedule.of_launches(longest["launch"][None])
        groups = schedule.groups[schedule.groups["launch"] == longest["launch"]]
        times = np.unique(np.linspace(0, int(longest["span"]), _POINTS).astype(np.uint64))
        begun = np.searchsorted(np.sort(rows["begin"]), times, "right")
        ended = np.searchsorted(np.sort(rows["end"]), times, "right")
        merged = schedule.intervals
        merged = merged[merged["launch"] == longest["launch"]]
        busy = np.searchsorted(np.sort(merged["begin"]), times, "right")
        idle = np.searchsorted(np.sort(merged["end"]), times, "right")
        where = f"{name}, launch {longest['launch']}"
        return {
            "over_time": Figure(
                "step", f"Blocks over time: {where}", times,
                {"blocks": begun - ended, "busy multiprocessors": busy - idle},
                x_label="time", x_unit="ns",
            ),
            "multiprocessors": Figure(
                "bar", f"Busy time of multiprocessors: {where}", groups["sm"],
                {"busy": groups["busy"]}, x_label="multiprocessor", y_unit="ns",
            ),
        }  # fmt: skip

    # ---- findings

    def _findings(self, kernels: Table) -> Iterator[Finding]:
        for row in kernels.rows(_MAX_FINDINGS):
            if row["share"] < self.at_least:
                return
            if row["imbalance"] >= self.imbalance:
                yield Finding(
                    what="work is unevenly distributed over multiprocessors",
                    where=row["kernel"],
                    evidence=f"the busiest multiprocessor works {row['imbalance']:.3g} times "
                    "as long as the mean; multiprocessors are idle for "
                    f"{formatted(row['idle_share'], 'share')} of "
                    f"{formatted(row['span'], 'ns')} in "
                    f"{counted(row['launches'], 'launch', 'launches')}",
                    remedy="give all blocks equal work, use more and smaller blocks, or use "
                    "persistent blocks that take work from a queue",
                    gain=row["share"] * (1 - 1 / row["imbalance"]),
                    of="time of the recorded launches",
                    confidence="medium",
                )
            if row["tail_share"] >= self.tail:
                yield Finding(
                    what="few multiprocessors are busy at the end of launches",
                    where=row["kernel"],
                    evidence=f"{formatted(row['tail_share'], 'share')} of "
                    f"{formatted(row['span'], 'ns')} passed after half of the "
                    "multiprocessors had finished",
                    remedy="use smaller blocks, start the longest ones first, or overlap the "
                    "tail with a kernel in another stream",
                    gain=row["share"] * row["tail_share"] / 2,
                    of="time of the recorded launches",
                    confidence="medium",
                )

    def _summary(self, blocks: int, launches: NDArray[Any]) -> str:
        worst = launches[np.argmax(launches["imbalance"])]
        (name,) = kernel_names(self.context, self.launched.of(worst["launch"][None]))
        tail = shares([int(launches["tail"].sum())], int(launches["span"].sum()))[0]
        return (
            f"{counted(blocks, 'block')} of {counted(len(launches), 'launch', 'launches')} on "
            f"up to {counted(int(launches['used'].max()), 'multiprocessor')}; "
            f"{formatted(float(tail), 'share')} of launch time in tails; busiest / mean "
            f"multiprocessor: up to {worst['imbalance']:.3g} ({name})"
        )


@dataclass(frozen=True)
class Schedule:
    """Blocks with times in ns from the first block's begin of their launch.

    `blocks`: by launch, multiprocessor and begin. `intervals`: of a multiprocessor, in which at
    least one block was resident. `groups`: a row for each launch and multiprocessor. `resident`:
    intervals in which no block began or ended, and the number of blocks. `first`: the first block's
    begin of each launch, on the device's clock.
    """

    blocks: NDArray[Any]
    first: NDArray[Any]
    intervals: NDArray[Any]
    groups: NDArray[Any]
    resident: NDArray[Any]

    @staticmethod
    def of(rows: NDArray[Any]) -> Schedule:
        """The schedule of rows by launch and block, with `begin`, `rest` (the complement of the
        end) and `sm`."""
        blocks = np.empty(
            len(rows),
            [("launch", "u8"), ("block", "u8"), ("begin", "u8"), ("end", "u8"), ("sm", "u8")],
        )
        for name in ("launch", "block", "begin", "sm"):
            blocks[name] = rows[name]
        blocks["end"] = np.maximum(~rows["rest"], rows["begin"])
        starts = group_starts(blocks, ("launch",))
        counts = np.diff(starts, append=len(blocks))
        first = np.empty(len(starts), [("launch", "u8"), ("clock", "u8")])
        first["launch"] = blocks["launch"][starts]
        first["clock"] = np.minimum.reduceat(blocks["begin"], starts)
        for name in ("begin", "end"):
            blocks[name] -= np.repeat(first["clock"], counts)
        blocks = blocks[np.lexsort([blocks["begin"], blocks["sm"], blocks["launch"]])]
        return Schedule(blocks, first, *_busy(blocks))

    def clocks(self, launches: NDArray[Any]) -> NDArray[Any]:
        """The first block's begin of these launches, on the device's clock."""
        return np.asarray(self.first["clock"][np.searchsorted(self.first["launch"], launches)])

    def of_launches(self, launches: NDArray[Any]) -> NDArray[Any]:
        """Blocks of these launches."""
        return np.asarray(self.blocks[np.isin(self.blocks["launch"], launches)])

    def launches(self) -> NDArray[Any]:
        """A row for each launch: blocks, span, multiprocessors used, their busy time in all and of
        the busiest, time of resident blocks, most blocks on one, and the tail, after half of them
        had ended. `multiprocessors` and `imbalance` are left to the caller."""
        groups = self.groups
        starts = group_starts(groups, ("launch",))
        used = np.diff(starts, append=len(groups))
        fields = ("blocks", "span", "used", "busy", "most", "resident_ns", "most_resident", "tail",
                  "multiprocessors")  # fmt: skip
        found = np.zeros(
            len(starts),
            [("launch", "u8"), *((name, "i8") for name in fields), ("imbalance", "f8")],
        )
        found["launch"], found["used"] = groups["launch"][starts], used
        for name in ("blocks", "busy", "resident_ns"):
            found[name] = np.add.reduceat(groups[name], starts)
        found["span"] = np.maximum.reduceat(groups["end"], starts)
        found["most"] = np.maximum.reduceat(groups["busy"], starts)
        found["most_resident"] = np.maximum.reduceat(groups["most"], starts)
        by_end = groups["end"][np.lexsort([groups["end"], groups["launch"]])]
        found["tail"] = found["span"] - by_end[starts + (used - 1) // 2].astype(np.int64)
        return found


def _busy(blocks: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Intervals, groups and resident blocks of a schedule, from its blocks in order."""
    keys = ("launch", "sm")
    starts = group_starts(blocks, keys)
    counts = np.diff(starts, append=len(blocks))
    ends = np.maximum.reduceat(blocks["end"], starts)
    # one axis for all groups: each begins after the end of the previous one
    origin = np.repeat(np.cumsum(ends + np.uint64(1), dtype=np.uint64) - ends, counts)
    begin, end = blocks["begin"] + origin, blocks["end"] + origin
    latest = np.maximum.accumulate(end)
    fresh = np.flatnonzero(np.r_[True, begin[1:] > latest[:-1]])
    intervals = np.empty(
        len(fresh), [("launch", "u8"), ("sm", "u8"), ("begin", "u8"), ("end", "u8")]
    )
    for name in keys:
        intervals[name] = blocks[name][fresh]
    intervals["begin"] = blocks["begin"][fresh]
    intervals["end"] = np.maximum.reduceat(blocks["end"], fresh)
    groups = np.empty(
        len(starts),
        [("launch", "u8"), ("sm", "u8"), ("blocks", "u8"), ("busy", "u8"), ("resident_ns", "u8"),
         ("begin", "u8"), ("end", "u8"), ("most", "u8")],
    )  # fmt: skip
    for name in keys:
        groups[name] = blocks[name][starts]
    groups["blocks"], groups["end"] = counts, ends
    groups["begin"] = blocks["begin"][starts]
    groups["resident_ns"] = np.add.reduceat(blocks["end"] - blocks["begin"], starts)
    lengths = intervals["end"] - intervals["begin"]
    groups["busy"] = np.add.reduceat(lengths, group_starts(intervals, keys))
    # blocks that begin when another one ends are placed after it
    times = np.concatenate([begin, end])
    change = np.repeat(np.array([1, -1]), len(blocks))
    order = np.lexsort([change, times])
    resident = np.cumsum(change[order])
    groups["most"] = np.maximum.reduceat(resident, 2 * starts)
    return intervals, groups, _levels(groups, begin[starts], times[order], resident)


def _levels(
    groups: NDArray[Any], begins: NDArray[Any], times: NDArray[Any], resident: NDArray[Any]
) -> NDArray[Any]:
    """Intervals between changes, with the number of resident blocks, from `times` on the axis of
    all groups and the blocks after each; `begins`: of the groups there."""
    last = np.append(times[1:] != times[:-1], True)
    times, resident = times[last], resident[last]
    some = np.flatnonzero(resident > 0)  # never the last one
    of = np.searchsorted(begins, times[some], "right") - 1
    found = np.empty(
        len(some),
        [("launch", "u8"), ("sm", "u8"), ("begin", "u8"), ("end", "u8"), ("blocks", "u8")],
    )
    origin = begins - groups["begin"]
    for name in ("launch", "sm"):
        found[name] = groups[name][of]
    found["begin"], found["end"] = times[some] - origin[of], times[some + 1] - origin[of]
    found["blocks"] = resident[some]
    return found


def _table(columns: dict[str, Any], **fields: Any) -> Table:
    units = {name: unit for name, unit in _UNITS.items() if name in columns}
    return Table(columns, units=units, **fields)


def _lanes(rows: NDArray[Any]) -> list[int]:
    """For each block the lowest free place of its multiprocessor, in order of begin."""
    found: list[int] = []
    resident: dict[int, list[tuple[int, int]]] = {}  # heaps of ends with their lanes
    free: dict[int, list[int]] = {}
    for begin, end, sm in zip(
        rows["begin"].tolist(), rows["end"].tolist(), rows["sm"].tolist(), strict=True
    ):
        running, lanes = resident.setdefault(sm, []), free.setdefault(sm, [])
        while running and running[0][0] <= begin:
            heappush(lanes, heappop(running)[1])
        lane = heappop(lanes) if lanes else len(running)
        heappush(running, (end, lane))
        found.append(lane)
    return found


def _pairs(names: NDArray[Any], mean: NDArray[Any]) -> NDArray[Any]:
    rows = np.empty(len(names), [("kernel", "u4"), ("mean", "f8")])
    rows["kernel"], rows["mean"] = names, mean
    return rows
