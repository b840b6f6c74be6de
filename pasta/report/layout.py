"""Layout of text tables: column widths, the choice of columns that fit, shortening of names.

Rich only draws. All widths are chosen here, so that Rich never shrinks a column: numbers and their
headings are never cut, the key column stays readable, and columns that do not fit are left out and
listed below the table.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table as RichTable
from rich.text import Text

from pasta.report.numbers import column_texts
from pasta.table import counted, is_numeric, plain, visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from pasta.table import Table

#: Width of output that is not for a terminal: nothing is left out or wrapped.
UNLIMITED = 1 << 16
#: Minimum width of text columns, unless their cells are narrower.
MIN_TEXT = 24
#: Maximum width of a cell's text, for any output width.
MAX_TEXT = 200
_MAX_HEADING_LINES = 3
#: Preferred width of a heading's lines.
_LINE_CELLS = 10
#: Numeric columns kept in preference to text columns, if a table names none as important.
_MEASURES = 2
#: Blanks between columns: normally, and if the smaller gap saves a column.
_GAPS = (3, 2)
#: Blanks at both ends of a line.
_EDGES = 2


def shortened(text: str, width: int) -> str:
    """Shortens a text to at most `width` terminal cells, with "…" for the omitted part.

    Leading C++ namespaces are omitted first, then the middle. The file name of a path is kept if
    it fits.
    """
    if cell_len(text) <= width:
        return text
    if width < 2:
        return "…"[:width]
    text = _NAMESPACES.sub("…", text, count=1)
    if cell_len(text) <= width:
        return text
    last = 2 * width // 5
    file = text[text.rfind("/") :] if "/" in text else ""
    if last < cell_len(file) < width - 1:
        last = cell_len(file)
    return f"{_first(text, width - last - 1)}…{_first(text[::-1], last)[::-1]}"


#: Namespaces before a name.
_NAMESPACES = re.compile(r"(?<![\w:])(?:(?:[A-Za-z_]\w*|\(anonymous namespace\))::)+")


def _first(text: str, width: int) -> str:
    """The longest prefix of a text that fits into `width` cells."""
    text = text[:width]  # a character takes at least one cell, unless it is zero-width
    while cell_len(text) > width:
        text = text[:-1]
    return text


@dataclass(frozen=True)
class Column:
    """A column as shown: cells are single-line text."""

    name: str
    heading: str
    cells: list[str]
    numeric: bool

    @property
    def widest(self) -> int:
        """Width of the widest cell, in terminal cells."""
        return max(map(cell_len, self.cells), default=0)

    @property
    def natural(self) -> int:
        """Width beyond which nothing more is shown."""
        return _heading_width(self.heading, max(self.widest, min(len(self.heading), _LINE_CELLS)))

    @property
    def min_width(self) -> int:
        """The minimum width."""
        width = _heading_width(self.heading, self.widest)
        return width if self.numeric else min(width, MIN_TEXT)

    def head(self, width: int) -> str:
        """The heading, wrapped to `width`; only headings of text columns are shortened."""
        lines = textwrap.wrap(self.heading, max(width, 1), break_long_words=False)
        return "\n".join(lines if self.numeric else [shortened(line, width) for line in lines])


def _heading_width(heading: str, widest: int) -> int:
    """The smallest width from `widest` on at which the heading has at most the maximum lines."""
    width = max([widest, 1, *(cell_len(word) for word in heading.split())])
    while len(textwrap.wrap(heading, width, break_long_words=False)) > _MAX_HEADING_LINES:
        width += 1
    return width


@dataclass(frozen=True)
class Layout:
    """The columns that fit a width, with their widths, and the headings of those left out."""

    columns: list[Column]
    widths: list[int]
    left_out: list[str]
    gap: int

    @property
    def width(self) -> int:
        """Cells that the drawn table takes."""
        return _total(self.widths, self.gap)


def lay_out(
    columns: Sequence[Column], key: str, width: int, important: Sequence[str] = ()
) -> Layout:
    """Chooses the columns to show in `width` cells.

    The column `key` is always shown. Others are left out from the right until the rest fit,
    important ones last.
    """
    order = list(dict.fromkeys([key, *important, *(column.name for column in columns)]))
    min_widths = {column.name: column.min_width for column in columns}
    gap, kept = _kept(order, min_widths, width)
    shown = [column for column in columns if column.name in kept]
    widths = [min_widths[column.name] for column in shown]
    natural = [column.natural for column in shown]
    if _total(natural, gap) <= width:
        widths = natural
    spare = width - _total(widths, gap)
    if spare < 0 and not shown[0].numeric:  # only the key is left
        widths = [max(1, width - _EDGES)]
    for numeric in (False, True):  # text columns before headings of numbers
        wanted = [
            size if column.numeric == numeric else 0
            for column, size in zip(shown, natural, strict=True)
        ]
        spare -= _share(spare, wanted, widths)
    left_out = [column.heading for column in columns if column.name not in kept]
    return Layout(shown, widths, left_out, gap)


def _total(widths: Sequence[int], gap: int) -> int:
    return _EDGES + sum(widths) + gap * max(len(widths) - 1, 0)


def _kept(order: list[str], min_widths: dict[str, int], width: int) -> tuple[int, set[str]]:
    """The gap and the names of the columns that fit; the smaller gap only if more fit with it."""
    fitting = []
    for gap in _GAPS:
        ends = itertools.accumulate(gap + min_widths[name] for name in order)
        count = sum(_EDGES + end - gap <= width for end in ends)
        fitting.append((max(count, 1), gap))
    count, gap = max(fitting)
    return gap, set(order[:count])


def _share(spare: int, natural: list[int], widths: list[int]) -> int:
    """Widens columns that are narrower than their text, narrowest first; the cells used."""
    given = 0
    while given < spare:
        narrow = [at for at in range(len(widths)) if widths[at] < natural[at]]
        if not narrow:
            break
        widths[min(narrow, key=lambda at: widths[at])] += 1
        given += 1
    return given


@dataclass(frozen=True)
class View:
    """A table as a Rich renderable, laid out for the output width."""

    table: Table
    #: Number of rows to show (default: `Table.shown`).
    rows: int | None = None
    #: Command that prints the table, for the line about columns left out.
    command: str = "pasta report DIR"

    def layout(self, width: int) -> Layout | None:
        """The columns that fit into `width` cells; None for a table without visible columns."""
        columns = columns_of(self.table, self.shown)
        if not columns:
            return None
        key, *important = _importance(self.table, columns)
        return lay_out(columns, key, width, important)

    @property
    def shown(self) -> int:
        """Number of rows that are shown."""
        return self.table.shown if self.rows is None else self.rows

    @property
    def left(self) -> int:
        """Number of rows that are not shown."""
        return max((self.table.of or len(self.table)) - self.shown, 0)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        layout = self.layout(options.max_width)
        if layout is None:
            return
        if self.table.title:
            yield Text(plain(self.table.title), style="italic")
        drawn = _draw(layout)
        yield from console.render(drawn, options.update(width=max(layout.width, options.max_width)))
        if self.left:
            yield Text(counted(self.left, "more row"), style="dim italic")
        if layout.left_out:
            names = ", ".join(visible(name) for name in layout.left_out)
            yield Text(
                f"left out to fit the width: {names}; see all: {self.command} | less -S",
                style="dim italic",
            )


def columns_of(table: Table, rows: int) -> list[Column]:
    """The visible columns of a table, with the first `rows` rows."""
    columns = []
    for name, values in table.columns.items():
        if name not in table.hidden:
            unit = table.units.get(name)
            cells = [visible(text) for text in column_texts(list(table.values(name, rows)), unit)]
            numeric = unit is not None or is_numeric(values)
            if not numeric:
                cells = [shortened(cell, MAX_TEXT) for cell in cells]
            heading = shortened(visible(table.heading(name)), MAX_TEXT)
            columns.append(Column(name, heading, cells, numeric))
    return columns


def _importance(table: Table, columns: Sequence[Column]) -> list[str]:
    """The key column (the first text column, preferably one of the keys), then important ones."""
    keys = table.keys or ()
    texts = [column.name for column in columns if not column.numeric]
    named = [name for name in texts if table.keys is None or name in keys]
    names = [column.name for column in columns]
    if table.important is not None:
        important = [name for name in table.important if name in names]
    else:
        numbers = (
            name
            for name in names
            if name not in texts and name not in keys and table.units.get(name) != "address"
        )
        important = list(itertools.islice(numbers, _MEASURES))
    return [*[*named, *texts, *names][:1], *important]


def _draw(layout: Layout) -> RichTable:
    drawn = RichTable(box=SIMPLE_HEAD, pad_edge=False, padding=(0, layout.gap - 2, 0, 1))
    for column, width in zip(layout.columns, layout.widths, strict=True):
        drawn.add_column(
            Text(column.head(width)),
            justify="right" if column.numeric else "left",
            vertical="bottom",
            no_wrap=True,
            width=width,
        )
    for row in _rows(layout):
        drawn.add_row(*row)
    return drawn


def _rows(layout: Layout) -> Iterator[list[Text]]:
    columns = [
        column.cells if column.numeric else [shortened(cell, width) for cell in column.cells]
        for column, width in zip(layout.columns, layout.widths, strict=True)
    ]
    for row in zip(*columns, strict=True):
        yield [Text(cell) for cell in row]
