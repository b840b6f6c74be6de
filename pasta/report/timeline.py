"""The timeline of a run's events: slices by row, counters, and levels of detail."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pasta.errors import RunError
from pasta.processors.strings import Strings
from pasta.progress import report_progress
from pasta.report.blocks import Blocks, read_blocks, with_blocks
from pasta.report.exports.trace.format import CATEGORIES, Kind, Slice, Track, Tracks
from pasta.report.exports.trace.head import TraceHead
from pasta.report.exports.trace.writer import Drawing
from pasta.run.directory import RunDirectory
from pasta.run.events import parts, read_batches
from pasta.run.inventory import process_of
from pasta.table import counted, formatted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.context import Process

#: Kinds of work on devices.
WORK = frozenset[Kind]({"kernel", "copy", "set"})
#: Events read, and slices kept: of more, the longest.
MAX_EVENTS = 5_000_000
MAX_SLICES = 1_000_000
#: Bins of a row on the coarsest level; each further level has four times as many.
_BINS = 1024
_FINER = 4
#: Slices of a row from which on it has levels.
_MIN_SLICES = 4 * _BINS
#: Bins in which a counter keeps its maximum and its last value.
_POINTS = 4096
#: A run is shown whole at first if it has fewer slices, or if the shortest interval with this share
#: of them takes more than this share of its time.
_MIN_SLICES_OF_FOCUS, _IN_FOCUS, _MAX_FOCUS = 200, 0.9, 0.5
_MAX_LANES = 8
#: Deeper slices of a track share its last rows.
_MAX_DEPTH = 60
_MAX_ROWS = 1000
_MAX_TRACKS = 100_000
#: First part of the keys of tracks of multiprocessors.
MULTIPROCESSOR = "multiprocessor"


@dataclass(frozen=True)
class Row:
    """Slices of a track that do not overlap: those from index `first` on, by time.

    `group` is "host", or the device; rows of a track share a `label`, and tracks below one heading
    share a `heading`. Slices are nested in slices of the row of the track with `depth` one less.
    `levels`: bins of each level of detail, the coarsest first.
    """

    group: str
    heading: str
    label: str
    depth: int
    first: int
    count: int
    levels: list[Bins] = field(default_factory=list)


@dataclass(frozen=True)
class Bins:
    """Equal parts of the timeline: `name` is the code of what takes most of each, -1 if nothing;
    `share` is the part (0 to 255) in which anything runs, at least 1 if anything does."""

    name: NDArray[Any]
    share: NDArray[Any]


@dataclass(frozen=True)
class Counter:
    """A level that holds until the next point. `time` is in ns from the program's start."""

    label: str
    unit: str
    device: int
    time: NDArray[Any]
    value: NDArray[Any]
    peak: float


@dataclass(frozen=True)
class Timeline:
    """Slices of all rows: `start` and `end` (int64, ns from the program's start) and `name`, an
    index of `names`, pairs of a kind and a name. `total` slices were read, those kept are at least
    `shortest` ns long: all, or only those of blocks, which are left out first."""

    rows: list[Row]
    start: NDArray[Any]
    end: NDArray[Any]
    name: NDArray[Any]
    names: list[tuple[Kind, str]]
    counters: list[Counter]
    begin: int
    until: int
    total: int
    shortest: int
    notes: list[str]
    work: Work

    def __bool__(self) -> bool:
        return bool(self.rows or self.counters)

    def focus(self) -> tuple[int, int] | None:
        """The interval that is shown first: where nearly all slices begin, with margins; None
        where that is most of the run."""
        if len(self.start) < _MIN_SLICES_OF_FOCUS:
            return None
        starts = np.sort(self.start)
        most = int(_IN_FOCUS * len(starts))
        widths = starts[most - 1 :] - starts[: len(starts) - most + 1]
        low = int(widths.argmin())
        margin = int(widths[low]) // 10
        apart = np.flatnonzero(np.diff(starts) > margin)  # each index ends a group of slices
        before, after = np.searchsorted(apart, [low, low + most - 1])
        first = int(starts[apart[before - 1] + 1 if before else 0])
        last = int(starts[apart[after] if after < len(apart) else -1])
        begin, until = max(self.begin, first - margin), min(self.until, last + margin)
        if until - begin > _MAX_FOCUS * (self.until - self.begin):
            return None
        return begin, max(until, begin + 1)


