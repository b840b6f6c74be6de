"""Text reports of compared runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from rich.text import Text

from pasta.report.layout import View
from pasta.report.text import text_of
from pasta.run.diff import ColumnDiff, Comparison, TableDiff
from pasta.table import Table, counted, formatted, plain, shares

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Default rows of each table, as text and as Markdown.
ROWS, MARKDOWN_ROWS = 10, 5
_MAX_LINE = 2000  # characters
_MAX_KEY = 200  # characters of the keys of a row
_IN_UNIT = ("before", "after", "difference")


def render(
    comparison: Comparison,
    chosen: Collection[tuple[str, str]],
    columns: Collection[str] = (),
    rows: int = ROWS,
) -> Iterator[RenderableType]:
    """Parts of the report: the changed columns of the `chosen` tables, the most changed of each
    table first, with `rows` rows each; `columns`: only these. Raises RunError."""
    yield Text(f"before: {plain(str(comparison.before.path))}")
    yield Text(f"after:  {plain(str(comparison.after.path))}")
    notes = list(comparison.notes)
    for tool, name in chosen:
        table = comparison.table(tool, name)
        asked = asked_columns(table, columns)
        changed = sorted((each for each in asked if each.weight), key=lambda each: -each.weight)
        for column in changed:
            yield Text()
            yield Text(_heading(table, column), style="bold")
            if table.keys:
                yield View(rows_of(table, column), rows, command="pasta diff BEFORE AFTER")
        same = [_with_total(each) for each in asked if not each.weight]
        if same:
            yield Text()
            yield Text(plain(f"{tool}.{name}: unchanged: {', '.join(same)}", _MAX_LINE))
        notes += table.notes if asked else []
    if notes:
        yield Text()
    for each in notes:
        yield note(each)


def asked_columns(table: TableDiff, columns: Collection[str]) -> list[ColumnDiff]:
    """The requested columns; by default the sums, or all columns if there are none."""
    every = list(table.columns.values())
    if columns:
        return [each for each in every if each.name in columns]
    shown = [each for each in every if each.shown]
    return [each for each in shown if each.total is not None] or shown


def exceeded_parts(lines: Collection[str]) -> Iterator[Text]:
    """Lines about exceeded thresholds, after a heading; nothing without any."""
    if lines:
        yield Text(f"{counted(len(lines), 'threshold')} exceeded", style="bold")
        yield from (Text(plain(line, _MAX_LINE)) for line in lines)


def note(text: str) -> Text:
    """A line about data that is not compared."""
    return Text(f"note: {plain(text)}", style="yellow")


def _heading(table: TableDiff, column: ColumnDiff) -> str:
    """Tool, table and column, with the totals of columns that add up."""
    return plain(f"{table.tool}.{table.name}.{column.name}") + total_text(column)


def total_text(column: ColumnDiff) -> str:
    """The totals of a column that adds up: ": 1.00 ms → 2.00 ms (+100.0%)"; empty for others."""
    total = column.total
    if total is None or total.before is None or total.after is None:
        return ""
    before, after = (formatted(each, column.unit) for each in (total.before, total.after))
    relative = "" if total.ratio is None else f" ({total.ratio - 1:+.1%})"
    return f": {before} → {after}{relative}"


def _with_total(column: ColumnDiff) -> str:
    if column.total is None or column.total.after is None:
        return column.name
    return f"{column.name} ({formatted(column.total.after, column.unit)})"


def rows_of(table: TableDiff, column: ColumnDiff) -> Table:
    """Changed rows, the largest difference first, incomparable ones last."""
    changes = column.changes
    some = [at for at, each in enumerate(changes) if each.before != each.after]
    some.sort(key=lambda at: -abs(changes[at].difference or 0))
    numbers: dict[str, Any] = {
        "before": [changes[at].before for at in some],
        "after": [changes[at].after for at in some],
        "difference": [changes[at].difference for at in some],
        "ratio": [changes[at].ratio for at in some],
    }
    if column.total is not None:
        differences = [changes[at].difference or 0 for at in some]
        numbers["share"] = shares(differences, column.whole)
    unit = {} if column.unit is None else dict.fromkeys(_IN_UNIT, column.unit)
    share: dict[str, Any] = {"share": "share"} if "share" in numbers else {}
    return Table(
        {"row": [plain(table.label(at), _MAX_KEY) for at in some], **numbers},
        units={**unit, **share, "ratio": "count"},
        labels={
            "row": plain(", ".join(name.replace("_", " ") for name in table.keys)),
            **dict.fromkeys(share, "of the total"),
        },
        title="" if column.label in column.name.replace("_", " ") else plain(column.label),
    )


def default_tables(comparison: Comparison) -> list[tuple[str, str]]:
    """Comparable tables that reports show. Raises RunError."""
    return [
        (tool, name)
        for tool, names in comparison.tables.items()
        for name in names
        if comparison.shown(tool, name) and comparison.compared(tool, name)
    ]


def default_parts(comparison: Comparison) -> Iterator[RenderableType]:
    """Parts of the report on the tables that reports show. Raises RunError."""
    return render(comparison, default_tables(comparison))


def text_report(comparison: Comparison) -> str:
    """The comparison as plain text. Raises RunError."""
    return text_of(default_parts(comparison))
