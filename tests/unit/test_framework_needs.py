"""What tools require of frameworks."""

from __future__ import annotations

import pytest

from pasta.frameworks.base import Wanted
from pasta.plugins import load_tools
from pasta.tool import Tool
from tests.support.counted import Counted


class Estimated(Counted):
    """Estimates from probes."""

    estimates = True


class OfLaunches(Estimated):
    """Also looks at launches, not at their operators."""

    def on_launches(self, launches: object) -> None:
        """Nothing."""


class OfOperators(OfLaunches):
    """Also looks at the operators of launches."""

    needs = ("operators",)


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ([Estimated()], True),
        ([OfLaunches()], True),
        ([OfOperators()], False),
        ([Counted()], False),
        (load_tools(["access_count", "coalescing", "counters"]), True),
        *(
            ([Estimated(), *load_tools([name])], False)
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
