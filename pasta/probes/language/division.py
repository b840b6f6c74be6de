"""Division in probes, defined for every divisor; probes that need it contain a copy."""

from __future__ import annotations


def integer__divide(a: int, b: int) -> int:
    """a // b; 0 for b = 0."""
    if b == 0:
        return 0
    if b == -1:
        return -a
    return a // b


def integer__remainder(a: int, b: int) -> int:
    """a % b; 0 for b = 0."""
    if b == 0 or b == -1:
        return 0
    return a % b
