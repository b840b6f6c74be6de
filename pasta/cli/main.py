"""The command `pasta`: one file per verb, each with `prepare` and `run`."""

from __future__ import annotations

import argparse
import importlib
import sys

from pasta.cli.parser import USAGE, Parser, ended_by
from pasta.config import suggest
from pasta.errors import shown
from pasta.version import VERSION

#: Verb -> module in pasta.cli, and its description.
VERBS: dict[str, tuple[str, str]] = {
    "attach": ("attach", "profile a running Python program"),
    "report": ("report", "print the report of a run directory, or of the ranks of a job"),
    "replay": ("replay", "run tools on the events of a run directory"),
    "analyze": ("analyze", "run tools on the events of all runs of a root, in parallel"),
    "diff": ("diff", "compare two run directories"),
    "merge": ("merge", "merge the run directories of all ranks into one"),
    "tools": ("tools", "list tools, presets and settings"),
    "prepare": ("prepare", "compile what tools need, ahead of the first run"),
    "doctor": ("doctor", "check this machine and installation"),
    "new-tool": ("new_tool", "write a new tool with its preset and test"),
    "demo": ("demo", "run a demonstration program of the reference accelerator"),
    "recover": ("recover", "finish the runs of a killed launcher"),
    "completion": ("completion", "print shell completion for bash, zsh or fish"),
}


def main(arguments: list[str] | None = None) -> int:
    """Entry point of `pasta`; the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    return ended_by(lambda: _run(given))


def _run(given: list[str]) -> int:
    options = parse(given)
    return int(options.run(options))


def parsers() -> dict[str, Parser]:
    """The parser of each command ("pasta-preload") and verb ("pasta report")."""
    from pasta.cli import preload

    found = {preload.parser().prog: preload.parser()}
    for verb, (module, description) in VERBS.items():
        parser = Parser(prog=f"pasta {verb}", description=description)
        importlib.import_module(f"pasta.cli.{module}").prepare(parser)
        found[parser.prog] = parser
    return found


def parse(given: list[str]) -> argparse.Namespace:
    """Parses a command line; `run` is the verb's function. Exits with a usage error."""
    parser = Parser(
        prog="pasta",
        description="PASTA, the accelerator profiler. To profile a program: pasta-preload",
    )
    parser.add_argument("--version", action="version", version=f"pasta-profiler {VERSION}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    named = next((word for word in given if not word.startswith("-")), None)
    chosen = parser
    for verb, (module, description) in VERBS.items():
        child = verbs.add_parser(verb, help=description, description=description)
        if verb == named:
            chosen = child
            work = importlib.import_module(f"pasta.cli.{module}")
            work.prepare(child)
            child.set_defaults(run=work.run)
    if not given:
        parser.print_help(sys.stderr)
        parser.exit(USAGE)
    if named is not None and named not in VERBS:
        parser.exit(USAGE, f"pasta: unknown verb {shown(named)}: {suggest(named, VERBS)}\n")
    options, left = parser.parse_known_args(given)
    if left:
        chosen.unknown(left)
    return options
