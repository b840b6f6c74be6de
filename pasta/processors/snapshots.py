"""Launches by ordinal, and the objects that were live at each launch.

Accesses arrive later than the events around them: by then objects that the launch used may have
been freed, and their addresses reused.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.batch import ABSENT_U64
from pasta.processors.codes import grown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.objects import ObjectTable
    from pasta.processors.operators import Operators

_MAKING = threading.Lock()

#: Ordinals of launches are below this; the sentinel is all ones.
_MAX_ORDINAL = 1 << 40
#: Launches whose events may be missing; a larger ordinal means a damaged record.
_MAX_MISSING = 1 << 25

#: States of a launch: not seen yet, dropped by the filter, selected.
UNSEEN, DROPPED, SELECTED = 0, 1, 2


class Launches:
    """All launches of a run by ordinal, 18 bytes each."""

    def __init__(self) -> None:
        self._state = np.zeros(1024, np.uint8)
        self._position = np.zeros(1024, np.uint64)
        self._name = np.zeros(1024, np.uint32)
        self._node = np.zeros(1024, np.int32)
        self._complete = np.zeros(1024, bool)
        self._all_complete = 0
        self._seen = 0

    def feed(
        self, selected: Batch, launched: NDArray[Any], operators: Operators | None = None
    ) -> None:
        """Follows a filtered batch; `launched` are all ordinals before the filter, `operators` have
        been fed with the batch."""
        self._seen += len(launched)
        limit = min(self._seen + _MAX_MISSING, _MAX_ORDINAL)
        if len(launched) and launched.max() >= limit:
            launched = launched[launched < limit]
        self._feed_launches(selected, launched, operators)
        ended = selected["kernel_complete"]["ordinal"]
        self._complete[ended[ended < len(self._complete)].astype(np.int64)] = True

    def _feed_launches(
        self, selected: Batch, launched: NDArray[Any], operators: Operators | None
    ) -> None:
        if not len(launched):
            return
        end = int(launched.max()) + 1
        self._state = grown(self._state, end)
        self._position = grown(self._position, end)
        self._name = grown(self._name, end)
        self._node = grown(self._node, end)
        self._complete = grown(self._complete, end)
        records = selected["kernel_launch"]
        if len(records) < len(launched):
            self._state[_places(launched)] = DROPPED
        if len(records) and records["ordinal"].max() >= len(self._state):
            records = records[records["ordinal"] < len(self._state)]
        ordinals = _places(records["ordinal"])
        self._state[ordinals] = SELECTED
        self._position[ordinals] = selected.positions(records)
        self._name[ordinals] = records["name"]
        if operators is not None:
            self._node[ordinals] = operators.at(records)

    @property
    def end(self) -> int:
        """An ordinal greater than that of any launch."""
        return len(self._state)

    def all_complete(self) -> int:
        """Ordinal below which every launch is complete or dropped."""
        start = self._all_complete
        going = (self._state[start:] == UNSEEN) | (
            (self._state[start:] == SELECTED) & ~self._complete[start : len(self._state)]
        )
        self._all_complete = start + int(going.argmax()) if going.any() else len(self._state)
        return self._all_complete

    def _of(self, array: NDArray[Any], ordinals: NDArray[Any]) -> NDArray[Any]:
        ordinals = ordinals.view(np.uint64)
        known = ordinals < len(array)
        return np.asarray(np.where(known, array[np.where(known, ordinals, 0).astype(np.intp)], 0))

    def states(self, ordinals: NDArray[Any]) -> NDArray[Any]:
        """UNSEEN, DROPPED or SELECTED (uint8) for launch ordinals (uint64)."""
        return self._of(self._state, ordinals)

    @property
    def dropped(self) -> bool:
        """Whether the filter dropped any launch."""
        return bool((self._state == DROPPED).any())

    def positions(self, ordinals: NDArray[Any]) -> NDArray[Any]:
        """Ring positions (uint64) of selected launches."""
        return self._of(self._position, ordinals)

    def names(self, ordinals: NDArray[Any]) -> NDArray[Any]:
        """Name ids (uint32); 0 for launches that are not selected."""
        return self._of(self._name, ordinals)

    def nodes(self, ordinals: NDArray[Any]) -> NDArray[Any]:
        """Nodes (int32) in `context.operators` of the operators that submitted launches."""
        return self._of(self._node, ordinals)

    def by_operator(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Name ids (uint32) of selected launches, and the nodes of their operators."""
        selected = self._state == SELECTED
        return self._name[: len(selected)][selected], self._node[: len(selected)][selected]


def _places(ordinals: NDArray[Any]) -> Any:
    """The places of launches in an array; a slice, which is faster, if they are consecutive."""
    ordinals = ordinals.astype(np.int64)
    if len(ordinals) and (np.diff(ordinals) == 1).all():
        return slice(int(ordinals[0]), int(ordinals[-1]) + 1)
    return ordinals


