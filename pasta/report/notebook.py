"""Reports as HTML for notebooks. All text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from pasta.report.layout import View, columns_of
from pasta.report.text import gain_of, heading, notes
from pasta.run.directory import RunDirectory
from pasta.run.results import StoredResult, ranked, read_results
from pasta.table import counted, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pasta.findings import Finding

#: Findings that are shown; the others are counted.
_MAX_FINDINGS = 5


def render_html(run: RunDirectory) -> str:
    """The text report as HTML: heading, findings, tables and rows. Raises RunError."""
    manifest = run.manifest()
    results = list(read_results(run.results, rows="shown"))
    parts = ["<div>", _lines(heading(run, manifest))]
    found = ranked(results)
    if found:
        parts += ["<p><b>Findings</b></p>", findings_html(found[:_MAX_FINDINGS])]
        if len(found) > _MAX_FINDINGS:
            parts.append(f"<p>{counted(len(found) - _MAX_FINDINGS, 'more finding')}</p>")
    for result in results:
        parts.extend(_tool(result))
    parts.extend(_lines([text]) for text in notes(manifest))
    return "\n".join([*parts, "</div>"])


def html_of(parts: Iterable[RenderableType]) -> str:
    """Parts of a text report: lines, headings and tables."""
    found = ["<div>"]
    for is_table, group in groupby(parts, key=lambda part: isinstance(part, View)):
        if is_table:
            found += [_view(part) for part in group if isinstance(part, View)]
        else:
            found.append(_lines(part for part in group if isinstance(part, Text) and part.plain))
    return "\n".join([*found, "</div>"])


def findings_html(found: Sequence[tuple[str, Finding]]) -> str:
    """An ordered list of findings with their tools."""
    return "<ol>" + "".join(_finding(*each) for each in found) + "</ol>"


def _finding(tool: str, finding: Finding) -> str:
    return (
        f"<li><b>{_escaped(finding.what)}</b>: {_escaped(finding.where)}"
        f"<br>{_escaped(finding.evidence)} ({_escaped(tool)}; {_escaped(gain_of(finding))})"
        f"<br>{_escaped(finding.remedy)}</li>"
    )


def _escaped(text: str) -> str:
    return escape(visible(text))


def _lines(texts: Iterable[Text]) -> str:
    lines = [
        f"<b>{_escaped(text.plain)}</b>" if text.style == "bold" else _escaped(text.plain)
        for text in texts
    ]
    return f"<p>{'<br>'.join(lines)}</p>" if lines else ""


def _tool(result: StoredResult) -> Iterator[str]:
    yield f"<p><b>{_escaped(result.name)}</b>: {_escaped(result.summary)}</p>"
    yield from (f"<p>note: {_escaped(note)}</p>" for note in result.notes)
    for table in result.tables.values():
        if table.shown and len(table):
            yield _view(View(table))


def _view(view: View) -> str:
    columns = columns_of(view.table, view.shown)
    rows = ["<tr>" + "".join(f"<th>{escape(each.heading)}</th>" for each in columns) + "</tr>"]
    for row in zip(*(each.cells for each in columns), strict=True):
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>")
    more = f"<p>{counted(view.left, 'more row')}</p>" if view.left else ""
    title = _escaped(view.table.title)
    return f"<table><caption>{title}</caption>{''.join(rows)}</table>{more}"
