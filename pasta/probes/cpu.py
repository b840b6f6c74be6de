"""Runs probes on the CPU, over access records: one compiled function for a set of tools.

A module is generated that has the translated probes, an operation for each map they use, and
`run`, which goes over records. It lies in the user's cache, where Numba keeps its machine code
beside it. Maps are hash tables; where one is full, `run` returns to Python, which makes room,
and goes on within the same record at the same operation.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from pasta import paths
from pasta.probes import warp
from pasta.probes.accumulators import WORD, TopKAccumulator
from pasta.probes.kinds import KIND, kinds_of
from pasta.processors.compiled import memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.probes.language import ProbeFunction
    from pasta.probes.maps import MapSpec
    from pasta.processors.snapshots import Snapshot
    from pasta.tool import Tool

# Cells of `state`: operations of the record still to skip, and done; the map that is full, plus
# one; how many operations were done then; the running launch; the lanes that run the probe;
# and bytes between the sizes of objects.
_SKIP, _DONE, _FULL, _RESUME, _LAUNCH, _LANES, _SIZE_STRIDE = range(7)
# Cells of each map after those: where the last row was; distinct keys, or records written; words
# of the table; what had no room; lanes that wrote.
_FIRST, _CELLS = 8, 5
_LAST, _COUNT, _LENGTH, _OTHER, _WROTE = range(5)

_NEVER = 1 << 62
_MOST_ROWS = (1 << 16) - 1  # as a record can have
_SMALLEST = 1 << 10
#: Words up to which a table is kept seven eighths empty, a larger one half: a row that is not
#: where its hash says costs a branch that was not predicted.
_ROOMY = 1 << 20
#: Distinct keys of a map before they are delivered and forgotten.
_DELIVERED = 1 << 20
#: Stretches of records of one launch that are looked at together.
_RUNS = 4096


@dataclass
class _Table:
    """A map as `run` sees it: rows of a mark, keys and fields in one int64 array."""

    tool: int
    spec: MapSpec
    number: int
    rows: NDArray[Any] = field(init=False)
    #: Where it was full last: the same place again needs a larger table, not an empty one.
    last_full: tuple[int, int] = (-1, -1)

    def __post_init__(self) -> None:
        self.rows = np.zeros(self.width * self._slots(), np.int64)

    def _slots(self) -> int:
        if self.spec.type == "trace":
            return 0
        if not self.keys:
            return 1
        if self.spec.type == "top_k":
            return max(_SMALLEST, 1 << (2 * self.spec.capacity - 1).bit_length())
        return _SMALLEST

    @property
    def name(self) -> str:
        return f"tool{self.tool}_{self.spec.name}"

    @property
    def keys(self) -> tuple[str, ...]:
        return self.spec.columns[: len(self.spec.columns) - len(self.spec.fields)]

    @property
    def width(self) -> int:
        return 1 + len(self.keys) + len(self.spec.fields)

    def cell(self, which: int) -> int:
        return _FIRST + _CELLS * self.number + which

    def columns(self) -> dict[str, NDArray[Any]]:
        """Used rows, by column."""
        rows = self.rows.reshape(-1, self.width)
        used = rows[rows[:, 0] != 0]
        return {name: used[:, 1 + i].copy() for i, name in enumerate(self.spec.columns)}


@dataclass(frozen=True)
class Runs:
    """Stretches of records: launch of each (int64), where it begins, the kinds in it as bits, and
    the index in `traces` of the map that took all of it on a GPU, if records alone are in it; else
    -1."""

    launches: NDArray[Any]
    starts: NDArray[Any]
    kinds: NDArray[Any]
    takers: NDArray[Any]

    def where(self, chosen: NDArray[Any]) -> Runs:
        return Runs(*(each[chosen] for each in vars(self).values()))


class CpuExecutor:
    """Runs the probes of tools over records of selected launches.

    The first `run` compiles, for some seconds, unless the cache has the code.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools = list(tools)
        self._tables = list(_tables(self.tools))
        self._state = np.zeros(_FIRST + _CELLS * len(self._tables), np.int64)
        for table in self._tables:
            self._state[table.cell(_LENGTH)] = len(table.rows)
        self._trace_tables = [each for each in self._tables if each.spec.type == "trace"]
        self._index_of = np.full(16, -1)  # in `traces`, by the numbers in records
        for i, table in enumerate(self._trace_tables):
            self._index_of[_map_numbers(self.tools)[table.tool, table.spec.name]] = i
        self._scratch = np.zeros(warp.SCRATCH, np.int64)
        self._sizes = np.empty(0, np.uint64)
        self._module: ModuleType | None = None

    @property
    def compiled(self) -> Any:
        """The generated module."""
        if self._module is None:
            self._module = _module(_source(self.tools, self._tables))
        return self._module

    def launch_runs(self, words: NDArray[Any], begin: int) -> tuple[Runs, int]:
        """Stretches of records of one launch each, and where all end."""
        found = np.empty((4, _RUNS), np.int64)
        count, end = self.compiled.launch_runs(
            memory(words), begin, len(words), *(memory(each) for each in found), _RUNS
        )
        launches, starts, kinds, numbers = found[:, :count]
        return Runs(launches, starts, kinds, self._index_of[numbers]), end

    @property
    def traces(self) -> list[tuple[int, str]]:
        """Trace maps: index of the tool, name of the map."""
        return [(each.tool, each.spec.name) for each in self._trace_tables]

    def run(
        self, words: NDArray[Any], begin: int, end: int, snapshot: Snapshot, sizes: NDArray[Any]
    ) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Runs the probes over the records in `words[begin:end]`, all of selected launches.

        `sizes` are the bytes of all objects by id (uint64; all ones: unknown). Returns for each
        of `traces` where records begin that were written, and the lanes that wrote them.
        """
        run, state = self.compiled.run, self._state
        self._sizes = sizes
        most = (end - begin) // warp.RECORD + 1 if self.traces else 0
        traced = np.empty((len(self.traces), 2, most), np.int64)
        layers = snapshot.described
        state[_SIZE_STRIDE] = sizes.strides[0]
        fixed = [memory(each) for each in (state, self._scratch, sizes, layers, traced)]
        at = begin
        while True:
            tables = [memory(each.rows) for each in self._tables]
            at = run(memory(words), at, end, *fixed, most, *tables)
            if not state[_FULL]:
                break
            self._make_room(self._tables[state[_FULL] - 1], at)
            state[_SKIP], state[_FULL] = state[_RESUME], 0
        if at != end:
            raise ValueError(f"the record at word {at} goes beyond the end at {end}")
        written = []
        for part, table in zip(traced, self._trace_tables, strict=True):
            count = int(state[table.cell(_COUNT)])
            state[table.cell(_COUNT)] = 0
            written.append((part[0, :count], part[1, :count]))
        return written

    def _make_room(self, table: _Table, at: int) -> None:
        place = (at, int(self._state[_RESUME]))
        if self._state[table.cell(_COUNT)] >= _DELIVERED and place != table.last_full:
            self._deliver(table)
        else:
            larger = np.zeros(2 * len(table.rows), np.int64)
            self.compiled.move_rows(
                memory(table.rows), len(table.rows), memory(larger), len(larger),
                table.width, len(table.keys),
            )  # fmt: skip
            table.rows = larger
            self._state[table.cell(_LENGTH)] = len(larger)
        self._state[table.cell(_LAST)] = 0
        table.last_full = place

    def _within(self, objects: NDArray[Any], bins: NDArray[Any], bin: int) -> NDArray[Any]:
        """Bins clamped to those of their objects, which only sizes beyond int64 need: done late."""
        known = objects >= 0
        sizes = self._sizes[objects[known]].view(np.int64)
        bins[known] = np.clip(bins[known], 0, (np.maximum(sizes, 1) - 1) // bin)
        return bins

    def flush(self) -> None:
        """Delivers what was counted to the tools' maps."""
        for table in self._tables:
            if table.spec.type != "trace":
                self._deliver(table)

    def _deliver(self, table: _Table) -> None:
        target = self.tools[table.tool]._maps[table.spec.name]
        columns = table.columns()
        if table.spec.type == "histogram":
            columns["bin"] = self._within(columns["object"], columns["bin"], table.spec.bin)
        if isinstance(target, TopKAccumulator):
            # Its keys stay: which ones have room is decided once.
            other = int(self._state[table.cell(_OTHER)])
            self._state[table.cell(_OTHER)] = 0
            target.accumulate(columns, other)
            table.rows.reshape(-1, table.width)[:, -1] = 0
            return
        target.accumulate(columns)
        table.rows[:] = 0
        self._state[table.cell(_COUNT)] = 0
        self._state[table.cell(_LAST)] = 0


