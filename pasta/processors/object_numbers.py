"""Objects by the numbers that a source assigns to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pasta.processors.batch import ABSENT_U64
from pasta.processors.codes import grown
from pasta.processors.objects import TENSOR
from pasta.processors.past import Past

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.objects import ObjectTable
    from pasta.processors.snapshots import Launches, Snapshots

_MAX_NUMBER = 1 << 32
#: Allocations whose events may be missing; larger numbers mean damaged records.
_MAX_MISSING = 1 << 25
_PIECE = np.dtype([("number", "u8"), ("address", "u8"), ("bytes", "u8"), ("allocation", "u8")])


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
        self._began = np.zeros(0, np.uint64)  # of objects by id: position of the allocation
        self._sorted: _Tensors | None = None
        #: Ranges of these tensors by allocation.
        self._ranges: dict[int, tuple[NDArray[Any], ...]] = {}

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
        """Register pieces: number, address, bytes and number of the allocation of each, as
        uint64."""
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
        """Ids of the tensors that held pieces, otherwise of their allocations; -1 if unknown."""
        found = self._past.lookup(pieces["address"], versions, TENSOR)
        rows = self.objects.rows[found]
        whole = pieces["address"] + pieces["bytes"] <= rows["address"] + rows["bytes"]
        other = (found < 0) | ~whole
        found[other] = self._allocations(pieces["allocation"][other])
        return found

    def place(self, number: int) -> tuple[int, int]:
        """The object that a number always denoted, -1 if unknown, and the offset of the number's
        first byte in it; for a piece that several tensors held, its allocation."""
        if number >= len(self._pieces) or not self._pieces["bytes"][number]:
            return int(self._allocations(np.asarray([number], np.uint64))[0]), 0
        piece = self._pieces[number]
        address, end = int(piece["address"]), int(piece["address"]) + int(piece["bytes"])
        found = int(self._allocations(piece["allocation"].reshape(1))[0])
        begins, ends, ids, counts = self._tensors(found, address, end)
        meets = np.flatnonzero((begins < end) & (ends > address))
        if len(meets) == 1 and counts[meets[0]] == 1:
            (at,) = meets
            if begins[at] <= address and ends[at] >= end:
                found = int(ids[at])
        return found, address - int(self.objects.rows["address"][found]) if found >= 0 else 0

    def _tensors(self, allocation: int, address: int, end: int) -> tuple[NDArray[Any], ...]:
        """Distinct ranges of the tensors in an allocation, while it lived, as others may have had
        its addresses before and after; of an unknown one (-1), of those between two addresses."""
        rows = self.objects.rows
        if self._sorted is None or self._sorted.objects != len(rows):
            self._sorted, self._ranges = _Tensors(rows), {}
        if allocation < 0:
            return self._sorted.between(address, end)
        if (kept := self._ranges.get(allocation)) is None:
            mine = rows[allocation]
            address, end = int(mine["address"]), int(mine["address"]) + int(mine["bytes"])
            life = mine["alloc_position"], mine["free_position"]
            kept = self._ranges[allocation] = self._sorted.between(address, end, *life)
        return kept

    def _allocations(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Ids of the allocations with these numbers; -1 if unknown."""
        within = numbers < len(self._positions)
        positions = self._positions[np.where(within, numbers, 0).astype(np.intp)]
        rows = self.objects.rows
        known = positions != 0
        positions = positions - known
        if len(self._began) != len(rows):  # rows are not contiguous: a search would copy this
            self._began = rows["alloc_position"].copy()
        at = np.searchsorted(self._began, positions)
        at = np.minimum(at, max(0, len(rows) - 1))
        found = within & known & (len(rows) > 0)
        if len(rows):
            found &= self._began[at] == positions
        return np.where(found, at, -1)


class _Tensors:
    """Tensors among the first `objects` of a run, by address and size."""

    def __init__(self, rows: NDArray[Any]) -> None:
        self.objects = len(rows)
        ids = np.flatnonzero(rows["layer"] == TENSOR)
        begins = rows["address"][ids]
        ends = begins + rows["bytes"][ids]
        order = np.lexsort((ends, begins))
        self._ids, self._begins, self._ends = ids[order], begins[order], ends[order]
        self._from = rows["alloc_position"][self._ids]
        self._until = rows["free_position"][self._ids]
        self._longest = int((ends - begins).max(initial=np.uint64(0)))

    def between(
        self, address: int, end: int, after: int = 0, before: int = ABSENT_U64
    ) -> tuple[NDArray[Any], ...]:
        """Distinct ranges of those that touch these addresses and lived between two positions:
        begin, end, an id and the number of tensors."""
        lowest = np.uint64(max(0, address - self._longest))
        near = slice(*np.searchsorted(self._begins, np.asarray([lowest, end], np.uint64)))
        mine = self._ends[near] > np.uint64(address)
        mine &= (self._from[near] < before) & (self._until[near] > after)
        begins, ends, ids = (each[near][mine] for each in (self._begins, self._ends, self._ids))
        new = np.ones(len(ids), bool)
        new[1:] = (begins[1:] != begins[:-1]) | (ends[1:] != ends[:-1])
        starts = np.flatnonzero(new)
        return begins[starts], ends[starts], ids[starts], np.diff(starts, append=len(ids))
