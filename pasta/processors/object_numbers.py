"""Objects by the numbers that a source assigns to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pasta.processors.codes import grown
from pasta.processors.objects import MEMORY, TENSOR
from pasta.processors.past import Past

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.objects import ObjectTable
    from pasta.processors.snapshots import Launches, Snapshots

_MAX_NUMBER = 1 << 32
#: Allocations whose events may be missing; larger numbers mean damaged records.
_MAX_MISSING = 1 << 25
_PIECE = np.dtype([("number", "u8"), ("address", "u8"), ("bytes", "u8")])


class ObjectNumbers:
    """Object ids by the numbers that a source assigns to objects.

    A number may also denote a piece of an allocation, which several tensors hold in turn: then its
    object depends on the launch.
    """

    def __init__(self, objects: ObjectTable, snapshots: Snapshots, launches: Launches) -> None:
        self.objects, self._snapshots, self._launches = objects, snapshots, launches
        self._seen = 0
        self._positions = np.zeros(1024, np.uint64)  # of the allocation's record + 1, by number
        self._pieces = np.zeros(1024, _PIECE)  # by number; 0 bytes: no piece
        self._past = Past(snapshots)
        #: Number of objects and ranges, by layer.
        self._ranges: dict[int, tuple[int, tuple[NDArray[Any], ...]]] = {}

    def feed(self, selected: Batch) -> None:
        """Follow the allocations of a batch."""
        records = selected["memory_alloc"]
        numbers = records["correlation"].astype(np.int64)
        self._seen += len(records)
        known = (numbers > 0) & (numbers < min(self._seen + _MAX_MISSING, _MAX_NUMBER))
        if known.any():
            self._positions = grown(self._positions, int(numbers[known].max()) + 1)
            self._positions[numbers[known]] = selected.positions(records)[known] + np.uint64(1)

    def add_pieces(self, words: NDArray[Any]) -> None:
        """Register pieces of allocations: number, address and bytes of each, as uint64."""
        pieces = np.ascontiguousarray(words).view(_PIECE).reshape(-1)
        pieces = pieces[pieces["number"] < _MAX_NUMBER]
        if len(pieces):
            numbers = pieces["number"].astype(np.intp)
            self._pieces = grown(self._pieces, int(numbers.max()) + 1)
            self._pieces[numbers] = pieces

    def ids(self, numbers: NDArray[Any], ordinals: NDArray[Any]) -> NDArray[Any]:
        """Object ids (int64) at the time of launches; -1 if unknown."""
        found = self._allocations(numbers)
        pieces = self._pieces[np.where(numbers < len(self._pieces), numbers, 0).astype(np.intp)]
        some = pieces["bytes"] != 0
        if some.any():
            positions = self._launches.positions(ordinals[some])
            found[some] = self._held(pieces[some], self._snapshots.versions(positions))
        return found

    def _held(self, pieces: NDArray[Any], versions: NDArray[Any]) -> NDArray[Any]:
        """Ids of the tensors that held pieces, otherwise of the allocations; -1 for none."""
        found = self._past.lookup(pieces["address"], versions, TENSOR)
        rows = self.objects.rows[found]
        whole = pieces["address"] + pieces["bytes"] <= rows["address"] + rows["bytes"]
        other = (found < 0) | ~whole
        found[other] = self._past.lookup(pieces["address"][other], versions[other], MEMORY)
        return found

    def place(self, number: int) -> tuple[int, int]:
        """The object that a number always denoted, -1 if unknown, and the offset of the number's
        first byte in it; for a piece that several tensors held, the last allocation there."""
        if number >= len(self._pieces) or not self._pieces["bytes"][number]:
            return int(self._allocations(np.asarray([number], np.uint64))[0]), 0
        address, bytes = (int(self._pieces[name][number]) for name in ("address", "bytes"))
        holds: list[int] = []
        for layer in (TENSOR, MEMORY):
            begins, ends, lasts, counts = self._held_by(layer)
            meets = np.flatnonzero((begins < address + bytes) & (ends > address))
            holds = lasts[meets].tolist()
            alone = len(meets) == 1 and counts[meets[0]] == 1
            if alone and begins[meets[0]] <= address and ends[meets[0]] >= address + bytes:
                break
        if not holds:
            return -1, 0
        found = max(holds)
        return found, max(0, address - int(self.objects.rows["address"][found]))

    def _held_by(self, layer: int) -> tuple[NDArray[Any], ...]:
        """Distinct ranges of a layer's objects: begin, end, last id and number of objects."""
        rows = self.objects.rows
        kept = self._ranges.get(layer)
        if kept is None or kept[0] != len(rows):
            ids = np.flatnonzero(rows["layer"] == layer)
            ranges = rows[["address", "bytes"]][ids]
            distinct, at, counts = np.unique(ranges, return_inverse=True, return_counts=True)
            lasts = np.zeros(len(distinct), np.int64)
            lasts[at.reshape(-1)] = ids
            ends = distinct["address"] + distinct["bytes"]
            kept = self._ranges[layer] = len(rows), (distinct["address"], ends, lasts, counts)
        return kept[1]

    def _allocations(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Ids of the allocations with these numbers; -1 if unknown."""
        within = numbers < len(self._positions)
        positions = self._positions[np.where(within, numbers, 0).astype(np.intp)]
        rows = self.objects.rows
        known = positions != 0
        positions = positions - known
        at = np.searchsorted(rows["alloc_position"], positions)
        at = np.minimum(at, max(0, len(rows) - 1))
        found = within & known & (len(rows) > 0)
        if len(rows):
            found &= rows["alloc_position"][at] == positions
        return np.where(found, at, -1)
