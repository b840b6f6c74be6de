"""A timeline whose slices stay with a server: tiles, sums and search for a page that shows it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pasta.report.pack import Packer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.report.timeline import Bins, Row, Timeline

#: Bins of the finest level of a row that the page has; tiles have finer ones.
_IN_PAGE = 4096
#: Slices of a row in a tile; of more, bins.
_MAX_SLICES = 20_000
#: Bins of a row in a tile, at least, if it has no slices.
_MIN_BINS = 4096


class LiveTimeline:
    """Answers to a page about the slices of a timeline."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._lower = [name.lower() for _, name in timeline.names]

    def in_page(self) -> tuple[Timeline, list[bool]]:
        """What the page has from the start: the slices of short rows, and coarse levels of the
        others. Also which rows have their slices here."""
        rows, kept, first = [], [], 0
        remote = [bool(row.levels) for row in self.timeline.rows]
        for row, is_remote in zip(self.timeline.rows, remote, strict=True):
            levels = [level for level in row.levels if len(level.name) <= _IN_PAGE]
            count = 0 if is_remote else row.count
            rows.append(replace(row, first=first, count=count, levels=levels))
            kept.append(np.arange(row.first, row.first + count))
            first += count
        at = np.concatenate([np.zeros(0, np.int64), *kept])
        own = self.timeline
        page = replace(
            own, rows=rows, start=own.start[at], end=own.end[at], name=own.name[at]
        )  # fmt: skip
        return page, remote

    def tile(self, begin: int, until: int) -> dict[str, Any]:
        """Content of rows in an interval (ns): slices, or bins where there are too many slices.

        A block of slices as in the page (`gap`, `took`, `name`), one of bins (`name`, `share`), and
        for each remote row its index, and the number of slices, or of the first bin, the bins and
        those of the level.
        """
        packer = Packer()
        rows: list[dict[str, int]] = []
        slices: list[NDArray[Any]] = []
        gaps: list[NDArray[Any]] = []
        bins: list[Bins] = []
        for number, row in enumerate(self.timeline.rows):
            if not row.levels:
                continue
            first, last = self._between(row, begin, until)
            if last - first <= _MAX_SLICES:
                at = np.arange(first, last)
                start = self.timeline.start[at]
                gaps.append(start - np.append(0, self.timeline.end[at][:-1])[: len(at)])
                slices.append(at)
                rows.append({"row": number, "slices": last - first})
                continue
            low, part, count = self._part(row, begin, until)
            bins.append(part)
            rows.append({"row": number, "first": low, "bins": len(part.name), "of": count})
        at = np.concatenate([np.zeros(0, np.int64), *slices])
        none = np.zeros(0, np.int64)
        return {
            "begin": begin, "until": until, "rows": rows,
            "slices": packer.block({
                "gap": np.concatenate([none, *gaps]),
                "took": self.timeline.end[at] - self.timeline.start[at],
                "name": self.timeline.name[at],
            }),
            "bins": packer.block({
                "name": np.concatenate([none, *(each.name for each in bins)]),
                "share": np.concatenate([none, *(each.share for each in bins)]),
            }),
        }  # fmt: skip

    def _between(self, row: Row, begin: int, until: int) -> tuple[int, int]:
        """First and last slice of a row that touch an interval."""
        part = slice(row.first, row.first + row.count)
        first = int(np.searchsorted(self.timeline.end[part], begin, side="left"))
        last = int(np.searchsorted(self.timeline.start[part], until, side="right"))
        return row.first + first, row.first + max(first, last)

    def _part(self, row: Row, begin: int, until: int) -> tuple[int, Bins, int]:
        """The bins of an interval, of the coarsest level that is fine enough: the number of the
        first, these, and how many the level has."""
        whole = self.timeline.until - self.timeline.begin
        share = max(until - begin, 1) / whole
        fine = (each for each in row.levels if len(each.name) * share >= _MIN_BINS)
        level = next(fine, row.levels[-1])
        count = len(level.name)
        low = max(0, int((begin - self.timeline.begin) / whole * count))
        high = min(count, int((until - self.timeline.begin) / whole * count) + 1)
        return low, replace(level, name=level.name[low:high], share=level.share[low:high]), count

    def sums(self, begin: int, until: int) -> dict[str, Any]:
        """By name that has any: number of slices in an interval, their time in it (ns), and that
        without slices nested in them."""
        count = len(self.timeline.names)
        counts = np.zeros(count, np.int64)
        times, own = np.zeros(count), np.zeros(count)
        start, end, name = self.timeline.start, self.timeline.end, self.timeline.name
        outer: dict[tuple[str, str, int], Row] = {}
        for row in self.timeline.rows:
            outer.setdefault((row.group, row.label, row.depth), row)
        for row in self.timeline.rows:
            at = slice(*self._between(row, begin, until))
            part = np.maximum(np.minimum(end[at], until) - np.maximum(start[at], begin), 0)
            counts += np.bincount(name[at], minlength=count)
            took = np.bincount(name[at], part, count)
            times += took
            own += took
            around = outer.get((row.group, row.label, row.depth - 1))
            if around is None or not around.count:
                continue
            near = slice(around.first, around.first + around.count)
            found = around.first + np.searchsorted(end[near], end[at], side="left")
            inside = found < around.first + around.count
            inside[inside] = start[found[inside]] <= start[at][inside]
            own -= np.bincount(name[found[inside]], part[inside], count)
        codes = np.flatnonzero(counts)
        return {
            "codes": codes.tolist(), "counts": counts[codes].tolist(),
            "times": times[codes].tolist(), "own": own[codes].tolist(),
        }  # fmt: skip

    def _wanted(self, text: str, exact: bool) -> NDArray[Any]:
        """Which names (bool by code) are the text, or have each of its words."""
        if exact:
            found = [name == text for _, name in self.timeline.names]
        else:
            words = text.lower().split()
            found = [all(word in name for word in words) for name in self._lower]
        return np.asarray(found, bool)

    def find(self, text: str, exact: bool) -> dict[str, Any]:
        """Number and summed time (ns) of the slices with a name."""
        at = self._wanted(text, exact)[self.timeline.name]
        took = self.timeline.end[at] - self.timeline.start[at]
        return {"count": int(at.sum()), "took": int(took.sum())}

    def step(self, text: str, exact: bool, time: int, forward: bool) -> dict[str, Any] | None:
        """The next slice with a name that begins after a time, or the last one before it: its row
        and times; None without one."""
        wanted = self._wanted(text, exact)
        best: tuple[int, int, int] | None = None
        for number, row in enumerate(self.timeline.rows):
            part = slice(row.first, row.first + row.count)
            at = np.flatnonzero(wanted[self.timeline.name[part]])
            starts = self.timeline.start[part][at]
            place = int(np.searchsorted(starts, time, side="right" if forward else "left"))
            place -= 0 if forward else 1
            if not 0 <= place < len(at):
                continue
            found = int(starts[place]), number, row.first + int(at[place])
            if best is None or (found < best if forward else found > best):
                best = found
        if best is None:
            return None
        return {"row": best[1], "start": best[0], "end": int(self.timeline.end[best[2]])}
