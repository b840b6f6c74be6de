"""How tools call objects in their tables, and which allocation a tensor lies in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.batch import ABSENT_U64
from pasta.processors.codes import grown
from pasta.table import Column, Unit, absent_where, formatted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.objects import ObjectTable

#: What an access lies in whose address is in no live object.
UNKNOWN = "unknown"
#: Units of `object_columns`.
OBJECT_UNITS: dict[str, Unit] = {"object_address": "address", "object_bytes": "bytes"}
#: Columns of `object_columns` that its name says already.
OBJECT_HIDDEN = frozenset({"object_id", "object_address", "object_bytes", "memory"})


def object_sizes(objects: ObjectTable, ids: NDArray[Any]) -> NDArray[Any]:
    """Bytes (uint64) of objects by id; 0 for -1 and for an object of unknown size."""
    if not len(objects.rows):
        return np.zeros(len(ids), np.uint64)
    bytes = objects.rows["bytes"][ids]
    absent = (ids < 0) | (bytes == np.uint64(ABSENT_U64))
    return np.asarray(np.where(absent, np.uint64(0), bytes))


def object_names(objects: ObjectTable, ids: NDArray[Any]) -> list[str]:
    """Kind of memory, size and address of objects: `device 4.00 MiB at 0x7f0000`."""
    return list(object_columns(objects, ids)["object"])


def object_columns(objects: ObjectTable, ids: NDArray[Any]) -> dict[str, Column]:
    """Columns that say what objects are; for id -1 `unknown`, and the others absent."""
    from pasta import abi
    from pasta.processors.objects import TENSOR

    memories, unknown = abi.ENUMS["memory"], ids < 0
    rows = objects.rows
    if not len(rows):
        rows, ids = np.zeros(1, rows.dtype), np.full(len(ids), -1)
    found = rows[ids]
    kinds = [
        None if not told else "tensor" if layer == TENSOR else memories.get(memory, UNKNOWN)
        for told, layer, memory in zip(
            (~unknown).tolist(), found["layer"].tolist(), found["memory"].tolist(), strict=True
        )
    ]
    unsized = unknown | (found["bytes"] == np.uint64(ABSENT_U64))
    names = [
        UNKNOWN
        if kind is None
        else f"{kind} {'?' if no_size else formatted(bytes, 'bytes')} at {address:#x}"
        for kind, bytes, no_size, address in zip(
            kinds, found["bytes"].tolist(), unsized.tolist(), found["address"].tolist(), strict=True
        )
    ]
    return {
        "object": names,
        "object_id": absent_where(ids, unknown),
        "object_address": absent_where(found["address"], unknown),
        "object_bytes": absent_where(found["bytes"], unsized),
        "memory": kinds,
    }


class TensorOwners:
    """Which allocation held each tensor when it was made; fed in a tool's `on_tensors`."""

    def __init__(self) -> None:
        self._owner_plus_1 = np.zeros(1024, np.int64)
        self.tensors = 0

    def feed(self, objects: ObjectTable) -> None:
        """Follows the tensors that began in the batch at hand."""
        from pasta.processors.objects import TENSOR

        new = objects.changes[objects.changes["sign"] > 0]
        new = new[objects.rows["layer"][new["object"]] == TENSOR]
        if not len(new):
            return
        ids = new["object"]
        owners = objects.lookup(objects.rows["address"][ids], new["index"], "memory")
        self._owner_plus_1 = grown(self._owner_plus_1, int(ids.max()) + 1)
        self._owner_plus_1[ids] = owners + 1
        self.tensors += len(ids)

    def allocations(self, ids: NDArray[Any]) -> NDArray[Any]:
        """Ids of the allocations that hold objects: for an allocation its own, -1 for none."""
        known = (ids >= 0) & (ids < len(self._owner_plus_1))
        owners = self._owner_plus_1[np.where(known, ids, 0)]
        return np.where(known & (owners > 0), owners - 1, ids)
