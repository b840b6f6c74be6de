"""Access records, passed to the tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pasta.errors import ToolError
from pasta.options import Option
from pasta.probes.accumulators import Accumulator, Sums
from pasta.probes.maps.base import Map
from pasta.probes.placements import Placement, Recorded
from pasta.probes.specs import MapSpec, Method
from pasta.probes.tables import LANES, WROTE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.probes.tables import Table


@dataclass(frozen=True, kw_only=True)
class TraceSpec(MapSpec):
    """A map of accesses for one tool instance."""

    hands_on: ClassVar[bool] = True

    @property
    def placement(self) -> Placement:
        """Records: nothing is counted."""
        return Recorded()

    def operation(self, table: Table) -> str:
        """Source of `write`, which marks lanes; it may mark them again after a map was full."""
        wrote = table.cell(WROTE)
        return f"""
@inline
def {table.name}__write(env):
    state = env[0]
    poke(state, {wrote}, peek(state, {wrote}) | peek(state, {LANES}))
"""


class TraceAccumulator(Accumulator):
    """Number of accesses passed to `on_accesses`."""

    def _make_sums(self) -> Sums:
        self.written = 0
        return Sums((), ("written",))

    def take(self, table: Table, sizes: NDArray[Any]) -> None:
        """Does nothing: written records are passed on by chunk."""

    def rows(self) -> NDArray[Any]:
        """Raises ToolError, as no rows are stored."""
        raise ToolError(
            f"the map {self.spec.name} stores nothing", remedy="handle its accesses in on_accesses"
        )

    def total(self, field: str | None = None) -> int:
        """Number of accesses passed to `on_accesses`."""
        return self.written


class Trace(Map[TraceAccumulator]):
    """Access records: `maps.m.write(access)` passes the record, with the lanes that wrote it, to
    the tool's `on_accesses`. `values`: an option of the tool, whether records have the values of
    accesses to global memory, where the source can record them."""

    storage = TraceAccumulator
    calls = "on_accesses"
    method = Method("write", takes_access=True)

    def __init__(self, *, values: Option[bool] | bool = False) -> None:
        super().__init__()
        self.values = values

    def spec(self, options: Mapping[str, Any]) -> TraceSpec:
        """The map with the values of a tool's options. Raises ToolError."""
        values = self.values
        given = options[values.name] if isinstance(values, Option) else values
        return self._spec(TraceSpec, with_values=bool(given))
