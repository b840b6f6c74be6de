"""A run as HTML, for notebooks: what ran, and every tool's tables. All text is escaped."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from pasta.report.text import heading, notes
from pasta.run.directory import RunDirectory
from pasta.run.results import StoredResult, read_results
from pasta.table import Table, formatted


def render_html(run: RunDirectory) -> str:
    """The tables that the text report shows, with the rows that it shows."""
    manifest = run.manifest()
    lines = [text.plain for text in heading(run, manifest)]
    parts = ["<div>", f"<p>{'<br>'.join(map(escape, lines))}</p>"]
    for result in read_results(run.results):
        parts.extend(_tool(result))
    parts.extend(f"<p>{escape(text.plain)}</p>" for text in notes(manifest))
    return "\n".join([*parts, "</div>"])


def _tool(result: StoredResult) -> Iterator[str]:
    yield f"<p><b>{escape(result.name)}</b>: {escape(result.summary)}</p>"
    for table in result.tables.values():
        if table.shown and len(table):
            yield _table(table)


def _table(table: Table) -> str:
    visible = [name for name in table.columns if name not in table.hidden]
    headings = [table.labels.get(name, name.replace("_", " ")) for name in visible]
    rows = ["<tr>" + "".join(f"<th>{escape(each)}</th>" for each in headings) + "</tr>"]
    for row in table.rows(table.shown):
        cells = [escape(formatted(row[name], table.units.get(name))) for name in visible]
        rows.append("<tr>" + "".join(f"<td>{each}</td>" for each in cells) + "</tr>")
    left = len(table) - table.shown
    more = f"<p>{left:,} more rows</p>" if left > 0 else ""
    return f"<table><caption>{escape(table.title)}</caption>{''.join(rows)}</table>{more}"
