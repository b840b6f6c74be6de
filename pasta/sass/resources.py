"""Numbers of what instructions define and use: registers, predicates, barriers, scoreboards."""

from __future__ import annotations

from typing import Final

#: First number of each class, and its number of members.
R: Final = 0  # R0 to R254; RZ reads as zero
UR: Final = 256  # uniform registers
P: Final = 512  # P0 to P6; PT is true
UP: Final = 520
B: Final = 528  # convergence barriers, up to B15
SB: Final = 544  # scoreboards SB0 to SB5
GSB: Final = 552  # scoreboards of warpgroup operations
COUNT: Final = 560

_CLASSES: Final = ((GSB, "gsb"), (SB, "SB"), (B, "B"), (UP, "UP"), (P, "P"), (UR, "UR"), (R, "R"))
_SIZES: Final = {R: 255, UR: 255, P: 7, UP: 7, B: 16, SB: 6, GSB: 8}
FIRST: Final = {name: first for first, name in _CLASSES}


def name(resource: int) -> str:
    """Assembly name: R12, UP0, SB3. Raises ValueError for no resource."""
    for first, prefix in _CLASSES:
        if first <= resource < first + _SIZES[first]:
            return f"{prefix}{resource - first}"
    raise ValueError(f"{resource} is no resource")


def span(first: int, index: int, count: int) -> range:
    """`count` consecutive members of a class from `index`, within the class."""
    end = min(index + count, _SIZES[first])
    return range(first + index, first + end)