def _tables(tools: Iterable[Tool]) -> Iterator[_Table]:
    """A table for every map that a probe of its tool uses."""
    number = 0
    for index, tool in enumerate(tools):
        used = {op.map for probe in tool.probes() for op in probe.ops}
        for name, spec in tool.maps().items():
            if name in used:
                yield _Table(index, spec, number)
                number += 1


# ---- the generated module -------------------------------------------------------------------

_HEADER = """\
import numpy as np
from numba import njit

from pasta.probes import warp
from pasta.probes.warp import (
    add, bit_count, hashed, lane_address, locate, locate_lanes, lowest_bit, minus, peek,
    peek_unaligned, plus, poke, sector_counts, times, way_counts, words_after,
)

function = njit(nogil=True, error_model="numpy")
inline = njit(nogil=True, error_model="numpy", forceinline=True)  # calls cost a third of a lane


@njit(
    "UniTuple(int64, 2)(int64, int64, int64, int64, int64, int64, int64, int64)",
    nogil=True, cache=True,
)
def launch_runs(words, begin, end, launches, starts, kinds, takers, most):
    return warp.launch_runs(words, begin, end, launches, starts, kinds, takers, most)


@njit("void(int64, int64, int64, int64, int64, int64)", nogil=True, cache=True)
def move_rows(old, length, new, new_length, width, keys):
    warp.move_rows(old, length, new, new_length, width, keys)
"""
#: Bytes of an object, all ones if they are not known: a field of the rows of the object table.
_SIZE = "peek_unaligned(env[1], object * peek(state, " + str(_SIZE_STRIDE) + "))"


