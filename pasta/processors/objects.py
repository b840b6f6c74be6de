"""The object that held an address at any event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pasta.compiled import compiled, internal
from pasta.processors.batch import ABSENT_U32, ABSENT_U64, Batch
from pasta.processors.call_paths import matched, of_work
from pasta.processors.codes import grown

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Objects of different layers may overlap: a tensor lies in an allocation, an allocation may lie
#: in a reserved range. An array's address is a handle, that of scratch memory a queue id, so
#: these are never looked up by address.
MEMORY, TENSOR, VIRTUAL, ARRAY = 0, 1, 2, 3
#: Levels of `lookup`: the layers that it searches, in order.
LEVELS = {
    "finest": (TENSOR, MEMORY),
    "tensor": (TENSOR,),
    "memory": (MEMORY,),
    "virtual": (VIRTUAL,),
}

OBJECT = np.dtype(
    [
        ("address", "u8"),
        ("bytes", "u8"),  # absent: all ones
        ("alloc_position", "u8"),
        ("free_position", "u8"),  # of the free; all ones while live
        ("alloc_time", "u8"),  # ns
        ("free_time", "u8"),  # ns; all ones while live
        ("stream", "u8"),
        ("thread", "u4"),
        ("stack", "u4"),
        ("memory", "u4"),  # PASTA_MEMORY_*
        ("device", "i2"),
        ("flags", "u1"),
        ("layer", "u1"),
        ("stale", "u1"),  # 1: its free was missed; it ended at an overlapping allocation
    ]
)
CHANGE = np.dtype([("object", "i8"), ("time", "u8"), ("index", "u4"), ("sign", "i1")])

_EVENT = np.dtype([*OBJECT.descr, ("free", "u1")])

_BLOCK = 128
#: Allocations of earlier batches whose stacks may follow.
_RECENT = 256
_LAYER_SHIFT = np.uint64(60)
_ADDRESS_MASK = np.uint64((1 << 60) - 1)
_ABSENT = np.uint64(ABSENT_U64)
_UNKNOWN_MEMORY = np.uint32(ABSENT_U32)
# Cells of `meta`.
_BLOCKS, _USED, _SPARE, _OBJECTS, _RECYCLED, _CHANGES, _STALE, _UNMATCHED, _EMPTY = range(9)

# The live objects are a sorted list of keys, layer << 60 | address, in blocks of up to 128:
#   heads[i], order[i]   lowest key and storage of the i-th block, i < meta[_BLOCKS]
#   keys, ids, fill      contents of a block's storage
#   spare                storage of blocks that became empty
#: Parameters of compiled functions that take the blocks.
BLOCKS: dict[str, Any] = {
    "heads": ["u8"], "order": ["i8"], "keys": [["u8"]], "ids": [["i8"]], "fill": ["i8"],
    "spare": ["i8"], "meta": ["i8"],
}  # fmt: skip


@internal
def _after(sorted_keys, count, key):  # type: ignore[no-untyped-def]
    """Number of keys less than or equal to `key`."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if sorted_keys[middle] <= key:
            low = middle + 1
        else:
            high = middle
    return low


@internal
def _new_block(spare, meta):  # type: ignore[no-untyped-def]
    if meta[_SPARE]:
        meta[_SPARE] -= 1
        return spare[meta[_SPARE]]
    meta[_USED] += 1
    return meta[_USED] - 1


@internal
def insert(key, id, heads, order, keys, ids, fill, spare, meta):  # type: ignore[no-untyped-def]
    """Inserts an object with a key; splits a full block."""
    if meta[_BLOCKS] == 0:
        order[0] = _new_block(spare, meta)
        heads[0] = key
        fill[order[0]] = 0
        meta[_BLOCKS] = 1
    at = max(0, _after(heads, meta[_BLOCKS], key) - 1)
    block = order[at]
    if fill[block] == _BLOCK:
        half = _BLOCK // 2
        upper = _new_block(spare, meta)
        for i in range(half):
            keys[upper, i] = keys[block, half + i]
            ids[upper, i] = ids[block, half + i]
        fill[block] = half
        fill[upper] = _BLOCK - half
        for i in range(meta[_BLOCKS], at + 1, -1):
            heads[i] = heads[i - 1]
            order[i] = order[i - 1]
        heads[at + 1] = keys[upper, 0]
        order[at + 1] = upper
        meta[_BLOCKS] += 1
        if key >= heads[at + 1]:
            at += 1
            block = upper
    place = _after(keys[block], fill[block], key)
    for i in range(fill[block], place, -1):
        keys[block, i] = keys[block, i - 1]
        ids[block, i] = ids[block, i - 1]
    keys[block, place] = key
    ids[block, place] = id
    fill[block] += 1
    if place == 0:
        heads[at] = key


