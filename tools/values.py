"""Values that kernels load and store: single, zero, frequent, narrow and redundant ones."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.probes import Counter, PerPC, Shadow, TopK, probe
from pasta.processors.kernel_names import (
    INSTRUCTION_UNITS,
    at_line,
    instruction_columns,
    instruction_hidden,
    instruction_keys,
    instruction_place,
)
from pasta.processors.object_names import (
    ALIKE,
    ALIKE_HIDDEN,
    ALIKE_KEYS,
    OBJECT_HIDDEN,
    OBJECT_UNITS,
    TensorNames,
    has_tensors,
    object_columns,
    object_keys,
)
from pasta.table import Figure, Table, counted, formatted
from pasta.tool import Finding, Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from pasta.tool import Confidence

#: Bytes of an access up to which its elements are compared.
_MAX_ACCESS_BYTES = 16
# A word of the shadow: the marked element, a hash of the thread, a bit that is always set.
_THREAD, _THREAD_BITS, _SEEN = 32, 30, 62
_LOW = (1 << 32) - 1
_MIX = 0x1E3779B97F4A7C15
_MIX_32 = 0x9E3779B1
#: log2 of the bytes of which all accesses of a block are examined, or none.
_LINE = 9
#: Keys of objects in the shadow, besides addresses.
_OF_OBJECT = 1 << 62
#: Bits of an element's count in the sums of an access.
_BITS = 4
# A key of `frequent`: the folded element, how it was folded, log2 of its bytes, instruction.
_FOLD, _WIDTH, _PC = 32, 34, 36
_WHOLE, _HIGH, _HASH = 0, 1, 2
_FOLDS = 0x5A3C96E7  # times how an element was folded
_PC_SHIFT, _PC_BITS = 4, 20
_MAX_FINDINGS = 20
_COUNTS = ("zeros", "narrow_int", "narrow_float", "repeated", "redundant")
_FLOATS = ("Float", "Double", "Half", "BFloat16")


@probe.function
def low(value: int, bits: int) -> int:
    return value & ((1 << bits) - 1)


@probe.function
def lines_of(every: int) -> int:
    """How many lines of memory there are for each one that is examined: a power of two, at most the
    square root of `every`. Blocks provide the rest of `every`."""
    lines = 1
    for _ in range(8):
        if 4 * lines * lines <= every:
            lines *= 2
    return lines


@probe.function
def line_hash(address: int) -> int:
    """A hash of the 512 bytes that a warp accesses at once, in two instructions."""
    return low(address >> _LINE, 32) * _MIX_32


@probe.function
def line_of(address: int, lines: int) -> int:
    """The number of an address's line, below `lines`."""
    return line_hash(address) >> 24 & (lines - 1)


@probe.function
def shifted(block: int, address: int) -> int:
    """The block's number plus one that depends on the line. Different blocks examine each line, so
    all blocks do equal work; otherwise a launch would wait for the few that examine accesses."""
    return block + low(line_hash(address) >> 8, 16)


@probe.function
def folded(value: int, width: int) -> int:
    """32 bits of an element: all of it if no more are set, or its upper half, or a hash."""
    if width < 8 or low(value >> 32, 32) == 0:
        return low(value, 32)
    if low(value, 32) == 0:
        return low(value >> 32, 32)
    mixed = (value ^ low(value >> 29, 35)) * _MIX  # the shift of a negative value keeps its sign
    return low(mixed >> 32, 32)


@probe.function
def fold_of(value: int, width: int) -> int:
    """How `folded` computed it: _WHOLE, _HIGH or _HASH."""
    if width < 8 or low(value >> 32, 32) == 0:
        return 0
    return 1 if low(value, 32) == 0 else 2


@probe.function
def marked(short: int, fold: int) -> int:
    """32 bits by which elements are compared: elements whose halves are exchanged fold alike."""
    return low(short ^ fold * _FOLDS, 32)


