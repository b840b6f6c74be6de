"""Busy and idle time of one device, from the intervals of its work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.timeline import TotalTimeline

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Classes of work, and bits of the masks that index `Activity.overlap`. STOPPED: profiling was.
COMPUTE, COPY, COMMUNICATION, STOPPED = range(4)
#: A submission time that is not known.
UNKNOWN = -1
#: Fields that the dtype of work begins with, times in ns: `submitted` is the time of the host's
#: call, or UNKNOWN.
WORK = [("start", "i8"), ("end", "i8"), ("submitted", "i8"), ("class", "i1")]


class Activity:
    """Union, overlap and gaps of the work of one device, swept from `begin` to the run's end.

    Work may be added in any order. What it did before the time up to which was swept is not in any
    result but `late`. `follow`: the class whose work `alone` has.
    """

    def __init__(self, begin: int, work: Any, follow: int | None = None) -> None:
        self.begin = begin
        self._follow = follow  # a class
        #: For work of the class `follow`, which has a `key`: time in which no other class ran, ns,
        #: in parts.
        self.alone: list[NDArray[Any]] = []
        #: Everything before this time was swept, ns.
        self.swept = begin
        #: Time by mask of the classes that ran at once, ns; [0]: idle.
        self.overlap = np.zeros(1 << (STOPPED + 1), np.int64)
        #: Time of work that was added too late, ns.
        self.late = 0
        #: Time in which any work ran, over time.
        self.timeline = TotalTimeline(begin)
        #: A gap: the first submission of work that starts at its end or later, no earlier than its
        #: begin, or UNKNOWN; the last work that ended before it, and the first that starts after.
        #: Work of class -1: none.
        self.gap = np.dtype(
            [
                ("begin", "i8"),
                ("end", "i8"),
                ("submitted", "i8"),
                ("before", work),
                ("after", work),
            ]
        )
        self._work = np.zeros(0, work)  # not swept, or in part
        self._idle_since = begin  # while idle
        self._last = np.zeros((), work)
        self._last["class"] = -1

    def add(self, work: NDArray[Any]) -> None:
        """Adds work."""
        early = work["start"] < self.swept
        if early.any():
            missed = np.minimum(work["end"], self.swept) - work["start"]
            self.late += int(missed[early & (missed > 0)].sum())
            work = work[~early | (work["end"] > self.swept)]
            work["start"] = np.maximum(work["start"], self.swept)
        self._work = np.concatenate([self._work, work])

    def sweep(self, until: int) -> NDArray[Any]:
        """Sweeps up to a time; returns the gaps that ended (dtype `gap`), in order.

        All work that starts, or was submitted, before that time must have been added.
        """
        if until <= self.swept:
            return np.zeros(0, self.gap)
        work = self._work[np.argsort(self._work["start"], kind="stable")]
        count = int(np.searchsorted(work["start"], until))
        active = work[:count]
        begins = np.maximum(active["start"], self.swept)
        ends = np.clip(active["end"], begins, until)
        times = np.concatenate([begins, ends])
        edges = np.argsort(times, kind="stable")  # of equal times, begins are first
        times = times[edges]
        steps, classes = np.where(edges < count, 1, -1), np.tile(active["class"], 2)[edges]
        mask = np.zeros(len(edges), np.int64)
        for each in range(STOPPED + 1):
            mask |= (np.cumsum(np.where(classes == each, steps, 0)) > 0).astype(np.int64) << each
        durations = np.diff(times, append=until)
        np.add.at(self.overlap, mask, durations)
        self.overlap[0] += (int(times[0]) if count else until) - self.swept
        busy = np.cumsum(np.where(mask & ~(1 << STOPPED), durations, 0))
        self._draw(times, busy, until)
        if self._follow is not None:
            self._follow_alone(active, edges, np.where(mask == 1 << self._follow, durations, 0))
        if count:
            idle = np.flatnonzero((mask == 0) & (durations > 0))
            found = self._gaps(work, begins, edges, times, idle[idle < len(edges) - 1])
            self._idle_since, self._last = int(times[-1]), work[edges[-1] % count].copy()
        else:
            found = np.zeros(0, self.gap)
        self._work = work[(work["end"] > until) | (work["start"] >= until)]
        self.swept = until
        return found

    def _follow_alone(
        self, active: NDArray[Any], edges: NDArray[Any], durations: NDArray[Any]
    ) -> None:
        """Adds `durations` (of the intervals from each edge to the next) to the work in them."""
        before = np.cumsum(durations) - durations  # each edge
        of_edge = np.zeros(len(edges), np.int64)
        of_edge[edges] = before
        begin, end = of_edge[: len(active)], of_edge[len(active) :]
        mine = active["class"] == self._follow
        found = np.zeros(int(mine.sum()), [("key", "u8"), ("time", "i8")])
        found["key"], found["time"] = active["key"][mine], (end - begin)[mine]
        if len(found):
            self.alone.append(found)

    def _draw(self, times: NDArray[Any], busy: NDArray[Any], until: int) -> None:
        """Adds the busy time (ns, from each of these times to the next) to the timeline."""
        begin = times[:1] if len(times) else [until]
        at = np.concatenate([[self.swept], begin, times[1:], [until][: len(times)]])
        self.timeline.add(at, np.concatenate([[0, 0], busy]))

    def _gaps(
        self, work: NDArray[Any], begins: NDArray[Any], edges: NDArray[Any], times: NDArray[Any],
        idle: NDArray[Any],
    ) -> NDArray[Any]:  # fmt: skip
        """The open gap, and the gaps that begin at the edges `idle`."""
        gaps = np.zeros(1 + len(idle), self.gap)
        gaps[0]["begin"], gaps[0]["end"] = self._idle_since, begins[0]
        gaps[0]["before"], gaps[0]["after"] = self._last, work[0]
        gaps["begin"][1:], gaps["end"][1:] = times[idle], times[idle + 1]
        gaps["before"][1:] = work[edges[idle] - len(begins)]
        gaps["after"][1:] = work[edges[idle + 1]]
        gaps = gaps[gaps["end"] > gaps["begin"]]
        never = np.iinfo(np.int64).max
        known = np.where(work["submitted"] == UNKNOWN, never, work["submitted"])
        earliest = np.minimum.accumulate(known[::-1])[::-1]
        earliest = earliest[np.searchsorted(work["start"], gaps["end"])]
        clipped = np.clip(earliest, gaps["begin"], gaps["end"])
        gaps["submitted"] = np.where(earliest == never, UNKNOWN, clipped)
        return gaps

    @property
    def open_gap(self) -> tuple[int, NDArray[Any]]:
        """Begin of the gap that is open at `swept` (which it is while busy), and the last work that
        ended before it."""
        return self._idle_since, self._last
