"""Call paths of the host: the stacks of threads that submitted work or allocated memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.correlate import LaunchWindow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch


def of_work(stacks: NDArray[Any], *kinds: str) -> NDArray[Any]:
    """The records of `host_stack` that belong to work of these kinds."""
    from pasta import abi

    return stacks[np.isin(stacks["work"], [abi.KINDS[kind] for kind in kinds])]


def matched(
    keys: NDArray[Any], times: NDArray[Any], wanted: NDArray[Any], at: NDArray[Any]
) -> NDArray[Any]:
    """Index (int64) of the record with the key and the time of each wanted one; -1 without one."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    mixed = _mixed(keys, times)
    order = np.argsort(mixed, kind="stable")
    place = np.searchsorted(mixed[order], _mixed(wanted, at))
    found = order[np.minimum(place, len(order) - 1)]
    return np.where((keys[found] == wanted) & (times[found] == at), found, -1)


def _mixed(keys: NDArray[Any], times: NDArray[Any]) -> NDArray[Any]:
    """A hash (uint64) of keys and times."""
    shifted = times.astype(np.uint64) << np.uint64(20)
    return np.asarray((keys.astype(np.uint64) ^ shifted) * np.uint64(0x9E3779B97F4A7C15))


class CallPaths:
    """Host stacks by launch: `context.call_paths`."""

    def __init__(self) -> None:
        self._window = LaunchWindow()

    def feed(self, batch: Batch) -> None:
        """Follows the stacks of a batch."""
        stacks = batch["host_stack"]
        if len(stacks):
            launches = of_work(stacks, "kernel_launch")
            self._window.put(launches["key"], launches["stack"].view(np.int32))

    def stacks_of(self, ordinals: NDArray[Any]) -> NDArray[Any]:
        """Ids (uint32) of the stacks of launches (uint64); 0 if unknown."""
        return np.asarray(self._window.get(ordinals).view(np.uint32))


class WorkByPath:
    """Number and time of work by kernel and call path."""

    def __init__(self) -> None:
        self._found: dict[int, list[int]] = {}  # count and time, by name << 32 | stack

    def count(self, names: NDArray[Any], stacks: NDArray[Any]) -> None:
        """Counts work; `names`: ids (uint32), 0 is skipped; `stacks`: ids (uint32)."""
        self._sum(names, stacks, np.ones(len(names), np.int64), 0)

    def add(self, names: NDArray[Any], stacks: NDArray[Any], times: NDArray[Any]) -> None:
        """Adds times (int64, ns) of work; that without a stack is skipped."""
        known = stacks != 0
        if known.any():
            self._sum(names[known], stacks[known], times[known], 1)

    def _sum(
        self, names: NDArray[Any], stacks: NDArray[Any], amounts: NDArray[Any], cell: int
    ) -> None:
        keys = names.astype(np.uint64) << np.uint64(32) | stacks.astype(np.uint64)
        distinct, of = np.unique(keys, return_inverse=True)
        sums = np.zeros(len(distinct), np.int64)
        np.add.at(sums, of.reshape(-1), amounts)
        for key, amount in zip(distinct.tolist(), sums.tolist(), strict=True):
            if key >> 32:
                self._found.setdefault(key, [0, 0])[cell] += amount

    def rows(self) -> NDArray[Any]:
        """Name and stack (ids), count and time (ns) of each, the most time first."""
        rows = np.zeros(
            len(self._found), [("name", "u4"), ("stack", "u4"), ("count", "i8"), ("time", "i8")]
        )
        if len(rows):
            keys = np.fromiter(self._found, np.uint64, len(rows))
            rows["name"], rows["stack"] = keys >> np.uint64(32), keys & np.uint64(0xFFFF_FFFF)
            rows["count"], rows["time"] = np.asarray(list(self._found.values())).T
        return rows[np.lexsort((rows["stack"], rows["name"], -rows["count"], -rows["time"]))]
