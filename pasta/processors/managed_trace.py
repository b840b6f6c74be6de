"""What a run did to its managed memory, as operations of the page simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pasta.processors.managed_pages import (
    ACCESSED_BY,
    BLOCK_PAGES,
    DEVICE,
    FREE,
    HOST,
    OP,
    PAGE,
    PREFER_DEVICE,
    PREFER_HOST,
    READ_MOSTLY,
    TO_DEVICE,
    TO_HOST,
)
from pasta.processors.rows import combined

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHIFT = np.uint64(PAGE.bit_length() - 1)
_TIMED = np.dtype([("time", "u8"), ("rank", "i8"), *OP.descr])
#: Order of operations of the same time.
_RANK = {HOST: 2, TO_DEVICE: 1, TO_HOST: 1, DEVICE: 3, FREE: 4}
#: Advice by its number in an event, on which vendors agree: what it sets, and whether it is set.
_ADVICE = {1: (READ_MOSTLY, 1), 2: (READ_MOSTLY, 0), 5: (ACCESSED_BY, 1), 6: (ACCESSED_BY, 0)}
_PREFER, _UNSET_PREFER = 3, 4


@dataclass(frozen=True)
class Touched:
    """Pages that launches touched: `launch` (u8), `page` (i8), `write` (i8), a row each."""

    rows: NDArray[Any]

    DTYPE = np.dtype([("launch", "u8"), ("page", "i8"), ("write", "i8")])

    @classmethod
    def of(cls, launch: Any, page: Any, write: Any) -> Touched:
        """Distinct pages by launch, from any number of rows."""
        rows = np.zeros(len(launch), cls.DTYPE)
        rows["launch"], rows["page"], rows["write"] = launch, page, write
        return cls(combined(rows, ("launch", "page"), "bitwise_or"))

    def ranges(self) -> NDArray[Any]:
        """Adjacent pages of a launch with the same access as one DEVICE operation (OP)."""
        rows = self.rows
        new = np.ones(len(rows), bool)
        new[1:] = (
            (rows["launch"][1:] != rows["launch"][:-1])
            | (rows["page"][1:] != rows["page"][:-1] + 1)
            | (rows["write"][1:] != rows["write"][:-1])
        )
        starts = np.flatnonzero(new)
        found = np.zeros(len(starts), OP)
        found["what"] = DEVICE
        found["first"], found["write"] = rows["page"][starts], rows["write"][starts]
        found["launch"] = rows["launch"][starts].astype(np.int64)
        found["end"] = found["first"] + np.diff(starts, append=len(rows))
        return found


class ManagedPages:
    """The pages of managed allocations, numbered through the run; a block starts at a multiple of
    BLOCK_PAGES. `rows` are rows of the object table (OBJECT)."""

    def __init__(self, rows: NDArray[Any]) -> None:
        self.rows = rows
        start, last = rows["address"], rows["address"] + np.maximum(rows["bytes"], 1) - np.uint64(1)
        self._first_address = start >> _SHIFT
        self.counts = ((last >> _SHIFT) - self._first_address + np.uint64(1)).astype(np.int64)
        inside = (self._first_address % np.uint64(BLOCK_PAGES)).astype(np.int64)
        blocks = -(-(inside + self.counts) // BLOCK_PAGES)
        self.firsts = (np.cumsum(blocks) - blocks) * BLOCK_PAGES + inside
        self.owner = np.full(int(blocks.sum()) * BLOCK_PAGES, -1, np.int64)
        where = np.repeat(self.firsts - np.cumsum(self.counts) + self.counts, self.counts)
        self.owner[where + np.arange(int(self.counts.sum()))] = np.repeat(
            np.arange(len(rows)), self.counts
        )

    def locate(self, addresses: NDArray[Any], times: NDArray[Any]) -> NDArray[Any]:
        """Index (int64) of the allocation that held each address at a time; -1: none."""
        found = np.full(len(addresses), -1, np.int64)
        order = np.argsort(addresses, kind="stable")
        ordered = addresses[order]
        begins = np.searchsorted(ordered, self.rows["address"])
        ends = np.searchsorted(ordered, self.rows["address"] + self.rows["bytes"])
        for at in np.flatnonzero(ends > begins).tolist():
            mine = order[begins[at] : ends[at]]
            row = self.rows[at]
            live = (times[mine] >= row["alloc_time"]) & (times[mine] < row["free_time"])
            found[mine[live]] = at
        return found

    def page(self, allocations: NDArray[Any], addresses: NDArray[Any]) -> NDArray[Any]:
        """Page numbers (int64) of addresses in allocations, clamped to these."""
        offset = (addresses >> _SHIFT).astype(np.int64) - self._first_address[allocations].astype(
            np.int64
        )
        return np.asarray(
            self.firsts[allocations] + np.clip(offset, 0, self.counts[allocations] - 1)
        )

    def expanded(
        self, allocations: NDArray[Any], addresses: NDArray[Any], bytes: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Pages of ranges of addresses, and the index of the range of each page."""
        first = self.page(allocations, addresses)
        last = self.page(allocations, addresses + np.maximum(bytes, 1) - np.uint64(1))
        count = last - first + 1
        index = np.repeat(np.arange(len(first)), count)
        within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        return first[index] + within, index

    def peak(self) -> int:
        """Pages of the allocations that lived together, at most."""
        times = np.concatenate([self.rows["alloc_time"], self.rows["free_time"]])
        change = np.concatenate([self.counts, -self.counts])
        order = np.lexsort([change, times])
        return int(np.cumsum(change[order]).max(initial=0))


