"""Places of maps on a device: the memory of each, its operation in patches, and its results.

A map requests a placement (pasta.probes.placements), and each placement has a class here. `body` is
the text of the map's operation, which all lanes with such an access call together. It uses the
parameters of the map's method, `env` (see patch.py), and two macros on separate lines: `SUMS` sets
`sum_NAME` to the sum of each amount over `group`, `ADD` adds these sums to the words at `at`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pasta.backends.nvidia.areas import WORD, Areas, Hash
from pasta.errors import ToolError
from pasta.lazy import np
from pasta.probes.kinds import MAP_SHIFT
from pasta.probes.placements import (
    PerAddress,
    PerBin,
    PerGranule,
    PerKey,
    PerLaunch,
    PerLaunchPc,
    PerObject,
    PerPair,
    PerPc,
    Placement,
    Recorded,
)
from pasta.probes.specs import MapSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.probes.device import Numbers

P = TypeVar("P", bound=Placement)

_OTHER_KEY = 0xFFFF_FFFF_FFFF_FFFF
_WITHOUT_AREA = 1  # offset from `unknown`: accesses to objects without bins or granules
_ADDS = "if env[ALONE] != 0 or is_first(group):"


@dataclass(frozen=True)
class Target:
    """Destination of a place's results: the map's accumulator, and a function for dropped counts.

    `numbers`: objects by the numbers that devices use.
    """

    accumulator: Any
    numbers: Numbers
    drop: Callable[[int], None]


@dataclass(frozen=True)
class ObjectRows:
    """Rows of objects in some launches: `words` has a row for each, in the order of `ordinals`.

    `known`: rows whose object has a `number`; the others belong to no object.
    """

    ordinals: NDArray[Any]
    number: NDArray[Any]
    known: NDArray[Any]
    words: NDArray[Any]
    numbers: Numbers

    @cached_property
    def ids(self) -> NDArray[Any]:
        """Object ids (int64) at the time of the launches; -1: none, or unknown."""
        found = np.full(len(self.number), -1, np.int64)
        found[self.known] = self.numbers.ids(self.number[self.known], self.ordinals[self.known])
        return found

    @cached_property
    def lasting_ids(self) -> NDArray[Any]:
        """Object ids (int64) of numbers with one meaning in the whole run; -1: none, or unknown."""
        distinct, at = np.unique(self.number[self.known], return_inverse=True)
        ids = [self.numbers.place(number)[0] for number in distinct.tolist()]
        found = np.full(len(self.number), -1, np.int64)
        found[self.known] = np.asarray(ids, np.int64)[at.reshape(-1)]
        return found


class Place(Generic[P]):
    """Base of places. Raises ToolError for a map that does not fit."""

    #: Whether its operation uses the object of the access, and the offset in the object.
    needs_object: ClassVar[bool] = False
    needs_offset: ClassVar[bool] = False
    #: Whether its operation can look up the object, once for lanes with close addresses.
    finds_object: ClassVar[bool] = False
    #: Whether the lanes of one transfer share its work; otherwise the first lane does all.
    shares_transfers: ClassVar[bool] = False
    #: Whether its operation needs TOGETHER for amounts that depend on the size of the access.
    needs_together: ClassVar[bool] = True
    #: Whether its operation writes access records.
    writes_records: ClassVar[bool] = False

    def __init__(self, tool: str, spec: MapSpec, request: P, areas: Areas) -> None:
        self.tool, self.spec, self.request, self.areas = tool, spec, request, areas
        self.allocate()

    def allocate(self) -> None:
        """Take words of the areas. Raises ToolError."""
        raise NotImplementedError

    # text of patches

    def support(self) -> list[str]:
        """Text that precedes the operation."""
        return []

    def body(self) -> list[str]:
        """Lines of the operation."""
        raise NotImplementedError

    def operation(self, prefix: str) -> list[str]:
        """Text of the map's method in two variants: for any amounts, and `_uniform` for equal ones
        in all lanes. `prefix` precedes their names."""
        method = self.spec.method
        text = self.support()
        for suffix in ("", "_uniform") if method.amounts else ("",):
            name = f"{prefix}{self.spec.name}__{method.name}{suffix}"
            arguments = ", ".join(("env", *(each.name for each in method.parameters)))
            lines = "\n".join(f"    {line}" for line in self._lines(uniform=bool(suffix)))
            text.append(f"def {name}({arguments}):\n{lines}")
        return text

    def _lines(self, *, uniform: bool) -> list[str]:
        amounts = self.spec.method.amounts
        sums, added = [], []
        if amounts and not uniform:
            sums = [f"sum_{name} = {name}" for name in amounts]
            sums.append("if env[ALONE] == 0:")
            sums += [f"    sum_{name} = group_sum(group, {name})" for name in amounts]
        for index, name in enumerate(amounts):
            if uniform:  # late: fewer live values
                added.append(f"sum_{name} = {name} * popc(group)")
            # if uniform: constants need no test
            some = name if uniform else f"sum_{name}"
            added += [f"if {some} != 0:", f"    {self.add(WORD * index, f'sum_{name}')}"]
        inserted = {"SUMS": sums, "ADD": added}
        none = "return 0" if self.spec.method.returns else "return"
        lines = [] if self.shares_transfers else ["if env[COUNTS] == 0:", f"    {none}"]
        for line in self.body():
            indent = line[: len(line) - len(line.lstrip())]
            lines += [indent + each for each in inserted.get(line.strip(), [line.strip()])]
        return lines

    def add(self, offset: int, amount: str) -> str:
        """The statement that adds an amount to the word at `at` and an offset in bytes."""
        return f"atomic_add_u64(at + {offset}, {amount})"

    # results

    def read_launches(self, target: Target, ordinals: NDArray[Any], words: NDArray[Any]) -> None:
        """Deliver words of launches: a row of plain words and slot words for each ordinal."""

    def read_objects(self, target: Target, rows: ObjectRows) -> None:
        """Deliver words of the objects that launches touched."""

    def read_pairs(self, target: Target, rows: ObjectRows, pcs: NDArray[Any]) -> None:
        """Deliver words of the pairs of an object and an instruction in launches."""

    def lose_pairs(self, target: Target, words: NDArray[Any]) -> None:
        """Report words of pairs that had no room: a row for each launch."""

    def read_table(
        self, target: Target, index: int, keys: NDArray[Any], words: NDArray[Any]
    ) -> None:
        """Deliver totals of hash table `index`: a row of words for each key + 1."""

    def read_bins(self, target: Target, number: int, shift: int, words: NDArray[Any]) -> None:
        """Deliver totals of an object by its number: a row of words for each bin of 1 << shift
        bytes."""


def row_words(spec: MapSpec) -> int:
    """Words of a map for one key, program counter or launch."""
    rows = 1
    for limit in spec.limits.values():
        rows *= limit
    return rows * len(spec.fields)


def _by_field(spec: MapSpec, words: NDArray[Any]) -> NDArray[Any]:
    """A map's words by row, the map's other index, and field; there may be no rows."""
    fields = len(spec.fields)
    return words.reshape(len(words), row_words(spec) // fields, fields)


def _index(spec: MapSpec, key: str) -> str:
    return f"max(0, min({key}, {spec.limits[key] - 1}))"


def _grouped(group: str) -> list[str]:
    """Lines that set `group`: the lanes that add to the same words, of equal sizes."""
    return ["group = 1", "if env[ALONE] == 0:", f"    group = {group} & env[TOGETHER]"]


def _same(key: str, bits: str = "") -> list[str]:
    """Lines that set `group` to the lanes with an equal `key`."""
    return _grouped(f"match_any_sync{bits}(activemask(), {key})")


def _by_index(spec: MapSpec, index: str | None) -> list[str]:
    """Lines that set `key`, an index into the words of the map, and `group` accordingly."""
    if index is None:
        return _grouped("activemask()")
    return [f"key = {_index(spec, index)}", *_same("key")]


def _shift(tool: str, spec: MapSpec, size: int) -> int:
    if size & (size - 1):
        raise ToolError(
            f"tool {tool}: {spec.name} has bins or granules of {size} bytes",
            remedy="on the GPU they must be a power of two",
        )
    return size.bit_length() - 1


class LaunchWords(Place[PerLaunch]):
    """Words of the launch: in stripes, or plain if few lanes add at a time."""

    def allocate(self) -> None:
        """Take the words of a row: of the slot, or plain."""
        self.offset = self.areas.take(self._area, row_words(self.spec))

    @property
    def _area(self) -> str:
        return "slot" if self.request.contended else "plain"

    def body(self) -> list[str]:
        """Add the sums to the words of the launch, by the map's index if it has one."""
        spec = self.spec
        index = spec.keys[0] if spec.keys else None
        offset = f"{WORD * self.offset}"
        if index is not None:
            offset += f" + {WORD * len(spec.fields)} * key"
        at = f"load_u64(env[USER] + L_PLAIN) + {offset}"
        if self.request.contended:
            at = f"in_slot(env[USER], {offset})"
        return [*_by_index(spec, index), "SUMS", _ADDS, f"    at = {at}", "    ADD"]

    def read_launches(self, target: Target, ordinals: NDArray[Any], words: NDArray[Any]) -> None:
        """Deliver counts by launch and index."""
        spec = self.spec
        first = self.offset + (self.areas.plain_words if self.request.contended else 0)
        counts = _by_field(spec, words[:, first : first + row_words(spec)])
        launch, key = np.nonzero(counts.any(axis=2))
        if not len(launch):
            return
        columns = {"launch": ordinals[launch]} if spec.per_launch else {}
        if spec.keys:
            columns[spec.keys[0]] = key.astype(np.uint64)
        for index, each in enumerate(spec.fields):
            columns[each] = counts[launch, key, index]
        target.accumulator.accumulate(columns)


