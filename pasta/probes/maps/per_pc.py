"""Sums by instruction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pasta.probes.accumulators import Accumulator
from pasta.probes.maps.base import MAX_INDEX, Map, Number, amounts, checked_fields
from pasta.probes.placements import PerPc, Placement
from pasta.probes.specs import MapSpec, Method, Parameter


@dataclass(frozen=True, kw_only=True)
class PerPCSpec(MapSpec):
    """A map by instruction for one tool instance."""

    @property
    def placement(self) -> Placement:
        """Placement of the counts on a device."""
        return PerPc()


class PerPC(Map[Accumulator]):
    """Sums per instruction: `maps.m.add(access.pc, reads=1, …)`, or with `bins=N` a histogram of
    small numbers at each: `maps.m.add(access.pc, bin, amount=1)`."""

    def __init__(self, *fields: str, bins: Number | None = None) -> None:
        super().__init__()
        if fields and bins is not None:
            raise self._wrong("bins with fields", "give one of them")
        self.by = ("pc",)
        self.fields = checked_fields(self, fields or ("count",))
        self.bins = None if bins is None else self._number(bins, "bins", high=MAX_INDEX)
        self.keys = ("pc",) if bins is None else ("pc", "bin")
        self.method = Method("add", (*map(Parameter, self.keys), *amounts(self.fields)))

    def spec(self, options: Mapping[str, Any]) -> PerPCSpec:
        """The map with the values of a tool's options. Raises ToolError."""
        bins = self.bins
        limits = {} if bins is None else {"bin": self._value(bins, options, high=MAX_INDEX)}
        return self._spec(PerPCSpec, keys=self.keys, fields=self.fields, limits=limits)
