"""Objects that held addresses at any time of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pasta.compiled import compiled
from pasta.processors.objects import (
    BLOCKS,
    OBJECT,
    LiveObjects,
    at_or_below,
    insert,
    key_of,
    last_key,
    object_key,
    remove,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.snapshots import Snapshots


@compiled(
    addresses=["u8"], versions=["i8"], layer="i8", found=["i8"], objects=[OBJECT], log=["i8"],
    positions=["u8"], at=["i8"], **BLOCKS,
)  # fmt: skip
def _lookup_in_past(  # type: ignore[no-untyped-def]
    addresses, versions, layer, found, objects, log, positions, at,
    heads, order, keys, ids, fill, spare, meta,
):  # fmt: skip
    """Moves forward or back to the version of each address in turn."""
    for q in range(len(addresses)):
        while at[0] != versions[q]:
            forward = at[0] < versions[q]
            if not forward:
                at[0] -= 1
            id = log[at[0]]
            begins = objects[id]["alloc_position"] == positions[at[0]]
            if begins == forward:
                insert(object_key(objects[id]), id, heads, order, keys, ids, fill, spare, meta)
            else:
                remove(object_key(objects[id]), heads, order, keys, ids, fill, spare, meta)
            if forward:
                at[0] += 1
        key = key_of(layer, addresses[q])
        id = at_or_below(key, heads, order, keys, ids, fill, meta)
        there = id >= 0 and last_key(object_key(objects[id]), objects[id]["bytes"]) >= key
        found[q] = id if there else -1


class Past(LiveObjects):
    """Objects by address at any version of `snapshots`.

    The cost of a lookup is the number of changes between its versions, starting from the last one
    of the previous lookup.
    """

    def __init__(self, snapshots: Snapshots) -> None:
        super().__init__()
        self._snapshots = snapshots
        self._at = np.zeros(1, np.int64)

    def lookup(self, addresses: NDArray[Any], versions: NDArray[Any], layer: int) -> NDArray[Any]:
        """Ids (int64) of a layer's objects that held `addresses` (uint64) at these versions
        (int64); -1 for none."""
        log, positions = self._snapshots.changes
        order = np.argsort(versions, kind="stable")
        sorted_found = np.empty(len(order), np.int64)
        self.reserve_blocks(len(log))
        _lookup_in_past(
            addresses[order].astype(np.uint64), versions[order].astype(np.int64), layer,
            sorted_found, self._snapshots.table.rows, log, positions, self._at,
            *self.blocks, self._meta,
        )  # fmt: skip
        found = np.empty(len(order), np.int64)
        found[order] = sorted_found
        return found
