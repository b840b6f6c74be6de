"""Unique bytes, by launch or object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.probes.accumulators import TYPES, Accumulator, Sums
from pasta.probes.maps.base import By, Map, Number
from pasta.probes.placements import PerGranule, Placement
from pasta.probes.specs import MapSpec, Method, Parameter
from pasta.probes.tables import DONE, LAUNCH, SIZE_STRIDE
from pasta.processors.codes import bit_count
from pasta.processors.rows import combined

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.probes.accumulators import Columns
    from pasta.probes.tables import Table

#: Granules in one delivered word.
WORD = 64
#: Words that are stored while launches are active.
_MAX_WORDS = 1 << 20
_MAX_ROWS = (1 << 16) - 1  # of a record
#: Bytes of an object, all ones if unknown: a field of the rows of the object table.
_SIZE = f"peek_unaligned(env[1], object * peek(state, {SIZE_STRIDE}))"


@dataclass(frozen=True, kw_only=True)
class BitmapSpec(MapSpec):
    """A bitmap for one tool instance: `granularity` in bytes.

    Its keys become `object` and `word`, its field is `mask` (64 granules a word; for object -1:
    word 0, and the number of touches).
    """

    granularity: int

    @property
    def placement(self) -> Placement:
        """Placement of the counts on a device."""
        return PerGranule(self.granularity, "object" in self.by, "launch" in self.by)

    def operation(self, table: Table) -> str:
        """Source of `touch`; it may set bits again after the map was full."""
        granule = self.granularity
        launch = f"\n    launch = peek(state, {LAUNCH})" if self.per_launch else ""
        cell = 1 + len(table.keys)
        unknown = table.row(" " * 8, table.stop())
        word = table.row(" " * 16, table.stop())
        return (
            table.find()
            + "\n"
            + table.head(self.method.name, [each.name for each in self.method.parameters])
            + launch
            + f"""
    rows = min(max(rows, 1), {_MAX_ROWS})
    if object < 0 and bytes > 0:
        word = 0{unknown}
        add(table, at + {cell}, 1)
    elif object >= 0:
        size = max({_SIZE}, 1)
        for row in range(rows):
            start = plus(offset, times(row, stride))
            begin = max(start, 0)
            end = min(plus(start, bytes // rows), size)
            if begin >= end:
                continue
            first = begin // {granule}
            last = (end - 1) // {granule}
            for word in range(first // {WORD}, last // {WORD} + 1):
                bits = np.int64(-1)
                if word == first // {WORD}:
                    bits = np.int64(-1) << (first % {WORD})
                if word == last // {WORD} and last % {WORD} != {WORD - 1}:
                    bits &= (np.int64(1) << (last % {WORD} + 1)) - 1{word}
                poke(table, at + {cell}, peek(table, at + {cell}) | bits)
    add(state, {DONE}, 1)
"""
        )


class BitmapAccumulator(Accumulator):
    """Unique bytes, delivered by executors as words of 64 granules."""

    spec: BitmapSpec

    def _make_sums(self) -> Sums:
        launch = ("launch",) if self.spec.per_launch else ()
        self._unknown = Sums((*launch, "object"), ("unknown",))
        self._closed = Sums((*launch, "object"), ("bytes",))
        return Sums((*launch, "object", "word"), ("mask",), "bitwise_or")

    def accumulate(self, columns: Columns) -> None:
        """Adds words of known objects, and touches of unknown ones. Raises ValueError for other
        columns."""
        self._check(columns)
        known = np.asarray(columns["object"]).astype(np.int64, copy=False) >= 0
        unknown = {key: columns[key][~known] for key in self._unknown.keys}
        self._unknown.add({**unknown, "unknown": columns["mask"][~known]})
        self._sums.add({key: columns[key][known] for key in columns})

    def accumulate_bytes(self, columns: Columns) -> None:
        """Adds bytes that an executor counted itself: `launch` if in `by`, `object`, `bytes` and
        `unknown`. No byte may be added twice. Raises ValueError for other columns."""
        keys = self._closed.keys
        if set(columns) != {*keys, "bytes", "unknown"}:
            raise ValueError(f"map {self.spec.name}: {list(columns)}")
        for sums in (self._closed, self._unknown):
            some = np.asarray(columns[sums.fields[0]]) != 0
            sums.add({key: np.asarray(columns[key])[some] for key in (*keys, *sums.fields)})

    def closable(self) -> bool:
        """Whether more than `_MAX_WORDS` words are stored."""
        return len(self._sums) > _MAX_WORDS

    def close(self, launch: int) -> None:
        """Replaces the words of launches below this ordinal by their sums."""
        if not self.spec.per_launch:
            return
        rows = self._sums.rows()
        done = rows["launch"] < np.uint64(launch)
        if done.any():
            self._closed.add(self._counted(rows[done]))
            self._sums.keep(rows[~done])

    def _counted(self, rows: NDArray[Any]) -> Columns:
        """Bytes of every word's granules, without those beyond the object's end."""
        assert self._size_of is not None, "not bound"
        granule, one = np.uint64(self.spec.granularity), np.uint64(1)
        sizes = np.asarray(self._size_of(rows["object"]), np.uint64)
        last = (np.maximum(sizes, one) - one) // granule
        beyond = (last + one) * granule - sizes
        bit = np.where(last // np.uint64(WORD) == rows["word"], last % np.uint64(WORD), 0)
        has_last = (last // np.uint64(WORD) == rows["word"]) & (
            (rows["mask"] >> bit.astype(np.uint64)) & one == one
        )
        bytes = bit_count(rows["mask"]) * granule - np.where(has_last, beyond, np.uint64(0))
        return {**{key: rows[key] for key in self._closed.keys}, "bytes": bytes}

    def rows(self) -> NDArray[Any]:
        """The columns of `by`, and `bytes` and `unknown` (uint64)."""
        keys = self._closed.keys
        touched, closed = self._counted(self._sums.rows()), self._closed.rows()
        unknown = self._unknown.rows()
        parts = [
            (touched, touched["bytes"], None),
            ({key: closed[key] for key in keys}, closed["bytes"], None),
            ({key: unknown[key] for key in keys}, None, unknown["unknown"]),
        ]
        types = [(key, TYPES.get(key, "u8")) for key in self.spec.by]
        pieces = []
        for columns, bytes, touches in parts:
            length = len(columns["object"])
            piece = np.zeros(length, [*types, ("bytes", "u8"), ("unknown", "u8")])
            for key in self.spec.by:
                piece[key] = columns[key]
            piece["bytes"] = 0 if bytes is None else bytes
            piece["unknown"] = 0 if touches is None else touches
            pieces.append(piece)
        return combined(np.concatenate(pieces), self.spec.by)

    def total(self, field: str | None = "bytes") -> int:
        """Sum of a field over all rows. Raises ValueError for an unknown field."""
        return super().total(field)

    @property
    def _total_fields(self) -> tuple[str, ...]:
        return ("bytes", "unknown")


class Bitmap(Map[BitmapAccumulator]):
    """Unique bytes: `maps.m.touch(access)`.

    `by` is (), "launch", "object" or ("launch", "object"). Touched bytes are counted in whole
    granules; the last granule ends with the object. `rows()` has the fields `bytes` and `unknown`,
    the number of touches outside live objects.
    """

    storage = BitmapAccumulator
    method = Method(
        "touch",
        tuple(map(Parameter, ("object", "offset", "bytes", "rows", "stride"))),
        takes_access=True,
    )

    def __init__(self, *, by: By = "launch", granularity: Number = "32B") -> None:
        super().__init__()
        self.by = tuple(str(part) for part in self._checked_by(by, ["launch", "object"]))
        self.granularity = self._number(granularity, "granularity")

    def spec(self, options: Mapping[str, Any]) -> BitmapSpec:
        """The map with the values of a tool's options. Raises ToolError."""
        return self._spec(
            BitmapSpec,
            keys=("object", "word"),
            fields=("mask",),
            per_launch="launch" in self.by,
            granularity=self._value(self.granularity, options),
        )  # fmt: skip