@internal
def remove(key, heads, order, keys, ids, fill, spare, meta):  # type: ignore[no-untyped-def]
    """Removes the object with this key, which must be live."""
    at = _after(heads, meta[_BLOCKS], key) - 1
    block = order[at]
    place = _after(keys[block], fill[block], key) - 1
    for i in range(place, fill[block] - 1):
        keys[block, i] = keys[block, i + 1]
        ids[block, i] = ids[block, i + 1]
    fill[block] -= 1
    if fill[block] == 0:
        spare[meta[_SPARE]] = block
        meta[_SPARE] += 1
        meta[_BLOCKS] -= 1
        for i in range(at, meta[_BLOCKS]):
            heads[i] = heads[i + 1]
            order[i] = order[i + 1]
    elif place == 0:
        heads[at] = keys[block, 0]


@internal
def at_or_below(key, heads, order, keys, ids, fill, meta):  # type: ignore[no-untyped-def]
    """Object with the highest key less than or equal to `key`, or -1."""
    at = _after(heads, meta[_BLOCKS], key) - 1
    if at < 0:
        return np.int64(-1)
    block = order[at]
    return ids[block, _after(keys[block], fill[block], key) - 1]


@internal
def key_of(layer, address):  # type: ignore[no-untyped-def]
    """Key (uint64) of an address in a layer."""
    return (np.uint64(layer) << _LAYER_SHIFT) | (address & _ADDRESS_MASK)


@internal
def object_key(object):  # type: ignore[no-untyped-def]
    """Key (uint64) of a row of OBJECT."""
    return key_of(object["layer"], object["address"])


@internal
def last_key(key, size):  # type: ignore[no-untyped-def]
    """Key of an object's last byte; an object of unknown size has one byte."""
    length = np.uint64(1) if size == _ABSENT else size
    return key + min(length - np.uint64(1), _ADDRESS_MASK - (key & _ADDRESS_MASK))


@internal
def _end(index, event, id, stale, objects, changes, meta):  # type: ignore[no-untyped-def]
    objects[id]["free_position"] = event["alloc_position"]
    objects[id]["free_time"] = event["alloc_time"]
    objects[id]["stale"] = stale
    change = meta[_CHANGES]
    changes[change]["object"] = id
    changes[change]["time"] = event["alloc_time"]
    changes[change]["index"] = index
    changes[change]["sign"] = -1
    meta[_CHANGES] += 1


