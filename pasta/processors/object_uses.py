"""Accesses to objects in order: by launches, copies and sets, with distances in launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.batch import ABSENT_U64

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: How an object was accessed.
LAUNCH, COPIED_FROM, WRITTEN = 0, 1, 2

#: An access: the object's id, ring position, how, launch ordinal (of a copy or set: -2 - the node
#: of its operator), and of a write by a copy or a set the contiguous bytes that it fills.
USE = [
    ("object", "i8"),
    ("position", "i8"),
    ("how", "u1"),
    ("launch", "i8"),
    ("address", "u8"),
    ("bytes", "u8"),
]
#: Interval without accesses to an object: positions [start, stop), launches in it, and the
#: `launch` of the accesses before and after it (-1: none).
SPAN = [
    ("object", "i8"),
    ("start", "i8"),
    ("stop", "i8"),
    ("launches", "i8"),
    ("before", "i8"),
    ("after", "i8"),
]


def is_contiguous(transfers: NDArray[Any]) -> NDArray[Any]:
    """Whether copies or sets (bool) write one contiguous row of bytes; others leave gaps between
    rows. An absent number of rows or planes counts as one."""
    one = np.ones(len(transfers), bool)
    for name in ("height", "depth"):
        if name in (transfers.dtype.names or ()):  # sets have no planes
            one &= (transfers[name] <= 1) | (transfers[name] == ABSENT_U64)
    return one


def spans(count: int) -> NDArray[Any]:
    """Uninitialized rows of SPAN."""
    return np.empty(count, SPAN)


class DeviceLaunches:
    """Positions of the launches of each device, and of all launches with unknown accesses, which
    may access memory of any device."""

    def __init__(
        self, positions: NDArray[Any], devices: NDArray[Any], unknown: NDArray[Any]
    ) -> None:
        """`positions` (int64) and `devices` of launches; `unknown` (bool)."""
        self._positions: dict[int, NDArray[Any]] = {}
        self._unknown = np.sort(positions[unknown])
        for device in np.unique(devices).tolist():
            mine = devices == device
            self._positions[device] = np.sort(positions[mine])

    def ranks(self, positions: NDArray[Any], devices: NDArray[Any]) -> NDArray[Any]:
        """Numbers (int64) of launches of a device before positions."""
        found = np.zeros(len(positions), np.int64)
        for device, of_device in self._positions.items():
            mine = devices == device
            found[mine] = np.searchsorted(of_device, positions[mine], "left")
        return found

    def clear(self, starts: NDArray[Any], stops: NDArray[Any]) -> NDArray[Any]:
        """Whether the accesses of all launches in [start, stop) are known (bool)."""
        before, after = (np.searchsorted(self._unknown, each, "left") for each in (starts, stops))
        return np.asarray(before == after)


class ObjectUses:
    """Uses of objects in order, and the intervals between them.

    `objects`: sorted ids of the objects of interest, with their `begins`, `ends` (positions) and
    `devices`; `uses`: rows of USE in any order. Intervals with a launch whose accesses are unknown
    are left out.
    """

    def __init__(
        self,
        objects: NDArray[Any],
        begins: NDArray[Any],
        ends: NDArray[Any],
        devices: NDArray[Any],
        uses: NDArray[Any],
        launches: DeviceLaunches,
    ) -> None:
        self.objects, self.begins, self.ends, self.devices = objects, begins, ends, devices
        self.launches = launches
        at = np.searchsorted(objects, uses["object"])
        mine = at < len(objects)
        mine[mine] = objects[at[mine]] == uses["object"][mine]
        uses, at = uses[mine], at[mine]
        inside = (uses["position"] >= begins[at]) & (uses["position"] < ends[at])
        uses, at = uses[inside], at[inside]
        order = np.lexsort((uses["position"], at))
        #: Uses by object and position, and the index of each one's object.
        self.uses, self.of = uses[order], at[order]
        counts = np.bincount(self.of, minlength=len(objects))
        #: Index of the first use of each object, and one more than that of its last one.
        self.stop = np.cumsum(counts)
        self.start = self.stop - counts
        self.used = counts > 0

    def unused(self) -> NDArray[Any]:
        """Lifetimes of objects that nothing accesses (SPAN)."""
        at = np.flatnonzero(~self.used)
        found = spans(len(at))
        found["start"], found["stop"] = self.begins[at], self.ends[at]
        found["before"] = found["after"] = -1
        return self._counted(found, at)

    def before_first(self) -> NDArray[Any]:
        """From each allocation to the first access."""
        at = np.flatnonzero(self.used)
        first = self.uses[self.start[at]]
        found = spans(len(at))
        found["start"], found["stop"] = self.begins[at], first["position"]
        found["before"], found["after"] = -1, first["launch"]
        return self._counted(found, at)

    def after_last(self) -> NDArray[Any]:
        """From each last access to the free."""
        at = np.flatnonzero(self.used)
        last = self.uses[self.stop[at] - 1]
        found = spans(len(at))
        found["start"], found["stop"] = last["position"] + 1, self.ends[at]
        found["before"], found["after"] = last["launch"], -1
        return self._counted(found, at)

    def between(self) -> NDArray[Any]:
        """Between two accesses in a row to an object."""
        at = np.flatnonzero(self.of[1:] == self.of[:-1])
        before, after = self.uses[at], self.uses[at + 1]
        found = spans(len(at))
        found["start"], found["stop"] = before["position"] + 1, after["position"]
        found["before"], found["after"] = before["launch"], after["launch"]
        return self._counted(found, self.of[at])

    def overwritten(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Between a write by a copy or a set and the next access, another such write that covers
        it; and the bytes (int64) that the first one wrote."""
        at = np.flatnonzero(self.of[1:] == self.of[:-1])
        first, second = self.uses[at], self.uses[at + 1]
        ends = [each["address"] + each["bytes"] for each in (first, second)]
        dead = (first["how"] == WRITTEN) & (second["how"] == WRITTEN)
        dead &= (second["address"] <= first["address"]) & (ends[1] >= ends[0])
        dead &= first["bytes"] > 0
        at, first, second = at[dead], first[dead], second[dead]
        found = spans(len(at))
        found["start"], found["stop"] = first["position"] + 1, second["position"]
        found["before"] = found["after"] = -1
        sizes = first["bytes"].astype(np.int64)
        clear = self.launches.clear(found["start"], found["stop"])
        return self._counted(found, self.of[at]), sizes[clear]

    def reusable(self, groups: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Pairs of objects (their indices) of one group, first the one whose last access comes
        before the first access of the second one, and which is still live when that one is
        allocated. Each object is in at most one pair in each role.

        `groups` (int64, not negative) of objects: device and size, say.
        """
        at = np.flatnonzero(self.used)
        firsts = self.uses["position"][self.start[at]]
        lasts = self.uses["position"][self.stop[at] - 1]
        by_first = np.lexsort((firsts, groups[at]))
        by_last = np.lexsort((lasts, groups[at]))
        group = groups[at][by_first]
        # of the objects of the group, in order of their last access, those before a first access
        ended = _before(groups[at][by_last], lasts[by_last], group, firsts[by_first])
        begin = np.searchsorted(groups[at][by_last], group)
        ended -= begin
        number = np.arange(len(group)) - np.searchsorted(group, group)
        # the k-th object takes the next one that has ended, if any is left:
        # taken[k + 1] = min(taken[k] + 1, ended[k])
        steps = ended - number - 1
        span = len(group) + 2
        bound = np.minimum.accumulate(np.minimum(steps, 0) - group * span) + group * span
        taken = bound + number + 1
        before = np.concatenate([[0], taken[:-1]])
        before[number == 0] = 0
        takes = taken > before
        second = at[by_first[takes]]
        first = at[by_last[(begin + before)[takes]]]
        live = (self.ends[first] > self.begins[second]) & (first != second)
        for each in (first, second):
            live &= self.launches.clear(self.begins[each], self.ends[each])
        return first[live], second[live]

    def _counted(self, found: NDArray[Any], at: NDArray[Any]) -> NDArray[Any]:
        """Spans of objects (indices) with their launches, without those of unknown accesses."""
        devices = self.devices[at]
        found["object"] = self.objects[at]
        found["launches"] = self.launches.ranks(found["stop"], devices) - self.launches.ranks(
            found["start"], devices
        )
        known = self.launches.clear(found["start"], found["stop"])
        return np.asarray(found[known])


def _before(
    groups: NDArray[Any], values: NDArray[Any], of: NDArray[Any], limits: NDArray[Any]
) -> NDArray[Any]:
    """Number (int64) of rows, sorted by group and value, of a lower group than `of`, or of that
    group and with a value below the limit."""
    both = np.concatenate([values, limits])
    order = np.lexsort((np.repeat([1, 0], [len(values), len(limits)]), both,
                        np.concatenate([groups, of])))  # fmt: skip
    is_value = order < len(values)
    counts = np.cumsum(is_value)
    found = np.empty(len(limits), np.int64)
    found[order[~is_value] - len(values)] = counts[~is_value]
    return found
