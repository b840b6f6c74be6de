"""Accesses to the words of 32-byte sectors, by kernel, object and warp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pasta.compiled import compiled, internal
from pasta.probes.warp import hashed
from pasta.processors.rows import combined

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.probes.records import Accesses

WORD = 4
WORDS = 8  # per sector
KEYS = ("kernel", "object", "sector", "warp")
#: Accesses to each word of a sector.
OF_WORDS = tuple(f"of_{word}" for word in range(WORDS))
_FIRST_ROWS = 1 << 14


@internal
def _hash(kernel, object, sector, warp):  # type: ignore[no-untyped-def]
    h = hashed(hashed(np.int64(kernel), np.int64(object)), np.int64(sector))
    return np.uint64(hashed(h, np.int64(warp)))


@compiled(keys=[["u8"]], used="i8", slots=["i4"])
def _place(keys, used, slots):  # type: ignore[no-untyped-def]
    """Puts the numbers of rows into empty slots, by their keys. Slots: row + 1; 0: free."""
    mask = np.uint64(len(slots) - 1)
    for row in range(used):
        at = _hash(keys[row, 0], keys[row, 1], keys[row, 2], keys[row, 3]) & mask
        while slots[at] != 0:
            at = (at + np.uint64(1)) & mask
        slots[at] = row + 1


@compiled(
    accesses=["i8"], offsets=["u8"], objects=["i8"], kernels=["u4"], warps=["u8"], bytes=["u8"],
    times=["i8"], strides=["i8"], slots=["i4"], keys=[["u8"]], counts=[["u8"]], state=["i8"],
)  # fmt: skip
def _count(  # type: ignore[no-untyped-def]
    accesses, offsets, objects, kernels, warps, bytes, times, strides, slots, keys, counts, state
):
    """Counts lanes from `state[2]` on, until the rows may not suffice for one; returns how many it
    needs then, else 0. `accesses`: the lanes' records, of which the next six arrays are; a record
    of `times` rows accesses each of them. `state`: rows used, (word, warp) pairs, lane."""
    mask = np.uint64(len(slots) - 1)
    one, three, seven = np.uint64(1), np.uint64(3), np.uint64(7)
    used, pairs = state[0], state[1]
    row = -1
    kernel = object = sector = warp = np.uint64(0)
    for lane in range(state[2], len(accesses)):
        access = accesses[lane]
        size = bytes[access]
        needed = used + times[access] * (np.int64(size) // 32 + 2)
        if needed > len(keys):
            state[0], state[1], state[2] = used, pairs, lane
            return needed
        for time in range(times[access] if size != np.uint64(0) else 0):
            begin = offsets[lane] + np.uint64(time * strides[access])
            word, last = begin >> np.uint64(2), (begin + size - one) >> np.uint64(2)
            while word <= last:
                mine, holder = word >> three, np.uint64(objects[lane])
                if (row < 0 or mine != sector or holder != object or warps[access] != warp
                        or np.uint64(kernels[access]) != kernel):  # fmt: skip
                    kernel, object = np.uint64(kernels[access]), holder
                    sector, warp = mine, warps[access]
                    at = _hash(kernel, object, sector, warp) & mask
                    row = -1
                    while row < 0 and slots[at] != 0:
                        each = slots[at] - 1
                        if (keys[each, 2] == sector and keys[each, 1] == object
                                and keys[each, 3] == warp and keys[each, 0] == kernel):  # fmt: skip
                            row = each
                        at = (at + one) & mask
                    if row < 0:
                        row = used
                        used += 1
                        slots[at] = used
                        keys[row, 0], keys[row, 1] = kernel, object
                        keys[row, 2], keys[row, 3] = sector, warp
                place = word & seven
                pairs += counts[row, place] == np.uint64(0)
                counts[row, place] += one
                word += one
    state[0], state[1], state[2] = used, pairs, len(accesses)
    return 0


class SectorCounts:
    """Accesses of lanes to the words of sectors; `pairs`: distinct (word, warp) pairs."""

    def __init__(self) -> None:
        self._state = np.zeros(3, np.int64)
        self._keys = np.zeros((0, len(KEYS)), np.uint64)
        self._counts = np.zeros((0, WORDS), np.uint64)
        self._resize(_FIRST_ROWS)

    def _resize(self, rows: int) -> None:
        used = int(self._state[0])
        keys, counts = np.zeros((rows, len(KEYS)), np.uint64), np.zeros((rows, WORDS), np.uint64)
        keys[:used], counts[:used] = self._keys[:used], self._counts[:used]
        self._keys, self._counts = keys, counts
        self._slots = np.zeros(1 << (2 * rows - 1).bit_length(), np.int32)
        _place(self._keys, used, self._slots)

    @property
    def pairs(self) -> int:
        """Distinct pairs of a word and a warp."""
        return int(self._state[1])

    def add(self, accesses: Accesses, kernels: NDArray[Any], starts: NDArray[Any]) -> None:
        """Counts records. `kernels`: their name ids; `starts`: addresses of all objects (uint64).

        Words outside of objects are counted from address 0.
        """
        records, lanes = accesses.records, accesses.lanes
        objects = accesses.objects(lanes)
        begins = np.zeros(len(lanes), np.uint64)
        if len(starts):
            begins = np.where(objects >= 0, starts[objects], begins)
        rows = np.maximum(records["rows"].astype(np.int64), 1)
        of_lanes = (
            np.ascontiguousarray(lanes["access"], np.int64), lanes["address"] - begins, objects
        )  # fmt: skip
        of_records = (
            np.ascontiguousarray(kernels, np.uint32),
            (records["block"].astype(np.uint64) << np.uint64(16))
            | records["warp"].astype(np.uint64),
            records["bytes"].astype(np.uint64),
            rows,
            np.where(rows > 1, records["stride"], 0).astype(np.int64),
        )
        self._state[2] = 0
        while needed := _count(
            *of_lanes, *of_records, self._slots, self._keys, self._counts, self._state
        ):
            self._resize(max(2 * len(self._keys), needed))

    def rows(self) -> NDArray[Any]:
        """A structured array by `KEYS`, in ascending order, with a count for each word."""
        used = int(self._state[0])
        types = dict(zip(KEYS, ("u4", "i8", "u8", "u8"), strict=True))
        found = np.zeros(used, [*types.items(), *((name, "u8") for name in OF_WORDS)])
        for at, name in enumerate(KEYS):
            found[name] = self._keys[:used, at].astype(types[name])
        for at, name in enumerate(OF_WORDS):
            found[name] = self._counts[:used, at]
        return combined(found, KEYS)
