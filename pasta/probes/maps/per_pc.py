"""Sums by instruction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pasta.probes.accumulators import Accumulator
from pasta.probes.maps.base import MAX_INDEX, MAX_PAIRS, Map, Number, amounts, checked_fields
from pasta.probes.maps.counter import CounterSpec
from pasta.probes.specs import Method, Parameter


class PerPC(Map[Accumulator]):
    """Sums per instruction: `maps.m.add(access.pc, reads=1, …)`, or with `bins=N` a histogram of
    small numbers at each: `maps.m.add(access.pc, bin, amount=1)`.

    In a tool with `estimates`, a GPU that probes a part of the launches counts `pairs` instructions
    in each of them.
    """

    def __init__(self, *fields: str, bins: Number | None = None, pairs: Number = 512) -> None:
        super().__init__()
        if fields and bins is not None:
            raise self._wrong("bins with fields", "use one of them")
        self.by = ("pc",)
        self.fields = checked_fields(self, fields or ("count",))
        self.bins = None if bins is None else self._number(bins, "bins", high=MAX_INDEX)
        self.pairs = self._number(pairs, "pairs", high=MAX_PAIRS)
        self.keys = ("pc",) if bins is None else ("pc", "bin")
        self.method = Method("add", (*map(Parameter, self.keys), *amounts(self.fields)))

    def spec(self, options: Mapping[str, Any]) -> CounterSpec:
        """The map with the values of a tool's options. Raises ToolError."""
        bins = self.bins
        return self._spec(
            CounterSpec,
            keys=self.keys,
            fields=self.fields,
            limits={} if bins is None else {"bin": self._value(bins, options, high=MAX_INDEX)},
            pairs=self._value(self.pairs, options, high=MAX_PAIRS),
        )
