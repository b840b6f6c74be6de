"""Runs probes on the CPU, over access records: one compiled function for a set of tools.

The generated module has the translated probes, an operation for each map they use, and `run`, which
iterates over records. Maps are hash tables; when one is full, `run` returns to Python, which
delivers or grows it, and continues in the same record at the same operation.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pasta.compiled import generated, memory
from pasta.probes import loop, tables, warp
from pasta.probes.declare import maps_of, probes_of
from pasta.probes.kinds import KIND, kinds_of
from pasta.probes.language import MAX_ITERATIONS
from pasta.probes.maps import accumulators_of
from pasta.probes.tables import Table, state_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.compiled import Compiled
    from pasta.members import Owner
    from pasta.probes.language import ProbeFunction
    from pasta.probes.specs import MapSpec
    from pasta.processors.snapshots import Snapshot

#: Distinct keys of a map before they are delivered and cleared.
_MAX_KEYS = 1 << 20
#: Runs of records of one launch per call of `launch_runs`.
_MAX_RUNS = 4096
_LANES = 32
#: Fields that have another name in `loop`.
_SAME = {"epoch": "launch"}


@dataclass(frozen=True)
class _Used:
    """A map that probes of a tool use, and its table."""

    tool: int
    spec: MapSpec
    table: Table


@dataclass(frozen=True)
class Runs:
    """Runs of records of one launch each: launch (int64), begin, kinds as bits, and the index in
    `traces` of the map that took all of the run on a GPU, if no words follow its records, otherwise
    -1."""

    launches: NDArray[Any]
    starts: NDArray[Any]
    kinds: NDArray[Any]
    takers: NDArray[Any]

    def where(self, chosen: NDArray[Any]) -> Runs:
        """The runs selected by a mask or indices."""
        return Runs(*(each[chosen] for each in vars(self).values()))


class CpuExecutor:
    """Runs the probes of tools over records of selected launches.

    The first `run` compiles for some seconds unless the code is cached.
    """

    def __init__(self, tools: Sequence[Owner]) -> None:
        self.tools = list(tools)
        self._used = list(_used_maps(self.tools))
        self._state = state_of(len(self._used), _max_exchanged(self.tools))
        for each in self._used:
            each.table.attach(self._state)
        self._traces = [each for each in self._used if each.spec.hands_on]
        self._index_of = np.full(16, -1)  # in `traces`, by the numbers in records
        for i, each in enumerate(self._traces):
            self._index_of[_map_numbers(self.tools)[each.tool, each.spec.name]] = i
        self._scratch = np.zeros(warp.SCRATCH, np.int64)
        self._sizes = np.empty(0, np.uint64)

    @cached_property
    def loop(self) -> Compiled:
        """The function `run` of the generated module."""
        return generated(_source(self.tools, self._used), "run")

    def launch_runs(self, words: NDArray[Any], begin: int) -> tuple[Runs, int]:
        """Runs of records from word `begin`, at most `_MAX_RUNS`, and their end."""
        found, reached = np.empty((4, _MAX_RUNS), np.int64), np.empty(1, np.int64)
        count = warp.launch_runs(
            memory(words), begin, len(words), *(memory(each) for each in found), _MAX_RUNS,
            memory(reached),
        )  # fmt: skip
        launches, starts, kinds, numbers = found[:, :count]
        return Runs(launches, starts, kinds, self._index_of[numbers]), int(reached[0])

    @property
    def traces(self) -> list[tuple[int, str]]:
        """Index of the tool and name of each Trace map."""
        return [(each.tool, each.spec.name) for each in self._traces]

    def run(
        self, words: NDArray[Any], begin: int, end: int, snapshot: Snapshot, sizes: NDArray[Any]
    ) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Runs the probes over the records in `words[begin:end]`, all from selected launches.

        `sizes` are the bytes of all objects by id (uint64; all ones: unknown). Returns for each
        of `traces` the begins of written records, and the lanes that wrote them. Raises ValueError
        if a record exceeds the end.
        """
        run, state = self.loop, self._state
        self._sizes = sizes
        capacity = (end - begin) // warp.RECORD + 1 if self.traces else 0
        traced = np.empty((len(self.traces), 2, capacity), np.int64)
        layers = snapshot.described
        state[tables.SIZE_STRIDE] = sizes.strides[0]
        fixed = [memory(each) for each in (state, self._scratch, sizes, layers, traced)]
        at = begin
        while True:
            rows = [memory(each.table.rows) for each in self._used]
            at = run(memory(words), at, end, *fixed, capacity, *rows)
            if not state[tables.FULL]:
                break
            self._make_room(self._used[state[tables.FULL] - 1], at)
            state[tables.SKIP], state[tables.FULL] = state[tables.RESUME], 0
        if at != end:
            raise ValueError(f"the record at word {at} goes beyond the end at {end}")
        written = []
        for part, each in zip(traced, self._traces, strict=True):
            count = int(each.table.cells[tables.COUNT])
            each.table.cells[tables.COUNT] = 0
            written.append((part[0, :count], part[1, :count]))
        return written

    def _make_room(self, used: _Used, at: int) -> None:
        table = used.table
        place = (at, int(self._state[tables.RESUME]))
        many = table.cells[tables.COUNT] >= _MAX_KEYS and not table.most
        if many and place != table.last_full:
            self._deliver(used)
        else:
            larger = np.zeros(2 * len(table.rows), np.int64)
            warp.move_rows(
                memory(table.rows), len(table.rows), memory(larger), len(larger),
                table.width, len(table.keys),
            )  # fmt: skip
            table.rows = larger
            table.cells[tables.LENGTH] = len(larger)
        table.cells[tables.LAST] = 0
        table.last_full = place

    def flush(self) -> None:
        """Delivers all counts to the tools' maps."""
        for each in self._used:
            self._deliver(each)

    def _deliver(self, used: _Used) -> None:
        accumulators_of(self.tools[used.tool])[used.spec.name].take(used.table, self._sizes)


