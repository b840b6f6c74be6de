"""Waves of launches: each has a shape, and waves are known once the properties of its device are,
which can be recorded after the launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.codes import RowCodes, words_of
from pasta.processors.occupancy import Devices, places, resident

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.context import Context

#: Fields of a launch that decide which of its blocks fit; consecutive in the record.
_FIRST, _LAST = "block", "local"


class LaunchWaves:
    """In how many waves the grid of each launch runs; occupancy is computed once for launches of
    the same shape: device, block, cluster and resources."""

    def __init__(self, limit: int = 1 << 16) -> None:
        """`limit`: waves of launches of further shapes are unknown."""
        self.devices = Devices()
        self._codes = RowCodes(limit)
        self._launches: list[NDArray[Any]] = []  # the first of each shape, in pieces
        self._places: NDArray[Any] | None = None  # by shape, of all that were known then

    def add_devices(self, devices: NDArray[Any]) -> None:
        """Follows `device` events."""
        if len(devices):
            self.devices.add(devices)
            self._places = None

    def shapes(self, launches: NDArray[Any]) -> NDArray[Any]:
        """Numbers (int64) of the shapes of launches; -1: one too many."""
        if not len(launches):
            return np.zeros(0, np.int64)
        words = words_of(launches, _FIRST, _LAST)
        words = np.column_stack([words, launches["device"].astype(np.uint64)])
        codes, new = self._codes.encode_new(words)
        if len(new):
            self._launches.append(launches[new].copy())
            self._places = None
        return codes

    def of(self, shapes: NDArray[Any], blocks: NDArray[Any], context: Context) -> NDArray[Any]:
        """Waves (float64, NaN: unknown) of grids of `blocks`, by the shapes of their launches."""
        if self._places is None:
            self._places = self._computed(context)
        fitting = np.append(self._places, 0)[shapes]
        known = (fitting > 0) & (blocks > 0)
        return np.where(known, blocks / np.maximum(fitting, 1), np.nan)

    def _computed(self, context: Context) -> NDArray[Any]:
        """Blocks of each shape that its device holds at once; 0: unknown."""
        found = [np.zeros(0, np.int64)]
        for launches in self._launches:
            made = np.zeros(len(launches), np.int64)
            for number in np.unique(launches["device"]).tolist():
                limits = self.devices.limits(number, context)
                mine = launches["device"] == number
                if limits:
                    blocks = resident(launches[mine], limits)["blocks"]
                    made[mine] = places(launches[mine], blocks, limits.multiprocessors)
            found.append(made)
        return np.concatenate(found)
