"""The keys with the largest sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.probes.accumulators import Accumulator, as_stored
from pasta.probes.maps.base import MAX_INDEX, Map, Number
from pasta.probes.placements import PerKey, Placement
from pasta.probes.specs import MapSpec, Method, Parameter
from pasta.probes.tables import OTHER, Table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.probes.accumulators import Columns


@dataclass(frozen=True, kw_only=True)
class TopKSpec(MapSpec):
    """A map of the largest sums for one tool instance: `capacity` in distinct keys, `k` in rows."""

    capacity: int
    k: int

    @property
    def placement(self) -> Placement:
        """Placement of the counts on a device."""
        return PerKey(self.capacity)

    def table(self, name: str, number: int) -> Table:
        """A table limited to `capacity` keys."""
        return Table(name, number, self.keys, self.fields, limit=self.capacity)


class TopKAccumulator(Accumulator):
    """The largest sums; `other`: amounts of keys beyond the capacity."""

    spec: TopKSpec

    def __init__(self, spec: TopKSpec) -> None:
        super().__init__(spec)
        self.other = 0
        self._known: NDArray[Any] | None = None

    def accumulate(self, columns: Columns, other: int = 0) -> None:
        """Adds counts of an executor; `other`: amounts that exceeded the executor's capacity."""
        self._check(columns)
        self.other += other
        keys = as_stored(columns["key"], np.dtype("u8"))
        if self._known is None:
            self._known = np.empty(0, np.uint64)
        distinct, first = np.unique(keys, return_index=True)
        new = first[~np.isin(distinct, self._known)]
        kept = keys[np.sort(new)[: self.spec.capacity - len(self._known)]]
        self._known = np.concatenate([self._known, kept])
        fits = np.isin(keys, self._known)
        counts = as_stored(columns["count"], np.dtype("u8"))
        self.other += sum(counts[~fits].tolist())
        self._sums.add({"key": keys[fits], "count": counts[fits]})

    def take(self, table: Table, sizes: NDArray[Any]) -> None:
        """Adds the counts in a table and clears them, but keeps the keys: the first ones stay."""
        self.accumulate(table.columns(), int(table.cells[OTHER]))
        table.clear_fields()

    def losses(self) -> list[str]:
        """Amounts of keys beyond the capacity, for the summary of the tool's result."""
        return [f"{self.other:,} of {self.spec.name} did not fit"] if self.other else []

    def rows(self) -> NDArray[Any]:
        """Columns `key` and `count` (uint64), the largest count first, at most `k` rows."""
        rows = self._sums.rows()
        return np.asarray(rows[np.lexsort([rows["key"], ~rows["count"]])][: self.spec.k])

    def total(self, field: str | None = None) -> int:
        """Sum over all keys, `other` included."""
        return int(sum(self._sums.rows()["count"].tolist())) + self.other


class TopK(Map[TopKAccumulator]):
    """The `k` keys with the largest sums: `maps.m.add(key, amount=1)`.

    Exact while there are no more than `capacity` distinct keys; later keys go to `other`.
    """

    storage = TopKAccumulator
    method = Method("add", (Parameter("key"), Parameter("amount", amount=True, default=1)))

    def __init__(self, k: Number, *, capacity: Number = 4096) -> None:
        super().__init__()
        self.k = self._number(k, "k")
        self.capacity = self._number(capacity, "capacity", high=MAX_INDEX)

    def spec(self, options: Mapping[str, Any]) -> TopKSpec:
        """The map with the values of a tool's options. Raises ToolError."""
        return self._spec(
            TopKSpec,
            keys=("key",),
            fields=("count",),
            capacity=self._value(self.capacity, options, high=MAX_INDEX),
            k=self._value(self.k, options),
        )