def _at_row(offset: int) -> str:
    """Address of a word of the access's object, in the launch's slot."""
    return f"at_row(env[USER], found) + {WORD * offset}"


#: Lines that set `found` to the index of the access's object, and `group`.
_FOUND = [
    "found = env[OBJECT]",
    "if env[WAY] != SHARED:",
    "    group = group_of(sized(found, env[SIZE]))",
    "else:",
    *(f"    {line}" for line in _same("sized(found, env[SIZE])")),
]


class ObjectWords(Place[PerObject]):
    """Words of each object that the launch touches."""

    needs_object = finds_object = True
    needs_together = False

    def allocate(self) -> None:
        """Take a word of the object for each field."""
        self.offset = self.areas.take("object", len(self.spec.fields))

    def body(self) -> list[str]:
        """Add the sums to the words of the access's object."""
        return [
            *_FOUND,
            "SUMS",
            _ADDS,
            "    if env[WAY] == USUAL:",
            "        rows, stripes = rows_of(env[USER])",
            "        if stripes < 0:",  # nothing of the other way is between these instructions
            f"            at = direct_row(rows, stripes, found) + {WORD * self.offset}",
            "            ADD",
            "            return",
            f"    at = {_at_row(self.offset)}",
            "    ADD",
        ]

    def read_objects(self, target: Target, rows: ObjectRows) -> None:
        """Deliver counts by launch and object id."""
        spec = self.spec
        counts = rows.words[:, self.offset : self.offset + len(spec.fields)]
        some = counts.any(axis=1)
        if some.any():
            columns = {"launch": rows.ordinals[some]} if spec.per_launch else {}
            columns["object"] = rows.ids[some]
            for index, each in enumerate(spec.fields):
                columns[each] = counts[some, index]
            target.accumulator.accumulate(columns)


