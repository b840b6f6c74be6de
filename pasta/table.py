"""Tables and figures of results, for Parquet, the terminal and the HTML report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard

from pasta.errors import visible as visible
from pasta.lazy import np, pa

#: Unit of a column: defines its format in text reports, and is stored in the Parquet schema.
Unit = Literal["bytes", "ns", "address", "count", "share"]
#: A column: a NumPy array (a masked one where values are absent), or a list (None is absent).
Column = Any


@dataclass(frozen=True)
class Table:
    """Columns of equal length, most important row first.

    `units` are units of columns (a share is a fraction of 1), `labels` headings that differ from
    names; the label of a share names the whole. `shown` rows are printed, all are stored. Raises
    ValueError if columns differ in length, or a unit or key names no column.

    `keys`, `sums` and `levels` define the comparison of runs. Rows with equal keys correspond: keys
    identify a row in any run (no addresses, ids or times of day). Sums are columns that add up over
    rows, levels are other numbers: peaks, means, shares. Other columns are not compared. By default
    keys are the columns without numbers, sums those of integers, levels those of other numbers,
    without addresses.

    `probed`: columns that cover the probed launches only, each with the column of its estimate for
    all launches, or None. Of a run in which some launches were not probed, the estimates are
    compared instead. By default the sums, if a tool has probes and does not set `estimates`.
    """

    columns: Mapping[str, Column]
    units: Mapping[str, Unit] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    title: str = ""
    shown: int = 10
    #: Columns hidden in text reports, if present.
    hidden: frozenset[str] = frozenset()
    keys: Sequence[str] | None = None
    sums: Sequence[str] | None = None
    levels: Sequence[str] | None = None
    probed: Mapping[str, str | None] | None = None
    #: Columns that narrow text reports drop last, beside the key column, sort column first. By
    #: default the first two numeric columns that are not keys.
    important: Sequence[str] | None = None
    #: Total number of rows, if only the first ones were read.
    of: int | None = None

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns differ in length: {lengths}")
        named = [*self.units, *self.labels]
        for names in (self.keys, self.sums, self.levels, self.important):
            named.extend(names or ())
        for name, estimate in (self.probed or {}).items():
            named.extend([name] if estimate is None else [name, estimate])
        for name in named:
            if name not in self.columns:
                raise ValueError(f"{name!r} is not a column: {', '.join(self.columns)}")

    def __len__(self) -> int:
        return max((len(column) for column in self.columns.values()), default=0)

    def heading(self, name: str) -> str:
        """Heading of a column."""
        return self.labels.get(name, name.replace("_", " "))

    def rows(self, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Rows as dictionaries of Python values; None is absent."""
        columns = {name: _values(column[:limit]) for name, column in self.columns.items()}
        for row in zip(*columns.values(), strict=True):
            yield dict(zip(columns, row, strict=True))

    def to_arrow(self) -> pa.Table:
        """A pyarrow table; units and labels are in the metadata of the fields.

        Raises TypeError for a column that cannot be converted.
        """
        arrays = {name: _arrow(name, column) for name, column in self.columns.items()}
        fields = []
        for name, array in arrays.items():
            metadata = {"unit": self.units.get(name), "label": self.labels.get(name)}
            given = {key: value for key, value in metadata.items() if value}
            fields.append(pa.field(name, array.type, metadata=given or None))
        schema = pa.schema(fields, metadata={"title": self.title} if self.title else None)
        return pa.Table.from_arrays(list(arrays.values()), schema=schema)

    def values(self, name: str, limit: int | None = None) -> list[Any]:
        """The first `limit` values of a column as Python objects; None is absent."""
        return _values(self.columns[name][:limit])


@dataclass(frozen=True)
class Figure:
    """A chart of the report: one or more series over common x values.

    `kind` "step" holds each level until the next x; "area" stacks the series, the first at the
    bottom. A value that is None or NaN is a gap.
    """

    kind: Literal["line", "step", "bar", "area"]
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
                raise ValueError(
                    f"series {name!r} has {len(values)} values for {len(self.x)} x values"
                )


def has_columns(table: Table | None, *columns: str) -> TypeGuard[Table]:
    """Whether there is a table with rows and these columns."""
    return table is not None and len(table) > 0 and set(columns) <= set(table.columns)


def absent_where(values: Any, mask: Any) -> Column:
    """A column whose values are absent where `mask` is true."""
    return np.ma.MaskedArray(values, mask=mask)


def shares(parts: Any, whole: int | float) -> Any:
    """Parts as fractions of the whole; 0 if the whole is 0."""
    return np.asarray(parts, np.float64) / whole if whole else np.zeros(len(parts))


def formatted(value: Any, unit: Unit | None = None) -> str:
    """A value in the format of text reports: `1.50 MiB`, `2.00 ms`, `0x7f00`, `12.5 %`, `1,024`."""
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
        return _scaled(value, BYTES, 1024)
    if unit == "ns":
        return _scaled(value, TIMES, 1000)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if 999.5 <= abs(value) < 1e15 else f"{value:,.3g}"


def counted(count: int, one: str, many: str | None = None) -> str:
    """A number of things in words: "1 launch", "2,000 launches"; `many` of "1 bus" is "buses"."""
    if count == 1:
        return f"1 {one}"
    return f"{count:,} {many or _plural(one)}"


def _plural(word: str) -> str:
    if word.endswith(("s", "x", "ch", "sh")):
        return f"{word}es"
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return f"{word[:-1]}ies"
    return f"{word}s"


def plain(text: str, limit: int = 400) -> str:
    """A text of a run for a line of a terminal: at most `limit` characters, made visible."""
    return visible(text if len(text) <= limit else text[: limit - 1] + "…")


#: Units of bytes and of times, in steps of 1,024 and 1,000.
BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
TIMES = ("ns", "us", "ms", "s")


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


def is_numeric(column: Column) -> bool:
    """Whether a column holds numbers."""
    if hasattr(column, "dtype"):
        return column.dtype.kind in "iuf"
    return any(isinstance(each, (int, float)) and not isinstance(each, bool) for each in column)


def _arrow(name: str, column: Column) -> pa.Array:
    from pasta.arrow import to_arrow

    try:
        if isinstance(column, np.ma.MaskedArray):
            return to_arrow(column.data, np.ma.getmaskarray(column))
        return to_arrow(column)
    except (pa.ArrowException, TypeError, ValueError, ArithmeticError) as error:
        raise TypeError(f"column {name} cannot be stored: {error}") from error
