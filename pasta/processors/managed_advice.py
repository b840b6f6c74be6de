"""Advice on managed memory: actions are tried in the page simulator, and kept if they save time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pasta.processors.managed_pages import (
    ACCESSED_BY,
    DEVICE,
    HOST,
    METRICS,
    OP,
    PREFER_DEVICE,
    PREFER_HOST,
    READ_MOSTLY,
    Costs,
    Simulated,
    moved_pages,
    simulate,
)
from pasta.processors.managed_trace import ManagedPages, with_evictions, with_prefetches

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Advice of an action, for the simulator.
_ADVICE = {
    "read_mostly": (READ_MOSTLY,),
    "preferred_host": (PREFER_HOST, ACCESSED_BY),
    "pin": (PREFER_DEVICE,),
}
#: Actions that exclude each other.
_ONE_PLACE = frozenset({"preferred_host", "pin"})
#: An action must save this share of the time that its object costs.
_WORTHWHILE = 0.01
#: Maximum number of actions on one object.
_MAX_ACTIONS = 3
_FAULTS = [METRICS.index("device_faults"), METRICS.index("host_faults")]


@dataclass(frozen=True)
class Unit:
    """Something to advise on: pages first … end - 1 of the object with id `object`, in the
    allocation of index `allocation`."""

    object: int
    allocation: int
    first: int
    end: int


@dataclass(frozen=True)
class Action:
    """An action (of managed_plan.ACTIONS, where preferred_host includes accessed_by), and the
    launches that it belongs to."""

    name: str
    launches: tuple[int, ...] = ()


@dataclass(frozen=True)
class Advice:
    """An action on a unit, and its simulated savings beyond earlier actions."""

    unit: Unit
    action: Action
    faults: int
    bytes: int
    time: float
    reason: str


@dataclass(frozen=True)
class _Tried:
    """Operations, and their simulation."""

    ops: NDArray[Any]
    totals: NDArray[Any]
    faults: NDArray[Any]
    time: float


class Advisor:
    """Tries actions on the operations of a run, with space for `capacity` pages (None: all)."""

    def __init__(
        self, ops: NDArray[Any], pages: ManagedPages, capacity: int | None, costs: Costs
    ) -> None:
        self.ops, self.pages, self.capacity, self.costs = ops, pages, capacity, costs

    def advise(self, unit: Unit, page_bytes: int) -> list[Advice]:
        """Actions that save time together, the best first; `page_bytes`: of a page."""
        ops, own = self._ops(unit)
        if not own.any():
            return []
        now = self._without if self.capacity is not None else self._tried(ops, unit, [])
        whole = now.time
        chosen: list[Action] = []
        found: list[Advice] = []
        while len(chosen) < _MAX_ACTIONS:
            tried = [
                (self._tried(ops, unit, [*chosen, action]), action, reason)
                for action, reason in self._candidates(ops[own], now, unit, chosen)
            ]
            if not tried:
                break
            after, action, reason = min(tried, key=lambda each: each[0].time)
            saved = now.time - after.time
            if saved <= max(_WORTHWHILE * whole, 0.0):
                break
            faults = now.totals[:, _FAULTS].sum() - after.totals[:, _FAULTS].sum()
            pages = moved_pages(now.totals).sum() - moved_pages(after.totals).sum()
            found.append(Advice(unit, action, int(faults), int(pages) * page_bytes, saved, reason))
            chosen.append(action)
            now = after
        return found

    def all_applied(self, advice: Iterable[Advice]) -> NDArray[Any]:
        """The run's operations with all of this advice."""
        ops = self.ops
        for each in advice:
            ops = applied(ops, each.unit, [each.action])
        return ops

    def _ops(self, unit: Unit) -> tuple[NDArray[Any], NDArray[Any]]:
        """Operations to simulate, and which are on the unit. Where all pages fit, objects do not
        affect each other."""
        own = (self.ops["first"] < unit.end) & (self.ops["end"] > unit.first)
        if self.capacity is not None:
            return self.ops, own
        ops = self.ops[own]
        ops["first"] = np.maximum(ops["first"], unit.first)
        ops["end"] = np.minimum(ops["end"], unit.end)
        return ops, np.ones(len(ops), bool)

    @cached_property
    def _without(self) -> _Tried:
        """The run as it was."""
        simulated = simulate(self.ops, self.pages.owner, self.capacity)
        return self._timed(self.ops, simulated)

    def _tried(self, ops: NDArray[Any], unit: Unit, actions: Sequence[Action]) -> _Tried:
        made = applied(ops, unit, actions)
        return self._timed(made, simulate(made, self.pages.owner, self.capacity))

    def _timed(self, ops: NDArray[Any], simulated: Simulated) -> _Tried:
        time = float(self.costs.of(simulated.totals).sum())
        return _Tried(ops, simulated.totals, simulated.faults, time)

    def _candidates(
        self, mine: NDArray[Any], now: _Tried, unit: Unit, chosen: Sequence[Action]
    ) -> Iterator[tuple[Action, str]]:
        """Actions that may help, given the run's operations on the unit."""
        taken = {each.name for each in chosen}
        on_device, on_host = mine["what"] == DEVICE, mine["what"] == HOST
        writes = bool((mine["write"][on_device] != 0).any())
        if "read_mostly" not in taken and not writes and on_device.any():
            yield Action("read_mostly"), "no launch writes it"
        if not taken & _ONE_PLACE and "read_mostly" not in taken:
            yield Action("preferred_host"), "launches can access it in place"
            if self.capacity is not None and now.totals[:, METRICS.index("evicted")].any():
                yield Action("pin"), "it is evicted and returns"
        if "prefetch" not in taken:
            launches = _faulting(now, unit)
            if launches:
                yield Action("prefetch", launches), "launches fault on it"
        if "evict" not in taken and on_host.any():
            last = np.flatnonzero(on_device[:-1] & on_host[1:])
            launches = tuple(np.unique(mine["launch"][last]).tolist())
            if launches:
                yield Action("evict", launches), "the host faults on it after launches"


def _faulting(now: _Tried, unit: Unit) -> tuple[int, ...]:
    """Launches that fault on a unit."""
    on_unit = (now.ops["first"] < unit.end) & (now.ops["end"] > unit.first)
    return tuple(np.unique(now.ops["launch"][(now.faults > 0) & on_unit]).tolist())


def applied(ops: NDArray[Any], unit: Unit, actions: Sequence[Action]) -> NDArray[Any]:
    """Operations with actions on a unit."""
    for action in actions:
        count = len(action.launches)
        first, end = np.full(count, unit.first), np.full(count, unit.end)
        launches = np.asarray(action.launches, np.int64)
        if action.name == "prefetch":
            ops = with_prefetches(ops, first, end, launches)
        elif action.name == "evict":
            ops = with_evictions(ops, first, end, launches)
        else:
            advice = np.zeros(len(_ADVICE[action.name]), OP)
            advice["what"], advice["write"], advice["launch"] = _ADVICE[action.name], 1, -1
            advice["first"], advice["end"] = unit.first, unit.end
            ops = np.concatenate([advice, ops])
    return ops
