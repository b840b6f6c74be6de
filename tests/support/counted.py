"""The smallest tool with a probe."""

from __future__ import annotations

from pasta.probes import Counter, probe
from pasta.tool import Result, Tool


class Counted(Tool):
    """Counts accesses."""

    total = Counter()

    @probe.global_memory
    def count(access, maps) -> None:  # type: ignore[no-untyped-def]
        maps.total.add()

    def result(self) -> Result:
        return Result(summary="")