@dataclass(frozen=True)
class Work:
    """Work on devices, of all slices. `busy` is the time (ns) in which each device did any, by the
    device's label, and `span` the time from the first to the last work on any; `by_name` is the
    summed time of each code of `names`. All are 0 where the source has no device times."""

    busy: dict[str, int]
    span: int
    by_name: dict[int, int]


def read_timeline(run: RunDirectory, *, whole: bool = False) -> Timeline | None:
    """The timeline of a run's events; None if none were recorded. `whole`: of all events, with all
    slices. Raises RunError."""
    recorded = run.recorded()
    present = parts(recorded.events)
    if not present:
        return None
    strings = Strings()
    head = TraceHead(
        clocked="kernel_complete" in present,
        returns="kernel_launch_end" in present,
        copies_clocked="copy_complete" in present,
    )
    columns = Columns(process_of(recorded), strings)
    drawing = Drawing(columns, head, recorded.symbols())
    blocks = read_blocks(run)
    left = sys.maxsize if whole else MAX_EVENTS
    report_progress("reading events")
    try:
        for batch in read_batches(recorded.events, strings, on_warning=lambda line: None):
            if left <= 0:
                break
            left -= sum(len(records) for _, records in batch)
            drawing.add(batch)
            if blocks:
                blocks.feed(batch)
            if len(columns.tracks) > _MAX_TRACKS:
                raise RunError(f"{run.path}: more than {_MAX_TRACKS:,} threads and streams")
        drawing.close()
        if blocks:
            _draw_blocks(columns, blocks)
        return columns.timeline(cut=left <= 0, most=sys.maxsize if whole else MAX_SLICES)
    except (RunError, OSError):
        raise
    except Exception as error:  # records of an untrusted run may be inconsistent
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise RunError(f"{run.path}: inconsistent events ({why})") from error


