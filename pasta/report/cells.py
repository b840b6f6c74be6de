"""Cells of HTML reports."""

from __future__ import annotations

from typing import Any

from pasta.table import Unit, formatted, visible


def cell(value: Any, unit: Unit | None = None) -> str:
    """A value formatted as in text reports, on one line."""
    return visible(formatted(value, unit))
