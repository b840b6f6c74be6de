"""Sums by launch, kernel, object, instruction, block, multiprocessor or index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pasta.probes.accumulators import Accumulator
from pasta.probes.kinds import MULTIPROCESSORS
from pasta.probes.maps.base import (
    IMPLICIT,
    KEYS,
    MAX_INDEX,
    MAX_PAIRS,
    By,
    Map,
    Number,
    amounts,
    checked_fields,
)
from pasta.probes.placements import (
    PerLaunch,
    PerLaunchPc,
    PerObject,
    PerPair,
    PerPc,
    Placement,
)
from pasta.probes.specs import MapSpec, Method, Parameter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.probes.accumulators import Columns

#: Keys that are allowed together with others.
_TOGETHER = ({"pc", "index"}, {"object", "pc"})
#: Rows that are added before those beyond the capacity are dropped.
_SLACK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class CounterSpec(MapSpec):
    """A counter for one tool instance. By instruction: `pairs` of an object and an instruction, or
    instructions, in a launch on a device; with the object: `capacity` rows."""

    pairs: int = 0
    capacity: int = 0

    def for_estimates(self) -> CounterSpec:
        """The same map, estimated unless it counts by launch."""
        if "launch" in self.by:
            return self
        return replace(self, per_launch=True, estimated=True)

    @property
    def placement(self) -> Placement:
        """Placement of the counts on a device."""
        if {"object", "pc"} <= set(self.keys):
            return PerPair(self.pairs)
        if "pc" in self.keys:
            by_launch = self.sampled or any(part in IMPLICIT for part in self.by)
            return PerLaunchPc(self.pairs) if by_launch else PerPc()
        if self.keys == ("object",):
            return PerObject()
        return PerLaunch(contended=self.keys != ("block",))


class PairAccumulator(Accumulator):
    """Sums by object and instruction: the `capacity` smallest keys; `other`: amounts (of the first
    field) of the rest.

    The kept rows do not depend on the order of deliveries: a dropped key has `capacity` smaller
    keys. By launch, the first launches are kept.
    """

    spec: CounterSpec

    def __init__(self, spec: CounterSpec) -> None:
        super().__init__(spec)
        self.other = 0

    def accumulate(self, columns: Columns) -> None:
        """Adds counts of an executor. Raises ValueError for other columns."""
        super().accumulate(columns)
        if len(self._sums) > self.spec.capacity + _SLACK:
            self._trim()

    def _trim(self) -> None:
        """Drop rows beyond the capacity, and sum their amounts."""
        rows, most = self._sums.rows(), self.spec.capacity
        if len(rows) > most:
            self.other += sum(rows[self.spec.fields[0]][most:].tolist())
            self._sums.keep(rows[:most].copy())

    def losses(self) -> list[str]:
        """Amounts of keys beyond the capacity, for the summary of the tool's result."""
        self._trim()
        if not self.other:
            return []
        field = "" if len(self.spec.fields) == 1 else f" ({self.spec.fields[0]})"
        return [f"{self.other:,} of {self.spec.name}{field} did not fit"]

    def _stored(self) -> NDArray[Any]:
        """The rows without keys beyond the capacity."""
        self._trim()
        return super()._stored()


class Counter(Map[Accumulator]):
    """Sums: `maps.n.add(*keys, amount=1)`, with several fields `maps.n.add(*keys, reads=1, …)`.

    `by` is any of "launch", "kernel" (the current ones) and at most one of "object", "pc",
    "block", "sm" and an int N (an index below N); "pc" may be combined with N or "object". Calls
    pass keys in the order of `by`. The last of `blocks` rows collects all further blocks. By object
    and pc, a GPU counts `pairs` of both in each launch, and `capacity` rows are kept; the excess is
    reported. The same limits apply to instructions, by pc and launch.
    """

    def __init__(
        self,
        *,
        by: By = (),
        fields: tuple[str, ...] | str = ("count",),
        blocks: Number = 4096,
        pairs: Number = 512,
        capacity: Number = 1 << 22,
    ) -> None:
        super().__init__()
        parts = self._checked_by(by, [*IMPLICIT, *KEYS], index=True)
        given = [part for part in parts if part not in IMPLICIT]
        indices = [part for part in parts if isinstance(part, int)]
        pair = {"index" if isinstance(part, int) else part for part in given}
        if len(given) > 1 and (pair not in _TOGETHER or len(given) > 2):
            raise self._wrong(
                f"by {parts!r}",
                ('use at most one of "object", "pc", "block", "sm", N, or "pc" with N or "object"'),
            )
        self.by = tuple("index" if isinstance(part, int) else part for part in parts)
        self.fields = checked_fields(self, fields)
        self.blocks = self._number(blocks, "blocks", high=MAX_INDEX)
        self.index = self._number(indices[0], "by", high=MAX_INDEX) if indices else 0
        self.pairs = self._number(pairs, "pairs", high=MAX_PAIRS)
        self.capacity = self._number(capacity, "capacity")
        self.keys = tuple(part for part in self.by if part not in IMPLICIT)
        self._paired = set(self.keys) == {"object", "pc"}
        if self._paired:
            self.storage = PairAccumulator
        keys = (Parameter(key, field=key in ("object", "sm")) for key in self.keys)
        self.method = Method("add", (*keys, *amounts(self.fields)))

    def spec(self, options: Mapping[str, Any]) -> CounterSpec:
        """The map with the values of a tool's options. Raises ToolError."""
        indices = {
            "block": self._value(self.blocks, options, high=MAX_INDEX),
            "sm": MULTIPROCESSORS,
            "index": self._value(self.index, options),
        }
        limits = {key: indices[key] for key in self.keys if key in indices}
        implicit = any(part in IMPLICIT for part in self.by)
        sizes = {}
        if "pc" in self.keys:
            sizes["pairs"] = self._value(self.pairs, options, high=MAX_PAIRS)
        if self._paired:
            sizes["capacity"] = self._value(self.capacity, options)
        return self._spec(
            CounterSpec,
            keys=self.keys,
            fields=self.fields,
            per_launch=implicit,
            limits=limits,
            **sizes,
        )