class Columns(Tracks):
    """Collects slices and counters as columns of numbers."""

    detailed = False

    def __init__(self, process: Process, strings: Strings) -> None:
        super().__init__(process, strings)
        self._codes: dict[tuple[str, str], int] = {}  # by category and JSON text
        self._slices = array("q")  # five numbers each: see _add
        self._counters: dict[str, tuple[str, int, array[int], array[float]]] = {}
        self._ranges: dict[int, tuple[str, int]] = {}
        self._process_track = Track(process.pid, 0, "process")

    def slice(self, track: Track, ended: Slice, time: int) -> None:
        self._add(track, ended.time, time, ended.category, ended.name)

    def instant(
        self, track: Track, time: int, name: str, args: str = "", scope: str = "t",
        category: str = "cpu_instant_event",
    ) -> None:  # fmt: skip
        self._add(track, time, time, category, name)

    def _add(self, track: Track, start: int, end: int, category: str, name: str) -> None:
        code = self._codes.setdefault((category, name), len(self._codes))
        depth = min(len(track.open), _MAX_DEPTH)
        self._slices.extend((id(track), depth, start, max(start, end), code))

    def multiprocessor(
        self, device: int, number: int, slices: NDArray[Any], names: Sequence[str]
    ) -> None:
        """Adds slices of a multiprocessor, rows of start, end and an index of `names`."""
        track = Track(self.process.pid, 0, f"{MULTIPROCESSOR} {number}")
        self.tracks[MULTIPROCESSOR, device, number] = track
        codes = [
            self._codes.setdefault(("block", json.dumps(name)), len(self._codes)) for name in names
        ]
        rows = np.zeros((len(slices), 5), np.int64)
        rows[:, 0], rows[:, 2:4] = id(track), slices[:, :2]
        rows[:, 4] = np.asarray(codes, np.int64)[slices[:, 2]]
        self._slices.frombytes(rows.tobytes())

    def name_process(self, pid: int, name: str, label: str, order: int) -> None:
        """Nothing: rows are grouped by device."""

    def name_track(self, track: Track) -> None:
        """Nothing: a track has its name."""

    def arrow(
        self, category: str, id: int, begin: tuple[Track, int], end: tuple[Track, int]
    ) -> None:
        """Nothing: arrows are not shown."""

    def counter(self, name: str, time: int, unit: str, value: float, device: int) -> None:
        counter = self._counters.get(name)
        if counter is None:
            counter = self._counters[name] = (unit, device, array("q"), array("d"))
        counter[2].append(time)
        counter[3].append(value)

    def process_range(self, phase: Literal["b", "e"], id: int, name: str, time: int) -> None:
        if phase == "b":
            self._ranges[id] = name, time
        elif id in self._ranges:
            name, start = self._ranges.pop(id)
            self._add(self._process_track, start, time, "user_annotation", name)

    def timeline(self, *, cut: bool, most: int) -> Timeline:
        """What was drawn, `most` slices; `cut`: later events were not read."""
        base = self.process.start_time
        track, depth, start, end, name = _int64(self._slices).reshape(-1, 5).T.copy()
        start, end = start - base, end - base
        times = [_int64(counter[2]) - base for counter in self._counters.values()]
        ends = [each for each in (start, end, *times) if len(each)]
        begin = min([0, *(int(each.min()) for each in ends)])
        until = max([begin + 1, *(int(each.max()) for each in ends)])
        names = [(_kind(category, text), text) for (category, text) in self._names()]
        is_block = np.asarray([kind == "block" for kind, _ in names], bool)[name]
        longest = _longest(end - start, is_block, most)
        rows: list[Row] = []
        order, first, unseen = [], 0, 0
        work = _Busy(names)
        for group, heading, label, at in self._rows(track, depth, start, end):
            work.add(group, start[at], end[at], name[at])
            if len(rows) >= _MAX_ROWS:
                unseen += 1
                continue
            for lane in _lanes(start, end, at):
                levels = _levels(start[lane], end[lane], name[lane], begin, until)
                kept = lane[longest[lane]]
                depths = int(depth[at[0]])
                rows.append(Row(group, heading, label, depths, first, len(kept), levels))
                order.append(kept)
                first += len(kept)
        shown = np.concatenate(order) if order else np.zeros(0, np.int64)
        counters = [
            _counter(label, unit, device, time, np.frombuffer(values, np.float64), begin, until)
            for (label, (unit, device, _, values)), time in zip(
                self._counters.items(), times, strict=True
            )
        ]
        shortest = _shortest(end - start, is_block, longest)
        return Timeline(
            rows, start[shown], end[shown], name[shown], names,
            sorted(counters, key=lambda each: (each.device, each.label)),
            begin, until, len(start), shortest,
            list(_notes(len(start), len(shown), shortest, until, cut, unseen)), work.found(),
        )  # fmt: skip

    def _names(self) -> Iterator[tuple[str, str]]:
        for category, text in self._codes:
            yield category, json.loads(text)

    def _rows(
        self,
        track: NDArray[Any],
        depth: NDArray[Any],
        start: NDArray[Any],
        end: NDArray[Any],
    ) -> Iterator[tuple[str, str, str, NDArray[Any]]]:
        """Group, heading, label and slices, by time, of each depth of each track, in the order
        shown."""
        order = np.lexsort((end, start, depth, track))
        ends = np.flatnonzero((np.diff(track[order]) != 0) | (np.diff(depth[order]) != 0)) + 1
        found: dict[int, list[NDArray[Any]]] = {}
        for at in np.split(order, ends) if len(order) else ():
            found.setdefault(int(track[at[0]]), []).append(at)
        keys = {id(each): key for key, each in reversed(self.tracks.items())}
        named = {id(each): each for each in (self._process_track, *self.tracks.values())}
        places = {id: _place(keys.get(id, ("process", 0))) for id in found}
        for number in sorted(found, key=lambda id: places[id]):
            key = keys.get(number, ("process", 0))
            on_device = key[0] in ("stream", MULTIPROCESSOR)
            device = key[1] if on_device else -1
            group = f"device {device}" if device != -1 else "unknown device"
            main = " (main)" if key == ("thread", self.process.pid, 0) else ""
            label = named[number].name + main
            heading = "multiprocessors" if key[0] == MULTIPROCESSOR else label
            for at in found[number]:
                yield group if on_device else "host", heading, label, at


