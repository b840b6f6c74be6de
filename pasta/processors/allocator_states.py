"""Totals of frameworks' caching allocators after each allocation and free of a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.batch import ABSENT_U64
from pasta.processors.codes import distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch

#: Totals of a device's allocator from an event on: its `index` in the batch and time (ns), and the
#: bytes in use and reserved from the device.
ALLOCATOR_STATE = [
    ("index", "u4"), ("time", "u8"), ("device", "i2"), ("allocated", "i8"), ("reserved", "i8"),
]  # fmt: skip
#: A record of totals or of a tensor, whose `allocated` is the change.
_EVENT = [*ALLOCATOR_STATE, ("thread", "u4"), ("is_state", "?")]
#: Memory that caching allocators hand out.
_CACHED = ("device", "managed")


class AllocatorStates:
    """Follows the totals of each device's allocator.

    A record of totals comes directly before the tensor on its thread and device, which it includes.
    It may be omitted where the totals follow from those before and the tensor's bytes.
    """

    def __init__(self) -> None:
        self._totals: dict[int, tuple[int, int]] = {}  # by device: allocated, reserved
        #: Devices and threads, packed, whose last record is one of totals.
        self._ahead: set[int] = set()

    def feed(self, batch: Batch) -> NDArray[Any]:
        """Rows of ALLOCATOR_STATE in ring order: at each record of totals, and at each tensor that
        has none. Tensors before the first totals of their device have no row."""
        if not self._totals and not len(batch["allocator_state"]):
            return np.zeros(0, ALLOCATOR_STATE)
        events = _events(batch)
        events = events[~self._included(events)]
        rows = np.zeros(len(events), ALLOCATOR_STATE)
        for name in ("index", "time", "device"):
            rows[name] = events[name]
        known = np.zeros(len(events), bool)
        for device in distinct(events["device"]):
            mine = np.flatnonzero(events["device"] == device)
            totals, known[mine] = self._follow(device, events[mine])
            rows["allocated"][mine], rows["reserved"][mine] = totals
        return rows[known]

    def _included(self, events: NDArray[Any]) -> NDArray[Any]:
        """Whether events (bool) are tensors that the record directly before includes."""
        if not len(events):
            return np.zeros(0, bool)
        threads = (events["device"].astype(np.int64) << 32) | events["thread"]
        order = np.argsort(threads, kind="stable")
        threads, states = threads[order], events["is_state"][order]
        first = np.append(True, threads[1:] != threads[:-1])
        last = np.append(first[1:], True)
        follows = np.append(False, states[:-1])
        follows[first] = [thread in self._ahead for thread in threads[first].tolist()]
        self._ahead.difference_update(threads[last].tolist())
        self._ahead.update(threads[last & states].tolist())
        included = np.empty(len(events), bool)
        included[order] = follows & ~states
        return included

    def _follow(
        self, device: int, events: NDArray[Any]
    ) -> tuple[tuple[NDArray[Any], NDArray[Any]], NDArray[Any]]:
        """Allocated and reserved bytes (int64) after events of a device, and whether they are known
        (bool)."""
        before = self._totals.get(device)
        allocated, reserved = before or (0, 0)
        states = events["is_state"]
        # the last totals, from 1; 0: those before the batch
        since = np.maximum.accumulate(np.where(states, np.arange(1, len(events) + 1), 0))
        known = (since > 0) | (before is not None)
        changes = np.append(0, np.cumsum(np.where(states, 0, events["allocated"])))
        totals = (
            np.append(allocated, events["allocated"])[since] + changes[1:] - changes[since],
            np.append(reserved, events["reserved"])[since],
        )
        if known[-1]:
            self._totals[device] = int(totals[0][-1]), int(totals[1][-1])
        return totals, known


def _events(batch: Batch) -> NDArray[Any]:
    """Records of totals, and of tensors in memory that allocators cache, in ring order."""
    from pasta import abi

    cached = [number for number, name in abi.enums()["memory"].items() if name in _CACHED]
    records = batch["allocator_state"]
    states = _common(records)
    states["is_state"] = True
    states["allocated"], states["reserved"] = records["allocated"], records["reserved"]
    parts = [states]
    for kind, sign in (("tensor_alloc", 1), ("tensor_free", -1)):
        records = batch[kind]
        records = records[(records["device"] >= 0) & np.isin(records["memory"], cached)]
        tensors = _common(records)
        known = records["bytes"] != ABSENT_U64
        tensors["allocated"] = np.where(known, records["bytes"], 0).astype(np.int64) * sign
        parts.append(tensors)
    together = np.concatenate(parts)
    return together[np.argsort(together["index"], kind="stable")]


def _common(records: NDArray[Any]) -> NDArray[Any]:
    """Rows of _EVENT with the fields that all records have."""
    rows = np.zeros(len(records), _EVENT)
    for name in ("index", "time", "device", "thread"):
        rows[name] = records[name]
    return rows
