"""Definitions that reach uses: registers, predicates, uniform registers and scoreboards.

A definition under a predicate does not end earlier ones. A scoreboard is defined by every
instruction that sets it, and all of them reach a wait for it; the wait ends them, as the scoreboard
is then free.
"""

from __future__ import annotations

import re
from functools import cached_property
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from pasta.lazy import np
from pasta.sass import resources
from pasta.sass.control import SCOREBOARDS, decode_control
from pasta.sass.control_flow import ControlFlow
from pasta.sass.forms import CONDITIONAL, NEVER, RESOURCE_MASK, WAITS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.sass.disassembler import Code


class Chains(NamedTuple):
    """Def-use edges: instruction `uses[i]` reads in `resources[i]` what `defs[i]` wrote; int64."""

    uses: NDArray[np.int64]
    resources: NDArray[np.int64]
    defs: NDArray[np.int64]


class _Events(NamedTuple):
    """Definitions and waits, or uses: instruction and resource of each."""

    at: NDArray[np.int64]
    resource: NDArray[np.int64]


class _Local(NamedTuple):
    """For each use: block and resource, the range of its block's events that reach it, and whether
    definitions of earlier blocks may."""

    group: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    is_exposed: NDArray[np.bool_]


class DefUse:
    """Reaching definitions of a function.

    Definitions and waits are kept in the order of block, resource and place. What reaches a use
    from its own block is then a range: from the last one that ends earlier ones to the use.
    """

    def __init__(self, code: Code, flow: ControlFlow) -> None:
        self._flow = flow
        self._blocks = len(flow.successors)
        forms, form = code.forms, code.form
        self._count = len(form)
        flags = forms.flags[form]
        active = (flags & NEVER) == 0
        starts = np.asarray(flow.starts, np.int64)
        sizes = starts[1:] - starts[:-1]
        self._block = np.repeat(np.arange(self._blocks), sizes)
        control = decode_control(code.control)
        waits = _waits(control.wait)
        at, values = forms.defs.take(form)
        kept = active[at]
        defs = _Events(at[kept], values[kept].astype(np.int64))
        sets = _sets(control.write, control.read)
        at, values = forms.uses.take(form)
        kept = active[at]
        self._uses = _Events(
            np.concatenate([at[kept], waits.at]),
            np.concatenate([values[kept].astype(np.int64) & RESOURCE_MASK, waits.resource]),
        )
        self._index(defs, sets, _drains(code, waits), (flags & CONDITIONAL) == 0)
        self._incoming: dict[int, _Incoming] = {}

    def _index(
        self, defs: _Events, sets: _Events, drains: _Events, kills: NDArray[np.bool_]
    ) -> None:
        at = np.concatenate([defs.at, sets.at, drains.at])
        resource = np.concatenate([defs.resource, sets.resource, drains.resource])
        is_drain = np.zeros(len(at), bool)
        is_drain[len(at) - len(drains.at) :] = True
        ends = is_drain.copy()
        ends[: len(defs.at)] = kills[defs.at]
        # an instruction waits before it sets a scoreboard again
        key = self._key(at, resource) + ~is_drain
        order = np.argsort(key, kind="stable")
        self._keys = key[order]
        self._at = at[order]
        self._is_drain = is_drain[order]
        group = self._keys // (2 * self._count + 2)
        places = np.where(ends[order], np.arange(len(order)), -1)
        latest = np.maximum.accumulate(places) if len(places) else places
        first = np.searchsorted(group, group) if len(group) else places
        #: index of the last event of the group, up to this one, that ends earlier ones; or -1
        self._last = np.where(latest >= first, latest, -1)
        self._group = group

    def _key(self, at: NDArray[np.int64], resource: NDArray[np.int64]) -> NDArray[np.int64]:
        group = self._block[at] * resources.COUNT + resource
        return group * (2 * self._count + 2) + 2 * at

    def definitions(self, index: int, resource: int) -> list[int]:
        """Instructions whose definition of a resource that instruction `index` uses reaches it,
        ascending."""
        block = int(self._block[index])
        group = block * resources.COUNT + resource
        key = group * (2 * self._count + 2) + 2 * index
        start = int(np.searchsorted(self._group, group))
        end = int(np.searchsorted(self._keys, key))
        found: set[int] = set()
        if self._take(start, end, found):
            found.update(self._reaching(block, resource))
        return sorted(found)

    def uses(self, index: int) -> list[int]:
        """Resources that an instruction reads or waits for."""
        found: list[int] = self._uses.resource[self._uses.at == index].tolist()
        return found

    def chains(self) -> Chains:
        """All def-use edges of the function."""
        local = self._local
        use, event = _ranges(local.begin, local.end)
        kept = ~self._is_drain[event]
        use, event = use[kept], event[kept]
        exposed = np.flatnonzero(local.is_exposed)
        wanted, which = np.unique(local.group[exposed], return_inverse=True)
        reaching = [self._reaching(*divmod(each, resources.COUNT)) for each in wanted.tolist()]
        counts = np.array([len(each) for each in reaching], np.int64)
        flat = np.array([each for part in reaching for each in part], np.int64)
        ends = np.cumsum(counts)
        owner, place = _ranges((ends - counts)[which], ends[which])
        use = np.concatenate([use, exposed[owner]])
        defs = np.concatenate([self._at[event], flat[place]])
        return Chains(self._uses.at[use], self._uses.resource[use], defs)

    @cached_property
    def _local(self) -> _Local:
        """What reaches uses from their own blocks."""
        key = self._key(*self._uses)
        group = key // (2 * self._count + 2)
        if not len(self._keys):
            none = np.zeros(len(key), np.int64)
            return _Local(group, none, none, np.ones(len(key), bool))
        end = np.searchsorted(self._keys, key)
        start = np.searchsorted(self._group, group)
        last = np.where(end > start, self._last[end - 1], -1)
        return _Local(group, np.maximum(start, last), end, last < start)

    @cached_property
    def _exposed(self) -> dict[int, list[int]]:
        """Blocks with a use of each resource that earlier blocks' definitions reach."""
        found: dict[int, list[int]] = {}
        for group in np.unique(self._local.group[self._local.is_exposed]).tolist():
            block, resource = divmod(group, resources.COUNT)
            found.setdefault(resource, []).append(block)
        return found

    def _take(self, start: int, end: int, found: set[int]) -> bool:
        """Add what reaches behind events `start` to `end` of a group; whether earlier ones do."""
        if end <= start:
            return True
        last = int(self._last[end - 1])
        first = max(start, last)
        at, is_drain = self._at[first:end], self._is_drain[first:end]
        found.update(at[~is_drain].tolist())
        return last < start

    def _reaching(self, block: int, resource: int) -> tuple[int, ...]:
        """Instructions whose definition reaches the begin of a block, ascending."""
        incoming = self._incoming.get(resource)
        if incoming is None:
            incoming = self._incoming[resource] = self._propagate(resource)
        return incoming.at(block)

    def _propagate(self, resource: int) -> _Incoming:
        """Follow the definitions of a resource through blocks that do not end them."""
        into = [0] * self._blocks
        out = [0] * self._blocks
        ends = set()
        members: list[tuple[int, ...]] = []
        for block, start, end in self._groups.get(resource, ()):
            found: set[int] = set()
            if not self._take(start, end, found):
                ends.add(block)
            if found:
                out[block] = 1 << len(members)
                members.append(tuple(found))
        live = self._live(resource, ends)
        successors = self._flow.successors
        # in code order, so that most edges lead to later blocks
        queue = [block for block in range(self._blocks) if out[block]]
        queued = set(queue)
        while queue:
            block = heappop(queue)
            queued.discard(block)
            leaving = out[block]
            for each in successors[block]:
                if each not in live:
                    continue
                arriving = into[each] | leaving
                if arriving == into[each]:
                    continue
                into[each] = arriving
                if each not in ends and out[each] | arriving != out[each]:
                    out[each] |= arriving
                    if each not in queued:
                        queued.add(each)
                        heappush(queue, each)
        return _Incoming(into, members)

    def _live(self, resource: int, ends: set[int]) -> set[int]:
        """Blocks from whose begin a use of a resource can be reached without a definition."""
        open_ = list(self._exposed.get(resource, ()))
        live = set(open_)
        while open_:
            for each in self._flow.predecessors[open_.pop()]:
                if each not in live and each not in ends:
                    live.add(each)
                    open_.append(each)
        return live

    @cached_property
    def _groups(self) -> dict[int, list[tuple[int, int, int]]]:
        """Blocks with events of each resource: block, first event, end."""
        names, starts = np.unique(self._group, return_index=True)
        ends = [*starts[1:].tolist(), len(self._group)][: len(names)]  # there may be none
        found: dict[int, list[tuple[int, int, int]]] = {}
        for name, start, end in zip(names.tolist(), starts.tolist(), ends, strict=True):
            block, resource = divmod(name, resources.COUNT)
            found.setdefault(resource, []).append((block, start, end))
        return found


