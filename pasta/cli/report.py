"""`pasta report DIR`: the text report of a run."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rich.console import Console

from pasta.report.text import WIDTH, print_report
from pasta.run.directory import RunDirectory


def prepare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="a run directory")
    parser.add_argument("-n", "--rows", type=int, metavar="N", help="rows of each table")


def console_for() -> Console:
    """Stdout, as wide as the terminal."""
    console = Console(emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH  # of a pipe Rich would take eighty
    return console


def print_run(run: RunDirectory, rows: int | None = None) -> None:
    """Prints the text report."""
    print_report(run, console_for(), rows)


def run(options: argparse.Namespace) -> int:
    print_run(RunDirectory.open(options.directory), options.rows)
    return 0
