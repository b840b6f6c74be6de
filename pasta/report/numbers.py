"""Numbers of a column as text, with one unit and the same number of decimals in all cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pasta.table import BYTES, TIMES, Unit, formatted

#: Preferred range of a column's numbers in its unit.
_SMALL, _LARGE = 0.01, 99_999.5
_DECIMALS = 2
#: Outside of this range, numbers without a unit are written with an exponent.
_MIN_FIXED, _MAX_FIXED = 1e-6, 1e15


def column_texts(values: Sequence[Any], unit: Unit | None = None) -> list[str]:
    """The values of a column as text; absent ones are "-".

    Bytes and times share one unit, in which the smallest number does not round to 0 and the
    largest stays readable. Numbers that round to 0 nevertheless are written as `<0.001 s`.
    """
    numbers = [abs(value) for value in values if _is_number(value) and math.isfinite(value)]
    if unit in ("bytes", "ns"):
        names, step = (BYTES, 1024) if unit == "bytes" else (TIMES, 1000)
        at = _unit(numbers, len(names), step)
        size = step**at
        decimals = _decimals([number / size for number in numbers]) if at else 0
        return [_scaled(value, size, decimals, f" {names[at]}", unit) for value in values]
    if unit in (None, "count") and any(isinstance(value, float) for value in values):
        if not numbers or not any(numbers) or _MIN_FIXED <= max(numbers) < _MAX_FIXED:
            decimals = _significant(numbers)
            return [_scaled(value, 1, decimals, "", unit) for value in values]
        return [f"{value:.3g}" if _is_number(value) else formatted(value) for value in values]
    return [formatted(value, unit) for value in values]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _unit(numbers: Sequence[float], units: int, step: int) -> int:
    """Exponent of `step` for the unit of a column."""
    largest = max(numbers, default=0)
    smallest = min((number for number in numbers if number), default=0)
    at = 0
    while at + 1 < units and round(largest / step**at, _DECIMALS) >= step:
        at += 1
    while at and largest <= _LARGE * step ** (at - 1):
        if smallest >= (_SMALL if at > 1 else 1) * step**at:  # whole bytes and ns are exact
            break
        at -= 1
    return at


def _decimals(sizes: Sequence[float]) -> int:
    """Decimals: 0 for whole numbers, otherwise 2, or 3 if small numbers need it."""
    if all(float(size).is_integer() for size in sizes):
        return 0
    return _DECIMALS + any(0.0005 <= size < 10 * _SMALL for size in sizes)


def _significant(numbers: Sequence[float]) -> int:
    """Decimals so that the smallest number has three digits, limited by the largest number."""
    largest = max(numbers, default=0)
    smallest = min((number for number in numbers if number), default=0)
    if not smallest or all(float(number).is_integer() for number in numbers):
        return 0
    limit = (
        3 - _power(largest) if largest < 1 else 3 if largest < 1e4 else 1 if largest < 1e5 else 0
    )
    return min(max(2 - _power(smallest), 0), limit)


def _power(number: float) -> int:
    return math.floor(math.log10(number))


def _scaled(value: Any, size: int, decimals: int, unit: str, kind: Unit | None) -> str:
    if not _is_number(value) or not math.isfinite(value):
        return formatted(value) if kind is None or value is None else f"{value}"
    text = f"{value / size if size > 1 else value:,.{decimals}f}"
    if value and not any(digit in text for digit in "123456789"):
        sign = ">-" if value < 0 else "<"
        return f"{sign}{10**-decimals:.{decimals}f}{unit}"
    return f"{text}{unit}"