@dataclass(frozen=True, eq=False)
class Layer:
    """Live objects that do not overlap, by address: first and last byte (uint64), id (int64)."""

    starts: NDArray[Any]
    lasts: NDArray[Any]
    ids: NDArray[Any]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Live objects at one moment: `layers` are tensors, allocations, reserved ranges.

    An address belongs to the first layer in which an object holds it.
    """

    version: int
    layers: tuple[Layer, ...]

    @property
    def objects(self) -> int:
        """Number of live objects."""
        return sum(len(each.ids) for each in self.layers)

    @cached_property
    def described(self) -> NDArray[Any]:
        """Addresses of starts, lasts and ids and their length, by layer (int64), for compiled
        code."""
        from pasta.compiled import memory

        return np.asarray(
            [
                (memory(each.starts), memory(each.lasts), memory(each.ids), len(each.ids))
                for each in self.layers
            ],
            np.int64,
        )


class Snapshots:
    """Snapshots of an object table with history, at any ring position.

    `version` counts the changes before a position: launches without an allocation or a free
    between them share a snapshot. A new snapshot is created from the nearest cached
    one by copying the changed layers.
    """

    #: Snapshots that are kept: two passes over a batch need those of all of its launches. If they
    #: have more objects than this together, fewer are kept, but at least 32.
    MAX_KEPT = 1024
    _KEPT_OBJECTS = 1 << 20
    _NEAR = 16  # changes

    def __init__(self, table: ObjectTable) -> None:
        from pasta.processors.objects import MEMORY, TENSOR, VIRTUAL

        if not table.history:
            raise ValueError("snapshots need an object table with history")
        self.table = table
        self._layers = (TENSOR, MEMORY, VIRTUAL)
        self._positions = np.zeros(1024, np.uint64)
        self._objects = np.zeros(1024, np.int64)
        self._count = 0
        self._kept: OrderedDict[int, Snapshot] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_kept": OrderedDict()}

    def feed(self, batch: Batch) -> None:
        """Records the changes of a batch, with which the table has been fed."""
        changes = self.table.changes
        if not len(changes):
            return
        end = self._count + len(changes)
        self._positions = grown(self._positions, end)
        self._objects = grown(self._objects, end)
        self._positions[self._count : end] = changes["index"].astype(np.uint64) + np.uint64(
            batch.base
        )
        self._objects[self._count : end] = changes["object"]
        self._count = end

    @property
    def changes(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Ids (int64) of objects that began or ended, and ring positions (uint64) of these
        events."""
        return self._objects[: self._count], self._positions[: self._count]

    def versions(self, positions: NDArray[Any]) -> NDArray[Any]:
        """Version (int64) of the snapshot of each ring position (uint64)."""
        return np.searchsorted(self._positions[: self._count], positions, "left")

    def at(self, position: int) -> Snapshot:
        """Objects that were live before the record at this ring position."""
        return self.of(int(self.versions(np.asarray([position], np.uint64))[0]))

    def of(self, version: int) -> Snapshot:
        """The snapshot of a version; thread-safe."""
        with _MAKING:
            return self._of(version)

    def _of(self, version: int) -> Snapshot:
        found = self._kept.get(version)
        if found is None:
            found = self._kept[version] = self._made(version)
            most = max(32, self._KEPT_OBJECTS // max(1, found.objects))
            while len(self._kept) > min(self.MAX_KEPT, most):
                self._kept.popitem(last=False)
        self._kept.move_to_end(version)
        return found

    def _made(self, version: int) -> Snapshot:
        # the one used last: versions are usually asked for in order
        base = next(reversed(self._kept), None)
        if base is not None and abs(base - version) > self._NEAR:
            base = min(self._kept, key=lambda kept: abs(kept - version), default=None)
        rows = self.table.rows
        if base is None or 2 * abs(base - version) > len(rows):
            every = np.arange(len(rows))
            empty = Layer(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.int64))
            return self._changed(Snapshot(0, (empty,) * len(self._layers)), every, version)
        first, last = sorted((base, version))
        return self._changed(self._kept[base], np.unique(self._objects[first:last]), version)

    def _changed(self, base: Snapshot, objects: NDArray[Any], version: int) -> Snapshot:
        """A snapshot that differs from `base` at most in these objects."""
        rows = self.table.rows[objects]
        if version:
            last = self._positions[version - 1]
            live = (rows["alloc_position"] <= last) & (rows["free_position"] > last)
        else:
            live = np.zeros(len(rows), bool)
        layers = []
        for number, layer in zip(self._layers, base.layers, strict=True):
            mine = rows["layer"] == number
            if mine.any():
                layer = _without(layer, rows["address"][mine], objects[mine])
                layer = _with(layer, rows[mine & live], objects[mine & live])
            layers.append(layer)
        return Snapshot(version, tuple(layers))


def _without(layer: Layer, starts: NDArray[Any], ids: NDArray[Any]) -> Layer:
    at = np.searchsorted(layer.starts, starts)
    there = at < len(layer.starts)
    there[there] = layer.ids[at[there]] == ids[there]
    removed = at[there]
    if not len(removed):
        return layer
    return Layer(*(np.delete(each, removed) for each in (layer.starts, layer.lasts, layer.ids)))


def _with(layer: Layer, rows: NDArray[Any], ids: NDArray[Any]) -> Layer:
    if not len(rows):
        return layer
    order = np.argsort(rows["address"], kind="stable")
    rows, ids = rows[order], ids[order].astype(np.int64)
    lasts = rows["address"] + sizes_of(rows) - np.uint64(1)
    lasts[lasts < rows["address"]] = ABSENT_U64  # up to the end of the address space
    at = np.searchsorted(layer.starts, rows["address"])
    return Layer(
        np.insert(layer.starts, at, rows["address"]),
        np.insert(layer.lasts, at, lasts),
        np.insert(layer.ids, at, ids),
    )


def sizes_of(rows: NDArray[Any]) -> NDArray[Any]:
    """Bytes (uint64) of rows of the object table; 1 if unknown."""
    return np.where(rows["bytes"] == np.uint64(ABSENT_U64), np.uint64(1), rows["bytes"])
