"""`pasta new-tool NAME`: writes a working tool with its preset and test."""

from __future__ import annotations

import argparse
from pathlib import Path

from pasta.scaffold import new_tool


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments to its parser."""
    parser.add_argument("name", help="name of the tool, in snake_case")
    parser.add_argument("-o", "--output", type=Path, default=Path(), metavar="DIR",
                        help="directory to write to (default: here)")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Writes a new tool; the exit status. Raises PastaError."""
    written = new_tool(options.name, options.output)
    for path in written:
        print(path)
    print(f"try it: pasta-preload -t {written[0]} pasta demo convolution")
    return 0