@compiled(
    events=[_EVENT], indices=["i8"], objects=[OBJECT], recycled=["i8"], changes=[CHANGE], **BLOCKS
)
def _apply(  # type: ignore[no-untyped-def]
    events, indices, objects, recycled, changes, heads, order, keys, ids, fill, spare, meta
):
    for e in range(len(events)):
        event = events[e]
        key = key_of(event["layer"], event["address"])
        if event["free"]:
            found = at_or_below(key, heads, order, keys, ids, fill, meta)
            if event["memory"] == _UNKNOWN_MEMORY:
                for layer in (VIRTUAL, ARRAY):
                    if found >= 0 and object_key(objects[found]) == key:
                        break
                    key = key_of(layer, event["address"])
                    found = at_or_below(key, heads, order, keys, ids, fill, meta)
            if found < 0 or object_key(objects[found]) != key:
                meta[_UNMATCHED] += 1
                continue
            remove(key, heads, order, keys, ids, fill, spare, meta)
            _end(indices[e], event, found, 0, objects, changes, meta)
            continue
        if event["bytes"] == 0:
            meta[_EMPTY] += 1
            continue
        last = last_key(key, event["bytes"])
        while True:
            found = at_or_below(last, heads, order, keys, ids, fill, meta)
            if found < 0:
                break
            other = object_key(objects[found])
            if last_key(other, objects[found]["bytes"]) < key:
                break
            remove(other, heads, order, keys, ids, fill, spare, meta)
            _end(indices[e], event, found, 1, objects, changes, meta)
            meta[_STALE] += 1
        if meta[_RECYCLED]:
            meta[_RECYCLED] -= 1
            id = recycled[meta[_RECYCLED]]
        else:
            id = meta[_OBJECTS]
            meta[_OBJECTS] += 1
        new = objects[id]
        new["address"] = event["address"]
        new["bytes"] = event["bytes"]
        new["alloc_position"] = event["alloc_position"]
        new["free_position"] = _ABSENT
        new["alloc_time"] = event["alloc_time"]
        new["free_time"] = _ABSENT
        new["stream"] = event["stream"]
        new["thread"] = event["thread"]
        new["stack"] = event["stack"]
        new["memory"] = event["memory"]
        new["device"] = event["device"]
        new["flags"] = event["flags"]
        new["layer"] = event["layer"]
        new["stale"] = 0
        insert(key, id, heads, order, keys, ids, fill, spare, meta)
        change = meta[_CHANGES]
        changes[change]["object"] = id
        changes[change]["time"] = event["alloc_time"]
        changes[change]["index"] = indices[e]
        changes[change]["sign"] = 1
        meta[_CHANGES] += 1


@compiled(
    addresses=["u8"], indices=["i8"], latest_first=["i8"], layers=["i8"], found=["i8"],
    objects=[OBJECT], changes=[CHANGE], **BLOCKS,
)  # fmt: skip
def _lookup(  # type: ignore[no-untyped-def]
    addresses, indices, latest_first, layers, found, objects, changes,
    heads, order, keys, ids, fill, spare, meta,
):  # fmt: skip
    """Answers queries from the latest to the earliest, undoing changes of the batch on the way,
    and then applies them again."""
    change = meta[_CHANGES]
    for q in range(len(addresses)):
        query = latest_first[q]
        while change > 0 and changes[change - 1]["index"] > indices[query]:
            change -= 1
            id = changes[change]["object"]
            if changes[change]["sign"] > 0:
                remove(object_key(objects[id]), heads, order, keys, ids, fill, spare, meta)
            else:
                insert(object_key(objects[id]), id, heads, order, keys, ids, fill, spare, meta)
        found[query] = -1
        if addresses[query] > _ADDRESS_MASK:
            continue
        for layer in layers:
            key = key_of(layer, addresses[query])
            id = at_or_below(key, heads, order, keys, ids, fill, meta)
            if id >= 0 and last_key(object_key(objects[id]), objects[id]["bytes"]) >= key:
                found[query] = id
                break
    while change < meta[_CHANGES]:
        id = changes[change]["object"]
        if changes[change]["sign"] > 0:
            insert(object_key(objects[id]), id, heads, order, keys, ids, fill, spare, meta)
        else:
            remove(object_key(objects[id]), heads, order, keys, ids, fill, spare, meta)
        change += 1


@compiled(order=["i8"], ids=[["i8"]], fill=["i8"], meta=["i8"], live=["i8"])
def _list_live(order, ids, fill, meta, live):  # type: ignore[no-untyped-def]
    count = 0
    for at in range(meta[_BLOCKS]):
        block = order[at]
        for i in range(fill[block]):
            live[count] = ids[block, i]
            count += 1
    return count


