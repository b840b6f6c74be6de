"""`pasta demo NAME`: a demonstration program of the reference accelerator.

Executes the program in this process, so that `pasta-preload pasta demo convolution` profiles it.
"""

from __future__ import annotations

import argparse
import os

from pasta import paths
from pasta.config import suggest
from pasta.errors import PastaError, shown


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments to its parser."""
    parser.add_argument(
        "name", nargs="?", metavar="DEMO", help="name of the program (default: list all)"
    )
    parser.add_argument(
        "--path", action="store_true", help="print the path of the program instead of running it"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program")


def demo_names() -> list[str]:
    """Names of the programs."""
    return sorted(path.name for path in paths.DEMOS.glob("*") if os.access(path, os.X_OK))


def run(options: argparse.Namespace) -> int:
    """Lists, prints or executes a demonstration; the exit status. Raises PastaError."""
    names = demo_names()
    if options.name is None:
        print("\n".join(names))
        return 0
    if options.name not in names:
        raise PastaError(f"unknown demo {shown(options.name)}", remedy=suggest(options.name, names))
    program = paths.DEMOS / options.name
    if options.path or options.arguments == ["--path"]:
        print(program)
        return 0
    return os.execv(program, [str(program), *options.arguments])
