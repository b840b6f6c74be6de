"""`pasta diff BEFORE AFTER`: changes between two runs, checked against thresholds."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta.cli.output import add_width, console_for
from pasta.cli.parser import count
from pasta.cli.selection import names
from pasta.errors import ConfigError, RunError
from pasta.progress import display_progress
from pasta.run.directory import RunDirectory

if TYPE_CHECKING:
    from pasta.run.diff import Comparison
    from pasta.run.thresholds import Exceeded

_SCHEMA = 1


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments to its parser."""
    # fmt: off
    add = parser.add_argument
    add("before", type=Path, metavar="BEFORE", help="a run directory")
    add("after", type=Path, metavar="AFTER", help="the run directory to compare with it")
    add("-t", "--tool", action="append", default=[], metavar="TOOL[.TABLE]",
        help="compare only this tool or table (repeatable; default: tables that reports show)")
    add("--column", action="append", default=[], metavar="COLUMN",
        help="compare only this column (repeatable)")
    add("-n", "--rows", type=count, default=None, metavar="N", help="rows of each table")
    add_width(parser)
    add("--json", metavar="FILE|-", help="also write everything as JSON; -: to stdout instead "
                                         "of text")
    add("--markdown", metavar="FILE|-",
        help="also write Markdown, for a pull request; -: to stdout instead of text")
    add("--html", metavar="FILE|-", help="also write an HTML page with figures; -: to stdout "
                                         "instead of text")
    add("--fail-on", action="append", default=[], metavar="THRESHOLD",
        help="exit with 1 if exceeded: 'bytes>+5%%', 'kernel_freq.launches[gemm]>+0' "
             "(repeatable)")
    # fmt: on


def run(options: argparse.Namespace) -> int:
    """Compares two runs; exit status 1 if a threshold is exceeded. Raises PastaError."""
    from pasta.run.diff import Comparison
    from pasta.run.thresholds import Threshold

    if [options.json, options.markdown, options.html].count("-") > 1:
        raise ConfigError("two outputs go to stdout", remedy="name files for all but one")
    thresholds = [Threshold.parse(each) for each in options.fail_on]
    before, after = (RunDirectory.open(path) for path in (options.before, options.after))
    comparison = Comparison(before, after)
    options.column = names(options.column, "--column")
    chosen = _chosen(comparison, names(options.tool, "-t"), options.column)
    notes: list[str] = []
    exceeded = [each for one in thresholds for each in one.check(comparison, notes)]
    if options.json:
        _write(after, options.json, _document(comparison, chosen, options.column, exceeded, notes))
    if options.markdown:
        _write_markdown(options.markdown, comparison, chosen, options, exceeded, notes)
    if options.html:
        _write_page(comparison, chosen, options, notes)
    if "-" not in (options.json, options.markdown, options.html):
        _print(comparison, chosen, options, notes)
    sys.stdout.flush()
    for each in exceeded:
        sys.stderr.write(f"pasta: {each}\n")
    return 1 if exceeded else 0


def _chosen(comparison: Comparison, tools: list[str], columns: list[str]) -> list[tuple[str, str]]:
    """The tables to compare. Raises RunError and ConfigError for unknown ones."""
    from pasta.report.diff import default_tables
    from pasta.run.diff import require

    if not comparison.tables:
        raise RunError(
            f"{comparison.before.path} and {comparison.after.path} have no tool in common",
            remedy="pasta replay RUN -t TOOL runs one on recorded events",
        )
    chosen = []
    for each in tools:
        tool, _, name = each.partition(".")
        require(comparison, tool, name or None)
        chosen += [(tool, name)] if name else [(tool, name) for name in comparison.tables[tool]]
    chosen = list(dict.fromkeys(chosen)) if tools else default_tables(comparison)
    for column in columns:
        if not any(column in comparison.compared(*each) for each in chosen):
            for tool, name in chosen:
                if column in comparison.uncompared(tool, name):
                    raise comparison.uncomparable(f"--column {column}", tool, name, column)
            known = dict.fromkeys(name for each in chosen for name in comparison.compared(*each))
            raise ConfigError(
                f"--column {column}: no compared column has this name",
                remedy=f"columns: {', '.join(known)}",
            )
    return chosen


def _document(
    comparison: Comparison,
    chosen: list[tuple[str, str]],
    columns: list[str],
    exceeded: list[Exceeded],
    notes: list[str],
) -> dict[str, Any]:
    tables = [comparison.table(*each).document(columns) for each in chosen]
    return {
        "schema": _SCHEMA,
        "before": str(comparison.before.path),
        "after": str(comparison.after.path),
        "tables": tables,
        "notes": [*comparison.notes, *notes],
        "exceeded": [
            {"threshold": str(each.threshold), "place": each.place, "row": each.row,
             **each.change.document()}
            for each in exceeded
        ],
    }  # fmt: skip


def _write(run: RunDirectory, target: str, document: dict[str, Any]) -> None:
    from pasta.report.files import written

    with written(run, target) as file:
        file.write((json.dumps(document, indent=1) + "\n").encode())


def _write_markdown(
    target: str,
    comparison: Comparison,
    chosen: list[tuple[str, str]],
    options: argparse.Namespace,
    exceeded: list[Exceeded],
    notes: list[str],
) -> None:
    """Writes exceeded thresholds, then the report. Raises RunError."""
    from pasta.report.diff import MARKDOWN_ROWS, exceeded_parts, note, render
    from pasta.report.files import written
    from pasta.report.markdown import markdown_of

    rows = options.rows or MARKDOWN_ROWS
    parts = [
        *exceeded_parts([str(each) for each in exceeded]),
        *render(comparison, chosen, options.column, rows),
        *map(note, notes),
    ]
    with written(comparison.after, target) as file:
        file.write(markdown_of(parts).encode())


def _write_page(
    comparison: Comparison,
    chosen: list[tuple[str, str]],
    options: argparse.Namespace,
    notes: list[str],
) -> None:
    from pasta.report.diff_page import render_diff_page
    from pasta.report.files import written

    with display_progress("writing html", quiet=options.html == "-"):
        page = render_diff_page(comparison, chosen, options.column, notes).encode("utf-8")
    with written(comparison.after, options.html) as file:
        file.write(page)


def _print(
    comparison: Comparison,
    chosen: list[tuple[str, str]],
    options: argparse.Namespace,
    notes: list[str],
) -> None:
    from pasta.report.diff import ROWS, note, render

    console = console_for(options.width)
    with display_progress("comparing runs"):
        parts = list(render(comparison, chosen, options.column, options.rows or ROWS))
    for part in parts:
        console.print(part)
    for each in notes:
        console.print(note(each))
