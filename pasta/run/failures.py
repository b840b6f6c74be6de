"""Tools that were disabled, as a run's manifest has them, in words."""

from __future__ import annotations

from collections.abc import Mapping


def failure_text(tool: str, failure: Mapping[str, str]) -> str:
    """A line about a tool that was disabled."""
    return (
        f"tool {tool} was disabled: {failure['reason']}"
        f" (in {failure['where']}; traceback in log.txt)"
    )
