"""Where on the device each map of a run keeps its words.

Three places: words of a launch (of its own slot, in stripes by multiprocessor, or plain), words of
each object that a launch touches (in stripes too), and totals of the whole run (hash tables of
program counters and other keys, bins of objects, bitmap planes).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pasta.errors import ToolError
from pasta.probes.maps import MapSpec

#: Structs of pasta_probes.h, and what the names of their offsets begin with.
OFFSETS = (
    ("pasta_probe_launch", "L"),
    ("pasta_object_table", "T"),
    ("pasta_object_cluster", "C"),
    ("pasta_object_range", "R"),
    ("pasta_probe_trace", "Q"),
    ("pasta_probe_places", "P"),
)

#: Bytes of a word; words are unsigned.
WORD = 8
#: Rows of the table of program counters, a power of two.
PC_ROWS = 1 << 14
#: Copies of the bins of objects, a power of two.
BIN_STRIPES = 16
_HASHES, _PLANES, _TRACES = 4, 4, 15


@dataclass(frozen=True)
class Place:
    """Where a map's words are.

    `where`: "slot" (offset in a stripe of the launch), "plain" (offset among the launch's words
    without stripes), "object" (offset in an object's row), "hash" (offset in a row of table
    `index`), "trace" (records that carry the number `index`, from 1; also of what the host then
    counts), "bins" (word `offset` of a bin), "plane" (number `index`; the count of bytes is at
    `offset` of "slot", or of "object" where `by_object`). `unknown`: offset in the slot of what
    belongs to no object, for bins and planes.
    """

    where: str
    offset: int
    index: int = 0
    unknown: int = 0
    by_object: bool = False


@dataclass(frozen=True)
class Hash:
    """A table of keys: rows (a power of two), words of a row, stripes."""

    rows: int
    words: int
    stripes: int = 16


@dataclass
class Layout:
    """Sizes for the source, places for the compiler and for who reads results."""

    maps: list[tuple[str, MapSpec]]
    places: list[Place] = field(default_factory=list)
    slot_words: int = 0
    plain_words: int = 0
    object_words: int = 0
    hashes: list[Hash] = field(default_factory=list)
    planes: int = 0
    plane_shift: int = 5
    traces: int = 0
    bin_words: int = 0
    bin_shift: int = 12
    _pc_used: int = 0  # words of a row of the table of program counters

    @classmethod
    def of(cls, maps: Iterable[tuple[str, MapSpec]]) -> Layout:
        """Places for the maps of some tools, (tool, map) each. Raises ToolError."""
        layout = cls(list(maps))
        specs = [spec for _, spec in layout.maps]
        shifts = [
            _shift(tool, spec, spec.bin)
            for tool, spec in layout.maps
            if spec.bin and not spec.recorded
        ]
        layout.bin_shift = min(shifts, default=12)
        granules = [
            _shift(tool, spec, spec.granularity) for tool, spec in layout.maps if spec.granularity
        ]
        layout.plane_shift = min(granules, default=5)
        pc_words = sum(row_words(spec) for spec in specs if "pc" in spec.keys)
        if pc_words:
            layout.hashes.append(Hash(PC_ROWS, pc_words, 4 if pc_words > 16 else 16))
        for tool, spec in layout.maps:
            layout.places.append(layout._place(tool, spec))
        if len(layout.hashes) > _HASHES or layout.planes > _PLANES:
            raise ToolError(
                f"{len(layout.hashes)} key tables and {layout.planes} bitmaps are too many",
                remedy=f"run fewer tools at once: {_HASHES} and {_PLANES} are possible",
            )
        if layout.traces > _TRACES:
            raise ToolError(f"{layout.traces} Trace maps are too many: {_TRACES} are possible")
        return layout

    @property
    def objects(self) -> bool:
        """Whether anything is counted by object."""
        return any(spec.keys[:1] == ("object",) for _, spec in self.maps)

    def place_of(self, tool: str, map: str) -> Place:
        for (owner, spec), place in zip(self.maps, self.places, strict=True):
            if (owner, spec.name) == (tool, map):
                return place
        raise KeyError((tool, map))

    def _place(self, tool: str, spec: MapSpec) -> Place:
        if spec.type == "trace" or spec.recorded:
            self.traces += 1
            return Place("trace", 0, self.traces)
        if spec.type == "histogram":
            self.bin_words += 1
            return Place("bins", self.bin_words - 1, unknown=self._slot(2))
        if spec.type == "bitmap":
            self.planes += 1
            by_object = "object" in spec.by
            offset = self._object(1) if by_object else self._slot(1)
            unknown = self._slot(2)
            return Place("plane", offset, self.planes - 1, unknown, by_object)
        if spec.type == "top_k":
            rows = 1 << (2 * spec.capacity - 1).bit_length()
            self.hashes.append(Hash(rows, 1))
            return Place("hash", 0, len(self.hashes) - 1)
        if "pc" in spec.keys:
            if spec.per_launch:
                raise _unavailable(tool, spec, "program counters by launch or kernel")
            offset = self._pc_used
            self._pc_used += row_words(spec)
            return Place("hash", offset, 0)
        if spec.keys == ("object",):
            return Place("object", self._object(len(spec.fields)))
        if spec.keys == ("block",):
            offset = self.plain_words
            self.plain_words += row_words(spec)
            return Place("plain", offset)
        return Place("slot", self._slot(row_words(spec)))

    def _slot(self, words: int) -> int:
        offset = self.slot_words
        self.slot_words += words
        return offset

    def _object(self, words: int) -> int:
        offset = self.object_words
        self.object_words += words
        return offset


def row_words(spec: MapSpec) -> int:
    """Words of a map for one key, program counter or launch."""
    rows = 1
    for limit in spec.limits.values():
        rows *= limit
    return rows * len(spec.fields)


def _shift(tool: str, spec: MapSpec, size: int) -> int:
    if size & (size - 1):
        raise ToolError(
            f"tool {tool}: {spec.name} has bins or granules of {size} bytes",
            remedy="on the GPU they must be a power of two",
        )
    return size.bit_length() - 1


def _unavailable(tool: str, spec: MapSpec, what: str) -> ToolError:
    return ToolError(
        f"tool {tool}: the map {spec.name} counts {what}, which does not run on the GPU",
        remedy="leave launch and kernel out of its declaration",
    )
