"""Text about disabled tools, from a run's manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pasta.table import plain

_MAX_LINE = 2000  # characters


def failure_lines(manifest: Mapping[str, Any]) -> Iterator[str]:
    """A line about each disabled tool."""
    for tool, failure in manifest.get("failures", {}).items():
        where = ", ".join(failure[key] for key in ("where", "place") if key in failure)
        text = f"{failure['reason']} (in {where}; traceback in log.txt)"
        yield plain(f"tool {tool} was disabled: {text}", _MAX_LINE)
