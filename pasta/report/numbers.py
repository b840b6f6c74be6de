"""Numbers of a column as text: one unit, and as many decimals, in all of its cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pasta.table import BYTES, TIMES, Unit, formatted

#: Least and largest number of a column that its unit should give.
_SMALL, _LARGE = 0.01, 99_999.5
_DECIMALS = 2
#: Beyond, numbers without a unit are written with an exponent.
_LEAST, _MOST = 1e-6, 1e15


def column_texts(values: Sequence[Any], unit: Unit | None = None) -> list[str]:
    """The values of a column as text reports write them; absent ones are "-".

    Bytes and times have the unit of the column: one in which the smallest number does not vanish
    while the largest can be read. Numbers that would be 0 all the same are `<0.001 s`.
    """
    numbers = [
        abs(value)
        for value in values
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    ]
    if unit in ("bytes", "ns"):
        names, step = (BYTES, 1024) if unit == "bytes" else (TIMES, 1000)
        at = _unit(numbers, len(names), step)
        size = step**at
        decimals = _decimals([number / size for number in numbers]) if at else 0
        return [_scaled(value, size, decimals, f" {names[at]}", unit) for value in values]
    if unit in (None, "count") and any(isinstance(value, float) for value in values):
        if not numbers or not any(numbers) or _LEAST <= max(numbers) < _MOST:
            decimals = _significant(numbers)
            return [_scaled(value, 1, decimals, "", unit) for value in values]
        return [f"{value:.3g}" if _is_number(value) else formatted(value) for value in values]
    return [formatted(value, unit) for value in values]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _unit(numbers: Sequence[float], units: int, step: int) -> int:
    """Power of `step` that is the unit of a column."""
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
    """None for whole numbers, else two, and one more where that tells more of a small number."""
    if all(float(size).is_integer() for size in sizes):
        return 0
    return _DECIMALS + any(0.0005 <= size < 10 * _SMALL for size in sizes)


def _significant(numbers: Sequence[float]) -> int:
    """Decimals with which the smallest number has three digits, the largest not too many."""
    largest = max(numbers, default=0)
    smallest = min((number for number in numbers if number), default=0)
    if not smallest or all(float(number).is_integer() for number in numbers):
        return 0
    most = 3 - _power(largest) if largest < 1 else 3 if largest < 1e4 else 1 if largest < 1e5 else 0
    return min(max(2 - _power(smallest), 0), most)


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
