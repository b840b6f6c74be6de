"""Columns of access records, and objects at addresses, each in one compiled call.

Tools process accesses in many threads. Every NumPy call on a long array releases and acquires the
interpreter lock, which costs more than a hundred such calls on a chunk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pasta.compiled import compiled, memory
from pasta.probes.kinds import MAP_SHIFT
from pasta.probes.warp import bit_count, lane_address, locate, lowest_bit, peek, plus, times

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.snapshots import Snapshot

#: Columns of access records: those of records.ACCESS, but `address` is that of the lowest lane, and
#: `lanes` their number.
COLUMNS = {
    "launch": "uint64", "pc": "uint64", "address": "int64", "stride": "int64", "block": "uint64",
    "bytes": "uint32", "mask": "uint32", "warp": "uint16", "rows": "uint16",
    "kind": "uint8", "flags": "uint8", "form": "uint8", "sm": "uint8", "lanes": "uint8",
}  # fmt: skip
_FLAGS = (1 << MAP_SHIFT) - 1
_ARRAYS: dict[str, Any] = {name: [type] for name, type in COLUMNS.items()}


@compiled(words="i8", starts="i8", masks="i8", **_ARRAYS)
def _split(  # type: ignore[no-untyped-def]
    words, starts, masks, launch, pc, address, stride, block, bytes, mask, warp, rows,
    kind, flags, form, sm, lanes,
):  # fmt: skip
    for i in range(len(launch)):
        at, wrote = peek(starts, i), peek(masks, i)
        head, second = peek(words, at), peek(words, at + 1)
        stride[i], base = peek(words, at + 2), peek(words, at + 3)
        pc[i], launch[i], block[i] = peek(words, at + 4), peek(words, at + 5), peek(words, at + 6)
        mask[i], lanes[i] = wrote, bit_count(wrote)
        kind[i], sm[i] = head >> 32, head >> 56
        flags[i] = (head >> 40) & _FLAGS
        form[i] = shape = (head >> 48) & 15
        bytes[i], rows[i], warp[i] = second, second >> 32, second >> 48
        if wrote == 0 or shape == 3:
            pass
        elif shape == 0:
            base = plus(base, times(stride[i], lowest_bit(wrote)))
        else:
            low = lowest_bit(wrote)
            place = bit_count(head & ((1 << low) - 1))
            base = lane_address(words, at, shape, base, 0, low, place)
        address[i] = base


@compiled(layers="i8", addresses=["u8"], found=["i8"])
def _locate_all(layers, addresses, found):  # type: ignore[no-untyped-def]
    id, _, low, high = locate(layers, np.uint64(0))
    for i in range(len(addresses)):
        if addresses[i] - low > high - low:
            id, _, low, high = locate(layers, addresses[i])
        found[i] = id


def columns_of(
    words: NDArray[Any], starts: NDArray[Any], masks: NDArray[Any]
) -> dict[str, NDArray[Any]]:
    """COLUMNS of the records at `starts` (int64) in `words` (int64), restricted to the lanes
    `masks` (int64)."""
    starts = np.ascontiguousarray(starts, np.int64)
    masks = np.ascontiguousarray(masks, np.int64)
    found = {name: np.empty(len(starts), type) for name, type in COLUMNS.items()}
    pointers = (memory(each) for each in (words, starts, masks))
    _split(*pointers, *found.values())
    found["address"] = found["address"].view(np.uint64)
    return found


def lookup(snapshot: Snapshot, addresses: NDArray[Any]) -> NDArray[Any]:
    """Ids (int64) of the objects that hold addresses (uint64); -1 for none."""
    found = np.empty(len(addresses), np.int64)
    _locate_all(memory(snapshot.described), np.ascontiguousarray(addresses), found)
    return found
