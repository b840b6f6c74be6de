"""Memory of the CPU executor: cells of its state, a hash table for each map, and their code.

A row of a table is a mark, the keys and the fields, as int64. The methods that return source text
are for the module that `cpu` generates and Numba compiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pasta.lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Cells of `state`: operations of the record still to skip, and done; number of the full map plus 1;
# operations done before it was full; current launch; lanes that run the probe; bytes between the
# sizes of objects; values exchanged in the record, the last of which are before the state: value n
# is at -1 - n.
SKIP, DONE, FULL, RESUME, LAUNCH, LANES, SIZE_STRIDE, EXCHANGED = range(8)
# Cells of each map after those: last row; distinct keys, or records written; words of the table;
# dropped amounts; lanes that wrote.
_FIRST, _CELLS = 8, 5
LAST, COUNT, LENGTH, OTHER, WROTE = range(_CELLS)

_SKIP_ALL = 1 << 62
_MIN_SLOTS = 1 << 10
#: Words up to which a table is filled to one eighth, larger ones to one half: a collision costs a
#: mispredicted branch.
_MAX_SPARSE_WORDS = 1 << 20


def state_of(tables: int, exchanged: int = 0) -> NDArray[Any]:
    """State (int64) for a number of tables, and for the values that a record exchanges."""
    return np.zeros(exchanged + _FIRST + _CELLS * tables, np.int64)[exchanged:]


@dataclass
class Table:
    """Counts of one map since its last delivery. `limit`: maximum of distinct keys, later ones
    count as other; 0: the table grows. `most`: maximum of keys to which it grows, which it keeps;
    0: no maximum, and it may be delivered and cleared."""

    name: str
    number: int
    keys: tuple[str, ...]
    fields: tuple[str, ...]
    limit: int = 0
    most: int = 0
    rows: NDArray[Any] = field(init=False)
    cells: NDArray[Any] = field(init=False)
    #: Record and operation when it was last full: the same again needs a larger, not an empty
    #: table.
    last_full: tuple[int, int] = (-1, -1)

    def __post_init__(self) -> None:
        slots = 1 if not self.keys else max(_MIN_SLOTS, 1 << (2 * self.limit - 1).bit_length())
        self.rows = np.zeros(self.width * slots if self.fields else 0, np.int64)

    def attach(self, state: NDArray[Any]) -> None:
        """Use the cells of a state."""
        self.cells = state[self.cell(0) : self.cell(_CELLS)]
        self.cells[LENGTH] = len(self.rows)

    @property
    def width(self) -> int:
        """Words of a row."""
        return 1 + len(self.keys) + len(self.fields)

    def cell(self, which: int) -> int:
        """Index in the state of one of the map's cells."""
        return _FIRST + _CELLS * self.number + which

    def columns(self) -> dict[str, NDArray[Any]]:
        """Columns (int64) of the used rows."""
        rows = self.rows.reshape(-1, self.width)
        used = rows[rows[:, 0] != 0]
        return {name: used[:, 1 + i].copy() for i, name in enumerate((*self.keys, *self.fields))}

    def clear(self) -> None:
        """Clear all rows."""
        self.rows[:] = 0
        self.cells[COUNT] = self.cells[LAST] = 0

    def clear_fields(self) -> None:
        """Clear the fields, but keep the keys."""
        self.rows.reshape(-1, self.width)[:, 1 + len(self.keys) :] = 0
        self.cells[OTHER] = 0

    # text of the generated module

    def head(self, method: str, parameters: Sequence[str]) -> str:
        """First statements of an operation, which skip it if done before a map was full."""
        return f"""
@inline
def {self.name}__{method}(env, {", ".join(parameters)}):
    state = env[0]
    if peek(state, {SKIP}) != 0:
        add(state, {SKIP}, -1)
        add(state, {DONE}, 1)
        return
    table = env[{2 + self.number}]"""

    def find(self) -> str:
        """The function that finds or creates the row of keys; it returns -1 if the table is
        full."""
        keys, width, count = self.keys, self.width, self.cell(COUNT)
        length = f"peek(state, {self.cell(LENGTH)})"
        limit = f"{length} // ({8 * width} if {length} <= {_MAX_SPARSE_WORDS} else {2 * width})"
        if self.limit or not keys:
            limit = str(self.limit or 1)
        elif self.most:
            limit = f"min({limit}, {self.most})"
        hashes = "".join(f"    h = hashed(h, {key})\n" for key in keys)
        same = " and ".join(f"peek(table, at + {1 + i}) == {key}" for i, key in enumerate(keys))
        stored = "".join(f"    poke(table, at + {1 + i}, {key})\n" for i, key in enumerate(keys))
        return f"""
@function
def {self.name}__find({", ".join(["state", "table", *keys])}):
    h = np.int64(0)
{hashes}    at = (h & ({length} // {width} - 1)) * {width}
    while peek(table, at) != 0:
        if {same or "True"}:
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

    def row(self, indent: str, full: Sequence[str]) -> str:
        """Statements that set `at` to the row of the keys, usually that of the previous operation.
        `full`: statements for a full table."""
        differs = [f"peek(table, at + {1 + i}) != {key}" for i, key in enumerate(self.keys)]
        lines = [
            f"at = peek(state, {self.cell(LAST)})",
            f"if {' or '.join(['peek(table, at) == 0', *differs])}:",
            f"    at = {self.name}__find({', '.join(['state', 'table', *self.keys])})",
            "    if at < 0:",
            *(f"        {line}" for line in full),
            f"    poke(state, {self.cell(LAST)}, at)",
        ]
        return "".join(f"\n{indent}{line}" for line in lines)

    def stop(self, result: str = "") -> list[str]:
        """Statements that end `run`, so that the table can be delivered or grown."""
        return [
            f"poke(state, {FULL}, {self.number + 1})",
            f"poke(state, {RESUME}, peek(state, {DONE}))",
            f"poke(state, {SKIP}, {_SKIP_ALL})",
            f"return {result}".rstrip(),
        ]

    def lose(self, amount: str, result: str = "") -> list[str]:
        """Statements that add an amount to that of other keys."""
        return [
            f"add(state, {self.cell(OTHER)}, {amount})",
            f"add(state, {DONE}, 1)",
            f"return {result}".rstrip(),
        ]