class _PairTable(Place[P]):
    """Words of rows in a launch's table of pairs of an object and an instruction."""

    offset = 0

    def _take(self, pairs: int) -> None:
        """Take words of a row, in a table with at least twice as many rows as pairs."""
        rows = 1 << (2 * pairs - 1).bit_length()
        self.areas.pair_rows = max(self.areas.pair_rows, rows)
        self.offset = self.areas.take("pair", row_words(self.spec))

    def _body(self, object: str, behind: str = "") -> list[str]:
        """Add the sums to the row of an object's index and the instruction."""
        table = self.areas.pairs
        stripe = (table.rows + 1) * table.words * WORD
        at = (
            f"table + {table.rows * WORD + self.offset * WORD} + {table.words * WORD} * row "
            f"+ {stripe} * (clock() & {table.stripes - 1}){behind}"
        )
        return [
            "SUMS",
            _ADDS,
            "    table = load_u64(env[USER] + L_PAIRS)",
            f"    row = pair_row(table, {object}, pc, {table.rows})",
            f"    at = {at}",
            "    ADD",
        ]

    def _words(self, words: NDArray[Any]) -> NDArray[Any]:
        """Words of the map: by row, the map's other index, and field."""
        return _by_field(self.spec, words[:, self.offset : self.offset + row_words(self.spec)])

    def lose_pairs(self, target: Target, words: NDArray[Any]) -> None:
        """Report the amounts of the first field."""
        target.drop(int(self._words(words)[:, :, 0].sum()))


