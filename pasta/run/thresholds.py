"""Thresholds on changes between two runs: `bytes>+5%`, `kernel_freq.launches[gemm]>+0`.

[TOOL.][TABLE.]COLUMN[[REGEX]] (> or <) SIGNED_AMOUNT[% or unit]
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from pasta.errors import ConfigError, RunError
from pasta.options import SCALES
from pasta.table import formatted, plain

if TYPE_CHECKING:
    from pasta.run.diff import Change, ColumnDiff, Comparison, TableDiff
    from pasta.table import Unit

_FORM = "[TOOL.][TABLE.]COLUMN[[REGEX]]>+5%"
_WHOLE = re.compile(
    r"(?P<path>[^\[\]<>]*)(?P<rows>\[.*\])?\s*(?P<comparison>[<>])(?P<amount>[^\[\]<>]*)", re.DOTALL
)
_AMOUNT = re.compile(
    r"\s*(?P<sign>[+-]?)\s*(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>%|[^\W\d_]*)\s*"
)
_LABEL = 200  # characters of a row in a line
#: Scales of column units in `SCALES`.
_SCALE: dict[str, str] = {"bytes": "bytes", "ns": "duration"}
_KNOWN = {suffix for scale in SCALES.values() for suffix in scale} | {"%"}


@dataclass(frozen=True)
class Exceeded:
    """A change that exceeds a threshold. `row` is the row's keys as text; None: the total."""

    threshold: Threshold
    place: str
    row: str | None
    unit: Unit | None
    change: Change

    def __str__(self) -> str:
        where = self.place if self.row is None else f"{self.place}[{plain(self.row, _LABEL)}]"
        before, after = (
            formatted(0 if each is None else each, self.unit)
            for each in (self.change.before, self.change.after)
        )
        ratio = self.change.ratio
        relative = "" if ratio is None else f" ({ratio - 1:+.2%})"
        return f"{where}: {before} before, {after} after{relative}: exceeds {self.threshold}"


