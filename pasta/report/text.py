"""The text report of a run: heading, findings, tables of the tools, and warnings."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from pasta.report.layout import UNLIMITED, View
from pasta.run.directory import RunDirectory
from pasta.run.failures import failure_lines
from pasta.run.results import StoredResult, ranked, read_results
from pasta.table import counted, formatted, plain

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pasta.findings import Finding

#: Characters of a line outside of tables.
_MAX_LINE = 2000
#: Findings in a text report.
MAX_FINDINGS = 5


def render(run: RunDirectory, rows: int | None = None) -> Iterator[RenderableType]:
    """Parts of the report; `rows` overrides the number of rows of each table. Raises RunError."""
    for _, parts in _sections(run, rows):
        yield from parts


def _sections(
    run: RunDirectory, rows: int | None = None
) -> Iterator[tuple[str, Iterator[RenderableType]]]:
    """The report's parts by tool; "": those before and after the tools'."""
    manifest = run.manifest()
    results = list(read_results(run.results, rows="shown" if rows is None else rows))
    yield "", chain(heading(run, manifest), findings_of(ranked(results)))
    for result in results:
        yield result.name, _tool(run, result, rows)
    yield "", notes(manifest)


def gain_of(finding: Finding) -> str:
    """The gain as text: "up to 12% of device time, high confidence"."""
    confidence = f"{finding.confidence} confidence"
    if finding.gain is None:
        return confidence
    share = "less than 1%" if finding.gain < 0.005 else f"up to {finding.gain:.0%}"
    return f"{share} of {finding.of}, {confidence}"


def findings_of(found: Sequence[tuple[str, Finding]]) -> Iterator[Text]:
    """The first of the sorted findings, as lines."""
    if not found:
        return
    yield Text()
    yield Text("Findings", style="bold")
    for number, (tool, finding) in enumerate(found[:MAX_FINDINGS], 1):
        yield Text(plain(f"{number}. {finding.what}: {finding.where}"), style="bold")
        yield Text(plain(f"   {finding.evidence} ({tool}; {gain_of(finding)})"))
        yield Text(plain(f"   {finding.remedy}"))
    if len(found) > MAX_FINDINGS:
        yield Text(f"   … {len(found) - MAX_FINDINGS} more: pasta report DIR --html")


def notes(manifest: dict[str, Any]) -> Iterator[Text]:
    """Failures and warnings of a run, as lines."""
    for line in failure_lines(manifest):
        yield Text(line, style="red")
    for warning in manifest.get("warnings", []):
        yield Text(plain(f"note: {warning}", _MAX_LINE), style="yellow")


def heading(run: RunDirectory, manifest: dict[str, Any]) -> Iterator[Text]:
    """Lines about what ran, where, and how it ended."""
    if not manifest:
        warning = f"{run.path}: unfinished run; the report covers what was written"
        yield Text(plain(warning, _MAX_LINE), style="yellow")
        return
    started = datetime.fromtimestamp(manifest["start"]["realtime_ns"] / 1e9).astimezone()
    devices = [f"{number}: {name}" for number, name in manifest["devices"].items()]
    sources = [f"{name} {version}".strip() for name, version in manifest["sources"].items()]
    yield Text(plain(" ".join(manifest["command"]), _MAX_LINE), style="bold")
    who = f"process {manifest['pid']}"
    if "ranks" in manifest:
        who = f"{counted(len(manifest['ranks']), 'run')} of {manifest['merged']['of']}"
    elif "passes" in manifest:
        passes = manifest["passes"].items()
        named = [f"{name} (process {of['pid']})" for name, of in passes]
        who = f"passes {' and '.join(named)}"
    process = (
        f"{who} on {manifest['host']}, {started:%Y-%m-%d %H:%M:%S}, "
        f"{formatted(manifest['observed_ns'], 'ns')} observed, {manifest['ended']['text']}"
    )
    yield Text(plain(process, _MAX_LINE))
    used = f"devices: {', '.join(devices) or 'none'}; source: {', '.join(sources) or 'none'}"
    yield Text(plain(used, _MAX_LINE))


def _tool(run: RunDirectory, result: StoredResult, rows: int | None) -> Iterator[RenderableType]:
    yield Text()
    yield Text(plain(f"{result.name}: {result.summary}", _MAX_LINE), style="bold")
    for note in result.notes:
        yield Text(plain(f"note: {note}", _MAX_LINE), style="yellow")
    for table in result.tables.values():
        shown = table.shown if rows is None or not table.shown else rows
        if shown and len(table):
            yield View(table, shown)
    for path in result.files:
        yield Text(plain(f"file: {path.relative_to(run.path)}"))


def check_shown(run: RunDirectory) -> dict[str, str]:
    """Reads and renders the results of a run, to raise whatever that raises; the text of each tool,
    by its name."""
    results = list(read_results(run.results, rows="shown"))
    text_of(findings_of(ranked(results)))
    return {result.name: text_of(_tool(run, result, None)) for result in results}


def print_report(run: RunDirectory, console: Console, rows: int | None = None) -> None:
    """Prints the text report to a console. Raises RunError."""
    print_parts(render(run, rows), console)


def print_parts(parts: Iterable[RenderableType], console: Console) -> None:
    """Renders all parts, then prints them."""
    for part in list(parts):
        console.print(part)


def text_of(parts: Iterable[RenderableType]) -> str:
    """Parts of a report as plain text of unlimited width."""
    text = io.StringIO()
    print_parts(parts, Console(file=text, width=UNLIMITED, color_system=None, emoji=False))
    return text.getvalue()


def text_report(run: RunDirectory, texts: Mapping[str, str] | None = None) -> str:
    """The report as plain text. `texts`: of tools, from `check_shown`. Raises RunError."""
    known = texts or {}
    return "".join(known.get(tool) or text_of(parts) for tool, parts in _sections(run))


def write_text_report(run: RunDirectory, texts: Mapping[str, str] | None = None) -> Path:
    """Writes report.txt (see `text_report`) and returns its path. Raises OSError and RunError."""
    run.report.write_text(text_report(run, texts), encoding="utf-8")
    return run.report


def write_terminal_report(run: RunDirectory, path: Path, width: int) -> None:
    """Writes the report as a terminal of `width` columns shows it, including colors."""
    with path.open("w", encoding="utf-8") as file:
        print_report(run, Console(file=file, width=width, force_terminal=True, emoji=False))