class PairWords(_PairTable[PerPair]):
    """Words of each pair of an object and an instruction that a launch has, in its table."""

    needs_object = finds_object = True
    needs_together = False

    def allocate(self) -> None:
        """Take words of a pair's row."""
        self._take(self.request.pairs)

    def body(self) -> list[str]:
        """Add the sums to the row of the access's object and instruction."""
        return [*_FOUND, *self._body("found")]

    def read_pairs(self, target: Target, rows: ObjectRows, pcs: NDArray[Any]) -> None:
        """Deliver counts by launch, object id and instruction."""
        counts = self._words(rows.words)[:, 0]
        some = counts.any(axis=1)
        if some.any():
            columns = {"launch": rows.ordinals[some]} if self.spec.per_launch else {}
            columns |= {"object": rows.ids[some], "pc": pcs[some]}
            for index, each in enumerate(self.spec.fields):
                columns[each] = counts[some, index]
            target.accumulator.accumulate(columns)


class LaunchPcWords(_PairTable[PerLaunchPc]):
    """Words of each instruction that a launch executes, in its table of pairs: without object."""

    def allocate(self) -> None:
        """Take words of an instruction's row."""
        self._take(self.request.pcs)

    def body(self) -> list[str]:
        """Add the sums to the row of the instruction."""
        inner = _beside_pc(self.spec)
        behind = "" if inner is None else f" + {WORD * len(self.spec.fields)} * key"
        return [*_by_index(self.spec, inner), *self._body("0", behind)]

    def read_pairs(self, target: Target, rows: ObjectRows, pcs: NDArray[Any]) -> None:
        """Deliver counts by launch, instruction and the map's other index."""
        counts, beside = self._words(rows.words), _beside_pc(self.spec)
        row, inner = np.nonzero(counts.any(axis=2))
        if len(row):
            columns = {"launch": rows.ordinals[row], "pc": pcs[row]}
            if beside is not None:
                columns[beside] = inner.astype(np.uint64)
            for index, each in enumerate(self.spec.fields):
                columns[each] = counts[row, inner, index]
            target.accumulator.accumulate(columns)


def _beside_pc(spec: MapSpec) -> str | None:
    """The map's index beside the program counter."""
    return next((key for key in spec.keys if key != "pc"), None)