@dataclass(frozen=True)
class Threshold:
    """A limit on a change; `str` returns the text that `parse` accepts.

    `path` is the column, after the names of its tool and table if given. `rows` is a regular
    expression for rows; None: the total, or every row if the column has no total.
    """

    path: tuple[str, ...]
    rows: str | None
    comparison: Literal["<", ">"]
    amount: Decimal
    unit: str = ""

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """Parses a threshold. Raises ConfigError."""
        match = _WHOLE.fullmatch(text.strip())
        if match is None:
            raise _wrong(text, _misshapen(text))
        path = tuple(part.strip() for part in match["path"].split("."))
        if not all(path):
            raise _wrong(text, "a name before the comparison is empty")
        if len(path) > 3:
            raise _wrong(text, f"{len(path)} names, at most tool, table and column are allowed")
        rows = match["rows"][1:-1] if match["rows"] else None
        try:
            re.compile(rows or "")
        except (re.error, RecursionError, OverflowError) as error:
            raise _wrong(text, f"{rows!r} is not a regular expression ({error})") from None
        amount, unit = _parsed_amount(text, match["amount"])
        comparison: Literal["<", ">"] = "<" if match["comparison"] == "<" else ">"
        return cls(path, rows, comparison, amount, unit)

    def __str__(self) -> str:
        rows = "" if self.rows is None else f"[{self.rows}]"
        return f"{'.'.join(self.path)}{rows}{self.comparison}{self.amount:+f}{self.unit}"

    def check(self, comparison: Comparison, notes: list[str]) -> Iterator[Exceeded]:
        """Changes that exceed the threshold; rows that could not be compared are added to `notes`.

        Raises ConfigError if no table has such a column to compare or its unit differs, and
        RunError if the column has no values.
        """
        places = self._places(comparison)
        sampled = [each for each in places if self.path[-1] in comparison.uncompared(*each)]
        for tool, name in sampled:
            error = comparison.uncomparable(f"--fail-on {self}", tool, name, self.path[-1])
            if len(sampled) == len(places):
                raise error
            notes.append(str(error))
        for tool, name in places:
            if (tool, name) in sampled:
                continue
            table = comparison.table(tool, name)
            column = table.columns[self.path[-1]]
            limit = self._limit(column.unit)
            place = f"{tool}.{name}.{column.name}"
            for row, change in self._changes(place, table, column, notes):
                if self._exceeds(change, limit):
                    yield Exceeded(self, place, row, column.unit, change)

    def _places(self, comparison: Comparison) -> list[tuple[str, str]]:
        """The tables to check: the first one of each tool with the column. Raises ConfigError."""
        *where, column = self.path
        found: list[tuple[str, str]] = []
        for tool, names in comparison.tables.items():
            wanted = [
                name
                for name in names
                if column in (*comparison.compared(tool, name), *comparison.uncompared(tool, name))
            ]
            if len(where) == 2:
                wanted = [name for name in wanted if [tool, name] == where]
            elif where and where[0] != tool:
                wanted = [name for name in wanted if name == where[0]]
            found.extend((tool, name) for name in wanted[:1])
        if where and where[0] in comparison.tables:
            found = [each for each in found if each[0] == where[0]]
        if not found:
            raise self._unknown(comparison)
        return found

    def _unknown(self, comparison: Comparison) -> ConfigError:
        known = {
            f"{tool}.{name}.{column}": column
            for tool, names in comparison.tables.items()
            for name in names
            for column in comparison.compared(tool, name)
        }
        asked = ".".join(self.path)
        close = get_close_matches(asked, known, 3) or [
            place
            for place, column in known.items()
            if column in get_close_matches(self.path[-1], set(known.values()), 3)
        ]
        wanted = f"did you mean {' or '.join(close[:3])}?" if close else None
        return ConfigError(
            f"--fail-on {self}: the runs have no column {asked!r} to compare",
            remedy=wanted or "pasta diff --json - lists them",
        )

    def _changes(
        self, place: str, table: TableDiff, column: ColumnDiff, notes: list[str]
    ) -> Iterator[tuple[str | None, Change]]:
        """The changes to check: the total, or changes of rows with their keys. Raises RunError."""
        if column.total is not None and self.rows is None:
            if column.total.difference is None:
                raise RunError(f"--fail-on {self}: {place} has no values in one of the runs")
            yield None, column.total
            return
        chosen = re.compile(self.rows or "")
        seen, left_out = 0, 0
        for row, change in enumerate(column.changes):
            label = table.label(row)
            if not chosen.search(label):
                continue
            seen += 1
            if change.difference is None:
                left_out += 1
            else:
                yield label, change
        if not seen:
            notes.append(f"--fail-on {self}: no row of {place} matches")
        elif left_out:
            notes.append(
                f"--fail-on {self}: {left_out:,} of {seen:,} rows of {place} cannot be "
                "compared: they are in one run only, or have no value there"
            )

    def _limit(self, unit: Unit | None) -> Fraction:
        """The amount in the column's unit, or as a fraction of 1 if relative. Raises
        ConfigError."""
        if self.unit == "%":
            return Fraction(self.amount) / 100
        scale = SCALES[_SCALE[unit]] if unit in _SCALE else {"": 1}
        if self.unit.lower() not in scale:
            known = ", ".join(f"+5{suffix}" for suffix in scale)
            raise ConfigError(
                f"--fail-on {self}: {self.path[-1]} is not in {self.unit}",
                remedy=f"use one of {known}, or +5%",
            )
        return Fraction(self.amount) * scale[self.unit.lower()]

    def _exceeds(self, change: Change, limit: Fraction) -> bool:
        assert change.difference is not None
        difference = Fraction(change.difference)
        if self.unit == "%":
            before = abs(Fraction(change.before or 0))
            if not before and difference:  # any change from 0 is infinite
                return (self.comparison == ">") == (difference > 0)
            difference /= before or 1
        return bool(difference > limit if self.comparison == ">" else difference < limit)


def _wrong(text: str, why: str) -> ConfigError:
    return ConfigError(f"--fail-on {text!r}: {why}", remedy=f"write {_FORM}")


def _misshapen(text: str) -> str:
    if not re.search("[<>]", text):
        return "the comparison, > or <, is missing"
    if text.count("[") != text.count("]"):
        return "a bracket is unmatched"
    return "expected a column, rows in brackets, a comparison and an amount"


def _parsed_amount(text: str, amount: str) -> tuple[Decimal, str]:
    match = _AMOUNT.fullmatch(amount)
    if match is None:
        raise _wrong(text, f"{amount.strip()!r} is not an amount such as +5%, +10MiB, -3")
    if not match["sign"]:
        raise _wrong(text, f"the amount {amount.strip()} must begin with + or -")
    if match["unit"].lower() not in _KNOWN:
        raise _wrong(text, f"unknown unit {match['unit']!r}")
    return Decimal(match["sign"] + match["number"]), match["unit"]
