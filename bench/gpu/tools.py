"""Tools that the benchmark compares: empty probes, which are the floors, and exact attribution."""

from __future__ import annotations

from typing import Any

from pasta.probes import Counter, probe
from pasta.tool import Result, Tool


class EmptyGlobal(Tool):
    """Nothing, at every load, store and atomic on global memory."""

    none = Counter()

    @probe.on("global")
    def touch(access: Any, maps: Any) -> None:
        pass

    def result(self) -> Result:
        return Result(summary="nothing was counted")


class EmptyMemory(EmptyGlobal):
    """Nothing, at everything that accesses memory."""

    @probe.memory
    def touch(access: Any, maps: Any) -> None:
        pass


class Attribute(Tool):
    """Accesses by object and launch: exact, 64-bit counts."""

    by_object = Counter(by=("launch", "object"))

    @probe.on("global")
    def touch(access: Any, maps: Any) -> None:
        maps.by_object.add(access.object)

    def result(self) -> Result:
        return Result(summary=f"accesses={self.by_object.total()}")