def _source(tools: Sequence[Tool], tables: Sequence[_Table]) -> str:
    """Text of the module for these tools."""
    digest = hashlib.sha256(Path(warp.__file__).read_bytes()).hexdigest()
    parts = [f"# with pasta.probes.warp {digest}\n{_HEADER}"]
    for table in tables:
        parts.append(_operations(table))
    for index, tool in enumerate(tools):
        for probe in tool.probes():
            parts.append(_probe_source(index, tool, probe))
    parts.append(_run_source(tools, tables))
    return "\n\n".join(parts)


def _probe_source(index: int, tool: Tool, probe: ProbeFunction) -> str:
    prefix = _prefix(index, probe)
    lines = [f"# {probe.file}:{probe.line}"]
    for op in probe.ops:
        lines.append(f"{prefix}{op.name} = tool{index}_{op.map}__{op.method}")
    *helpers, own = probe.definitions(tool._options, prefix, wrapping=True)
    lines.extend(f"\n@function\n{ast.unparse(each)}\n" for each in helpers)
    lines.append(f"\n@inline\n{ast.unparse(own)}\n")
    return "\n".join(lines)


def _map_numbers(tools: Sequence[Tool]) -> dict[tuple[int, str], int]:
    """Numbers that records from a GPU have for the maps that took them: by tool and name."""
    maps = (
        (index, name)
        for index, tool in enumerate(tools)
        for name, spec in tool.maps().items()
        if spec.type == "trace" or spec.recorded
    )
    return {each: number for number, each in enumerate(maps, 1)}


def _prefix(index: int, probe: ProbeFunction) -> str:
    return f"tool{index}_{probe.name}__"


def _operations(table: _Table) -> str:
    """The map's method, and what finds or makes the row of some keys."""
    write = {"trace": _write, "bitmap": _touch}.get(table.spec.type, _add)
    return write(table)


def _write(table: _Table) -> str:
    # It may run again where another map was full: bits that are set twice do no harm.
    return f"""
@inline
def {table.name}__write(env):
    state = env[0]
    poke(state, {table.cell(_WROTE)}, peek(state, {table.cell(_WROTE)}) | peek(state, {_LANES}))
"""


