"""Sums by launch, kernel, object, instruction, block, multiprocessor or index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pasta.probes.accumulators import Accumulator
from pasta.probes.kinds import MULTIPROCESSORS
from pasta.probes.maps.base import (
    IMPLICIT,
    KEYS,
    MAX_INDEX,
    By,
    Map,
    Number,
    amounts,
    checked_fields,
)
from pasta.probes.placements import PerLaunch, PerObject, PerPc, Placement
from pasta.probes.specs import MapSpec, Method, Parameter


@dataclass(frozen=True, kw_only=True)
class CounterSpec(MapSpec):
    """A counter for one tool instance."""

    @property
    def placement(self) -> Placement:
        """Placement of the counts on a device."""
        if "pc" in self.keys:
            return PerPc()
        if self.keys == ("object",):
            return PerObject()
        return PerLaunch(contended=self.keys != ("block",))


class Counter(Map[Accumulator]):
    """Sums: `maps.n.add(*keys, amount=1)`, with several fields `maps.n.add(*keys, reads=1, …)`.

    `by` is any of "launch", "kernel" (the current ones) and at most one of "object", "pc",
    "block", "sm" and an int N (an index below N); "pc" and N go together. Keys that the call
    gives are in the order of `by`. Of blocks, the last of `blocks` rows collects the rest.
    """

    def __init__(
        self, *, by: By = (), fields: tuple[str, ...] | str = ("count",), blocks: Number = 4096
    ) -> None:
        super().__init__()
        parts = self._checked_by(by, [*IMPLICIT, *KEYS], index=True)
        given = [part for part in parts if part not in IMPLICIT]
        indices = [part for part in parts if isinstance(part, int)]
        pair = {"index" if isinstance(part, int) else part for part in given}
        if len(given) > 1 and (pair != {"pc", "index"} or len(given) > 2):
            raise self._wrong(
                f"by {parts!r}",
                'give at most one of "object", "pc", "block", "sm", N, or "pc" with N',
            )
        self.by = tuple("index" if isinstance(part, int) else part for part in parts)
        self.fields = checked_fields(self, fields)
        self.blocks = self._number(blocks, "blocks", high=MAX_INDEX)
        self.index = self._number(indices[0], "by", high=MAX_INDEX) if indices else 0
        self.keys = tuple(part for part in self.by if part not in IMPLICIT)
        keys = (Parameter(key, field=key in ("object", "sm")) for key in self.keys)
        self.method = Method("add", (*keys, *amounts(self.fields)))

    def spec(self, options: Mapping[str, Any]) -> CounterSpec:
        """The map with the values of a tool's options. Raises ToolError."""
        sizes = {
            "block": self._value(self.blocks, options, high=MAX_INDEX),
            "sm": MULTIPROCESSORS,
            "index": self._value(self.index, options),
        }
        limits = {key: sizes[key] for key in self.keys if key in sizes}
        implicit = any(part in IMPLICIT for part in self.by)
        return self._spec(
            CounterSpec, keys=self.keys, fields=self.fields, per_launch=implicit, limits=limits
        )
