"""`pasta analyze ROOT`: tools on the events of all runs of a root at once."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pasta import private
from pasta.cli.output import print_failures, print_root
from pasta.cli.parser import count
from pasta.cli.selection import add_selection, replayed
from pasta.errors import ConfigError
from pasta.progress import display_progress, report_progress
from pasta.run.root import Root
from pasta.table import counted, visible


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments to its parser."""
    # fmt: off
    add = parser.add_argument
    add("directory", type=Path, metavar="ROOT", help="a directory of runs")
    add_selection(parser)
    add("--scheduler", metavar="ADDRESS",
        help="a Dask scheduler, tcp://HOST:PORT, whose workers see the same files")
    add("--workers", type=count, metavar="N",
        help="threads without a scheduler (default: one for each core)")
    add("-o", "--output", type=Path, metavar="DIR",
        help="root for the results (default: NAME-analysis)")
    add("-f", "--force-overwrite", action="store_true", help="replace existing results")
    add("-q", "--quiet", action="store_true", help="do not print the report")
    # fmt: on


def run(options: argparse.Namespace) -> int:
    """Analyses the runs of a root; the exit status. Raises PastaError."""
    private.set_umask()
    from pasta.runtime.analyze import analyze

    root = Root.open(options.directory)
    out = options.output or Path(f"{root.path.resolve().name}-analysis")
    if out.resolve() == root.path.resolve():
        raise ConfigError(
            f"{out} is the root to analyse", remedy="use another directory with -o DIR"
        )
    runs = len(root.runs)
    with display_progress(f"analysing {counted(runs, 'run')}", quiet=options.quiet):
        problems = analyze(
            {each.name: each.directory.path for each in root.runs}, replayed(options), out,
            scheduler=options.scheduler, workers=options.workers, force=options.force_overwrite,
            on_done=lambda done: report_progress(f"{done:,} of {runs:,} done"),
        )  # fmt: skip
    for problem in problems.values():
        if problem:
            sys.stderr.write(f"pasta: {visible(problem)}\n")
    if all(problems.values()):
        return 2
    done = Root.open(out)
    failed = [print_failures(run.directory, f"{run.name}: ") for run in done.runs]
    if not options.quiet:
        print_root(done)
        print(f"results: {os.path.relpath(out)}")
    return int(any(problems.values()) or any(failed))
