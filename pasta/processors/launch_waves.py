"""Waves of launches, as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.codes import RowCodes, words_of
from pasta.processors.occupancy import Devices, resident, waves

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.context import Context

#: Fields of a launch that decide which of its blocks fit; consecutive in the record.
_FIRST, _LAST = "block", "local"


class LaunchWaves:
    """In how many waves the grid of each launch runs; occupancy is computed once for launches of
    equal blocks and resources."""

    def __init__(self, limit: int = 1 << 16) -> None:
        """`limit`: waves of launches with further blocks and resources are unknown."""
        self.devices = Devices()
        self._limit = limit
        self._forget()

    def _forget(self) -> None:
        self._shapes = RowCodes(self._limit)
        self._blocks = np.zeros((0, 2), np.int64)  # resident ones (-1: unknown), multiprocessors

    def add_devices(self, devices: NDArray[Any]) -> None:
        """Follows `device` events."""
        if len(devices):
            self.devices.add(devices)
            self._forget()

    def of(self, launches: NDArray[Any], context: Context) -> NDArray[Any]:
        """Waves (float64, NaN: unknown) of launches."""
        if not self.devices.properties or not len(launches):
            return np.full(len(launches), np.nan)
        words = words_of(launches, _FIRST, _LAST)
        words = np.column_stack([words, launches["device"].astype(np.uint64)])
        codes, before = self._shapes.encode(words), len(self._blocks)
        count = len(self._shapes)
        if count > before:
            _, first = np.unique(codes, return_index=True)
            new = launches[first[codes[first] >= before]]
            made = np.zeros((len(new), 2), np.int64)
            for number in np.unique(new["device"]).tolist():
                mine = new["device"] == number
                limits = self.devices.limits(number, context)
                made[mine, 0] = resident(new[mine], limits)["blocks"]
                made[mine, 1] = limits.multiprocessors if limits else 0
            self._blocks = np.concatenate([self._blocks[:before], made])
        blocks, multiprocessors = self._blocks[codes].T
        return waves(launches, np.where(codes >= 0, blocks, -1), multiprocessors)[0]
