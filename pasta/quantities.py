"""Sizes and durations as users write them: a number with a unit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_POWERS = {letter: power for power, letter in enumerate("kmgt", 1)}
#: Bytes by unit, in lower case.
BYTES: Final[dict[str, int]] = {
    "": 1,
    "b": 1,
    **{f"{letter}ib": 1 << 10 * power for letter, power in _POWERS.items()},
    **{f"{letter}b": 1000**power for letter, power in _POWERS.items()},
}
#: Nanoseconds by unit; seconds without one.
NANOSECONDS: Final[dict[str, int]] = {
    "": 10**9, "ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9,
    "h": 3600 * 10**9,
}  # fmt: skip
#: More digits are above every bound.
_QUANTITY = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([a-zµ]*)\s*", re.IGNORECASE)


def scaled(text: str, units: Mapping[str, int]) -> int | None:
    """The number of a text such as "1.5 GiB", by its unit; None for another text."""
    match = _QUANTITY.fullmatch(text)
    scale = units.get(match[2].lower()) if match else None
    if match is None or scale is None:
        return None
    return int(match[1]) * scale if "." not in match[1] else round(float(match[1]) * scale)