class LiveObjects:
    """Blocks of keys and ids of live objects."""

    def __init__(self) -> None:
        self._meta = np.zeros(9, np.int64)
        self._heads = np.zeros(16, np.uint64)
        self._order = np.zeros(16, np.int64)
        self._keys = np.zeros((16, _BLOCK), np.uint64)
        self._ids = np.zeros((16, _BLOCK), np.int64)
        self._fill = np.zeros(16, np.int64)
        self._spare = np.zeros(16, np.int64)

    @property
    def blocks(self) -> tuple[NDArray[Any], ...]:
        """Arrays of the blocks: heads, order, keys, ids, fill, spare."""
        return self._heads, self._order, self._keys, self._ids, self._fill, self._spare

    def reserve_blocks(self, inserts: int) -> None:
        """Grows the arrays for this number of inserts."""
        # Each insert splits at most one block, and a block is full again only after half a
        # block of inserts.
        wanted = 2 * int(self._meta[_BLOCKS]) + inserts // (_BLOCK // 2) + 2
        if wanted > len(self._heads):
            self._heads, self._order, self._keys, self._ids, self._fill, self._spare = (
                grown(array, wanted) for array in self.blocks
            )


class ObjectTable(LiveObjects):
    """Live allocations and tensors by address, and all objects by id.

    One address space holds all devices and the host (unified addressing). An object covers
    exactly [address, address + bytes). Where an allocation overlaps live objects of its layer,
    their free was missed: they end there and count as `stale`. With `history` every object
    keeps its id and row until the run ends; without it ids and rows of freed objects are reused
    from the next batch on.
    """

    def __init__(self, *, history: bool = False) -> None:
        super().__init__()
        self.history = history
        self._base = 0
        self._rows = np.zeros(1024, OBJECT)
        self._recycled = np.zeros(1024, np.int64)
        self._changes = np.zeros(1024, CHANGE)
        #: Ids of objects that began in this batch, and the last before it.
        self._began = np.zeros(0, np.int64)

    @property
    def rows(self) -> NDArray[Any]:
        """Objects by id (dtype OBJECT); without history, rows of freed objects are reused."""
        return self._rows[: int(self._meta[_OBJECTS])]

    @property
    def changes(self) -> NDArray[Any]:
        """Beginnings (sign 1) and ends (-1) of objects in the last batch, in ring order (dtype
        CHANGE)."""
        return self._changes[: int(self._meta[_CHANGES])]

    def begun(self, layer: int) -> NDArray[Any]:
        """Beginnings (dtype CHANGE) of a layer's objects in the last batch."""
        new = self.changes[self.changes["sign"] > 0]
        ids, layers = new["object"], self.rows["layer"]
        found: NDArray[Any] = new[layers[ids] == layer]
        return found

    @property
    def stale(self) -> int:
        """Objects whose free was missed."""
        return int(self._meta[_STALE])

    @property
    def unmatched(self) -> int:
        """Frees of an address at which no live object began."""
        return int(self._meta[_UNMATCHED])

    @property
    def empty(self) -> int:
        """Allocations of 0 bytes, which are not objects."""
        return int(self._meta[_EMPTY])

    def live(self) -> NDArray[Any]:
        """Ids of live objects (int64), by layer and address, at the end of the last batch."""
        count = int(self._fill[self._order[: self._meta[_BLOCKS]]].sum())
        live = np.empty(count, np.int64)
        _list_live(self._order, self._ids, self._fill, self._meta, live)
        return live

    def feed(self, batch: Batch) -> None:
        """Follows the allocations and frees of a batch."""
        self._end_batch()
        self._base = batch.base
        merged = _events(batch)
        if merged is not None:
            self._follow(*merged)
        stacks = batch["host_stack"]
        if len(stacks):
            self._name_stacks(stacks)

    def _follow(self, events: NDArray[Any], indices: NDArray[Any]) -> None:
        self.reserve_blocks(len(events))
        objects = int(self._meta[_OBJECTS])
        self._rows = grown(self._rows, objects + len(events))
        # An allocation may end many stale objects, each of which is live now or begins here.
        live = int(self._fill[self._order[: self._meta[_BLOCKS]]].sum())
        self._changes = grown(self._changes, live + 2 * len(events))
        blocks = self.blocks
        _apply(events, indices, self._rows, self._recycled, self._changes, *blocks, self._meta)
        changes = self.changes
        began = changes["object"][changes["sign"] > 0]
        self._began = np.concatenate([self._began[-_RECENT:], began])

    def _name_stacks(self, stacks: NDArray[Any]) -> None:
        """Sets host stacks of allocations, whose records follow the allocations in this or the next
        batch."""
        mine = of_work(stacks, "memory_alloc", "tensor_alloc")
        if not len(mine) or not len(self._began):
            return
        rows = self._rows[self._began]
        at = matched(rows["address"], rows["alloc_time"], mine["key"], mine["work_time"])
        self._rows["stack"][self._began[at[at >= 0]]] = mine["stack"][at >= 0]

    def _end_batch(self) -> None:
        if not self.history:
            changes = self.changes
            freed = changes["object"][changes["sign"] < 0]
            count = int(self._meta[_RECYCLED])
            self._recycled = grown(self._recycled, count + len(freed))
            self._recycled[count : count + len(freed)] = freed
            self._meta[_RECYCLED] += len(freed)
        self._meta[_CHANGES] = 0

    def lookup(
        self, addresses: NDArray[Any], indices: NDArray[Any], level: str = "finest"
    ) -> NDArray[Any]:
        """Ids (int64) of the objects that held `addresses` at records of the last batch.

        `indices` are those records' `index`, of equal length. `level` is "finest" (a tensor,
        otherwise an allocation), "tensor", "memory" or "virtual" (a reserved range). -1: no live
        object holds the address; reserved ranges count only for "virtual".
        """
        addresses = np.ascontiguousarray(addresses, np.uint64)
        indices = np.ascontiguousarray(indices, np.int64)
        found = np.empty(len(addresses), np.int64)
        changes = int(self._meta[_CHANGES])
        if changes:
            in_order = bool((indices[1:] >= indices[:-1]).all())
            backwards = np.arange(len(indices) - 1, -1, -1)
            latest_first = backwards if in_order else np.argsort(-indices, kind="stable")
            self.reserve_blocks(changes)
        else:
            latest_first = np.arange(len(indices))
        layers = np.asarray(LEVELS[level], np.int64)
        blocks = self.blocks
        _lookup(
            addresses, indices, latest_first, layers, found, self._rows, self._changes,
            *blocks, self._meta,
        )  # fmt: skip
        return found

    def memory_of(self, ids: NDArray[Any]) -> NDArray[Any]:
        """Memory kinds (PASTA_MEMORY_*, uint32) of objects; 0 for id -1."""
        if not len(self.rows):
            return np.zeros(len(ids), np.uint32)
        return np.asarray(np.where(ids >= 0, self.rows["memory"][ids], np.uint32(0)))


