"""Whole parts of counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Fraction by which the grids of successive groups are shifted: the golden section.
_SHIFT = 0.6180339887498949


def spread(counts: NDArray[Any], sizes: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
    """Whole parts (int64) of counts in proportion to weights; parts of a group add up to its count.

    `counts`: int64, one for each group; `sizes`: how many of `weights` (float64, not negative) each
    group has, at least 1. Groups without weight are divided equally. A part differs from its exact
    share by less than 1. The units of a group are spread evenly over it, beginning elsewhere in
    each group, so that many small equal parts do not all round to the same entries; by largest
    remainders, the first of a thousand equal launches would get all stalls.
    """
    starts = np.cumsum(sizes) - sizes
    group = np.repeat(np.arange(len(sizes)), sizes)
    whole = np.add.reduceat(weights, starts) if len(sizes) else np.zeros(0)
    weights = np.where(whole[group] > 0, weights, 1.0)
    whole = np.where(whole > 0, whole, sizes)
    reached = np.cumsum(weights / whole[group])
    before = np.append(0.0, reached[:-1])[starts]
    reached = np.clip(reached - before[group], 0.0, 1.0) * counts[group]
    reached[starts + sizes - 1] = counts
    shift = np.arange(len(sizes)) * _SHIFT % 1.0
    marks = np.floor(reached + shift[group]).astype(np.int64)
    marks = np.minimum(marks, counts[group])
    previous = np.append(0, marks[:-1])
    previous[starts] = 0
    return np.asarray(marks - previous)
