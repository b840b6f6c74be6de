"""`pasta`: everything around a run. One file per verb; each has `prepare` and `run`."""

from __future__ import annotations

import argparse
import importlib
import sys

import pasta
from pasta.errors import PastaError
from pasta.table import visible

#: Verb -> module in pasta.cli, and what it does.
VERBS: dict[str, tuple[str, str]] = {
    "report": ("report", "print the report of a run directory, or of the ranks of a job"),
    "replay": ("replay", "run tools on the events of a run directory"),
    "analyze": ("analyze", "run tools on the events of all runs of a root, by Dask"),
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
    parser = argparse.ArgumentParser(
        prog="pasta",
        description="PASTA, the accelerator profiler. To profile a program: pasta-preload",
    )
    parser.add_argument(
        "--version", action="version", version=f"pasta-profiler {pasta.__version__}"
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    named = next((word for word in given if not word.startswith("-")), None)
    for verb, (module, description) in VERBS.items():
        child = verbs.add_parser(verb, help=description, description=description)
        if verb == named:
            work = importlib.import_module(f"pasta.cli.{module}")
            work.prepare(child)
            child.set_defaults(run=work.run)
    options = parser.parse_args(given)
    try:
        return int(options.run(options))
    except PastaError as error:
        lines = map(visible, str(error).split("\n"))  # it may quote what is in a run
        sys.stderr.write(f"pasta: {chr(10).join(lines)}\n")
        return 2
    except BrokenPipeError:
        sys.stderr.close()
        return 141
