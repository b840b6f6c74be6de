"""Accesses of launches to managed memory: as maps counted them, in tables, and from another pass.

Addresses and ids differ between the passes of a program, so objects are known by content: an
allocation by its bytes, a tensor also by shape, type, and the operator, module and line that
allocated it; and by its number among equal ones, in the order of their allocation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pasta.processors.launch_keys import mixed, occurrences, text_hash
from pasta.processors.launch_matching import pairs
from pasta.processors.object_names import TensorNames, has_tensors, memory_numbers
from pasta.processors.objects import MEMORY, TENSOR
from pasta.processors.rows import combined, places_of
from pasta.table import Table, counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.context import Context
    from pasta.processors.object_names import TensorOwners

#: Accesses of a launch to the part number `bin` of an object.
PARTS = np.dtype(
    [("launch", "u8"), ("object", "i8"), ("bin", "u8"), ("reads", "u8"), ("writes", "u8")]
)
_PLACE = ("launch", "object", "bin")
#: Columns of the tables. In TOUCHED a row is a range of `parts` parts of `part` bytes from the one
#: with the number `bin`, with the sums of their accesses. In OBJECTS it is a managed allocation, or
#: a tensor that lies at `offset` in the allocation `owner`.
TOUCHED, OBJECTS = "touched", "touched_objects"
_RANGE = np.dtype([*PARTS.descr, ("parts", "u8"), ("part", "u8")])
_OBJECT = np.dtype(
    [
        ("object", "i8"),
        ("owner", "i8"),
        ("offset", "u8"),
        ("bytes", "u8"),
        ("content", "u8"),
        ("occurrence", "i8"),
    ]
)
#: Rows of TOUCHED above which neighbours with different counts share one.
_MAX_RANGES = 1 << 20
#: Parts that the ranges of another pass may have together: 10 GiB.
_MAX_PARTS = 1 << 28


def managed_ids(context: Context) -> NDArray[Any]:
    """Ids (int64) of the managed allocations of known size, in the order of their allocation."""
    rows = context.objects.rows
    (managed,) = memory_numbers(["managed"])
    known = (rows["layer"] == MEMORY) & (rows["memory"] == managed)
    ids = np.flatnonzero(known & (rows["bytes"] != np.iinfo(np.uint64).max))
    return ids[np.argsort(rows["alloc_position"][ids], kind="stable")]


def counted_parts(reads: NDArray[Any], writes: NDArray[Any]) -> NDArray[Any]:
    """Accesses (PARTS) from the rows of two histograms by launch and object."""
    found = []
    for name, rows in (("reads", reads), ("writes", writes)):
        part = np.zeros(len(rows), PARTS)
        for field in _PLACE:
            part[field] = rows[field]
        part[name] = rows["count"]
        found.append(part)
    return combined(np.concatenate(found), _PLACE)


# ---- tables ----


def tables(
    parts: NDArray[Any], width: int, objects: NDArray[Any], most: int = _MAX_RANGES
) -> dict[str, Table]:
    """Accesses (PARTS) to objects (`identified`), for another pass: tables that text reports do not
    show. Above `most` rows, single counts are lost, but not whether memory was read or written."""
    ranges = _ranges(parts, parts["reads"], parts["writes"])
    if len(ranges) > most:
        ranges = _ranges(parts, parts["reads"] > 0, parts["writes"] > 0)
    ranges["part"] = width
    allocation = objects["object"] == objects["owner"]
    objects = objects[allocation | np.isin(objects["object"], ranges["object"])]
    return {
        TOUCHED: Table(
            {name: ranges[name] for name in _RANGE.names or ()},
            units={"part": "bytes"},
            labels={"bin": "first part"},
            keys=(),
            sums=("reads", "writes"),
            title="Accesses by launch and range of parts",
            shown=0,
        ),
        OBJECTS: Table(
            {name: objects[name] for name in _OBJECT.names or ()},
            units={"offset": "address", "bytes": "bytes"},
            keys=("bytes", "content", "occurrence"),
            sums=(),
            title="Managed allocations, and tensors in them, by content",
            shown=0,
        ),
    }


def _ranges(parts: NDArray[Any], reads: NDArray[Any], writes: NDArray[Any]) -> NDArray[Any]:
    """Adjacent parts (PARTS) with equal `reads` and `writes` as one row (_RANGE)."""
    new = np.ones(len(parts), bool)
    same = (parts["launch"][1:] == parts["launch"][:-1]) & (
        parts["object"][1:] == parts["object"][:-1]
    )
    same &= parts["bin"][1:] == parts["bin"][:-1] + np.uint64(1)
    new[1:] = ~same | (reads[1:] != reads[:-1]) | (writes[1:] != writes[:-1])
    starts = np.flatnonzero(new)
    found = np.zeros(len(starts), _RANGE)
    for name in _PLACE:
        found[name] = parts[name][starts]
    found["parts"] = np.diff(starts, append=len(parts))
    for name in ("reads", "writes"):
        if len(starts):
            found[name] = np.add.reduceat(parts[name], starts)
    return found


def _spread(ranges: NDArray[Any]) -> NDArray[Any]:
    """The parts (PARTS) of ranges, with equal shares of their accesses. Raises ValueError if there
    are too many."""
    count = ranges["parts"].astype(np.int64)
    if count.sum(dtype=np.float64) > _MAX_PARTS:
        raise ValueError(f"table {TOUCHED}: more than {_MAX_PARTS:,} parts")
    index = np.repeat(np.arange(len(ranges)), count)
    within = (np.arange(len(index)) - np.repeat(np.cumsum(count) - count, count)).astype(np.uint64)
    found = np.zeros(len(index), PARTS)
    found["launch"], found["object"] = ranges["launch"][index], ranges["object"][index]
    found["bin"] = ranges["bin"][index] + within
    for name in ("reads", "writes"):
        each, rest = np.divmod(ranges[name], ranges["parts"])
        found[name] = each[index] + (within < rest[index])
    return combined(found, _PLACE)


def _read(stored: Mapping[str, Table], name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    """A stored table. Raises ValueError."""
    if name not in stored:
        raise ValueError(f"it has no table {name}: record it again")
    table = stored[name]
    found = np.zeros(len(table), dtype)
    for field in dtype.names or ():
        column = table.columns.get(field)
        if not isinstance(column, np.ndarray) or column.dtype.kind not in "iu":
            raise ValueError(f"table {name}: column {field} does not hold whole numbers")
        if dtype[field].kind == "u" and (column < 0).any():
            raise ValueError(f"table {name}: column {field} has negative numbers")
        found[field] = column
    return found


# ---- objects by content ----


def identified(context: Context, owners: TensorOwners, allocations: NDArray[Any]) -> NDArray[Any]:
    """The managed allocations of a run and the tensors in them (_OBJECT), by id."""
    rows = context.objects.rows
    tensors = np.zeros(0, np.int64)
    if has_tensors(context):
        tensors = np.flatnonzero(rows["layer"] == TENSOR)
        tensors = tensors[np.isin(owners.allocations(tensors), allocations)]
        tensors = tensors[np.argsort(rows["alloc_position"][tensors], kind="stable")]
    found = np.zeros(len(allocations) + len(tensors), _OBJECT)
    found["object"] = np.concatenate([allocations, tensors])
    found["owner"] = owners.allocations(found["object"])
    address = rows["address"]
    found["offset"] = address[found["object"]] - address[found["owner"]]
    found["bytes"] = rows["bytes"][found["object"]]
    made = np.concatenate([np.zeros(len(allocations), np.uint64), _makers(context, tensors)])
    found["content"] = mixed(made, found["bytes"])
    found["occurrence"] = occurrences(found["content"])
    return found[np.argsort(found["object"])]


def _makers(context: Context, tensors: NDArray[Any]) -> NDArray[Any]:
    """Hashes (uint64) of the shape, type, operator, module and line of tensors."""
    if not len(tensors):
        return np.zeros(0, np.uint64)
    known = context.tensors.rows[tensors]
    numbers = [known[name].astype(np.int64) for name in ("shape", "dtype", "node")]
    distinct, codes = np.unique(np.stack(numbers, axis=1), axis=0, return_inverse=True)
    texts = TensorNames(context).described(np.zeros(len(distinct), np.int8), *distinct.T)
    columns = (texts[name] for name in ("shape", "dtype", "operator", "module", "line"))
    hashes = np.asarray([text_hash(*row) for row in zip(*columns, strict=True)], np.uint64)
    return np.asarray(hashes[codes.reshape(-1)])


# ---- from another pass ----


@dataclass(frozen=True)
class OtherAccesses:
    """Accesses (PARTS, of `width` bytes) of another pass, with the launches and objects of this
    one; the launches (uint64) that were probed there, ascending; and what has no partner."""

    parts: NDArray[Any]
    width: int
    probed: NDArray[Any]
    #: Managed allocations without partner, here and there; tensors and launches there.
    allocations: tuple[int, int]
    tensors: int
    launches: int
    #: Whether there are tensors here, but only accesses to allocations there.
    lacks_tensors: bool

    @classmethod
    def of(
        cls,
        stored: Mapping[str, Table],
        objects: NDArray[Any],
        other_launches: NDArray[Any],
        own_launches: NDArray[Any],
        probed: NDArray[Any],
    ) -> OtherAccesses:
        """From the tables of the other pass, and the `objects` (`identified`) of this one.
        `other_launches`, `own_launches`: ordinals of the launches that both have, ascending in
        `other_launches`; `probed`:
        which of them were. Raises ValueError for damaged tables."""
        ranges = _read(stored, TOUCHED, _RANGE)
        others = _read(stored, OBJECTS, _OBJECT)
        others = others[np.argsort(others["object"], kind="stable")]
        partner = _partners(objects, others)
        at, known = places_of(other_launches, ranges["launch"])
        alone = len(np.unique(ranges["launch"][~known]))
        width = int(ranges["part"][0]) if len(ranges) else 1
        if width < 1 or (ranges["part"] != width).any():
            raise ValueError(f"table {TOUCHED}: parts of different sizes")
        ranges = ranges[known]
        ranges["launch"] = own_launches[at]
        own = others["object"] == others["owner"]
        matched = np.isin(objects["object"], partner)
        is_allocation = objects["object"] == objects["owner"]
        return cls(
            _spread(_placed(ranges, others, partner, objects, width)),
            width,
            np.unique(own_launches[probed]),
            (int((is_allocation & ~matched).sum()), int((own & (partner < 0)).sum())),
            int((~own & (partner < 0)).sum()),
            alone,
            bool(len(ranges) and own.all() and not is_allocation.all()),
        )

    def notes(self) -> Iterator[str]:
        """What has no partner, in words."""
        here, there = self.allocations
        alone = [
            f"{counted(count, 'managed allocation')} of {name}"
            for name, count in (("times", here), ("accesses", there))
            if count
        ]
        if self.launches:
            alone.append(f"{counted(self.launches, 'launch')} with accesses")
        if alone:
            yield f"without a partner in the other pass: {', '.join(alone)}"
        if self.tensors:
            yield (
                f"accesses to {counted(self.tensors, 'tensor')} without a partner in the "
                "other pass count for their allocations"
            )
        if self.lacks_tensors:
            yield ("the pass with accesses has no tensor accesses: advice covers allocations only")


def _partners(objects: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
    """Ids in `objects` of what `others` are (both _OBJECT); -1: none."""
    found = np.full(len(others), -1, np.int64)
    one, other = pairs(*(mixed(each["content"], each["occurrence"]) for each in (objects, others)))
    found[other] = objects["object"][one]
    return found


def _placed(
    ranges: NDArray[Any],
    others: NDArray[Any],
    partner: NDArray[Any],
    objects: NDArray[Any],
    width: int,
) -> NDArray[Any]:
    """Ranges (_RANGE) with the ids of `partner`; for a tensor without a partner, as ranges of its
    allocation; without ranges that have no partner. Raises ValueError if one is not in its
    object."""
    at, known = places_of(others["object"], ranges["object"])
    owner, owned = places_of(others["object"], others["owner"])
    if not known.all() or not owned.all():
        raise ValueError(f"table {TOUCHED}: objects that are not in {OBJECTS}")
    step = np.uint64(width)
    first, parts, bytes = ranges["bin"], ranges["parts"], others["bytes"][at]
    _check_inside(first, parts, bytes, step)
    alone = partner[at] < 0
    begin = others["offset"][at] + first * step
    end = others["offset"][at] + np.minimum((first + parts) * step, np.maximum(bytes, 1))
    placed = ranges.copy()
    placed["object"] = np.where(alone, partner[owner[at]], partner[at])
    placed["bin"] = np.where(alone, begin // step, first)
    placed["parts"] = np.where(alone, (end - np.uint64(1)) // step - begin // step + 1, parts)
    placed = np.asarray(placed[placed["object"] >= 0])
    mine, _ = places_of(objects["object"], placed["object"])
    _check_inside(placed["bin"], placed["parts"], objects["bytes"][mine], step)
    return placed


def _check_inside(
    first: NDArray[Any], parts: NDArray[Any], bytes: NDArray[Any], step: np.uint64
) -> None:
    """Raises ValueError unless each range lies in its object, of these bytes."""
    count = (np.maximum(bytes, 1) - np.uint64(1)) // step + np.uint64(1)
    if (parts < 1).any() or (first >= count).any() or (parts > count - first).any():
        raise ValueError(f"table {TOUCHED}: ranges beyond their objects")
