"""`pasta`: everything around a run. One file per verb; each has `prepare` and `run`."""

from __future__ import annotations

import argparse
import importlib
import sys

import pasta
from pasta.cli.parser import Parser, ended_by
from pasta.config import suggest
from pasta.errors import shown

_USAGE_STATUS = 2
#: Verb -> module in pasta.cli, and what it does.
VERBS: dict[str, tuple[str, str]] = {
    "report": ("report", "print the report of a run directory, or of the ranks of a job"),
    "replay": ("replay", "run tools on the events of a run directory"),
    "analyze": ("analyze", "run tools on the events of all runs of a root, in parallel"),
    "diff": ("diff", "compare two run directories"),
    "merge": ("merge", "make one run directory of the runs of all ranks"),
    "tools": ("tools", "list tools, presets and settings"),
    "doctor": ("doctor", "check this machine and installation"),
    "new-tool": ("new_tool", "write a new tool with its preset and test"),
    "demo": ("demo", "run a demonstration program of the reference accelerator"),
    "recover": ("recover", "finish runs that a killed launcher left behind"),
}


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    return ended_by(lambda: _run(given))


def _run(given: list[str]) -> int:
    options = parse(given)
    return int(options.run(options))


def parse(given: list[str]) -> argparse.Namespace:
    """The options of a command line, with `run` of its verb. Exits where they are wrong."""
    parser = Parser(
        prog="pasta",
        description="PASTA, the accelerator profiler. To profile a program: pasta-preload",
    )
    parser.add_argument(
        "--version", action="version", version=f"pasta-profiler {pasta.__version__}"
    )
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
        parser.exit(_USAGE_STATUS)
    if named is not None and named not in VERBS:
        parser.exit(_USAGE_STATUS, f"pasta: no verb {shown(named)}: {suggest(named, VERBS)}\n")
    options, left = parser.parse_known_args(given)
    if left:
        chosen.unknown(left)
    return options
