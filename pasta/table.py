"""Tables and figures: what a tool hands over, for Parquet, the terminal and the HTML report."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pasta.lazy import np, pa

if TYPE_CHECKING:
    import rich.table

#: What a column counts: decides how the text report writes it, and is kept in the Parquet schema.
Unit = Literal["bytes", "ns", "address", "count", "share"]
#: A column: a NumPy array (a masked one where values are absent), or a list (None is absent).
Column = Any


@dataclass(frozen=True)
class Table:
    """Columns of equal length, most important row first.

    `units` says what a column's numbers are (a share is a fraction of 1), `labels` its heading
    where that is not its name; the label of a share says of what. `shown` rows are printed, all
    are stored. Raises ValueError when columns differ in length, or a unit or key is of no column.

    `keys`, `sums` and `levels` say how runs are compared. Rows of two runs are the same whose keys
    are: columns that say what a row is of, in any run (no addresses, ids or times of day). Sums are
    columns that add up over rows, levels are numbers that do not: peaks, means, shares. What is in
    none of them is not compared. Where they are not given, keys are the columns that hold no
    numbers, sums those of integers, levels those of other numbers, without addresses.
    """

    columns: Mapping[str, Column]
    units: Mapping[str, Unit] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    title: str = ""
    shown: int = 10
    #: Columns left out of the text report, where they are there.
    hidden: frozenset[str] = frozenset()
    keys: Sequence[str] | None = None
    sums: Sequence[str] | None = None
    levels: Sequence[str] | None = None
    #: Rows that there are, where only the first of them were read.
    of: int | None = None

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns differ in length: {lengths}")
        compared = (*(self.keys or ()), *(self.sums or ()), *(self.levels or ()))
        for name in (*self.units, *self.labels, *compared):
            if name not in self.columns:
                raise ValueError(f"{name!r} is not a column: {', '.join(self.columns)}")

    def __len__(self) -> int:
        return max((len(column) for column in self.columns.values()), default=0)

    def heading(self, name: str) -> str:
        """What stands above a column."""
        return self.labels.get(name, name.replace("_", " "))

    def rows(self, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Rows as dictionaries of Python values; None is absent."""
        columns = {name: _values(column[:limit]) for name, column in self.columns.items()}
        for row in zip(*columns.values(), strict=True):
            yield dict(zip(columns, row, strict=True))

    def to_arrow(self) -> pa.Table:
        """A pyarrow table; units and labels are in the metadata of the fields.

        Raises TypeError for a column that has none of its types.
        """
        arrays = {name: _arrow(name, column) for name, column in self.columns.items()}
        fields = []
        for name, array in arrays.items():
            metadata = {"unit": self.units.get(name), "label": self.labels.get(name)}
            told = {key: value for key, value in metadata.items() if value}
            fields.append(pa.field(name, array.type, metadata=told or None))
        schema = pa.schema(fields, metadata={"title": self.title} if self.title else None)
        return pa.Table.from_arrays(list(arrays.values()), schema=schema)

    def to_rich(self, limit: int | None = None) -> rich.table.Table:
        """The first `limit` rows (default: `shown`) as a table for the terminal."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable
        from rich.text import Text

        limit = self.shown if limit is None else limit
        left = (self.of or len(self)) - limit
        table = RichTable(
            title=Text(self.title) if self.title else None,
            title_justify="left",
            title_style="italic",
            box=SIMPLE_HEAD,
            pad_edge=False,
            caption_justify="left",
            caption=f"{left:,} more rows" if left > 0 else None,
        )
        visible = [name for name in self.columns if name not in self.hidden]
        for name in visible:
            label = self.heading(name)
            numeric = name in self.units or _is_numeric(self.columns[name])
            # Folded where the terminal is narrow: a digit is never cut off.
            if numeric:
                heading = "\n".join(textwrap.wrap(label, _HEADING_COLUMNS, break_long_words=False))
                table.add_column(Text(heading), justify="right", no_wrap=True)
            else:
                table.add_column(Text(label), overflow="fold", min_width=_TEXT_COLUMNS)
        for row in self.rows(limit):
            cells = (plain(formatted(row[name], self.units.get(name))) for name in visible)
            table.add_row(*map(Text, cells))
        return table


@dataclass(frozen=True)
class Figure:
    """A chart of the report: one or more series over common x values.

    `kind` "step" holds each level until the next x. A value that is None or NaN is a gap.
    """

    kind: Literal["line", "step", "bar"]
    title: str
    x: Column
    series: Mapping[str, Column]
    x_label: str = ""
    y_label: str = ""
    x_unit: Unit | None = None
    y_unit: Unit | None = None

    def __post_init__(self) -> None:
        for name, values in self.series.items():
            if len(values) != len(self.x):
                raise ValueError(f"series {name!r} has {len(values)} values for {len(self.x)} x")


def absent_where(values: Any, mask: Any) -> Column:
    """A column that is absent where `mask` is true."""
    return np.ma.MaskedArray(values, mask=mask)


def shares(parts: Any, whole: int | float) -> Any:
    """Parts as fractions of the whole; 0 where there is no whole."""
    return np.asarray(parts, np.float64) / whole if whole else np.zeros(len(parts))


def formatted(value: Any, unit: Unit | None = None) -> str:
    """A value as the text reports write it: `1.50 MiB`, `2.00 ms`, `0x7f00`, `12.5 %`, `1,024`."""
    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        return "x".join(str(each) for each in value)
    if isinstance(value, (bool, str)):
        return str(value)
    if unit == "address":
        return f"{value:#x}"
    if unit == "share":
        return f"{100 * value:.1f} %"
    if unit == "bytes":
        return _scaled(value, _BYTES, 1024)
    if unit == "ns":
        return _scaled(value, _TIMES, 1000)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}"


def visible(text: str) -> str:
    """A text of a run in one line: what a terminal or a browser would obey, or not show, is
    written as \\x1b or \\u202e."""
    return _INVISIBLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def plain(text: str, longest: int = 400) -> str:
    """A text of a run for a line of a terminal: visible, and at most so long before that."""
    return visible(text if len(text) <= longest else text[: longest - 1] + "…")


#: Control characters, those that turn the direction of text, line separators and lone surrogates.
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
#: Least width of a column of text, so that many columns of numbers leave it readable.
_TEXT_COLUMNS = 16
#: Headings of numbers are broken to about the width of the numbers.
_HEADING_COLUMNS = 10
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_TIMES = ("ns", "us", "ms", "s")


def _scaled(value: float, units: Sequence[str], step: int) -> str:
    size: float = abs(value)
    at = 0
    while at + 1 < len(units) and round(size, 2) >= step:
        size /= step
        at += 1
    sign = "-" if value < 0 else ""
    return f"{sign}{size:,.0f} {units[0]}" if at == 0 else f"{sign}{size:,.2f} {units[at]}"


def _values(column: Column) -> list[Any]:
    if hasattr(column, "tolist"):
        return list(column.tolist())
    return [each.item() if hasattr(each, "item") else each for each in column]


def _is_numeric(column: Column) -> bool:
    if hasattr(column, "dtype"):
        return column.dtype.kind in "iuf"
    return any(isinstance(each, (int, float)) for each in column)


def _arrow(name: str, column: Column) -> pa.Array:
    from pasta.arrow import to_arrow

    try:
        if isinstance(column, np.ma.MaskedArray):
            return to_arrow(column.data, np.ma.getmaskarray(column))
        return to_arrow(column)
    except (pa.ArrowException, TypeError, ValueError, ArithmeticError) as error:
        raise TypeError(f"column {name} cannot be stored: {error}") from error