def _place(key: tuple[Any, ...]) -> tuple[int, Any]:
    """Order of tracks: the process, threads, then streams and multiprocessors by device."""
    what, *of = key
    return ["process", "thread", "stream", MULTIPROCESSOR].index(what), tuple(of)


def _draw_blocks(columns: Columns, blocks: Blocks) -> None:
    """Adds a row for each multiprocessor."""
    named, multiprocessors = blocks.slices()
    names = [
        with_blocks(json.loads(columns.text(kernel, kernel=True)), count) for kernel, count in named
    ]
    for device, number, slices in multiprocessors:
        columns.multiprocessor(device, number, slices, names)


def _kind(category: str, name: str) -> Kind:
    kind = CATEGORIES.get(category, "mark")
    return "wait" if kind == "call" and name.startswith("wait for ") else kind


def _int64(values: array[int]) -> NDArray[Any]:
    return np.frombuffer(values, np.int64) if len(values) else np.zeros(0, np.int64)


def _longest(took: NDArray[Any], is_block: NDArray[Any], most: int) -> NDArray[Any]:
    """Which slices are kept: the longest, the first of equal ones; blocks only if all other slices
    fit."""
    kept = np.ones(len(took), bool)
    if len(took) > most:
        kept[np.lexsort([-took, is_block])[most:]] = False
    return kept


def _shortest(took: NDArray[Any], is_block: NDArray[Any], kept: NDArray[Any]) -> int:
    """Duration from which on slices are kept; 0 if all are, or none."""
    if kept.all():
        return 0
    cut = kept & is_block if is_block[~kept].all() else kept & ~is_block
    return int(took[cut].min(initial=np.iinfo(np.int64).max)) if cut.any() else 0


