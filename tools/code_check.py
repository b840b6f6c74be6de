"""Misuse that the calls of a program show: rules that no other tool has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.batch import ABSENT_U64
from pasta.processors.object_names import memory_numbers
from pasta.rules import Calls, Rules, Violation, rule
from pasta.table import counted, formatted
from pasta.tool import option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

#: Minimum share of a kernel's launches that the host waits for.
_MIN_WAIT_SHARE = 0.9
#: Growth of memory: steps needed to distinguish it from warm-up, which is the first quarter of
#: them; share of the steps after it in which memory grows; and number of allocations of one size
#: from which memory_timeline reports the growth.
_MIN_STEPS, _GROWING, _ALIKE = 8, 0.9, 12
#: Memory whose allocation and free are expensive: the device may have to become idle.
_COSTLY = ("device", "managed", "pinned")

#: Memory that the host reads too.
_SHARED = ("managed", "pinned", "host")


class CodeCheck(Rules):
    """Misuse of the accelerator that calls show: waits and allocations in loops, small launches,
    growing memory, unneeded sets, the default stream."""

    title = "Checks of calls"
    uses = ("wait_times", "kernel_complete", "copy_complete", "device", "registers")

    waits = option(100, help="waits after launches of a kernel: minimum number", minimum=1)
    all_waits = option(
        0.5, help="… not reported from this many waits per launch on: kernel_freq reports those",
        minimum=0.0,
    )  # fmt: skip
    allocations = option(
        32,
        help="allocations in a loop: minimum number with the same site, size and kind",
        minimum=2,
    )
    allocation_cost = option(
        "20us", kind="duration", help="… assumed time of an allocation and its free"
    )
    small_launches = option(
        100,
        help="launches smaller than one wave: minimum number of one kernel at one site",
        minimum=1,
    )
    grown = option("1MiB", kind="bytes", help="growing memory: minimum growth")
    set_bytes = option("16MiB", kind="bytes", help="unneeded memsets: minimum bytes at a site")
    sets = option(100, help="… or minimum number of sets", minimum=1)
    switches = option(
        100, help="default stream: minimum switches between it and other streams", minimum=1
    )
    least_share = option(
        0.05,
        help="minimum share of time that a violation costs, where the cost is known",
        minimum=0.0,
    )

    @rule("the host waits after each launch of a kernel")
    def wait_after_launch(self, calls: Calls) -> Iterator[Violation]:
        """A wait as the next call of a thread after a launch, for most launches at a site."""
        if len(calls.context.operators.nodes) > 1:
            return  # the tool operators reports lines that wait
        rows, launches = calls.rows, calls.of("kernel_launch")
        launches &= rows["detail"] == 0  # not by graphs
        waits = np.flatnonzero(calls.of("sync"))
        waits = waits[calls.previous[waits] >= 0]
        of = calls.previous[waits]
        waits, of = waits[launches[of]], of[launches[of]]
        if len(waits) >= self.all_waits * max(1, int(launches.sum())):
            return
        launched = {site: len(found) for site, found in calls.sites(launches)}
        for site, found in calls.sites(waits, of):
            if len(found) < max(self.waits, _MIN_WAIT_SHARE * launched[site]):
                continue
            time = int(np.maximum(rows["duration"][found], 0).sum())
            gain = min(time, calls.span - time) / calls.span
            if time and gain < self.least_share:
                continue
            waited = f" {formatted(time, 'ns')} of {formatted(calls.span, 'ns')}" if time else ""
            yield Violation(
                site,
                len(found),
                f"{counted(len(found), 'wait')} after {counted(launched[site], 'launch')}"
                + (f" took{waited}" if waited else ""),
                "wait once, before the host reads results: work in a stream runs in order",
                gain if time else None,
            )

    @rule("memory is allocated and freed in a loop")
    def allocation_in_loop(self, calls: Calls) -> Iterator[Violation]:
        """Allocations of one site, kind and size that are freed again, with launches between."""
        rows = calls.rows
        costly = np.isin(rows["detail"], memory_numbers(_COSTLY))
        allocated = np.flatnonzero(calls.of("memory_alloc") & costly)
        freed = _frees(calls, allocated)
        allocated, freed = allocated[freed >= 0], freed[freed >= 0]
        launches = calls.before(calls.of("kernel_launch"))
        for site, found in calls.sites(allocated):
            kinds = np.stack([rows[name][found] for name in ("detail", "bytes")], axis=1)
            alike, of = np.unique(kinds.astype(np.int64), axis=0, return_inverse=True)
            for number, (memory, size) in enumerate(alike.tolist()):
                mine = found[of.reshape(-1) == number]
                between = int(launches[mine[-1]] - launches[mine[0]])
                if len(mine) < self.allocations or between < len(mine) - 1:
                    continue
                until = freed[np.searchsorted(allocated, mine)]
                if (until[:-1] > mine[1:]).mean() > 0.5:
                    continue  # several are live at once, as in a pool
                gain = min(1.0, len(mine) * self.allocation_cost / calls.span)
                if gain < self.least_share:
                    continue
                name = _name("memory", memory)
                yield Violation(
                    site,
                    len(mine),
                    f"{counted(len(mine), 'allocation')} of {formatted(size, 'bytes')} of "
                    f"{name} memory, each freed before the next; at an assumed "
                    f"{formatted(self.allocation_cost, 'ns')} each they take "
                    f"{formatted(len(mine) * self.allocation_cost, 'ns')} of "
                    f"{formatted(calls.span, 'ns')}",
                    "do not empty the framework allocator's cache in the loop"
                    if site.operator
                    else "allocate it once, before the loop, or from a pool (stream-ordered"
                    " allocation)",
                    gain,
                )

    @rule("launches are too small to fill the device")
    def below_one_wave(self, calls: Calls) -> Iterator[Violation]:
        """Launches below one wave of blocks, whose kernels leave parts of the device idle."""
        rows = calls.rows
        small = calls.of("kernel_launch") & (rows["waves"] < 1)
        for site, found in calls.sites(small):
            mine = rows[found]
            known = mine["duration"] >= 0
            time = mine["duration"][known]
            lost = int((time * (1.0 - mine["waves"][known])).sum())
            gain = min(1.0, lost / calls.span) if known.any() else None
            if len(found) < self.small_launches or (gain or 0.0) < self.least_share * known.any():
                continue
            waves = float(mine["waves"].mean())
            text = f"{counted(len(found), 'launch')} fill {formatted(waves, 'share')} of the device"
            if gain is not None:
                text += f" on average, for {formatted(int(time.sum()), 'ns')}"
            yield Violation(
                site,
                len(found),
                text,
                "use more blocks in each launch (smaller tiles, a larger batch), or run "
                "independent launches in several streams",
                gain,
                confidence="low",
            )

    @rule("live memory grows from step to step")
    def growing_memory(self, calls: Calls) -> Iterator[Violation]:
        """Memory that is higher in nearly every step, by allocations of different sizes."""
        rows, steps = calls.rows, _steps(calls)
        if len(steps) < _MIN_STEPS:
            return
        steps = steps[len(steps) // 4 :]
        # in an operator a framework's allocator reserves memory: the tool tensors finds its growth
        own = calls.of("memory_alloc") & (rows["node"] == 0)
        allocated = np.flatnonzero(own & (rows["bytes"] != ABSENT_U64))
        freed = _frees(calls, allocated)
        for memory in np.unique(rows["detail"][allocated]).tolist():
            mine = rows["detail"][allocated] == memory
            levels = _levels(rows, allocated[mine], freed[mine], steps)
            growth = int(levels[-1] - levels[0])
            if growth < self.grown or (np.diff(levels) > 0).mean() < _GROWING:
                continue
            kept = allocated[mine & ((freed < 0) | (freed > steps[-1]))]
            kept = kept[(kept > steps[0]) & (kept < steps[-1])]
            sizes, counts = np.unique(rows["bytes"][kept], return_counts=True)
            most = int((sizes * counts.astype(np.uint64)).max(initial=0))
            if counts.max(initial=0) >= _ALIKE and 2 * most >= growth:
                continue  # memory_timeline reports it
            by_site = list(calls.sites(kept))
            by_site.sort(key=lambda each: -int(rows["bytes"][each[1]].sum()))
            for site, found in by_site[:1]:
                yield Violation(
                    site,
                    len(found),
                    f"{formatted(growth, 'bytes')} more of {_name('memory', memory)} memory after"
                    f" {counted(len(steps) - 1, 'step')}, in {counted(len(kept), 'allocation')} of"
                    f" {counted(len(sizes), 'size')}",
                    "free what a step allocates before the step ends, or keep less of it",
                    min(1.0, growth / max(1, int(levels.max()))),
                    f"{_name('memory', memory)} memory",
                )

    @rule("memory is set, then overwritten before it is used")
    def unneeded_set(self, calls: Calls) -> Iterator[Violation]:
        """Sets whose bytes another set or copy overwrites before a launch or a copy can read
        them."""
        rows = calls.rows
        # the rows of a 2D copy or set leave gaps
        known = rows["contiguous"] & (rows["bytes"] != ABSENT_U64)
        writes = np.flatnonzero(calls.of("memory_set", "memory_copy") & known)
        writes = writes[np.lexsort((writes, rows["address"][writes]))]
        first, second = writes[:-1], writes[1:]
        sets = calls.of("memory_set")
        readers = calls.before(calls.of("kernel_launch", "graph_launch", "memory_copy"))
        # the second write itself is after all readers before it
        dead = (rows["address"][first] == rows["address"][second]) & sets[first]
        dead &= (rows["bytes"][first] <= rows["bytes"][second]) & (rows["bytes"][first] > 0)
        dead &= readers[second] == readers[first]
        dead &= ~_seen_by_host(calls, rows["address"][first])
        for site, found in calls.sites(first[dead]):
            size = int(rows["bytes"][found].sum())
            time = int(np.maximum(rows["duration"][found], 0).sum())
            if size < self.set_bytes and len(found) < self.sets:
                continue
            yield Violation(
                site,
                len(found),
                f"{counted(len(found), 'set')} of {formatted(size, 'bytes')} are overwritten "
                "by the next set or copy, with no work in between"
                + (f"; they took {formatted(time, 'ns')}" if time else ""),
                "remove the set",
                time / calls.span if time else None,
                confidence="high",
            )

    @rule("work on the default stream serializes other streams")
    def default_stream(self, calls: Calls) -> Iterator[Violation]:
        """Work that alternates between the default stream and others. With device times the tool
        utilization measures what that costs."""
        rows = calls.rows
        work = calls.of("kernel_launch", "memory_copy", "memory_set") & (
            rows["stream"] != ABSENT_U64
        )
        if (rows["duration"][calls.of("kernel_launch")] >= 0).any():
            return
        for device in np.unique(rows["device"][work]).tolist():
            mine = np.flatnonzero(work & (rows["device"] == device))
            default = rows["stream"][mine] == 0
            switched = np.flatnonzero(default[1:] & ~default[:-1]) + 1
            others = len(np.unique(rows["stream"][mine][~default]))
            if len(switched) < self.switches or others < 2:
                continue
            for site, found in list(calls.sites(mine[switched]))[:1]:
                yield Violation(
                    site,
                    len(switched),
                    f"work of device {device} went to the default stream"
                    f" {counted(len(switched), 'time')} after work of {others:,} other streams;"
                    f" most often here, {counted(len(found), 'time')}",
                    "submit it to a stream of its own, and create all streams as "
                    "non-blocking: the default stream and blocking streams wait for each "
                    "other",
                    confidence="low",
                )


def _frees(calls: Calls, allocated: NDArray[Any]) -> NDArray[Any]:
    """Index (int64) of the free of each allocation (indices); -1 for none."""
    rows = calls.rows
    both = np.concatenate([allocated, np.flatnonzero(calls.of("memory_free"))])
    order = np.lexsort((both, rows["address"][both]))
    both = both[order]
    pair = rows["address"][both][1:] == rows["address"][both][:-1]
    frees = calls.of("memory_free")[both]
    pair &= frees[1:] & ~frees[:-1]
    found = np.full(len(calls.rows), -1, np.int64)
    found[both[:-1][pair]] = both[1:][pair]
    return np.asarray(found[allocated])


def _seen_by_host(calls: Calls, addresses: NDArray[Any]) -> NDArray[Any]:
    """Whether addresses (bool) are in memory that the host can read: its reads are not visible."""
    rows = calls.rows
    shared = calls.of("memory_alloc") & np.isin(rows["detail"], memory_numbers(_SHARED))
    begins = rows["address"][shared]
    order = np.argsort(begins, kind="stable")
    ends = np.maximum.accumulate((begins + rows["bytes"][shared])[order])
    at = np.searchsorted(begins[order], addresses, "right")
    return np.asarray(np.concatenate([np.zeros(1, np.uint64), ends])[at] > addresses)


def _steps(calls: Calls) -> NDArray[Any]:
    """Indices of the launches that begin steps: of the kernel with the fewest launches, at least
    _MIN_STEPS, among those that run in the first and in the last quarter of the launches."""
    launches = np.flatnonzero(calls.of("kernel_launch"))
    names, of, counts = np.unique(
        calls.rows["name"][launches], return_inverse=True, return_counts=True
    )
    of = of.reshape(-1)
    first, last = np.full(len(names), len(launches)), np.zeros(len(names), np.int64)
    number = np.arange(len(launches))
    np.minimum.at(first, of, number)
    np.maximum.at(last, of, number)
    recurs = (counts >= _MIN_STEPS) & (first <= len(launches) / 4) & (last >= len(launches) * 0.75)
    if not recurs.any():
        return np.zeros(0, np.int64)
    chosen = int(np.where(recurs, counts, len(launches) + 1).argmin())
    return np.asarray(launches[of == chosen])


def _levels(
    rows: NDArray[Any], allocated: NDArray[Any], freed: NDArray[Any], at: NDArray[Any]
) -> NDArray[Any]:
    """Live bytes (int64) of allocations at calls (sorted indices)."""
    sizes = rows["bytes"][allocated].astype(np.int64)
    ended = freed >= 0
    places = np.concatenate([allocated, freed[ended]])
    changes = np.concatenate([sizes, -sizes[ended]])
    order = np.argsort(places, kind="stable")
    until = np.concatenate([np.zeros(1, np.int64), np.cumsum(changes[order])])
    return np.asarray(until[np.searchsorted(places[order], at)])


def _name(enum: str, number: int) -> str:
    from pasta import abi

    return abi.enums()[enum].get(number, "unknown")
