"""`pasta report DIR`: the text report of a run, or of the ranks of a root side by side."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rich.console import Console

from pasta.errors import RunError
from pasta.report.text import WIDTH, print_report
from pasta.run.directory import RunDirectory
from pasta.run.root import Root, is_root


def prepare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="a run directory or a root")
    parser.add_argument("-n", "--rows", type=int, metavar="N", help="rows of each table")
    parser.add_argument("--rank", type=int, metavar="N", help="of a root: the report of one rank")


def console_for() -> Console:
    """Stdout, as wide as the terminal."""
    console = Console(emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH  # of a pipe Rich would take eighty
    return console


def print_run(run: RunDirectory, rows: int | None = None) -> None:
    """Prints the text report."""
    print_report(run, console_for(), rows)


def _print_root(root: Root, options: argparse.Namespace) -> None:
    if options.rank is not None:
        for run in root.of_rank(options.rank):
            print_run(run.directory, options.rows)
        return
    from pasta.report import ranks

    ranks.print_report(root, console_for(), options.rows)


def run(options: argparse.Namespace) -> int:
    if is_root(options.directory):
        _print_root(Root.open(options.directory), options)
        return 0
    if options.rank is not None:
        raise RunError(f"{options.directory}: --rank is for a directory of runs")
    print_run(RunDirectory.open(options.directory), options.rows)
    return 0
