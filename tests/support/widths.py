"""Properties of a printed table at any width."""

from __future__ import annotations

import io

from rich.cells import cell_len
from rich.console import Console

from pasta.report.layout import MIN_TEXT, UNLIMITED, View, columns_of
from pasta.table import Table

WIDTHS = (60, 80, 100, 120, 200, UNLIMITED)
_LEFT_OUT = "left out to fit the width: "


def printed(table: Table, width: int, rows: int | None = None) -> str:
    file = io.StringIO()
    Console(file=file, width=width, color_system=None, emoji=False).print(View(table, rows))
    return file.getvalue()


def left_out(text: str) -> list[str]:
    """Headings listed in the line below a table."""
    found = " ".join(text.split()).partition(_LEFT_OUT)[2].partition("; see all: ")[0]
    return found.split(", ") if found else []


def check(table: Table, width: int) -> None:
    """Lines fit, numbers and headings are complete, the key column is readable, and omitted columns
    are named."""
    text = printed(table, width)
    columns = columns_of(table, table.shown)
    names = left_out(text)
    assert all(cell_len(line.rstrip()) <= width for line in text.splitlines()), text
    assert not names or width != UNLIMITED, text
    shown, rest = [], ", ".join(names)
    for column in columns:
        heading = " ".join(column.heading.split())
        if rest == heading or rest.startswith(f"{heading}, "):
            rest = rest[len(heading) + 2 :]
        else:
            shown.append(column)
    assert not rest, (rest, text)
    texts = [column for column in columns if not column.numeric]
    key = (texts or columns)[0]
    assert key in shown and len(shown) > min(1, len(columns) - 1), text
    for column in shown:
        whole = [cell for cell in column.cells if column.numeric or cell_len(cell) <= MIN_TEXT]
        missing = [cell for cell in whole if cell.rstrip() not in text]
        assert not missing, (missing, text)
        assert all(word in text for word in column.heading.split()) or not column.numeric, text
