"""A value for each granule of memory, which probes read and replace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pasta.errors import ToolError
from pasta.probes.accumulators import Accumulator, Sums
from pasta.probes.maps.base import Map, Number
from pasta.probes.placements import PerAddress, Placement
from pasta.probes.specs import MapSpec, Method, Parameter
from pasta.probes.tables import COUNT, DONE, EXCHANGED, OTHER, SKIP, Table

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Maximum of granules: a device has 16 bytes for each of twice as many.
_MAX_CAPACITY = 1 << 23
_MAX_GRANULE = 1 << 30


@dataclass(frozen=True, kw_only=True)
class ShadowSpec(MapSpec):
    """A shadow for one tool instance: `capacity` in granules of `granularity` bytes."""

    capacity: int
    granularity: int

    @property
    def placement(self) -> Placement:
        """A value for each granule."""
        return PerAddress(self.capacity, self.granularity)

    def table(self, name: str, number: int) -> Table:
        """A table that grows up to `capacity` granules and keeps them."""
        return Table(name, number, self.keys, self.fields, most=self.capacity)

    def operation(self, table: Table) -> str:
        """Source of `exchange`. A repeated one, after a map was full, returns what it returned
        before, as the probe's further operations depend on it."""
        cell = 1 + len(table.keys)
        shift = self.granularity.bit_length() - 1
        full = [
            f"if peek(state, {table.cell(COUNT)}) >= {self.capacity}:",
            "    poke(state, -1 - number, 0)",
            *(f"    {line}" for line in table.lose("1", "0")),
            *table.stop("0"),
        ]
        return (
            table.find()
            + f"""
@inline
def {table.name}__exchange(env, address, value):
    state = env[0]
    number = peek(state, {EXCHANGED})
    poke(state, {EXCHANGED}, number + 1)
    if peek(state, {SKIP}) != 0:
        add(state, {SKIP}, -1)
        add(state, {DONE}, 1)
        return peek(state, -1 - number)
    table = env[{2 + table.number}]
    granule = (address >> {shift}) & {(1 << (64 - shift)) - 1 if shift else -1}"""
            + table.row("    ", full)
            + f"""
    previous = peek(table, at + {cell})
    poke(table, at + {cell}, value)
    poke(state, -1 - number, previous)
    add(state, {DONE}, 1)
    return previous
"""
        )


class ShadowAccumulator(Accumulator):
    """Exchanges that a shadow lost; its values stay where probes run."""

    spec: ShadowSpec

    def _make_sums(self) -> Sums:
        self.lost = 0
        return Sums((), ("lost",))

    def take(self, table: Table, sizes: NDArray[Any]) -> None:
        """Counts lost exchanges; the table keeps its values."""
        self.lost += int(table.cells[OTHER])
        table.cells[OTHER] = 0

    def losses(self) -> list[str]:
        """Exchanges without a granule, for the summary of the tool's result."""
        return [f"{self.lost:,} of {self.spec.name} did not fit"] if self.lost else []

    def rows(self) -> NDArray[Any]:
        """Raises ToolError: probes read the values."""
        raise ToolError(
            f"the values of the map {self.spec.name} are available only to probes",
            remedy="count what exchange returns in another map",
        )

    def total(self, field: str | None = None) -> int:
        """Number of lost exchanges."""
        return self.lost


class Shadow(Map[ShadowAccumulator]):
    """A value for each granule of memory: `previous = maps.m.exchange(access.address, value)`
    stores a value and returns the previous one, 0 at first.

    The first `capacity` granules of `granularity` bytes, a power of two, have values. Exchanges of
    others return 0 and are counted as lost. Any integer can be used as an address.
    """

    storage = ShadowAccumulator
    method = Method("exchange", (Parameter("address"), Parameter("value")), returns=True)

    def __init__(self, *, granularity: Number = 4, capacity: Number = 1 << 20) -> None:
        super().__init__()
        self.granularity = self._number(granularity, "granularity", high=_MAX_GRANULE)
        self.capacity = self._number(capacity, "capacity", high=_MAX_CAPACITY)

    def spec(self, options: Mapping[str, Any]) -> ShadowSpec:
        """The map with the values of a tool's options. Raises ToolError."""
        granularity = self._value(self.granularity, options, high=_MAX_GRANULE)
        if granularity & (granularity - 1):
            raise ToolError(
                f"the map {self.name} has granules of {granularity} bytes",
                remedy="use a power of two",
            )
        return self._spec(
            ShadowSpec,
            keys=("granule",),
            fields=("value",),
            capacity=self._value(self.capacity, options, high=_MAX_CAPACITY),
            granularity=granularity,
        )