class _Incoming:
    """Definitions of a resource that reach the begin of blocks: a mask of `members` for each."""

    def __init__(self, into: list[int], members: list[tuple[int, ...]]) -> None:
        self._into = into
        self._members = members
        self._known: dict[int, tuple[int, ...]] = {0: ()}

    def at(self, block: int) -> tuple[int, ...]:
        mask = self._into[block]
        known = self._known.get(mask)
        if known is None:
            bits = bin(mask)[:1:-1]
            places = [each.start() for each in re.finditer("1", bits)]
            known = tuple(sorted({at for place in places for at in self._members[place]}))
            self._known[mask] = known
        return known


def _waits(masks: NDArray[np.uint32]) -> _Events:
    """Waits for scoreboards in control bits."""
    at, which = np.nonzero(masks[:, None] >> np.arange(SCOREBOARDS) & 1)
    return _Events(at, resources.SB + which)


def _drains(code: Code, waits: _Events) -> _Events:
    """Waits after which a scoreboard is free, except a DEPBAR that leaves operations open."""
    found: list[tuple[int, int]] = []
    for index in np.flatnonzero(code.forms.flags[code.form] & WAITS).tolist():
        for resource, limit in code.forms.waits[int(code.form[index])]:
            if not limit:
                found.append((index, resource))
    more = np.array(found, np.int64).reshape(-1, 2)
    return _Events(
        np.concatenate([waits.at, more[:, 0]]), np.concatenate([waits.resource, more[:, 1]])
    )


def _sets(write: NDArray[np.uint32], read: NDArray[np.uint32]) -> _Events:
    """Instructions that set scoreboards."""
    at = [np.flatnonzero(each < SCOREBOARDS) for each in (write, read)]
    which = [write[at[0]].astype(np.int64), read[at[1]].astype(np.int64)]
    return _Events(np.concatenate(at), resources.SB + np.concatenate(which))


def _ranges(
    begin: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers of all ranges, each with the index of its range."""
    counts = np.maximum(end - begin, 0)
    owner = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)
    return owner, begin[owner] + np.arange(len(owner)) - (ends - counts)[owner]