def _events(batch: Batch) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Allocations and frees of a batch in ring order, and their `index`; None without any."""
    parts = []
    for kind, free, tensor in (
        ("memory_alloc", 0, False),
        ("memory_free", 1, False),
        ("tensor_alloc", 0, True),
        ("tensor_free", 1, True),
    ):
        records = batch.records.get(kind)
        if records is None or not len(records):
            continue
        events = np.zeros(len(records), _EVENT)
        for field in ("address", "bytes", "stream", "thread", "memory", "device", "flags"):
            events[field] = records[field]
        events["alloc_position"] = batch.positions(records)
        events["alloc_time"] = records["time"]
        events["free"] = free
        if tensor:
            events["stack"] = records["stack"]
            events["layer"] = TENSOR
        else:
            events["layer"] = _layers(records["memory"])
        parts.append((events, records["index"]))
    if not parts:
        return None
    together = np.concatenate([events for events, _ in parts])
    indices = np.concatenate([indices for _, indices in parts]).astype(np.int64)
    order = np.argsort(indices, kind="stable")
    return together[order], indices[order]


def _layers(memory: NDArray[Any]) -> NDArray[Any]:
    from pasta import abi

    of_name = {name: number for number, name in abi.enums()["memory"].items()}
    layers = np.full(len(memory), MEMORY, np.uint8)
    layers[memory == of_name["virtual"]] = VIRTUAL
    for handles in ("array", "scratch"):
        layers[memory == of_name[handles]] = ARRAY
    return layers