def _bounded_rows(least: int) -> int:
    """Rows of a table with a bound: a power of two, and a multiple of the four that are loaded at
    once."""
    return max(4, 1 << (least - 1).bit_length())


class _HashWords(Place[P]):
    """Words of each key in a hash table of the run."""

    offset = 0
    #: Keys that have a row at most; 0: as many as there are rows.
    most = 0

    @property
    def index(self) -> int:
        """Index of the table in `areas.hashes`."""
        raise NotImplementedError

    def _body(self, key: str, group: list[str], behind: str = "") -> list[str]:
        table: Hash = self.areas.hashes[self.index]
        row = f"hash_row(table, {key}, {table.rows})"
        if self.most:
            claims = f"table + {table.claims}"
            row = f"hash_row_bounded(table, {key}, {table.rows}, {claims}, {self.most})"
        stripe = (table.rows + 1) * table.words * WORD
        at = (
            f"table + {table.rows * WORD + self.offset * WORD} + {table.words * WORD} * row "
            f"+ {stripe} * (clock() & {table.stripes - 1}){behind}"
        )
        return [
            f"table = load_u64(env[USER] + L_HASH + {WORD * self.index})",
            "if table == 0:",
            "    return",
            *group,
            "SUMS",
            _ADDS,
            f"    row = {row}",
            f"    at = {at}",
            "    ADD",
        ]

    def _counted(
        self, keys: NDArray[Any], words: NDArray[Any]
    ) -> tuple[dict[str, NDArray[Any]], int]:
        """Columns `key`, `inner` (index among the words of the key) and the fields; and the total
        of keys without a row."""
        counts = _by_field(self.spec, words[:, self.offset : self.offset + row_words(self.spec)])
        row, inner = np.nonzero(counts.any(axis=2))
        fields = {each: counts[row, inner, i] for i, each in enumerate(self.spec.fields)}
        other = keys[row] == _OTHER_KEY
        columns = {"key": keys[row] - np.uint64(1), "inner": inner.astype(np.uint64), **fields}
        dropped = sum(int(each[other].sum()) for each in fields.values())
        return {name: each[~other] for name, each in columns.items()}, dropped


class PcWords(_HashWords[PerPc]):
    """Words of each program counter, in one table for all maps."""

    def allocate(self) -> None:
        """Take words of the program counter's row."""
        self.offset = self.areas.take("pc", row_words(self.spec))

    @property
    def index(self) -> int:
        """Index of the shared table: 0."""
        return 0

    def body(self) -> list[str]:
        """Add the sums to the row of the program counter."""
        inner = _beside_pc(self.spec)
        behind = "" if inner is None else f" + {WORD * len(self.spec.fields)} * key"
        return self._body("pc", _by_index(self.spec, inner), behind)

    def read_table(
        self, target: Target, index: int, keys: NDArray[Any], words: NDArray[Any]
    ) -> None:
        """Deliver counts by program counter and the map's other index."""
        if index == self.index:
            columns, dropped = self._counted(keys, words)
            columns["pc"], inner = columns.pop("key"), columns.pop("inner")
            if (beside := _beside_pc(self.spec)) is not None:
                columns[beside] = inner
            target.drop(dropped)
            target.accumulator.accumulate(columns)


class KeyWords(_HashWords[PerKey]):
    """A word for each key, in the map's own table."""

    def allocate(self) -> None:
        """Take a table with at least four times as many rows as the map's capacity."""
        self.most = self.request.capacity
        self._number = len(self.areas.key_tables)
        self.areas.key_tables.append(Hash(_bounded_rows(4 * self.most), 1))

    @property
    def index(self) -> int:
        """Index of the map's table, after that of program counters."""
        return self._number + bool(self.areas.pc_words)

    def body(self) -> list[str]:
        """Add the sums to the row of the key."""
        return self._body("key", _same("key", "_64"))

    def read_table(
        self, target: Target, index: int, keys: NDArray[Any], words: NDArray[Any]
    ) -> None:
        """Deliver counts by key; keys without a row are summed as `other`."""
        if index == self.index:
            columns, dropped = self._counted(keys, words)
            del columns["inner"]
            target.accumulator.accumulate(columns, other=dropped)


