"""Texts and cells of HTML reports, for notebooks and for the page."""

from __future__ import annotations

import re
from typing import Any

from pasta.table import Unit, formatted

#: Control characters, those that turn the direction of text, line separators and lone surrogates.
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str) -> str:
    """A text in one line, with what a browser would not show, or obey, written as `\\x1b`."""
    return _INVISIBLE.sub(_written, text)


def _written(found: re.Match[str]) -> str:
    code = ord(found[0])
    return _NAMED.get(found[0]) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def shortened(text: str, limit: int) -> str:
    """A text of at most `limit` characters: what is left out is in the middle."""
    if len(text) <= limit:
        return text
    last = limit // 4
    return f"{text[: limit - last - 1]}…{text[-last:]}"


def cell(value: Any, unit: Unit | None = None) -> str:
    """A value as text reports write it, in one line."""
    return visible(formatted(value, unit))