def _begin(table: _Table, parameters: Iterable[str]) -> str:
    return f"""
@inline
def {table.name}__{table.spec.method.name}(env, {", ".join(parameters)}):
    state = env[0]
    if peek(state, {_SKIP}) != 0:
        add(state, {_SKIP}, -1)
        add(state, {_DONE}, 1)
        return
    table = env[{2 + table.number}]"""


def _stop(table: _Table, indent: str) -> str:
    lines = (
        f"poke(state, {_FULL}, {table.number + 1})",
        f"poke(state, {_RESUME}, peek(state, {_DONE}))",
        f"poke(state, {_SKIP}, {_NEVER})",
        "return",
    )
    return "\n".join(indent + line for line in lines)


def _row(table: _Table, keys: Sequence[str], indent: str, full: str) -> str:
    """Sets `at` to the row of these keys; most often it is the one of the operation before."""
    differs = [f"peek(table, at + {1 + i}) != {key}" for i, key in enumerate(keys)]
    text = f"""
at = peek(state, {table.cell(_LAST)})
if {" or ".join(["peek(table, at) == 0", *differs])}:
    at = {table.name}__find({", ".join(["state", "table", *keys])})
    if at < 0:
{full}
    poke(state, {table.cell(_LAST)}, at)"""
    return text.replace("\n", "\n" + indent)


def _find(table: _Table, keys: Sequence[str]) -> str:
    width, count = table.width, table.cell(_COUNT)
    length = f"peek(state, {table.cell(_LENGTH)})"
    limit = f"{length} // ({8 * width} if {length} <= {_ROOMY} else {2 * width})"
    if table.spec.type == "top_k":
        limit = str(table.spec.capacity)
    elif not keys:
        limit = "1"
    hashes = "".join(f"    h = hashed(h, {key})\n" for key in keys)
    same = (
        " and ".join(f"peek(table, at + {1 + i}) == {key}" for i, key in enumerate(keys)) or "True"
    )
    stored = "".join(f"    poke(table, at + {1 + i}, {key})\n" for i, key in enumerate(keys))
    return f"""
@function
def {table.name}__find({", ".join(["state", "table", *keys])}):
    h = np.int64(0)
{hashes}    at = (h & ({length} // {width} - 1)) * {width}
    while peek(table, at) != 0:
        if {same}:
            return at
        at += {width}
        if at == {length}:
            at = 0
    if peek(state, {count}) >= {limit}:
        return -1
    add(state, {count}, 1)
    poke(table, at, 1)
{stored}    return at
"""


def _add(table: _Table) -> str:
    spec = table.spec
    method = spec.method
    # A field may have any name: those of the text here have no a_ before them.
    parameters = [f"a_{each.name}" if each.amount else each.name for each in method.parameters]
    lines = []
    for key, limit in spec.limits.items():
        lines.append(f"{key} = min(max({key}, 0), {limit - 1})")
    if spec.type == "histogram":
        lines.append(f"bin = offset // {spec.bin} if object >= 0 else 0")
    keys = [f"peek(state, {_LAUNCH})" if key == "launch" else key for key in table.keys]
    if "launch" in table.keys:
        lines.append(f"launch = peek(state, {_LAUNCH})")
        keys = list(table.keys)
    other = "\n".join(
        " " * 8 + line
        for line in (
            f"add(state, {table.cell(_OTHER)}, a_amount)",
            f"add(state, {_DONE}, 1)",
            "return",
        )
    )
    full = other if spec.type == "top_k" else _stop(table, "        ")
    first = 1 + len(keys)
    added = [f"add(table, at + {first + i}, a_{name})" for i, name in enumerate(method.amounts)]
    body = "".join(f"\n    {line}" for line in lines)
    return (
        _find(table, keys)
        + "\n"
        + _begin(table, parameters)
        + body
        + _row(table, keys, "    ", full)
        + "".join(f"\n    {line}" for line in added)
        + f"\n    add(state, {_DONE}, 1)\n"
    )