@probe.function
def fits_int(value: int, width: int) -> int:
    """Whether an integer of half as many bytes, signed or not, has the same value."""
    if width < 2:
        return 0
    bits = 4 * width
    upper = value >> bits
    if width < 8:
        upper = low(upper, bits)
    if upper == 0:
        return 1
    sign = value >> bits - 1 & 1
    return sign == 1 and (upper == -1 or upper == (1 << bits) - 1)


@probe.function
def fits_float(value: int, width: int) -> int:
    """Whether a normal floating-point number of half as many bytes, or zero, has the same value."""
    if width == 4:
        exponent = low(value >> 23, 8)
        return low(value, 31) == 0 or (low(value, 13) == 0 and exponent >= 113 and exponent <= 142)
    if width == 8:
        exponent = low(value >> 52, 11)
        return low(value, 63) == 0 or (low(value, 29) == 0 and exponent >= 897 and exponent <= 1150)
    return 0


class Values(Tool):
    """Patterns of values in memory that could be omitted, computed once, or stored smaller."""

    title = "Values in memory"
    topic = "memory"
    estimates = True

    top = option(10, help="rows of each table in the text report; the tables have all", minimum=1)
    every = option(
        1,
        help="examine about one in N accesses: of 64, those to one in 8 lines by one in 8 blocks",
        minimum=1,
    )
    vector = option(4, help="element size in bytes of 16-byte accesses: 4 or 8", minimum=4)
    words = option(
        1 << 20,
        help="maximum number of memory elements to follow for redundant accesses",
        minimum=1,
    )
    kept = option(
        1 << 14, help="maximum number of distinct values of instructions to count", minimum=1
    )
    at_least = option(
        1000, help="findings: minimum elements of an object or instruction", minimum=1
    )
    zero = option(0.5, help="finding: minimum share of zeros in an object", minimum=0.0)
    frequent_share = option(0.5, help="… of one value among an instruction's values", minimum=0.0)
    narrow = option(
        0.95, help="… of an object's other values that a narrower type can hold", minimum=0
    )
    redundant = option(0.3, help="… of redundant accesses of an instruction", minimum=0.0)

    last = Shadow(granularity=1, capacity=words)
    frequent = TopK(kept, capacity=kept)
    instructions = PerPC("elements", "stored", *_COUNTS)
    objects = Counter(by="object", fields=("elements", "stored", *_COUNTS))

    @probe.on("global", "async_copy")
    def touch(access: Any, maps: Any, options: Any) -> None:
        """Compare the elements of an access with those before, and count them."""
        if (
            line_of(access.address, lines_of(options.every)) != 0
            or shifted(access.block, access.address) % (options.every // lines_of(options.every))
            != 0
        ):
            return
        if not access.has_value:
            return
        width = access.bytes
        if width > 8:
            width = options.vector
        thread = access.epoch << 42 ^ access.block << 10 ^ access.warp << 5 ^ access.lane
        thread = 1 << _SEEN | low(thread * _MIX >> 32, _THREAD_BITS) << _THREAD
        where = _OF_OBJECT | access.address - access.offset
        stores = access.is_write and not access.is_atomic
        elements = counts = first = mark = 0
        for i in range(4):
            at = i * width
            if at >= min(access.bytes, _MAX_ACCESS_BYTES):
                break
            element = access.value >> 8 * at
            if at >= 8:
                element = access.value_high >> 8 * (at - 8)
            if width < 8:
                element = low(element, 8 * width)
            short = folded(element, width)
            fold = fold_of(element, width)
            before = mark
            mark = marked(short, fold)
            if i == 0:
                first = mark
            previous = maps.last.exchange(access.address + at, thread | mark)
            same = previous != 0 and (previous ^ mark) & _LOW == 0
            if not stores:  # by another thread it is news
                same = same and previous == thread | mark
            elements += 1
            counts += (
                (element == 0)
                + (fits_int(element, width) << _BITS)
                + (fits_float(element, width) << 2 * _BITS)
                + (int(i > 0 and before == mark) << 3 * _BITS)
                + (int(same) << 4 * _BITS)
            )
            size = 0
            if width >= 2:
                size = 1 + (width >= 4) + (width >= 8)
            kind = size << _WIDTH | fold << _FOLD
            maps.frequent.add(low(access.pc >> _PC_SHIFT, _PC_BITS) << _PC | kind | short)
        # the last element takes the place of the last one before this access
        before = maps.last.exchange(where, 1 << _SEEN | mark)
        counts += int(before != 0 and (before ^ first) & _LOW == 0) << 3 * _BITS
        stored = elements * stores
        maps.instructions.add(
            access.pc, elements=elements, stored=stored, zeros=low(counts, _BITS),
            narrow_int=low(counts >> _BITS, _BITS), narrow_float=low(counts >> 2 * _BITS, _BITS),
            repeated=low(counts >> 3 * _BITS, _BITS), redundant=low(counts >> 4 * _BITS, _BITS),
        )  # fmt: skip
        maps.objects.add(
            access.object, elements=elements, stored=stored, zeros=low(counts, _BITS),
            narrow_int=low(counts >> _BITS, _BITS), narrow_float=low(counts >> 2 * _BITS, _BITS),
            repeated=low(counts >> 3 * _BITS, _BITS), redundant=low(counts >> 4 * _BITS, _BITS),
        )  # fmt: skip

    def result(self) -> Result:
        """Objects, instructions and tensors, those with the most elements first, and findings."""
        rows = _most_first(self.instructions.rows())
        objects = _most_first(self.objects.rows())
        if not len(rows):
            return Result("no access values were recorded")
        tables = {
            "objects": self._objects(objects),
            "instructions": self._instructions(rows),
        }
        if has_tensors(self.context):
            tables["tensors"] = self._tensors(objects)
        return Result(
            summary=self._summary(rows),
            tables=tables,
            findings=[
                *self._of_objects(tables["objects"]),
                *self._of_instructions(tables["instructions"]),
            ],
            figures={"patterns": self._figure(tables["objects"])},
        )

    # ---- tables

    def _objects(self, rows: NDArray[Any]) -> Table:
        columns = object_columns(self.context, rows["object"])
        return Table(
            {**columns, **_shares(rows)},
            units={**OBJECT_UNITS, **_SHARE_UNITS},
            labels=_LABELS,
            keys=object_keys(self.context),
            sums=("elements", "stored"),
            levels=_LEVELS,
            important=("elements", "zeros", "repeated"),
            title="Objects by elements loaded and stored",
            shown=self.top,
            hidden=OBJECT_HIDDEN,
        )

    def _tensors(self, rows: NDArray[Any]) -> Table:
        columns, found = TensorNames(self.context).alike(rows, "elements")
        return Table(
            {**columns, "tensors": found["tensors"], **_shares(found)},
            units=_SHARE_UNITS,
            labels=_LABELS,
            keys=ALIKE_KEYS,
            sums=("tensors", "elements", "stored"),
            levels=_LEVELS,
            title=f"Values of tensors, {ALIKE}",
            shown=self.top,
            hidden=ALIKE_HIDDEN,
        )

    def _instructions(self, rows: NDArray[Any]) -> Table:
        where = instruction_columns(self.context, rows["pc"])
        values, amounts = self._most_frequent(rows["pc"])
        # frequent values are counted in probed launches only
        probed = self.instructions.probed_rows()
        elements = probed["elements"][np.searchsorted(probed["pc"], rows["pc"])]
        return Table(
            {
                **where,
                "op": ["store" if each else "load" for each in rows["stored"].tolist()],
                **_shares(rows),
                "frequent": values,
                "frequent_share": amounts / np.maximum(elements, 1),
            },
            units={**INSTRUCTION_UNITS, **_SHARE_UNITS, "frequent_share": "share"},
            labels={
                **_LABELS,
                "frequent": "most frequent value",
                "frequent_share": "of its elements",
            },
            keys=instruction_keys(where),
            sums=("elements", "stored"),
            levels=(*_LEVELS, "frequent_share"),
            important=("offset", "op", "elements", "frequent", "frequent_share", "redundant"),
            title="Instructions by elements loaded and stored",
            shown=self.top,
            hidden=instruction_hidden(where)
            | {"stored", "narrow_int", "narrow_float", "operators"},
        )

    def _most_frequent(self, pcs: NDArray[Any]) -> tuple[list[str | None], NDArray[Any]]:
        """The most frequent counted value of each instruction as text, and its elements."""
        rows = self.frequent.rows()  # most frequent first
        tags = (rows["key"] >> np.uint64(_PC)) & np.uint64((1 << _PC_BITS) - 1)
        known, first = np.unique(tags, return_index=True)
        wanted = (pcs >> np.uint64(_PC_SHIFT)) & np.uint64((1 << _PC_BITS) - 1)
        if not len(known):
            return [None] * len(pcs), np.zeros(len(pcs), np.uint64)
        at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        there = known[at] == wanted
        _, alike, count = np.unique(wanted, return_inverse=True, return_counts=True)
        there &= count[alike] == 1  # instructions of one tag were counted together
        keys = rows["key"][first[at]].tolist()
        texts = [_text(key) if ok else None for key, ok in zip(keys, there.tolist(), strict=True)]
        return texts, np.where(there, rows["count"][first[at]], 0)

    def _figure(self, objects: Table) -> Figure:
        rows = list(objects.rows(self.top))
        named = ("zeros", "repeated", "redundant")
        return Figure(
            "bar",
            "Shares of elements in objects",
            [row["object"] for row in rows],
            {_LABELS.get(name, name): [row[name] for row in rows] for name in named},
            y_unit="share",
        )

    # ---- findings

    def _of_objects(self, objects: Table) -> Iterator[Finding]:
        whole = int(objects.columns["elements"].sum())
        # accesses that were not examined may have other values
        sure: Confidence = "medium" if self.every == 1 else "low"
        seen = "" if self.every == 1 else f" (from one in {self.every} accesses)"
        for row in objects.rows(_MAX_FINDINGS):
            count = row["elements"]
            if count < self.at_least or row["object_id"] is None:
                continue
            share, place = count / whole, {"where": row["object"], "of": _OF}
            if row["zeros"] == 1:
                yield Finding(
                    what="all values of an object are zero",
                    evidence=f"{counted(count, 'element')} were loaded or stored{seen}, all of them"
                    " zero",
                    remedy="remove its allocation, its copies and the work on it",
                    gain=share, confidence=sure, **place,
                )  # fmt: skip
            elif row["repeated"] * count >= count - 1:
                yield Finding(
                    what="all values of an object are equal",
                    evidence=f"{counted(count, 'element')} were loaded or stored{seen}, each "
                             "equal to the previous one",
                    remedy="pass the value as a kernel argument, or use a constant",
                    gain=share, confidence=sure, **place,
                )  # fmt: skip
            elif row["zeros"] >= self.zero:
                yield Finding(
                    what="most values of an object are zero",
                    evidence=f"{formatted(row['zeros'], 'share')} of {counted(count, 'element')}",
                    remedy="use a sparse format, or skip work on zeros",
                    gain=share * row["zeros"], confidence="low", **place,
                )  # fmt: skip
            elif narrow := _narrow(row, self.narrow):
                yield Finding(
                    what="a narrower type can hold the values of an object",
                    evidence=f"{formatted(row[narrow], 'share')} of "
                             f"{counted(count, 'element')} keep their value as "
                             f"{_NARROW[narrow]} of half the size",
                    remedy="store it in the narrower type",
                    gain=share / 2, confidence="low", **place,
                )  # fmt: skip

    def _of_instructions(self, instructions: Table) -> Iterator[Finding]:
        whole = int(instructions.columns["elements"].sum())
        for row in instructions.rows(_MAX_FINDINGS):
            count = row["elements"]
            if count < self.at_least:
                continue
            place = {"where": instruction_place(row), "of": _OF}
            if row["redundant"] >= self.redundant:
                share = formatted(row["redundant"], "share")
                stores = row["op"] == "store"
                yield Finding(
                    what="stores write values that memory already holds"
                    if stores
                    else "threads load values that they already hold",
                    evidence=f"{share} of {counted(count, 'element')}",
                    remedy=at_line(
                        row,
                        "skip the store where the value does not change"
                        if stores
                        else "keep the value in a register",
                    ),
                    gain=row["redundant"] * count / whole, confidence="medium", **place,
                )  # fmt: skip
            frequent = row["frequent"]
            if frequent and row["frequent_share"] >= self.frequent_share and row["zeros"] < 1:
                yield Finding(
                    what="an instruction loads or stores mostly one value",
                    evidence=f"{formatted(row['frequent_share'], 'share')} of"
                    f" {counted(count, 'element')} are {frequent}",
                    remedy=at_line(row, "add a fast path for this value, or compress the data"),
                    gain=row["frequent_share"] * count / whole, confidence="low", **place,
                )  # fmt: skip

    def _summary(self, rows: NDArray[Any]) -> str:
        elements = int(rows["elements"].sum())
        text = counted(elements, "element")
        if self.every > 1:
            text += f" from one in {self.every} accesses"
        for name in ("zeros", "repeated", "redundant"):
            share = formatted(int(rows[name].sum()) / elements, "share")
            text += f", {share} {_SUMMARY[name]}"
        return text


_OF = "accesses to global memory"
_LEVELS = ("zeros", "repeated", "narrow_int", "narrow_float", "redundant")
_SHARE_UNITS: dict[str, Any] = dict.fromkeys(_LEVELS, "share")
_LABELS = {
    "repeated": "equal to the previous",
    "narrow_int": "narrower integer",
    "narrow_float": "narrower float",
}
_SUMMARY = {
    "zeros": "zero",
    "repeated": "equal to the previous in their object",
    "redundant": "redundant",
}
_NARROW = {"narrow_int": "an integer", "narrow_float": "a floating-point number"}


def _most_first(rows: NDArray[Any]) -> NDArray[Any]:
    return rows[np.argsort(-rows["elements"].astype(np.float64), kind="stable")]


def _shares(rows: NDArray[Any]) -> dict[str, Any]:
    """Numbers of elements, and shares of elements with a pattern."""
    found: dict[str, Any] = {name: rows[name] for name in ("elements", "stored")}
    return found | {name: rows[name] / np.maximum(rows["elements"], 1) for name in _LEVELS}


def _narrow(row: Mapping[str, Any], least: float) -> str | None:
    """The column of the narrower type that holds enough of the object's values other than zero;
    what its type says, if a framework gave it one."""
    type_ = row.get("object_dtype")
    columns = list(_NARROW)
    if type_ is not None:
        columns = ["narrow_float"] if type_ in _FLOATS else ["narrow_int"]
    for name in columns:
        if (row[name] - row["zeros"]) >= least * (1 - row["zeros"]):
            return name
    return None


def _text(key: int) -> str:
    """A value as an instruction has it: hexadecimal, and as a floating-point number."""
    short, fold = key & _LOW, key >> _FOLD & 3
    width = 1 << (key >> _WIDTH & 3)
    if fold == _HASH:
        return "a value of 8 bytes"
    value = short << 32 if fold == _HIGH else short
    if width < 4 or value == 0:
        return f"{value}"
    number = struct.unpack("<d" if width == 8 else "<f", value.to_bytes(width, "little"))[0]
    return f"{value}" if value < 1 << 16 else f"{value:#x} ({number:.6g})"
