"""Results of patches on GPUs: read from the file PID-SEQUENCE.probes, delivered to the maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from pasta.backends.nvidia.layout import Layout
from pasta.backends.nvidia.places import ObjectRows, Place, Target
from pasta.lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.probes.accumulators import Accumulator
    from pasta.probes.device import Numbers

_LAUNCH, _HASH, _BINS, _PIECES, _PAIRS, _MISSED = 1, 2, 3, 4, 5, 6
#: Why launches have no counts, by PASTA_MISSED_*.
_WHY = {
    0: "for lack of device memory: raise probes.memory",
    1: "after an error, see log.txt",
    2: "because kernels were still running at exit",
}
_OTHER_OBJECT = 0xFFFF_FFFF
ENTRY = np.dtype(
    [("kind", "u4"), ("words", "u4"), ("rows", "u4"), ("row_words", "u4"), ("ordinal", "u8"),
     ("generation", "u8"), ("index", "u4"), ("device", "i2"), ("context", "u2")]
)  # fmt: skip


@dataclass
class DeviceResults:
    """Decodes entries and delivers them to accumulators, by (tool, map).

    Words of launches are delivered immediately. Totals are cumulative: `finish` delivers the last
    one of each context.
    """

    layout: Layout
    maps: Mapping[tuple[str, str], Accumulator]
    numbers: Numbers
    #: Which launches (ordinals) the filter keeps.
    selected: Callable[[NDArray[Any]], NDArray[Any]]
    #: Called with launches (ordinals) that are flagged as probed but have no counts, and why.
    missed: Callable[[NDArray[Any], str], None]
    #: Dropped counts by (tool, map): accesses to objects without bins or granules.
    no_room: dict[tuple[str, str], int] = field(default_factory=dict)
    other_objects: int = 0
    launches: int = 0
    _totals: dict[tuple[int, int, int, int], tuple[NDArray[Any], NDArray[Any]]] = field(
        default_factory=dict
    )
    _bins: dict[tuple[int, int], dict[int, tuple[int, NDArray[Any]]]] = field(default_factory=dict)

    def feed(self, data: bytes) -> None:
        """Decode consecutive entries. Raises ValueError for an unknown kind."""
        words = np.frombuffer(data, np.uint64)
        at, launches, slots, owners, objects = 0, [], [], [], []
        pairs: list[tuple[int, NDArray[Any]]] = []
        header = ENTRY.itemsize // 8
        while at + header <= len(words):
            entry = words[at : at + header].view(ENTRY)[0]
            kind, fixed, rows = int(entry["kind"]), int(entry["words"]), int(entry["rows"])
            at += header
            if kind == _LAUNCH:
                width = 1 + int(entry["row_words"])
                length = fixed + rows * width
                launches.append(int(entry["ordinal"]))
                slots.append(words[at : at + fixed])
                if rows:
                    owners.append(np.full(rows, entry["ordinal"]))
                    objects.append(words[at + fixed : at + length].reshape(rows, width))
            elif kind == _PAIRS:
                length = rows * (2 + fixed)
                found = words[at : at + length].reshape(rows, 2 + fixed)
                pairs.append((int(entry["ordinal"]), found))
            elif kind == _HASH:
                length = rows * (1 + fixed)
                key = (
                    int(entry["device"]), int(entry["context"]), int(entry["index"]),
                    int(entry["generation"]),
                )  # fmt: skip
                table = words[at : at + length].reshape(rows, 1 + fixed)
                self._totals[key] = (table[:, 0].copy(), table[:, 1:].copy())
            elif kind == _BINS:
                length = rows * fixed
                place = (int(entry["device"]), int(entry["context"]))
                values = words[at : at + length].reshape(rows, fixed).copy()
                self._bins.setdefault(place, {})[int(entry["ordinal"])] = (
                    int(entry["row_words"]), values,
                )  # fmt: skip
            elif kind == _PIECES:
                length = rows * fixed
                self.numbers.add_pieces(words[at : at + length])
            elif kind == _MISSED:
                length = rows * fixed
                found = words[at : at + length].reshape(rows, 2)
                for why in np.unique(found[:, 1]).tolist():
                    if why not in _WHY:
                        raise ValueError(f"unknown reason {why} of launches without counts")
                    self.missed(found[found[:, 1] == why, 0], _WHY[why])
            else:
                raise ValueError(f"unknown kind {kind} of probe results")
            at += length
        self.launches += len(launches)
        if launches:
            ordinals = np.array(launches, np.uint64)
            kept = self.selected(ordinals)
            if kept.any():
                self._deliver_slots(ordinals[kept], np.stack(slots)[kept])
        if objects:
            ordinals = np.concatenate(owners)
            kept = self.selected(ordinals)
            if kept.any():
                self._deliver_objects(ordinals[kept], np.concatenate(objects)[kept])
        if pairs:
            ordinals = np.concatenate([np.full(len(rows), of, np.uint64) for of, rows in pairs])
            kept = self.selected(ordinals)
            if kept.any():
                self._deliver_pairs(ordinals[kept], np.concatenate([r for _, r in pairs])[kept])

    def _places(self) -> Iterator[tuple[Place[Any], Target]]:
        """Places, each with the target of its map's results."""
        for place in self.layout.places:
            name = place.tool, place.spec.name
            if name in self.maps:
                yield place, Target(self.maps[name], self.numbers, partial(self._drop, name))

    def _drop(self, name: tuple[str, str], count: int) -> None:
        if count:
            self.no_room[name] = self.no_room.get(name, 0) + count

    def _deliver_slots(self, ordinals: NDArray[Any], words: NDArray[Any]) -> None:
        for place, target in self._places():
            place.read_launches(target, ordinals, words)

    def _deliver_objects(self, ordinals: NDArray[Any], rows: NDArray[Any]) -> None:
        numbers = rows[:, 0]
        self.other_objects += int((rows[numbers == _OTHER_OBJECT, 1:] != 0).any(axis=1).sum())
        known = (numbers != 0) & (numbers != _OTHER_OBJECT)
        objects = ObjectRows(ordinals, numbers, known, rows[:, 1:], self.numbers)
        for place, target in self._places():
            place.read_objects(target, objects)

    def _deliver_pairs(self, ordinals: NDArray[Any], rows: NDArray[Any]) -> None:
        numbers, pcs, words = rows[:, 0], rows[:, 1], rows[:, 2:]
        other = numbers == _OTHER_OBJECT
        numbers = numbers[~other]
        objects = ObjectRows(ordinals[~other], numbers, numbers != 0, words[~other], self.numbers)
        for place, target in self._places():
            place.read_pairs(target, objects, pcs[~other])
            place.lose_pairs(target, words[other])

    def finish(self) -> None:
        """Deliver the totals."""
        for place, target in self._places():
            for (_, _, index, _), (keys, words) in self._totals.items():
                place.read_table(target, index, keys, words)
            for objects in self._bins.values():
                for number, (shift, values) in objects.items():
                    place.read_bins(target, number, shift, values)
        self._totals.clear()
        self._bins.clear()
