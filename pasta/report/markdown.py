"""Reports as GitHub-flavoured Markdown, for pull requests and notebooks.

Names come from the profiled program: cells of text are code spans, and other text is escaped, so
that nothing in a run becomes markup, HTML, a mention of a user or a link to an issue.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from rich.text import Text

from pasta.report.layout import Layout, View, shortened
from pasta.report.overview import overview, own_notes
from pasta.report.text import MAX_FINDINGS, gain_of, heading, notes
from pasta.run.directory import RunDirectory
from pasta.run.results import StoredResult, ranked, read_results
from pasta.table import counted, plain, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pasta.findings import Finding

#: Default rows of each table.
ROWS = 5
#: Terminal cells of a table's columns, and characters of a cell: comments have a maximum size.
_WIDTH = 118
_MAX_CELL = 80
_MAX_LINE = 1000
_MARKUP = re.compile(r"[\\`*_\[\]|~$]")
_FIRST = re.compile(r"^[#+\-=]|^\d+(?=[.)](\s|$))")


def render_markdown(run: RunDirectory, rows: int = ROWS) -> str:
    """A short report: what ran, its main numbers, the first findings, and the first table of each
    tool with `rows` rows, folded. Raises RunError."""
    return "\n\n".join(_report(run, rows)) + "\n"


def markdown_of(parts: Iterable[RenderableType]) -> str:
    """Parts of a text report: lines, headings and tables."""
    return "\n\n".join(filter(None, map(_part, parts))) + "\n"


def findings_markdown(found: Sequence[tuple[str, Finding]]) -> str:
    """A numbered list of findings with their tools."""
    return "\n".join(_finding(number, *each) for number, each in enumerate(found, 1))


def escaped(text: str) -> str:
    """Text on one line, without any character that Markdown or a forge would interpret."""
    text = _MARKUP.sub(r"\\\g<0>", plain(text, _MAX_LINE).strip())
    text = _FIRST.sub(
        lambda found: f"{found[0]}\\" if found[0].isdigit() else f"\\{found[0]}", text
    )
    return _html(text)


def _html(text: str) -> str:
    """Text escaped as HTML, without mentions and references to issues, which forges look for in
    the rendered text."""
    return re.sub(r"[@#](?=\w)", r"\g<0><!-- -->", escape(text, quote=False))


def code(text: str) -> str:
    """Text as a code span, also in cells of tables."""
    text = shortened(visible(text), _MAX_CELL).replace("|", "\\|")
    if not text.strip():
        return ""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    edge = " " if "`" in (text[0], text[-1]) else ""
    return f"{fence}{edge}{text}{edge}{fence}"


def _report(run: RunDirectory, rows: int) -> Iterator[str]:
    manifest = run.manifest()
    first, *lines = heading(run, manifest)
    yield f"### {code(first.plain) if manifest else escaped(first.plain)}"
    if lines:
        yield "  \n".join(escaped(line.plain) for line in lines)
    results = list(read_results(run.results, rows="shown"))
    begin = overview(manifest, results, None)
    facts = [each for each in begin.facts if each.label != "Observed" and each.value != "0"]
    if facts:
        cells = (f"**{escaped(each.value)}** {escaped(each.about)}".strip() for each in facts)
        yield _drawn([escaped(each.label) for each in facts], [False] * len(facts), [list(cells)])
    found = ranked(results)
    if found:
        yield "#### Findings"
        yield findings_markdown(found[:MAX_FINDINGS])
        if len(found) > MAX_FINDINGS:
            yield escaped(counted(len(found) - MAX_FINDINGS, "more finding"))
    for result in results:
        yield _tool(result, rows)
    yield from (escaped(text) for text in begin.coverage)
    yield from (escaped(line.plain) for line in notes(manifest))


def _finding(number: int, tool: str, finding: Finding) -> str:
    return (
        f"{number}. **{escaped(finding.what)}**: {escaped(finding.where)}  \n"
        f"   {escaped(finding.evidence)} ({escaped(tool)}; {escaped(gain_of(finding))})  \n"
        f"   {escaped(finding.remedy)}"
    )


def _tool(result: StoredResult, rows: int) -> str:
    """A tool's summary, with its notes and first table folded below."""
    summary = plain(result.summary, _MAX_LINE)
    folded = [escaped(f"note: {note}") for note in own_notes(result)]
    shown = [table for table in result.tables.values() if table.shown and len(table)]
    if shown:
        folded.append(_part(View(shown[0], min(rows, shown[0].shown))))
    folded = list(filter(None, folded))
    if not folded:
        return f"**{escaped(result.name)}**: {escaped(summary)}"
    name = _html(visible(result.name))
    inside = "\n\n".join(folded)
    return f"<details><summary><b>{name}</b>: {_html(summary)}</summary>\n\n{inside}\n\n</details>"


def _part(part: RenderableType) -> str:
    if isinstance(part, View):
        layout = part.layout(_WIDTH)
        if layout is None:
            return ""
        title = f"*{escaped(part.table.title)}*\n\n" if part.table.title else ""
        more = f"\n\n{counted(part.left, 'more row')}" if part.left else ""
        return f"{title}{_table(layout)}{more}"
    assert isinstance(part, Text)
    text = escaped(part.plain)
    return f"**{text}**" if text and part.style == "bold" else text


def _table(layout: Layout) -> str:
    columns = [
        column.cells if column.numeric else [code(cell) for cell in column.cells]
        for column in layout.columns
    ]
    return _drawn(
        [escaped(column.heading) for column in layout.columns],
        [column.numeric for column in layout.columns],
        [list(row) for row in zip(*columns, strict=True)],
    )


def _drawn(headings: list[str], numeric: list[bool], rows: list[list[str]]) -> str:
    lines = [headings, ["---:" if each else ":---" for each in numeric], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
