"""Tools that the benchmark compares: empty probes, the lower bounds, and exact attribution."""

from __future__ import annotations

from typing import Any

from pasta.probes import Counter, probe
from pasta.tool import Result, Tool


class EmptyGlobal(Tool):
    """Nothing, at every load, store and atomic on global memory."""

    none = Counter()

    @probe.on("global")
    def touch(access: Any, maps: Any) -> None:
        """Do nothing."""

    def result(self) -> Result:
        """An empty result."""
        return Result(summary="nothing was counted")


class EmptyTransfers(EmptyGlobal):
    """Nothing, at what the floor of `pc_dependency` and `values` patches."""

    @probe.global_memory
    def touch(access: Any, maps: Any) -> None:
        """Do nothing."""


class EmptyMemory(EmptyGlobal):
    """Nothing, at everything that accesses memory."""

    @probe.memory
    def touch(access: Any, maps: Any) -> None:
        """Do nothing."""


class AttributeByInstruction(Tool):
    """Accesses by launch, object and instruction: what `tensor_stalls` counts."""

    by_pair = Counter(by=("launch", "object", "pc"))

    @probe.on("global")
    def touch(access: Any, maps: Any) -> None:
        """Count a lane's access by launch, object and instruction."""
        maps.by_pair.add(access.object, access.pc)

    def result(self) -> Result:
        """The number of accesses."""
        return Result(summary=f"accesses={self.by_pair.total()}")


class Attribute(Tool):
    """Accesses by object and launch: exact, 64-bit counts."""

    by_object = Counter(by=("launch", "object"))

    @probe.on("global")
    def touch(access: Any, maps: Any) -> None:
        """Count a lane's access by launch and object."""
        maps.by_object.add(access.object)

    def result(self) -> Result:
        """The number of accesses."""
        return Result(summary=f"accesses={self.by_object.total()}")
