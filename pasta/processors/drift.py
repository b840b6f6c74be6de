"""Whether launches change in the course of a run, so that those probed early do not represent later
ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pasta.lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Bits of a key for the launch's ordinal; its place or shape is above them.
_ORDINAL = 40
#: A change counts if its square is this many times the variance that chance explains.
_CLEAR = 4
#: Median of the square of a standard normal variable.
_MEDIAN = 0.4549


@dataclass(frozen=True)
class Probed:
    """Probed launches, and a count of each: arrays of equal length, in order of ordinals.

    `place` and `shape` are numbers from 1; counts of a `stratum` are estimated as their mean."""

    ordinal: NDArray[Any]
    place: NDArray[Any]
    shape: NDArray[Any]
    stratum: NDArray[Any]
    count: NDArray[Any]


def changes(
    pages: Iterable[tuple[int, NDArray[Any]]], probed: Probed, strata: int, shapes: int
) -> NDArray[Any]:
    """By shape, how much the total of its launches changes if each counts as the probed launches
    before and after it do, instead of the mean of its stratum; 0 where chance explains it.

    `pages`: the first ordinal, and places (0: to be left out), of successive launches. A launch is
    between two probed ones at its place. Before the first one there, the shape's last one counts,
    unless its place was probed again: then the difference between the two does."""
    size = len(probed.count)
    by_place, by_shape = (
        _Sorted(probed.place, probed.ordinal),
        _Sorted(probed.shape, probed.ordinal),
    )
    shape_of, stratum_of, last_of = np.zeros((3, int(probed.place.max()) + 1), np.int64)
    shape_of[probed.place], stratum_of[probed.place] = probed.shape, probed.stratum
    last_of[probed.place] = np.arange(size)  # of equal places, the last one is kept
    weights, launches = np.zeros(size), np.zeros(strata)
    for first, places in pages:
        known = np.flatnonzero(places < len(shape_of))
        known = known[shape_of[places[known]] > 0]
        place, ordinal = places[known].astype(np.int64), known + first
        launches += np.bincount(stratum_of[place], minlength=strata)
        before, after = by_place.around(place, ordinal)
        none = before == size
        before[none] = after[none]
        itself = after < size
        itself[itself] = probed.ordinal[after[itself]] == ordinal[itself]
        before[itself] = after[itself]
        after = np.where(after == size, before, after)
        weights += _times(before, size) / 2 + _times(after, size) / 2
        early = none & ~itself
        earlier, own = by_shape.around(shape_of[place[early]], ordinal[early])[0], after[early]
        earlier, own = earlier[earlier < size], own[earlier < size]
        again = last_of[probed.place[earlier]]
        weights += _times(earlier, size) / 2
        weights -= _times(np.where(again == earlier, own, again), size) / 2
    mean = launches / np.maximum(np.bincount(probed.stratum, minlength=strata), 1)
    differs = weights - mean[probed.stratum]
    found = np.bincount(probed.shape, differs * probed.count, shapes)
    chance = np.bincount(probed.shape, differs**2, shapes) * _scatter(probed, by_place, shapes)
    return np.where(found**2 > _CLEAR * chance, found, 0.0)


def _times(numbers: NDArray[Any], size: int) -> NDArray[Any]:
    return np.bincount(numbers, minlength=size)


def _scatter(probed: Probed, by_place: _Sorted, shapes: int) -> NDArray[Any]:
    """By shape, the variance of counts at a place, from the median difference of successive ones:
    one change hardly matters."""
    order = by_place.order
    same = probed.place[order][1:] == probed.place[order][:-1]
    squares = (np.diff(probed.count[order])[same]) ** 2 / 2
    shape = probed.shape[order][1:][same]
    ranked = np.lexsort((squares, shape))
    many = np.bincount(shape, minlength=shapes)
    middle = np.cumsum(many) - (many + 1) // 2
    found = np.zeros(shapes)
    found[many > 0] = squares[ranked[middle[many > 0]]] / _MEDIAN
    return found


class _Sorted:
    """Probed launches by group, in order: `order` has their indices."""

    def __init__(self, groups: NDArray[Any], ordinals: NDArray[Any]) -> None:
        keys = groups.astype(np.int64) << _ORDINAL | ordinals.astype(np.int64)
        self.order = np.argsort(keys)
        self._keys = keys[self.order]
        self._groups = np.append(groups[self.order], 0)
        self._indices = np.append(self.order, len(keys))

    def around(
        self, groups: NDArray[Any], ordinals: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Indices of the last probed launch of a group before an ordinal, and of the first one from
        it on; where there is none, the number of all."""
        none, at = len(self.order), np.searchsorted(self._keys, groups << _ORDINAL | ordinals)
        before, after = (
            np.where(self._groups[each] == groups, self._indices[each], none)
            for each in (at - 1, at)
        )
        return before, after
