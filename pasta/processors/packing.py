"""Live bytes over a run, and their peak if objects were live for a shorter time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Packing:
    """Live bytes of objects by ring position.

    An object is live in [begin, end), positions of its allocation and its free (int64).
    """

    def __init__(
        self,
        begins: NDArray[Any],
        ends: NDArray[Any],
        sizes: NDArray[Any],
        breaks: NDArray[Any] | None = None,
    ) -> None:
        """`sizes`: bytes (int64) of each object; `breaks`: further positions, at which intervals
        begin or end that are removed."""
        positions = np.concatenate([begins, ends])
        changes = np.concatenate([sizes, -sizes])
        if breaks is not None:
            positions = np.concatenate([positions, breaks])
            changes = np.concatenate([changes, np.zeros(len(breaks), np.int64)])
        order = np.lexsort((changes, positions))  # what ends at a position ends first
        #: Positions of allocations, frees and breaks in ascending order.
        self.positions = positions[order]
        #: Live bytes from each position to the next one.
        self.levels = np.cumsum(changes[order])
        nothing = np.zeros(1, np.int64)
        self._until = np.concatenate([nothing, np.maximum.accumulate(self.levels)])
        self._since = np.concatenate([np.maximum.accumulate(self.levels[::-1])[::-1], nothing])
        self.peak = int(self._until[-1])
        #: Position from which on the peak is live; -1 without objects.
        self.peak_position = (
            int(self.positions[int(self.levels.argmax())]) if len(self.levels) else -1
        )

    def at_peak(self, starts: NDArray[Any], stops: NDArray[Any]) -> NDArray[Any]:
        """Whether intervals (bool) of positions, [start, stop), include `peak_position`."""
        return np.asarray((starts <= self.peak_position) & (stops > self.peak_position))

    def saved_alone(
        self, starts: NDArray[Any], stops: NDArray[Any], sizes: NDArray[Any]
    ) -> NDArray[Any]:
        """By how many bytes (int64) the peak falls if an object of a size is not live in
        [start, stop): for each of the objects, while the others stay as they are. Starts and stops
        are allocations, frees or breaks."""
        first, after = self._places(starts, stops)
        outside = np.maximum(self._until[first], self._since[after])
        return np.asarray(self.peak - np.maximum(outside, self.peak - sizes))

    def levels_without(
        self, starts: NDArray[Any], stops: NDArray[Any], sizes: NDArray[Any]
    ) -> NDArray[Any]:
        """Live bytes from each position to the next one if objects of these sizes are not live in
        [start, stop): all of them together. The intervals of an object do not overlap."""
        first, after = self._places(starts, stops)
        removed = np.zeros(len(self.levels) + 1, np.int64)
        np.add.at(removed, first, sizes)
        np.subtract.at(removed, after, sizes)
        return self.levels - np.cumsum(removed[:-1])

    def peak_without(self, starts: NDArray[Any], stops: NDArray[Any], sizes: NDArray[Any]) -> int:
        """The highest of `levels_without`."""
        return int(self.levels_without(starts, stops, sizes).max(initial=0))

    def _places(
        self, starts: NDArray[Any], stops: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        return tuple(np.searchsorted(self.positions, each, "left") for each in (starts, stops))  # type: ignore[return-value]