class ShadowWords(Place[PerAddress]):
    """A key and a value for each granule, in the map's own table; a word of the slot for those
    without a row."""

    def allocate(self) -> None:
        """Take a table with at least twice as many rows as granules, and a word of the slot."""
        self._table = Hash(_bounded_rows(2 * self.request.capacity), 1, 0)
        self._number = len(self.areas.key_tables)
        self.areas.key_tables.append(self._table)
        self.lost = self.areas.take("slot", 1)

    def body(self) -> list[str]:
        """Exchange the value of the address's granule, lane by lane."""
        index = self._number + bool(self.areas.pc_words)
        shift = self.request.bytes.bit_length() - 1
        return [
            f"table = load_u64(env[USER] + L_HASH + {WORD * index})",
            "previous, found = 0, 0",
            "if table != 0:",
            "    previous, found = "
            f"shadow_exchange(table, lshr(address, {shift}), {self._table.rows}, "
            f"table + {self._table.claims}, {self.request.capacity}, value)",
            "if found == 0:",
            f"    atomic_add_u64(in_slot(env[USER], {WORD * self.lost}), 1)",
            "return previous",
        ]

    def read_launches(self, target: Target, ordinals: NDArray[Any], words: NDArray[Any]) -> None:
        """Deliver the number of lost exchanges."""
        target.accumulator.lost += int(words[:, self.areas.plain_words + self.lost].sum())


class BinWords(Place[PerBin]):
    """A word for each bin of the objects; `unknown`: words of the slot, for other accesses."""

    needs_object = needs_offset = True

    def allocate(self) -> None:
        """Take a word of each bin and the slot's `unknown` words. Raises ToolError."""
        self._shift = _shift(self.tool, self.spec, self.request.bytes)
        first = not self.areas.bin_words
        self.areas.bin_shift = self._shift if first else min(self.areas.bin_shift, self._shift)
        self.offset = self.areas.take("bin", 1)
        self.unknown = self.areas.take("slot", 2)

    def body(self) -> list[str]:
        """Add the sums to the word of the bin that the access's offset is in."""
        return [
            "bin = bin_of(env[USER], env[OBJECT], offset)",
            "if bin == 0xFFFFFFFF:",
            *(f"    {line}" for line in self._without_bin()),
            "    return",
            *_same("bin"),
            "SUMS",
            _ADDS,
            f"    at = bin_at(env[USER], bin) + {WORD * self.offset}",
            "    ADD",
        ]

    def _without_bin(self) -> list[str]:
        """Lines that add to the slot's words for accesses to no object, or to one without bins."""
        return [
            *_same("(env[OBJECT] != 0)"),
            "SUMS",
            _ADDS,
            f"    at = in_slot(env[USER], {WORD * self.unknown})",
            "    if env[OBJECT] != 0:",
            f"        at += {WORD * _WITHOUT_AREA}",
            "    ADD",
        ]

    def read_launches(self, target: Target, ordinals: NDArray[Any], words: NDArray[Any]) -> None:
        """Deliver accesses without an object as object -1; report those without bins as lost."""
        first = self.areas.plain_words + self.unknown
        count = np.array([words[:, first].sum()], np.uint64)
        if count[0]:
            none = {"object": np.array([-1]), "bin": np.zeros(1, np.uint64)}
            target.accumulator.accumulate({**none, "count": count})
        target.drop(int(words[:, first + _WITHOUT_AREA].sum()))

    def read_bins(self, target: Target, number: int, shift: int, words: NDArray[Any]) -> None:
        """Deliver counts by object id and bin of the map's size."""
        id, offset = target.numbers.place(number)
        counts = words[:, self.offset]
        bins = np.flatnonzero(counts).astype(np.uint64)
        if len(bins):
            # bins may be larger on a device short of memory: they count at their begin
            begins = (bins << np.uint64(shift)) + np.uint64(offset)
            begins = begins if id >= 0 else np.zeros_like(begins)
            columns = {
                "object": np.full(len(bins), id),
                "bin": begins // np.uint64(self.request.bytes),
            }
            target.accumulator.accumulate({**columns, "count": counts[bins]})