def _used_maps(tools: Iterable[Owner]) -> Iterator[_Used]:
    """Every map that a probe of its tool uses, with an empty table."""
    number = 0
    for index, tool in enumerate(tools):
        used = {op.map for probe in probes_of(tool) for op in probe.ops}
        for name, spec in maps_of(tool).items():
            if name in used:
                yield _Used(index, spec, spec.table(f"tool{index}_{name}", number))
                number += 1


def _max_exchanged(tools: Iterable[Owner]) -> int:
    """Maximum of values that the probes exchange with shadows in one record."""
    sites = 0
    for tool in tools:
        shadows = {name for name, spec in maps_of(tool).items() if spec.method.returns}
        for probe in probes_of(tool):
            names = {op.name for op in probe.ops if op.map in shadows}
            calls = [each for each in ast.walk(probe.tree) if isinstance(each, ast.Call)]
            sites += sum(ast.unparse(each.func) in names for each in calls)
    return sites * MAX_ITERATIONS * _LANES


# ---- the generated module -------------------------------------------------------------------

_HEADER = """\
import numpy as np

from pasta.compiled import compiled, internal
from pasta.probes.loop import run_records
from pasta.probes.warp import add, hashed, minus, peek, peek_unaligned, plus, poke, times

function = internal
inline = internal(inline=True)  # calls cost a third of a lane
"""


def _source(tools: Sequence[Owner], maps: Sequence[_Used]) -> str:
    """Text of the module for these tools."""
    parts = [_HEADER]
    parts += [each.spec.operation(each.table) for each in maps]
    for index, tool in enumerate(tools):
        for probe in probes_of(tool):
            parts.append(_probe_source(index, tool, probe))
    parts.append(_run_source(tools, maps))
    return "\n\n".join(parts)


def _probe_source(index: int, tool: Owner, probe: ProbeFunction) -> str:
    prefix = _prefix(index, probe)
    lines = [f"# {probe.file}:{probe.line}"]
    for op in probe.ops:
        lines.append(f"{prefix}{op.name} = tool{index}_{op.map}__{op.method}")
    *helpers, own = probe.definitions(tool._options, prefix, wrapping=True)
    lines.extend(f"\n@function\n{ast.unparse(each)}\n" for each in helpers)
    lines.append(f"\n@inline\n{ast.unparse(own)}\n")
    return "\n".join(lines)


def _map_numbers(tools: Sequence[Owner]) -> dict[tuple[int, str], int]:
    """Numbers of maps in records from a GPU, by index of the tool and name."""
    maps = (
        (index, name)
        for index, tool in enumerate(tools)
        for name, spec in maps_of(tool).items()
        if spec.recorded
    )
    return {each: number for number, each in enumerate(maps, 1)}


