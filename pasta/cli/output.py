"""Output of the verbs: reports on stdout at the terminal's width, failures on stderr."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from pasta.progress import display_progress
from pasta.run.directory import RunDirectory
from pasta.run.failures import failure_lines
from pasta.run.root import Root
from pasta.table import counted, plain

if TYPE_CHECKING:
    from rich.console import Console

_MAX_LINE = 2000
_MIN_WIDTH = 20  # columns


def add_width(parser: argparse.ArgumentParser) -> None:
    """Adds the option --width."""
    help = "width of the text in columns (default: the terminal's; full width for a pipe or file)"
    parser.add_argument("--width", type=_width, metavar="N", help=help)


def _width(text: str) -> int:
    if not text.isdecimal() or len(text) > 6 or int(text) < _MIN_WIDTH:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a width of at least {_MIN_WIDTH} columns"
        )
    return int(text)


def console_for(width: int | None = None) -> Console:
    """A console on stdout, as wide as its terminal or `width`; unlimited for a pipe or file."""
    from rich.console import Console

    from pasta.report.layout import UNLIMITED

    console = Console(emoji=False, width=width)
    if width is None and not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = UNLIMITED  # Rich defaults to 80 columns for a pipe
    return console


def print_run(run: RunDirectory, rows: int | None = None, width: int | None = None) -> None:
    """Prints the text report of a run. Raises RunError."""
    from pasta.report.text import print_parts, render

    with display_progress(f"reading {run.path}"):
        parts = list(render(run, rows))
    print_parts(parts, console_for(width))


def print_root(root: Root, rows: int | None = None, width: int | None = None) -> None:
    """Prints the text report of a root. Raises RunError."""
    from pasta.report.ranks import render
    from pasta.report.text import print_parts

    with display_progress(f"reading {counted(len(root.runs), 'run')}"):
        parts = list(render(root, rows))
    print_parts(parts, console_for(width))


def print_failure(text: str) -> None:
    """Writes a line to stderr."""
    sys.stderr.write(f"pasta: {plain(text, _MAX_LINE)}\n")


def print_failures(run: RunDirectory, where: str = "") -> bool:
    """Writes a line for each disabled tool to stderr; whether any was disabled."""
    lines = list(failure_lines(run.manifest()))
    for line in lines:
        print_failure(f"{where}{line}")
    return bool(lines)