class Trace:
    """Operations of a run in the order of their times."""

    def __init__(self, pages: ManagedPages) -> None:
        self.pages = pages
        self._parts: list[NDArray[Any]] = []

    def add(
        self, what: int, times: Any, first: Any, end: Any, write: Any, launch: Any = -1
    ) -> None:
        """Adds operations on pages at times (u8, ns)."""
        rows = np.zeros(len(times), _TIMED)
        rows["time"], rows["rank"], rows["what"] = times, _RANK.get(what, 0), what
        rows["first"], rows["end"], rows["write"], rows["launch"] = first, end, write, launch
        self._parts.append(rows)

    def add_launches(self, touched: Touched, time_of: Any) -> None:
        """Adds the accesses of launches; `time_of` gives their times by ordinals (u8)."""
        ranges = touched.ranges()
        times = time_of(ranges["launch"].astype(np.uint64))
        self.add(DEVICE, times, ranges["first"], ranges["end"], ranges["write"], ranges["launch"])

    def add_initial(self, migrations: NDArray[Any], owners: NDArray[Any]) -> None:
        """Pages that first moved to a device were on the host: the host wrote them after their
        allocation. `migrations` have address, bytes, start and to_device."""
        page, index = self.pages.expanded(owners, migrations["address"], migrations["bytes"])
        rows = np.zeros(len(page), [("page", "i8"), ("start", "u8"), ("to_device", "?")])
        rows["page"], rows["start"] = page, migrations["start"][index]
        rows["to_device"] = migrations["to_device"][index]
        rows = rows[np.lexsort([rows["start"], rows["page"]])]
        first = np.ones(len(rows), bool)
        first[1:] = rows["page"][1:] != rows["page"][:-1]
        page = rows["page"][first & rows["to_device"]]
        owner = self.pages.owner[page]
        self.add(HOST, self.pages.rows["alloc_time"][owner], page, page + 1, 1)

    def add_calls(self, calls: NDArray[Any]) -> None:
        """Adds the program's own prefetches and advice: rows with time, address, bytes, advice (0:
        a prefetch) and destination (-1: the host)."""
        owners = self.pages.locate(calls["address"], calls["time"])
        known = owners >= 0
        calls, owners = calls[known], owners[known]
        first = self.pages.page(owners, calls["address"])
        end = 1 + self.pages.page(
            owners, calls["address"] + np.maximum(calls["bytes"], 1) - np.uint64(1)
        )
        to_host = calls["destination"] < 0
        for number in np.unique(calls["advice"]).tolist():
            mine = calls["advice"] == number
            if number == 0:
                kinds = [(TO_HOST, mine & to_host, 0), (TO_DEVICE, mine & ~to_host, 0)]
            elif number == _PREFER:
                kinds = [(PREFER_HOST, mine & to_host, 1), (PREFER_DEVICE, mine & ~to_host, 1)]
            elif number == _UNSET_PREFER:
                kinds = [(PREFER_HOST, mine, 0)]
            elif number in _ADVICE:
                what, on = _ADVICE[number]
                kinds = [(what, mine, on)]
            else:
                continue
            for what, which, on in kinds:
                self.add(what, calls["time"][which], first[which], end[which], on)

    def add_frees(self) -> None:
        """Adds the frees of the allocations that were freed."""
        freed = self.pages.rows["free_time"] != np.iinfo(np.uint64).max
        first, count = self.pages.firsts[freed], self.pages.counts[freed]
        self.add(FREE, self.pages.rows["free_time"][freed], first, first + count, 0)

    def ops(self) -> NDArray[Any]:
        """All operations (OP)."""
        rows = np.concatenate([np.zeros(0, _TIMED), *self._parts])
        rows = rows[np.lexsort([rows["first"], rows["launch"], rows["rank"], rows["time"]])]
        return rows[list(OP.names or ())].astype(OP)


def with_prefetches(
    ops: NDArray[Any], first: NDArray[Any], end: NDArray[Any], launch: NDArray[Any]
) -> NDArray[Any]:
    """Operations with prefetches of pages to the device before the launches' first operations."""
    return _inserted(ops, TO_DEVICE, first, end, launch, after=False)


def with_evictions(
    ops: NDArray[Any], first: NDArray[Any], end: NDArray[Any], launch: NDArray[Any]
) -> NDArray[Any]:
    """Operations with prefetches of pages to the host after the launches' last operations."""
    return _inserted(ops, TO_HOST, first, end, launch, after=True)


def _inserted(
    ops: Any, what: int, first: Any, end: Any, launch: Any, *, after: bool
) -> NDArray[Any]:
    mine = np.flatnonzero(ops["what"] == DEVICE)
    order = mine[np.argsort(ops["launch"][mine], kind="stable")]
    ordered = ops["launch"][order]
    at = np.searchsorted(ordered, launch, "right" if after else "left") - int(after)
    inside = (at >= 0) & (at < len(order))
    inside[inside] = ordered[at[inside]] == launch[inside]
    new = np.zeros(int(inside.sum()), OP)
    new["what"], new["first"], new["end"], new["launch"] = what, first[inside], end[inside], -1
    return np.asarray(np.insert(ops, order[at[inside]] + int(after), new))