def _touch(table: _Table) -> str:
    """Sets bits; where the map is full in the middle, those set before are set again later."""
    keys = list(table.keys)
    granule = table.spec.granularity
    launch = f"\n    launch = peek(state, {_LAUNCH})" if "launch" in keys else ""
    cell = 1 + len(keys)
    unknown = _row(table, keys, "        ", _stop(table, "        "))
    word = _row(table, keys, "                ", _stop(table, "        "))
    return (
        _find(table, keys)
        + "\n"
        + _begin(table, [each.name for each in table.spec.method.parameters])
        + launch
        + f"""
    rows = min(max(rows, 1), {_MOST_ROWS})
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
    add(state, {_DONE}, 1)
"""
    )


def _run_source(tools: Sequence[Tool], tables: Sequence[_Table]) -> str:
    probes = [(index, probe) for index, tool in enumerate(tools) for probe in tool.probes()]

    def kinds(*fields: str, per: str | None = None) -> int:
        """Bits of the kinds for which a probe wants one of the fields; any, without a name."""
        return sum(
            {
                1 << KIND[kind].number
                for _, probe in probes
                for kind in probe.kinds
                if (not fields or set(fields) & set(probe.fields)) and per in (None, probe.per)
            }
        )

    def calls(per: str) -> Iterator[str]:
        for index, probe in probes:
            if probe.per == per:
                wanted = sum(1 << KIND[kind].number for kind in probe.kinds)
                arguments = ", ".join((*probe.fields, "env"))
                yield f"if ({wanted} >> kind) & 1:"
                yield f"    {_prefix(index, probe)}{probe.name}({arguments})"

    names = ", ".join(table.name for table in tables)
    parameters = f"words, at, end, state, scratch, sizes, layers, traced, most, {names}"
    signature = ", ".join(["int64"] * len(parameters.rstrip(", ").split(", ")))
    traces = [table for table in tables if table.spec.type == "trace"]
    written = "".join(
        f"""
            if peek(state, {table.cell(_WROTE)}) != 0:
                number = peek(state, {table.cell(_COUNT)})
                poke(traced, {2 * i} * most + number, at)
                poke(traced, {2 * i + 1} * most + number, peek(state, {table.cell(_WROTE)}))
                poke(state, {table.cell(_COUNT)}, number + 1)
                poke(state, {table.cell(_WROTE)}, 0)"""
        for i, table in enumerate(traces)
    )
    # What patches on a GPU took is given on: their probes have run. What they wrote down for a
    # histogram is counted in it.
    numbers = _map_numbers(tools)
    recorded = {
        numbers[table.tool, table.spec.name]: table for table in tables if table.spec.recorded
    }
    counted = sum(1 << number for number in recorded)
    taken = "".join(
        f"""
            if number == {numbers[table.tool, table.spec.name]}:
                count = peek(state, {table.cell(_COUNT)})
                poke(traced, {2 * i} * most + count, at)
                poke(traced, {2 * i + 1} * most + count, mask)
                poke(state, {table.cell(_COUNT)}, count + 1)"""
        for i, table in enumerate(traces)
    )
    global_kinds = sum(1 << KIND[kind].number for kind in kinds_of("global"))
    located = kinds("object", "known", "offset") & global_kinds
    warp_lines, lane_lines = list(calls("warp")), list(calls("lane"))
    probed = ""
    if recorded:
        probed = "number == 0 and "
        warp_lines = ["if number == 0:", *(f"    {line}" for line in (*warp_lines, "pass"))]
        lane_lines = ["if number == 0:", *(f"    {line}" for line in (*lane_lines, "pass"))]
        for number, table in recorded.items():
            lane_lines += [f"elif number == {number}:"]
            lane_lines += [f"    {table.name}__add(env, object, offset, 1)"]
    per_warp = "".join(f"\n            {line}" for line in warp_lines)
    per_lane = "".join(f"\n                    {line}" for line in lane_lines)
    return f"""
@njit("int64({signature})", nogil=True, cache=True, error_model="numpy")
def run({parameters}):
    env = (state, sizes, {names})
    found, origin, low, high = locate(layers, np.uint64(0))
    while at + {warp.RECORD} <= end:
        head = peek(words, at)
        mask = head & 0xFFFFFFFF
        kind = (head >> 32) & 255
        form = (head >> 48) & 255
        lanes = bit_count(mask)
        after = at + {warp.RECORD} + words_after(form, lanes)
        if after > end:
            break
        number = (head >> {warp.MAP_AT}) & 15
        if number != 0 and ({counted} >> number) & 1 == 0:{taken}
            at = after
            continue
        asked, located, by_lanes = {kinds()}, {located}, {kinds(per="lane")}
        if number != 0:
            asked, located, by_lanes = {global_kinds}, {global_kinds}, {global_kinds}
        if mask != 0 and kind < 64 and (asked >> kind) & 1:
            second = peek(words, at + 1)
            row_stride, base = peek(words, at + 2), peek(words, at + 3)
            pc, launch, block = peek(words, at + 4), peek(words, at + 5), peek(words, at + 6)
            row_bytes = second & 0xFFFFFFFF
            rows, stride = 1, 0
            if form == 3:
                rows, stride = max((second >> 32) & 0xFFFF, 1), row_stride
            bytes = row_bytes * rows
            warp = (second >> 48) & 0xFFFF
            sm = (head >> 56) & 255
            is_read = (head >> 40) & 1
            is_write = (head >> 41) & 1
            is_atomic = (head >> 42) & 1
            sectors, ideal_sectors, ways, ideal_ways = 0, 0, 0, 0
            if {probed}({kinds("sectors", "ideal_sectors")} >> kind) & 1:
                sectors, ideal_sectors = sector_counts(
                    words, at, form, mask, base, row_stride, row_bytes, rows, scratch)
            if {probed}({kinds("ways", "ideal_ways")} >> kind) & 1:
                ways, ideal_ways = way_counts(
                    words, at, form, mask, base, row_stride, row_bytes, rows, scratch)
            poke(state, {_LAUNCH}, launch)
            poke(state, {_DONE}, 0)
            poke(state, {_LANES}, mask){per_warp}
            if (by_lanes >> kind) & 1:
                apart = False
                if (located >> kind) & 1 and (form == 1 or form == 2):
                    apart = locate_lanes(words, at, form, base, lanes, layers, low, high, scratch)
                    first, last = {warp.OBJECTS}, {warp.OBJECTS} + lanes - 1
                    if apart and peek(scratch, first) == peek(scratch, last):
                        # Likely all are in one object, and the next warps too.
                        found, origin, low, high = locate(layers, np.uint64(peek(scratch, 0)))
                left = mask
                place = 0
                while left != 0:
                    lane = lowest_bit(left)
                    left &= left - 1
                    leader = 1 if place == 0 else 0
                    address = lane_address(words, at, form, base, row_stride, lane, place)
                    object, known, offset = np.int64(-1), 0, address
                    if apart:
                        object = peek(scratch, {warp.OBJECTS} + place)
                        offset = peek(scratch, {warp.OFFSETS} + place)
                    elif (located >> kind) & 1:
                        unsigned = np.uint64(address)
                        if unsigned - low > high - low:
                            found, origin, low, high = locate(layers, unsigned)
                        object = found
                        offset = address - np.int64(origin)
                    known = 1 if object >= 0 else 0
                    place += 1
                    poke(state, {_LANES}, 1 << lane){per_lane}
            if peek(state, {_FULL}) != 0:
                return at{written}
        at = after
    return at
"""


def _module(text: str) -> ModuleType:
    """The generated text as a module, from the user's cache if it can be written there."""
    name = f"pasta_probes_{hashlib.sha256(text.encode()).hexdigest()[:24]}"
    if name in sys.modules:
        return sys.modules[name]
    path = paths.cache("probes", f"{name}.py")
    try:
        if not path.exists():
            _write_once(path, text)
    except OSError:
        module = ModuleType(name)
        exec(compile(text.replace("cache=True", "cache=False"), name, "exec"), vars(module))
    else:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # Numba's cache looks for it there
        spec.loader.exec_module(module)
    sys.modules[name] = module
    return module


def _write_once(path: Path, text: str) -> None:
    """Numba's cache goes by the file's time, so that what is there is left alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    with open(descriptor, "w") as file:
        file.write(text)
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass  # another process was faster
    finally:
        os.unlink(temporary)