class PlaneBits(Place[PerGranule]):
    """A bit for each granule of the objects, in the map's own plane, and the number of marked bytes
    in a word of the slot or the object; `unknown`: words of the slot, for other accesses."""

    needs_object = needs_offset = shares_transfers = True
    needs_together = False

    def allocate(self) -> None:
        """Take a plane, a word for the bytes and the slot's `unknown` words. Raises ToolError."""
        self._shift = _shift(self.tool, self.spec, self.request.bytes)
        first = not self.areas.planes
        self.areas.plane_shift = self._shift if first else min(self.areas.plane_shift, self._shift)
        self.index = self.areas.planes
        self.areas.planes += 1
        self.areas.lasting_planes |= (not self.request.by_launch) << self.index
        self.offset = self.areas.take("object" if self.request.by_object else "slot", 1)
        self.unknown = self.areas.take("slot", 2)

    def support(self) -> list[str]:
        """The function that marks granules of this plane."""
        return [f"touch_{self.index} = touch_plane({self.index}, {self.request.by_launch})"]

    def body(self) -> list[str]:
        """Mark the granules that the access touches, and add the bytes of new ones."""
        epoch = "load_u64(env[USER] + L_EPOCH) & 0xFFFFFFFF" if self.request.by_launch else "1"
        at = f"in_slot(env[USER], {WORD * self.offset})"
        if self.request.by_object:
            at = _at_row(self.offset)
        unknown = WORD * self.unknown
        return [
            # at most 16 bytes, in one granule: objects begin at a multiple of 16
            "if env[SHARING] == 0:",
            f"    fresh, granule = touch_{self.index}(env[USER], env[OBJECT], offset)",
            "    if granule == 0xFFFFFFFF:",
            "        group = match_any_sync(activemask(), env[OBJECT] != 0)",
            "        if is_lowest(group):",
            f"            at = in_slot(env[USER], {unknown})",
            "            if env[OBJECT] != 0:",
            f"                at += {WORD * _WITHOUT_AREA}",
            "            atomic_add_u64(at, popc(group))",
            "    elif fresh != 0:",
            "        found = env[OBJECT]",
            f"        at = {at}",
            "        atomic_add_u64(at, bytes_of(env[USER], env[OBJECT], fresh, granule))",
            "    return",
            f"plane = load_u64(env[USER] + L_PLANES + {WORD * self.index})",
            "word = 0xFFFFFFFF",
            "range = load_u64(env[USER] + L_RANGES) + RANGE * (env[OBJECT] - 1)",
            "if env[OBJECT] != 0 and plane != 0:",
            "    word = load_u32(range + R_PLANE)",
            "if word == 0xFFFFFFFF:",
            "    if env[COUNTS] != 0:",
            f"        at = in_slot(env[USER], {unknown})",
            "        if env[OBJECT] != 0:",
            f"            at += {WORD * _WITHOUT_AREA}",
            "        atomic_add_u64(at, 1)",
            "    return",
            f"epoch = {epoch}",
            "shift = load_u8(range + R_PLANE_SHIFT)",
            "size = load_u64(range + R_SIZE)",
            "width = bytes",
            "if rows > 1:",
            "    width = bytes // rows",
            "total = 0",
            # the lanes of one transfer share it: by rows, or by the words of its only row
            "row = 0",
            "skip = env[NUMBER]",
            "step = env[SHARING]",
            "if rows > 1:",
            "    row = env[NUMBER]",
            "    skip = 0",
            "    step = 1",
            "while row < rows:",
            "    begin = offset + row * stride",
            "    first = lshr(begin, shift)",
            "    last = lshr(min(begin + width, size) - 1, shift)",
            "    index = (first >> 5) + skip",
            "    while index <= last >> 5:",
            "        low = max(first, index << 5)",
            "        high = min(last, (index << 5) + 31)",
            "        bits = ((1 << (high - low + 1)) - 1) << (low & 31)",
            "        at = plane + 8 * (word + index)",
            "        there = load_u64_volatile(at)",
            "        if lshr(there, 32) != epoch or (bits & ~there) != 0:",
            "            total += touch_word(env[USER], env[OBJECT], at, epoch, bits, low)",
            "        index += step",
            "    row += env[SHARING]",
            "if total != 0:",
            "    found = env[OBJECT]",
            f"    atomic_add_u64({at}, total)",
        ]

    def read_launches(self, target: Target, ordinals: NDArray[Any], words: NDArray[Any]) -> None:
        """Deliver bytes by launch, and accesses without an object as `unknown`."""
        plain = self.areas.plain_words
        unknown, without_granules = (words[:, plain + self.unknown + i] for i in range(2))
        bytes = words[:, plain + self.offset]
        if self.request.by_object:
            bytes = np.zeros_like(unknown)
        self._deliver(target, ordinals, np.full(len(words), -1), bytes, unknown)
        target.drop(int(without_granules.sum()))

    def read_objects(self, target: Target, rows: ObjectRows) -> None:
        """Deliver bytes by launch and object id, for maps that count by object."""
        if self.request.by_object:
            bytes = rows.words[:, self.offset]
            ids = rows.ids if self.spec.per_launch else rows.lasting_ids
            self._deliver(target, rows.ordinals, ids, bytes, np.zeros_like(bytes))

    def _deliver(
        self, target: Target, ordinals: NDArray[Any], ids: NDArray[Any], bytes: NDArray[Any],
        unknown: NDArray[Any],
    ) -> None:  # fmt: skip
        some = (bytes != 0) | (unknown != 0)
        columns = {"object": ids[some], "bytes": bytes[some], "unknown": unknown[some]}
        if self.spec.per_launch:
            columns["launch"] = ordinals[some]
        target.accumulator.accumulate_bytes(columns)