def _lanes(start: NDArray[Any], end: NDArray[Any], at: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Slices in rows without overlaps; slices that would overlap in the last row begin later."""
    for lane in range(_MAX_LANES):
        if not len(at):
            return
        free = np.maximum.accumulate(end[at])
        if (start[at[1:]] >= free[:-1]).all():
            yield at
            return
        if lane == _MAX_LANES - 1:
            start[at[1:]] = np.maximum(start[at[1:]], free[:-1])
            end[at] = np.maximum(end[at], start[at])
            yield at
            return
        fits = _fitting(start[at].tolist(), end[at].tolist())
        yield at[fits]
        at = at[~fits]


def _fitting(starts: list[int], ends: list[int]) -> NDArray[Any]:
    """Which slices fit one after the other, taking each that does."""
    fits, busy = np.zeros(len(starts), bool), starts[0]
    for at, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if start >= busy:
            fits[at], busy = True, end
    return fits


def _levels(
    start: NDArray[Any], end: NDArray[Any], name: NDArray[Any], begin: int, until: int
) -> list[Bins]:
    """Levels of detail of a row's slices, the coarsest first; none for short rows."""
    if len(start) < _MIN_SLICES:
        return []
    count = _BINS
    while count * _FINER * _FINER <= len(start):
        count *= _FINER
    width = (until - begin) / count
    low, high = (start - begin) / width, (np.maximum(end, start + 1) - begin) / width
    first = np.minimum(low.astype(np.int64), count - 1)
    last = np.clip(np.ceil(high).astype(np.int64) - 1, first, count - 1)
    pieces = last - first + 1
    slice = np.repeat(np.arange(len(start)), pieces)
    bin = np.arange(len(slice)) - np.repeat(np.cumsum(pieces) - pieces, pieces) + first[slice]
    part = np.minimum(high[slice], bin + 1) - np.maximum(low[slice], bin)
    key = bin << 32 | name[slice]
    levels = []
    while True:
        key, part = _summed(key, part)
        levels.append(_bins(key, part, count))
        if count == _BINS:
            return levels[::-1]
        count //= _FINER
        key, part = (key >> 32) // _FINER << 32 | (key & 0xFFFF_FFFF), part / _FINER


def _summed(key: NDArray[Any], part: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    keys, of = np.unique(key, return_inverse=True)
    return keys, np.bincount(of, part, len(keys))


def _bins(key: NDArray[Any], part: NDArray[Any], count: int) -> Bins:
    """Bins of the parts by bin and name, sorted by key."""
    bin = key >> 32
    name = np.full(count, -1)
    order = np.argsort(part, kind="stable")
    name[bin[order]] = (key & 0xFFFF_FFFF)[order]  # the largest comes last
    busy = np.bincount(bin, part, count)
    share = np.where(name < 0, 0, np.clip(np.rint(255 * busy), 1, 255))
    return Bins(name, share.astype(np.int64))


def _counter(
    label: str, unit: str, device: int, time: NDArray[Any], value: NDArray[Any], begin: int,
    until: int,
) -> Counter:  # fmt: skip
    """A counter that keeps the maximum and the last value of each of its bins."""
    order = np.argsort(time, kind="stable")
    time, value = time[order], value[order]
    peak = float(value.max())
    if len(time) > 2 * _POINTS:
        bin = ((time - begin) / (until - begin + 1) * _POINTS).astype(np.int64)
        first = np.flatnonzero(np.diff(bin, prepend=-1))
        last = np.append(first[1:], len(bin)) - 1
        highest = np.repeat(np.maximum.reduceat(value, first), last - first + 1)
        at = np.flatnonzero(value == highest)
        kept = np.union1d(at[np.unique(bin[at], return_index=True)[1]], last)
        time, value = time[kept], value[kept]
    return Counter(label, unit, device, time, value, peak)


class _Busy:
    """Sums the work on devices."""

    def __init__(self, names: list[tuple[Kind, str]]) -> None:
        self.is_work = np.asarray([kind in WORK for kind, _ in names], bool)
        self.intervals: dict[str, list[tuple[NDArray[Any], NDArray[Any]]]] = {}
        self.by_name = np.zeros(len(names), np.int64)

    def add(self, group: str, start: NDArray[Any], end: NDArray[Any], name: NDArray[Any]) -> None:
        """Adds slices of a row."""
        work = self.is_work[name] & (end > start)
        if group == "host" or not work.any():
            return
        start, end, name = start[work], end[work], name[work]
        self.intervals.setdefault(group, []).append((start, end))
        np.add.at(self.by_name, name, end - start)

    def found(self) -> Work:
        """The sums."""
        joined = {
            group: tuple(np.concatenate(each) for each in zip(*found, strict=True))
            for group, found in self.intervals.items()
        }
        first = min((int(start.min()) for start, _ in joined.values()), default=0)
        last = max((int(end.max()) for _, end in joined.values()), default=0)
        named = {code: took for code, took in enumerate(self.by_name.tolist()) if took}
        return Work({group: _union(*each) for group, each in joined.items()}, last - first, named)


def _union(start: NDArray[Any], end: NDArray[Any]) -> int:
    """Length of the union of intervals."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    before = np.append(start[:1], np.maximum.accumulate(end)[:-1])
    return int(np.maximum(end - np.maximum(start, before), 0).sum())


def _notes(
    total: int, kept: int, shortest: int, until: int, cut: bool, unseen: int
) -> Iterator[str]:
    if unseen:
        yield f"{counted(unseen, 'row')} after the first {_MAX_ROWS:,} are not shown"
    elif kept < total:
        yield (
            f"of {counted(total, 'slice')}, those of at least {formatted(shortest, 'ns')} are "
            "drawn one by one; shorter ones are drawn only in the unzoomed view"
        )
    if cut:
        yield (
            f"only the first {formatted(until, 'ns')}, {MAX_EVENTS:,} events; `pasta report "
            "DIR --perfetto FILE` writes all"
        )
