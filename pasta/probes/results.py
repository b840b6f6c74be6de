"""What patches counted on GPUs: read from the file PID-SEQUENCE.probes, given to the maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pasta.lazy import np
from pasta.probes.layout import Layout, Place, row_words
from pasta.probes.maps import MapSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.probes.accumulators import Accumulator

_LAUNCH, _HASH, _BINS, _PIECES = 1, 2, 3, 4
_OTHER_OBJECT = 0xFFFF_FFFF
_OTHER_KEY = 0xFFFF_FFFF_FFFF_FFFF
ENTRY = np.dtype(
    [("kind", "u4"), ("words", "u4"), ("rows", "u4"), ("row_words", "u4"), ("ordinal", "u8"),
     ("generation", "u8"), ("index", "u4"), ("device", "i2"), ("context", "u2")]
)  # fmt: skip


class Numbers(Protocol):
    """What the numbers that the source gave to objects mean; see `ObjectNumbers`."""

    def ids(self, numbers: NDArray[Any], ordinals: NDArray[Any]) -> NDArray[Any]: ...
    def place(self, number: int) -> tuple[int, int]: ...
    def add_pieces(self, words: NDArray[Any]) -> None: ...


@dataclass
class DeviceResults:
    """Decodes entries and delivers them to accumulators, by (tool, map).

    Words of launches are delivered as they come. Totals only grow: the last one of each context
    is delivered by `finish`.
    """

    layout: Layout
    maps: Mapping[tuple[str, str], Accumulator]
    numbers: Numbers
    #: Which launches (ordinals) the filter keeps.
    selected: Callable[[NDArray[Any]], NDArray[Any]]
    #: What could not be counted, by (tool, map): touches of objects without bins or granules.
    no_room: dict[tuple[str, str], int] = field(default_factory=dict)
    other_objects: int = 0
    launches: int = 0
    _totals: dict[tuple[int, int, int, int], tuple[NDArray[Any], NDArray[Any]]] = field(
        default_factory=dict
    )
    _bins: dict[tuple[int, int], dict[int, tuple[int, NDArray[Any]]]] = field(default_factory=dict)

    def feed(self, data: bytes) -> None:
        """Entries, one behind the other. Raises ValueError for what are none."""
        words = np.frombuffer(data, np.uint64)
        at, launches, slots, owners, objects = 0, [], [], [], []
        header = ENTRY.itemsize // 8
        while at + header <= len(words):
            entry = words[at : at + header].view(ENTRY)[0]
            kind, fixed, rows = int(entry["kind"]), int(entry["words"]), int(entry["rows"])
            at += header
            if kind == _LAUNCH:
                length = fixed + rows * (1 + int(entry["row_words"]))
                launches.append(int(entry["ordinal"]))
                slots.append(words[at : at + fixed])
                if rows:
                    owners.append(np.full(rows, entry["ordinal"]))
                    objects.append(words[at + fixed : at + length].reshape(rows, -1))
            elif kind == _HASH:
                length = rows * (1 + fixed)
                key = (
                    int(entry["device"]), int(entry["context"]), int(entry["index"]),
                    int(entry["generation"]),
                )  # fmt: skip
                table = words[at : at + length].reshape(rows, -1)
                self._totals[key] = (table[:, 0].copy(), table[:, 1:].copy())
            elif kind == _BINS:
                length = rows * fixed
                place = (int(entry["device"]), int(entry["context"]))
                values = words[at : at + length].reshape(rows, -1).copy()
                self._bins.setdefault(place, {})[int(entry["ordinal"])] = (
                    int(entry["row_words"]), values,
                )  # fmt: skip
            elif kind == _PIECES:
                length = rows * fixed
                self.numbers.add_pieces(words[at : at + length])
            else:
                raise ValueError(f"an entry of probe results has the kind {kind}")
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

    def _each(self, *where: str) -> list[tuple[tuple[str, str], MapSpec, Place]]:
        return [
            ((tool, spec.name), spec, place)
            for (tool, spec), place in zip(self.layout.maps, self.layout.places, strict=True)
            if place.where in where and (tool, spec.name) in self.maps
        ]

    def _deliver_slots(self, ordinals: NDArray[Any], words: NDArray[Any]) -> None:
        plain = self.layout.plain_words
        for name, spec, place in self._each("slot", "plain"):
            first = place.offset + (plain if place.where == "slot" else 0)
            counts = words[:, first : first + row_words(spec)].reshape(
                len(words), -1, len(spec.fields)
            )
            launch, key = np.nonzero(counts.any(axis=2))
            if not len(launch):
                continue
            columns = {"launch": ordinals[launch]} if spec.per_launch else {}
            if spec.keys:
                columns[spec.keys[0]] = key.astype(np.uint64)
            for index, each in enumerate(spec.fields):
                columns[each] = counts[launch, key, index]
            self.maps[name].accumulate(columns)
        for name, _, place in self._each("bins"):
            self._unknown_bins(name, words[:, plain + place.unknown :])
        for name, spec, place in self._each("plane"):
            unknown, no_room = (words[:, plain + place.unknown + i] for i in range(2))
            bytes = np.zeros_like(unknown) if place.by_object else words[:, plain + place.offset]
            self._deliver_bytes(name, spec, ordinals, np.full(len(words), -1), bytes, unknown)
            self._add_no_room(name, int(no_room.sum()))

    def _unknown_bins(self, name: tuple[str, str], words: NDArray[Any]) -> None:
        unknown = np.array([words[:, 0].sum()], np.uint64)
        if unknown[0]:
            none = {"object": np.array([-1]), "bin": np.zeros(1, np.uint64)}
            self.maps[name].accumulate({**none, "count": unknown})
        self._add_no_room(name, int(words[:, 1].sum()))

    def _add_no_room(self, name: tuple[str, str], count: int) -> None:
        if count:
            self.no_room[name] = self.no_room.get(name, 0) + count

    def _deliver_bytes(
        self, name: tuple[str, str], spec: MapSpec, ordinals: NDArray[Any], ids: NDArray[Any],
        bytes: NDArray[Any], unknown: NDArray[Any],
    ) -> None:  # fmt: skip
        some = (bytes != 0) | (unknown != 0)
        columns = {"object": ids[some], "bytes": bytes[some], "unknown": unknown[some]}
        if spec.per_launch:
            columns["launch"] = ordinals[some]
        bitmap: Any = self.maps[name]
        bitmap.accumulate_bytes(columns)

    def _deliver_objects(self, ordinals: NDArray[Any], rows: NDArray[Any]) -> None:
        numbers = rows[:, 0]
        self.other_objects += int((rows[numbers == _OTHER_OBJECT, 1:] != 0).any(axis=1).sum())
        known = (numbers != 0) & (numbers != _OTHER_OBJECT)
        ids = np.full(len(rows), -1, np.int64)
        ids[known] = self.numbers.ids(numbers[known], ordinals[known])
        for name, spec, place in self._each("object", "plane"):
            if place.where == "plane":
                if place.by_object:
                    bytes = rows[:, 1 + place.offset]
                    of = ids if spec.per_launch else self._places(numbers, known)
                    self._deliver_bytes(name, spec, ordinals, of, bytes, np.zeros_like(bytes))
                continue
            counts = rows[:, 1 + place.offset : 1 + place.offset + len(spec.fields)]
            some = counts.any(axis=1)
            if some.any():
                columns = {"launch": ordinals[some]} if spec.per_launch else {}
                columns["object"] = ids[some]
                for index, each in enumerate(spec.fields):
                    columns[each] = counts[some, index]
                self.maps[name].accumulate(columns)

    def _places(self, numbers: NDArray[Any], known: NDArray[Any]) -> NDArray[Any]:
        """Ids of what numbers meant all the time; -1 where they are not known."""
        distinct, at = np.unique(numbers[known], return_inverse=True)
        ids = [self.numbers.place(number)[0] for number in distinct.tolist()]
        found = np.full(len(numbers), -1, np.int64)
        found[known] = np.asarray(ids, np.int64)[at.reshape(-1)]
        return found

    def finish(self) -> None:
        """Delivers the totals."""
        for (_, _, index, _), (keys, words) in self._totals.items():
            for name, spec, place in self._each("hash"):
                if place.index == index:
                    self._deliver_hash(name, spec, place, keys, words)
        for objects in self._bins.values():
            for number, (shift, values) in objects.items():
                self._deliver_bins(number, shift, values)
        self._totals.clear()
        self._bins.clear()

    def _deliver_hash(
        self, name: tuple[str, str], spec: MapSpec, place: Place, keys: NDArray[Any],
        words: NDArray[Any],
    ) -> None:  # fmt: skip
        counts = words[:, place.offset : place.offset + row_words(spec)]
        counts = counts.reshape(len(words), -1, len(spec.fields))
        row, inner = np.nonzero(counts.any(axis=2))
        other = keys[row] == _OTHER_KEY
        values = {each: counts[row, inner, i] for i, each in enumerate(spec.fields)}
        key = keys[row] - np.uint64(1)
        if spec.type == "top_k":
            top: Any = self.maps[name]
            top.accumulate(
                {"key": key[~other], "count": values["count"][~other]},
                other=int(values["count"][other].sum()),
            )
            return
        self._add_no_room(name, int(sum(int(each[other].sum()) for each in values.values())))
        columns = {"pc": key}
        if len(spec.keys) > 1:
            columns[next(each for each in spec.keys if each != "pc")] = inner.astype(np.uint64)
        columns.update(values)
        self.maps[name].accumulate({each: value[~other] for each, value in columns.items()})

    def _deliver_bins(self, number: int, shift: int, values: NDArray[Any]) -> None:
        id, offset = self.numbers.place(number)
        for name, spec, place in self._each("bins"):
            counts = values[:, place.offset]
            bins = np.flatnonzero(counts).astype(np.uint64)
            if len(bins):
                # coarser where there was no room: what is in a bin is counted at its begin
                begins = (bins << np.uint64(shift)) + np.uint64(offset)
                scaled = begins // np.uint64(spec.bin)
                columns = {"object": np.full(len(bins), id), "bin": scaled}
                self.maps[name].accumulate({**columns, "count": counts[bins]})
