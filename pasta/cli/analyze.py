"""`pasta analyze ROOT`: tools on the events of all runs of a root at once."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pasta.cli.parser import count
from pasta.cli.selection import add_selection, selected
from pasta.errors import ConfigError
from pasta.run.root import Root


def prepare(parser: argparse.ArgumentParser) -> None:
    # fmt: off
    add = parser.add_argument
    add("directory", type=Path, metavar="ROOT", help="a directory of runs")
    add_selection(parser)
    add("--scheduler", metavar="ADDRESS",
        help="a scheduler of Dask's, tcp://HOST:PORT, whose workers see the same files")
    add("--workers", type=count, metavar="N",
        help="threads without a scheduler (default: one for each core)")
    add("-o", "--output", type=Path, metavar="DIR",
        help="root for the results (default: NAME-analysis)")
    add("-f", "--force-overwrite", action="store_true", help="replace results that are there")
    add("-q", "--quiet", action="store_true", help="do not print the report")
    # fmt: on


def run(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from pasta.runtime.analyze import analyze

    root = Root.open(options.directory)
    out = options.output or Path(f"{root.path.resolve().name}-analysis")
    if out.resolve() == root.path.resolve():
        raise ConfigError(f"{out} is what is to be analysed", remedy="name another one with -o DIR")
    columns = (TextColumn("pasta: runs"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=options.quiet) as progress:
        task = progress.add_task("", total=len(root.runs))
        problems = analyze(
            {each.name: each.directory.path for each in root.runs}, selected(options), out,
            scheduler=options.scheduler, workers=options.workers, force=options.force_overwrite,
            told=lambda done: progress.update(task, completed=done),
        )  # fmt: skip
    for problem in problems.values():
        if problem:
            sys.stderr.write(f"pasta: {problem}\n")
    if all(problems.values()):
        return 2
    if not options.quiet:
        from pasta.cli.report import console_for
        from pasta.report import ranks

        ranks.print_report(Root.open(out), console_for())
        print(f"results: {os.path.relpath(out)}")
    return int(any(problems.values()))
