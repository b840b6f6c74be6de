"""A simulator of managed memory, page by page: moves and faults.

It is a model, not a driver. Pages have 64 KiB, blocks 2 MiB. A fault brings a page and, of the
aligned groups of 2, 4, … 32 pages around it in its block, the largest of which more than 51 % are
then resident (the density prefetcher; docs/tools/uvm_advisor.md). A full device evicts the block
that was used least recently; drivers see only faults, the simulator all accesses.
Pages of a launch are served in ascending order. The reference accelerator works by the same rules
(managed.c), in code of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pasta.compiled import compiled, internal

if TYPE_CHECKING:
    from numpy.typing import NDArray

PAGE = 1 << 16
BLOCK_PAGES = 32
#: More than this percentage of a group's pages must be resident for the rest to be brought.
DENSE = 51

#: An operation on the pages first … end - 1. `launch` is carried along for users.
OP = np.dtype([("what", "i8"), ("first", "i8"), ("end", "i8"), ("write", "i8"), ("launch", "i8")])
#: Values of `what`: accesses of the device and the host; prefetches; advice, which `write` sets
#: (1) or unsets (0), and FREE.
DEVICE, HOST, TO_DEVICE, TO_HOST, READ_MOSTLY, PREFER_DEVICE, PREFER_HOST, ACCESSED_BY, FREE = (
    range(9)
)
#: Columns of totals: faults; pages moved by faults, prefetches and evictions; pages that launches
#: accessed on the host.
METRICS = (
    "device_faults", "host_faults", "fault_in", "fault_out", "prefetch_in", "prefetch_out",
    "evicted", "remote",
)  # fmt: skip
(
    _DEVICE_FAULTS,
    _HOST_FAULTS,
    _FAULT_IN,
    _FAULT_OUT,
    _PREFETCH_IN,
    _PREFETCH_OUT,
    _EVICTED,
    _REMOTE,
) = range(8)

# Bits of a page's residence, and of its advice.
_AT_HOST, _AT_DEVICE = 1, 2
_IS_READ_MOSTLY, _IS_FOR_DEVICE, _IS_FOR_HOST, _IS_ACCESSED, _IS_MAPPED = 1, 2, 4, 8, 16
# Cells of `meta`. All blocks that were used less recently than _LOOSE prefer the device.
_NEWEST, _OLDEST, _LOOSE, _USED, _CAPACITY = range(5)
_NONE = -1

#: The state of a device: residence, advice and owner by page; links of the blocks on the device, by
#: use, and their resident pages; totals by owner.
_STATE: dict[str, Any] = {
    "resident": ["i8"], "advice": ["i8"], "owner": ["i8"], "newer": ["i8"], "older": ["i8"],
    "held": ["i8"], "meta": ["i8"], "totals": [["i8"]],
}  # fmt: skip


@internal
def _unlink(block, newer, older, meta):  # type: ignore[no-untyped-def]
    if meta[_LOOSE] == block:
        meta[_LOOSE] = newer[block]
    if newer[block] == _NONE:
        meta[_NEWEST] = older[block]
    else:
        older[newer[block]] = older[block]
    if older[block] == _NONE:
        meta[_OLDEST] = newer[block]
    else:
        newer[older[block]] = newer[block]


@internal
def _link(block, newer, older, meta):  # type: ignore[no-untyped-def]
    newer[block] = _NONE
    older[block] = meta[_NEWEST]
    if meta[_NEWEST] == _NONE:
        meta[_OLDEST] = block
    else:
        newer[meta[_NEWEST]] = block
    meta[_NEWEST] = block
    if meta[_LOOSE] == _NONE:
        meta[_LOOSE] = block


@internal
def _arrive(page, place, resident, newer, older, held, meta):  # type: ignore[no-untyped-def]
    resident[page] |= place
    if place == _AT_DEVICE:
        block = page // BLOCK_PAGES
        if held[block] == 0:
            _link(block, newer, older, meta)
        held[block] += 1
        meta[_USED] += 1


@internal
def _prefers_device(block, resident, advice):  # type: ignore[no-untyped-def]
    for page in range(block * BLOCK_PAGES, min((block + 1) * BLOCK_PAGES, len(resident))):
        if resident[page] & _AT_DEVICE and advice[page] & _IS_FOR_DEVICE:
            return True
    return False


@internal
def _leave(page, place, resident, advice, newer, older, held, meta):  # type: ignore[no-untyped-def]
    if resident[page] & place == 0:
        return
    resident[page] &= ~place
    if place == _AT_DEVICE:
        block = page // BLOCK_PAGES
        held[block] -= 1
        meta[_USED] -= 1
        if held[block] == 0:
            _unlink(block, newer, older, meta)
        elif advice[page] & _IS_FOR_DEVICE and not _prefers_device(block, resident, advice):
            meta[_LOOSE] = meta[_OLDEST]


@internal
def _evict(block, resident, owner, newer, older, held, meta, totals):  # type: ignore[no-untyped-def]
    for page in range(block * BLOCK_PAGES, min((block + 1) * BLOCK_PAGES, len(resident))):
        if resident[page] & _AT_DEVICE == 0:
            continue
        if resident[page] == _AT_DEVICE:
            totals[owner[page], _EVICTED] += 1
            resident[page] |= _AT_HOST
        resident[page] &= ~_AT_DEVICE
    meta[_USED] -= held[block]
    held[block] = 0
    _unlink(block, newer, older, meta)


@internal
def _loose(block, resident, advice, newer, meta):  # type: ignore[no-untyped-def]
    """The least recently used block but `block` that does not prefer the device, or none."""
    at = meta[_LOOSE]
    while at != _NONE and _prefers_device(at, resident, advice):
        at = newer[at]
    meta[_LOOSE] = at
    while at != _NONE and (at == block or _prefers_device(at, resident, advice)):
        at = newer[at]
    return at


@internal
def _make_space(block, pages, resident, advice, owner, newer, older, held, meta, totals):  # type: ignore[no-untyped-def]
    while meta[_USED] + pages > meta[_CAPACITY]:
        out = _loose(block, resident, advice, newer, meta)
        if out == _NONE:
            out = meta[_OLDEST]
        if out == block:
            out = newer[out]
        if out == _NONE:
            return
        _evict(out, resident, owner, newer, older, held, meta, totals)


@internal
def _comes(page, place, mine, resident, advice, owner):  # type: ignore[no-untyped-def]
    if owner[page] != mine or resident[page] & place:
        return False
    elsewhere = _IS_FOR_HOST if place == _AT_DEVICE else _IS_FOR_DEVICE
    return advice[page] & elsewhere == 0


@internal
def _bring(  # type: ignore[no-untyped-def]
    first, end, place, copies, always, metric, resident, advice, owner, newer, older, held, meta,
    totals,
):  # fmt: skip
    """Brings pages of one block that may come, and the page `always`."""
    mine = owner[first] if always < 0 else owner[always]
    if place == _AT_DEVICE:
        wanted = 0
        for page in range(first, end):
            if page == always or _comes(page, place, mine, resident, advice, owner):
                wanted += 1
        _make_space(
            first // BLOCK_PAGES, wanted, resident, advice, owner, newer, older, held, meta, totals
        )
    for page in range(first, end):
        if page != always and not _comes(page, place, mine, resident, advice, owner):
            continue
        if resident[page]:
            totals[mine, metric] += 1
        if not (copies and advice[page] & _IS_READ_MOSTLY):
            _leave(page, 3 - place, resident, advice, newer, older, held, meta)
        _arrive(page, place, resident, newer, older, held, meta)


@internal
def _fetch(  # type: ignore[no-untyped-def]
    page, place, write, resident, advice, owner, newer, older, held, meta, totals
):
    mine = owner[page]
    first = page
    end = page + 1
    size = 2
    while size <= BLOCK_PAGES:
        low = page // size * size
        pages = 0
        there = 0
        for each in range(low, min(low + size, len(resident))):
            if owner[each] == mine:
                pages += 1
                if each == page or resident[each] & place:
                    there += 1
        if there * 100 > pages * DENSE:
            first = low
            end = min(low + size, len(resident))
        size *= 2
    metric = _FAULT_IN if place == _AT_DEVICE else _FAULT_OUT
    _bring(
        first, end, place, not write, page, metric, resident, advice, owner, newer, older, held,
        meta, totals,
    )  # fmt: skip


@internal
def _on_device(page, write, resident, advice, owner, newer, older, held, meta, totals):  # type: ignore[no-untyped-def]
    mine = owner[page]
    if resident[page] & _AT_DEVICE:
        if write and resident[page] & _AT_HOST:
            totals[mine, _DEVICE_FAULTS] += 1
            resident[page] = _AT_DEVICE
    elif advice[page] & _IS_FOR_HOST or (resident[page] and advice[page] & _IS_ACCESSED):
        if advice[page] & (_IS_ACCESSED | _IS_MAPPED) == 0:
            totals[mine, _DEVICE_FAULTS] += 1
        advice[page] |= _IS_MAPPED
        resident[page] |= _AT_HOST
        totals[mine, _REMOTE] += 1
    else:
        totals[mine, _DEVICE_FAULTS] += 1
        _fetch(page, _AT_DEVICE, write, resident, advice, owner, newer, older, held, meta, totals)
    block = page // BLOCK_PAGES
    if held[block]:
        _unlink(block, newer, older, meta)
        _link(block, newer, older, meta)


@internal
def _on_host(page, write, resident, advice, owner, newer, older, held, meta, totals):  # type: ignore[no-untyped-def]
    if resident[page] == 0:
        resident[page] = _AT_HOST
    elif resident[page] & _AT_HOST == 0:
        totals[owner[page], _HOST_FAULTS] += 1
        _fetch(page, _AT_HOST, write, resident, advice, owner, newer, older, held, meta, totals)
    elif write and resident[page] & _AT_DEVICE:
        totals[owner[page], _HOST_FAULTS] += 1
        _leave(page, _AT_DEVICE, resident, advice, newer, older, held, meta)


@internal
def _prefetch(  # type: ignore[no-untyped-def]
    first, end, place, resident, advice, owner, newer, older, held, meta, totals
):
    metric = _PREFETCH_IN if place == _AT_DEVICE else _PREFETCH_OUT
    while first < end:
        stop = min((first // BLOCK_PAGES + 1) * BLOCK_PAGES, end)
        _bring(
            first, stop, place, True, -1, metric, resident, advice, owner, newer, older, held,
            meta, totals,
        )  # fmt: skip
        block = first // BLOCK_PAGES
        if place == _AT_DEVICE and held[block]:
            _unlink(block, newer, older, meta)
            _link(block, newer, older, meta)
        first = stop


@compiled(ops=[OP], faults=["i8"], **_STATE)
def _run(  # type: ignore[no-untyped-def]
    ops, faults, resident, advice, owner, newer, older, held, meta, totals
):
    """`faults`: of the device, by operation."""
    for at in range(len(ops)):
        what = ops[at]["what"]
        first = ops[at]["first"]
        end = ops[at]["end"]
        write = ops[at]["write"] != 0
        if what == DEVICE:
            for page in range(first, end):
                before = totals[owner[page], _DEVICE_FAULTS]
                _on_device(page, write, resident, advice, owner, newer, older, held, meta, totals)
                faults[at] += totals[owner[page], _DEVICE_FAULTS] - before
        elif what == HOST:
            for page in range(first, end):
                _on_host(page, write, resident, advice, owner, newer, older, held, meta, totals)
        elif what == TO_DEVICE:
            _prefetch(
                first, end, _AT_DEVICE, resident, advice, owner, newer, older, held, meta, totals
            )
        elif what == TO_HOST:
            _prefetch(
                first, end, _AT_HOST, resident, advice, owner, newer, older, held, meta, totals
            )
        elif what == FREE:
            for page in range(first, end):
                _leave(page, _AT_DEVICE, resident, advice, newer, older, held, meta)
                resident[page] = 0
                advice[page] = 0
        else:
            bit = _IS_READ_MOSTLY
            cleared = np.int64(0)
            if what == PREFER_DEVICE:
                bit = _IS_FOR_DEVICE
                cleared = np.int64(_IS_FOR_HOST)
            elif what == PREFER_HOST:
                bit = _IS_FOR_HOST
                cleared = np.int64(_IS_FOR_DEVICE)
            elif what == ACCESSED_BY:
                bit = _IS_ACCESSED
            for page in range(first, end):
                if (cleared | bit) & _IS_FOR_DEVICE and advice[page] & _IS_FOR_DEVICE:
                    meta[_LOOSE] = meta[_OLDEST]
                advice[page] &= ~(cleared | bit)
                if write:
                    advice[page] |= bit


@dataclass(frozen=True)
class Costs:
    """Nanoseconds of a fault, of moving a page, and of a launch's accesses to a page on the
    host."""

    fault: float = 20_000.0
    page: float = 5_500.0
    remote: float = 16_000.0

    def of(self, totals: NDArray[Any]) -> NDArray[Any]:
        """Time (float64, ns) of totals, a row each."""
        count = {name: totals[..., at].astype(np.float64) for at, name in enumerate(METRICS)}
        faults = count["device_faults"] + count["host_faults"]
        return np.asarray(
            self.fault * faults
            + self.page * moved_pages(totals).astype(np.float64)
            + self.remote * count["remote"]
        )


@dataclass(frozen=True)
class Simulated:
    """Totals (int64, columns METRICS) by owner, and device faults by operation."""

    totals: NDArray[Any]
    faults: NDArray[Any]

    def __getitem__(self, metric: str) -> int:
        return int(self.totals[:, METRICS.index(metric)].sum())

    @property
    def moved(self) -> int:
        """Bytes that moved between host and device."""
        return int(moved_pages(self.totals).sum()) * PAGE


def moved_pages(totals: NDArray[Any]) -> NDArray[Any]:
    """Pages that moved, of totals, a row each."""
    moves = ("fault_in", "fault_out", "prefetch_in", "prefetch_out", "evicted")
    return np.asarray(totals[..., [METRICS.index(name) for name in moves]].sum(axis=-1))


def simulate(ops: NDArray[Any], owner: NDArray[Any], capacity: int | None = None) -> Simulated:
    """What operations (OP) do to pages that belong to owners 0, 1, … (int64, by page; -1: to none)
    with space for `capacity` pages on the device, at least one block; None: all. Pages of
    operations belong to an owner; a block of 32 pages starts at every multiple of 32."""
    blocks = -(-len(owner) // BLOCK_PAGES) + 1
    totals = np.zeros((int(owner.max(initial=-1)) + 1, len(METRICS)), np.int64)
    faults = np.zeros(len(ops), np.int64)
    space = len(owner) if capacity is None else max(capacity, BLOCK_PAGES)
    meta = np.asarray([_NONE, _NONE, _NONE, 0, space], np.int64)
    zeros = [np.zeros(len(owner), np.int64) for _ in range(2)]
    lists = [np.full(blocks, _NONE, np.int64) for _ in range(2)]
    _run(
        ops, faults, *zeros, owner.astype(np.int64), *lists, np.zeros(blocks, np.int64), meta,
        totals,
    )  # fmt: skip
    return Simulated(totals, faults)
