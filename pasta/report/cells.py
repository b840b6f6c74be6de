"""Texts and cells of HTML reports, for notebooks and for the page."""

from __future__ import annotations

from typing import Any

from pasta.table import Unit, formatted, visible


def shortened(text: str, limit: int) -> str:
    """A text of at most `limit` characters: what is left out is in the middle."""
    if len(text) <= limit:
        return text
    last = limit // 4
    return f"{text[: limit - last - 1]}…{text[-last:]}"


def cell(value: Any, unit: Unit | None = None) -> str:
    """A value as text reports write it, in one line."""
    return visible(formatted(value, unit))