def _prefix(index: int, probe: ProbeFunction) -> str:
    return f"tool{index}_{probe.name}__"


def _run_source(tools: Sequence[Owner], maps: Sequence[_Used]) -> str:
    """`run` for these tools, and the functions that it passes to `loop.run_records`."""
    probes = [(index, probe) for index, tool in enumerate(tools) for probe in probes_of(tool)]
    numbers = _map_numbers(tools)
    recorded = {
        numbers[each.tool, each.spec.name]: each
        for each in maps
        if each.spec.recorded and not each.spec.hands_on
    }
    traces = [each for each in maps if each.spec.hands_on]

    def kinds(*fields: str, per: str | None = None) -> int:
        """Bits of the kinds for which a probe uses one of the fields; without fields, all kinds."""
        return _bits(
            kind
            for _, probe in probes
            for kind in probe.kinds
            if (not fields or set(fields) & set(probe.fields)) and per in (None, probe.per)
        )

    space = _bits(kinds_of("global"))
    masks = (
        kinds(),
        kinds(per="lane"),
        kinds("object", "known", "offset") & space,
        kinds("sectors", "ideal_sectors"),
        kinds("ways", "ideal_ways"),
        sum(1 << number for number in recorded),
        space,
    )
    rows = ", ".join(each.table.name for each in maps)
    parameters = f"words, at, end, state, scratch, sizes, layers, traced, capacity, {rows}"
    types = ", ".join(f'{name}="i8"' for name in parameters.rstrip(", ").split(", "))
    own = "number == 0 and " if recorded else ""
    calls = {per: _calls(probes, per, own) for per in ("warp", "lane")}
    for number, each in recorded.items():
        # records that a device wrote for a map are counted here
        given = [*(each.spec.method.keys), *("1" for _ in each.spec.method.amounts)]
        call = f"{each.table.name}__{each.spec.method.name}({', '.join(['env', *given])})"
        calls["lane"] += [f"if number == {number}:", f"    {call}"]
    taken, written = [], []
    for i, each in enumerate(traces):
        wrote = each.table.cell(tables.WROTE)
        taken.append(f"if number == {numbers[each.tool, each.spec.name]}:")
        taken += _note(i, each.table, "mask")
        written.append(f"if peek(state, {wrote}) != 0:")
        written += [*_note(i, each.table, f"peek(state, {wrote})"), f"    poke(state, {wrote}, 0)"]
    return "\n".join(
        [
            _function("run_warp", ("env", "number", *loop.WARP_FIELDS), calls["warp"]),
            _function("run_lane", ("env", "number", *loop.LANE_FIELDS), calls["lane"]),
            _function("take_record", (*_NOTE, "mask", "number"), taken),
            _function("write_record", _NOTE, written),
            f"""
@compiled({types})
def run({parameters}):
    env = (state, sizes, {rows})
    return run_records(
        words, at, end, env, scratch, layers, traced, capacity,
        {", ".join(map(str, masks))},
        run_warp, run_lane, take_record, write_record,
    )
""",
        ]
    )


_NOTE = ("state", "traced", "capacity", "at")


def _bits(kinds: Iterable[str]) -> int:
    return sum({1 << KIND[kind].number for kind in kinds})


def _function(name: str, parameters: Iterable[str], body: Sequence[str]) -> str:
    lines = "".join(f"    {line}\n" for line in body or ["pass"])
    return f"\n@inline\ndef {name}({', '.join(parameters)}):\n{lines}"


def _calls(probes: Iterable[tuple[int, ProbeFunction]], per: str, where: str) -> list[str]:
    """Calls of the probes for the current kind of access; `where`: a further condition."""
    lines = []
    for index, probe in probes:
        if probe.per == per:
            arguments = ", ".join((*(_SAME.get(each, each) for each in probe.fields), "env"))
            lines.append(f"if {where}({_bits(probe.kinds)} >> kind) & 1:")
            lines.append(f"    {_prefix(index, probe)}{probe.name}({arguments})")
    return lines


def _note(index: int, table: Table, lanes: str) -> list[str]:
    """Statements that store `at` and the lanes for the map of this index."""
    count = table.cell(tables.COUNT)
    return [
        f"    count = peek(state, {count})",
        f"    poke(traced, {2 * index} * capacity + count, at)",
        f"    poke(traced, {2 * index + 1} * capacity + count, {lanes})",
        f"    poke(state, {count}, count + 1)",
    ]