class Records(Place[Recorded]):
    """No words: the host reads access records, which have the map's `index`, from 1."""

    writes_records = True

    def allocate(self) -> None:
        """Take an index. `Areas.check` limits their number. Raises ToolError for records with
        values."""
        if self.spec.with_values:
            raise ToolError(
                f"tool {self.tool}: records of {self.spec.name} have values",
                remedy="leave the values out on a GPU, or use them in a probe",
            )
        self.areas.traces += 1
        self.index = self.areas.traces

    def body(self) -> list[str]:
        """Write the access record, with the map's index in its kind."""
        return [
            "user, pc, address, bytes, head, rows, stride, mask, who = env[RECORD]",
            f"head |= {self.index << (8 + MAP_SHIFT)}",
            "if who == SINGLE:",
            "    trace_single(user, pc, address, mask, bytes, head, rows, stride)",
            "else:",
            "    if who == CALLERS:",
            "        mask &= activemask()",
            "    trace_lanes(user, pc, address, mask, bytes, head)",
        ]


#: The place for each request.
PLACES: dict[type[Placement], type[Place[Any]]] = {
    PerLaunch: LaunchWords,
    PerObject: ObjectWords,
    PerLaunchPc: LaunchPcWords,
    PerPair: PairWords,
    PerPc: PcWords,
    PerKey: KeyWords,
    PerAddress: ShadowWords,
    PerBin: BinWords,
    PerGranule: PlaneBits,
    Recorded: Records,
}
