"""A run as HTML for notebooks: a heading and every tool's tables. All text is escaped."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from pasta.report.layout import columns_of
from pasta.report.text import heading, notes
from pasta.run.directory import RunDirectory
from pasta.run.results import StoredResult, read_results
from pasta.table import Table, counted, visible


def render_html(run: RunDirectory) -> str:
    """The tables and rows of the text report as HTML. Raises RunError."""
    manifest = run.manifest()
    lines = [text.plain for text in heading(run, manifest)]
    parts = ["<div>", f"<p>{'<br>'.join(map(_escaped, lines))}</p>"]
    for result in read_results(run.results, rows="shown"):
        parts.extend(_tool(result))
    parts.extend(f"<p>{_escaped(text.plain)}</p>" for text in notes(manifest))
    return "\n".join([*parts, "</div>"])


def _escaped(text: str) -> str:
    return escape(visible(text))


def _tool(result: StoredResult) -> Iterator[str]:
    yield f"<p><b>{_escaped(result.name)}</b>: {_escaped(result.summary)}</p>"
    yield from (f"<p>note: {_escaped(note)}</p>" for note in result.notes)
    for table in result.tables.values():
        if table.shown and len(table):
            yield _table(table)


def _table(table: Table) -> str:
    columns = columns_of(table, table.shown)
    rows = ["<tr>" + "".join(f"<th>{escape(each.heading)}</th>" for each in columns) + "</tr>"]
    for row in zip(*(each.cells for each in columns), strict=True):
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>")
    left = (table.of or len(table)) - table.shown
    more = f"<p>{counted(left, 'more row')}</p>" if left > 0 else ""
    return f"<table><caption>{_escaped(table.title)}</caption>{''.join(rows)}</table>{more}"
