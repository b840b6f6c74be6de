"""What tools require of frameworks."""

from __future__ import annotations

import pytest

from pasta.frameworks.base import Wanted
from pasta.plugins import load_tools
from pasta.probes import Counter, probe
from pasta.tool import Result, Tool


class Counted(Tool):
    """Estimates from probes."""

    estimates = True
    total = Counter()

    @probe.global_memory
    def count(access, maps) -> None:  # type: ignore[no-untyped-def]
        maps.total.add()

    def result(self) -> Result:
        return Result(summary="")


class OfLaunches(Counted):
    """Also looks at launches, not at their operators."""

    def on_launches(self, launches: object) -> None:
        """Nothing."""


class OfOperators(OfLaunches):
    """Also looks at the operators of launches."""

    needs = ("operators",)


class NotEstimated(Counted):
    """Counts of the probed launches only."""

    estimates = False


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ([Counted()], True),
        ([OfLaunches()], True),
        ([OfOperators()], False),
        ([NotEstimated()], False),
        (load_tools(["access_count", "coalescing", "counters"]), True),
        *(
            ([Counted(), *load_tools([name])], False)
            for name in (
                "operators",
                "kernel_freq",
                "memory_timeline",
                "event_trace",
                "working_set",
            )
        ),
    ],
)
def test_operators_are_required_at_probes_only(tools: list[Tool], expected: bool) -> None:
    assert Wanted.at_probes(tools) is expected
