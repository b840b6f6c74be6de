"""A run as HTML, for notebooks: what ran, and every tool's tables. All text is escaped."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from pasta.report.cells import cell, shortened
from pasta.report.text import heading, notes
from pasta.run.directory import RunDirectory
from pasta.run.results import StoredResult, read_results
from pasta.table import Table, visible

#: Characters of a cell.
_LONGEST = 200


def render_html(run: RunDirectory) -> str:
    """The tables that the text report shows, with the rows that it shows."""
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
    shown = [name for name in table.columns if name not in table.hidden]
    headings = [_escaped(table.heading(name)) for name in shown]
    rows = ["<tr>" + "".join(f"<th>{each}</th>" for each in headings) + "</tr>"]
    for row in table.rows(table.shown):
        cells = [
            escape(shortened(cell(row[name], table.units.get(name)), _LONGEST)) for name in shown
        ]
        rows.append("<tr>" + "".join(f"<td>{each}</td>" for each in cells) + "</tr>")
    left = (table.of or len(table)) - table.shown
    more = f"<p>{left:,} more rows</p>" if left > 0 else ""
    return f"<table><caption>{_escaped(table.title)}</caption>{''.join(rows)}</table>{more}"
