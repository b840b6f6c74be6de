"""`pasta merge ROOT`: merges the runs of all ranks into one run directory; `pasta merge --passes A
B` joins two passes of a program."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pasta import private
from pasta.cli.output import print_failures
from pasta.errors import ConfigError
from pasta.progress import display_progress
from pasta.run.directory import RunDirectory
from pasta.run.naming import check_place
from pasta.run.root import Root
from pasta.table import counted, plain


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments to its parser."""
    # fmt: off
    add = parser.add_argument
    add("directory", nargs="?", type=Path, metavar="ROOT", help="a directory of runs")
    add("--passes", nargs=2, type=Path, metavar=("A", "B"),
        help="join a run with device times and a run with memory accesses, in any order")
    add("-o", "--output", type=Path, metavar="DIR",
        help="run directory to write (default: NAME-merged, NAME-joined)")
    add("-f", "--force-overwrite", action="store_true", help="replace an existing run directory")
    # fmt: on


def run(options: argparse.Namespace) -> int:
    """Merges the runs of a root, or joins two passes; the exit status. Raises PastaError."""
    if (options.directory is None) == (options.passes is None):
        raise ConfigError(
            "give either a root or --passes",
            remedy="pasta merge ROOT for ranks, or pasta merge --passes A B for two passes",
        )
    private.set_umask()
    return _join(options) if options.passes else _merge(options)


def _merge(options: argparse.Namespace) -> int:
    from pasta.report.text import write_text_report
    from pasta.run.merge import merge

    root = Root.open(options.directory)
    out = options.output or Path(f"{root.path.resolve().name}-merged")
    if root.path.resolve() in (out.resolve(), out.resolve().parent):
        raise ConfigError(
            f"{out} is inside the root to merge", remedy="use another directory with -o DIR"
        )
    check_place(out, force=options.force_overwrite)
    with display_progress(f"merging {counted(len(root.runs), 'run')}"):
        done = merge(root, out, finish=write_text_report, force=options.force_overwrite)
    manifest = done.manifest()
    for warning in manifest["warnings"]:
        print(plain(f"note: {warning}", 2000))
    print(f"{counted(len(root.runs), 'run')}: {os.path.relpath(done.path)}")
    return int(print_failures(done) or bool(manifest["not_merged"]))


def _join(options: argparse.Namespace) -> int:
    from pasta.report.text import write_text_report
    from pasta.run.passes import join_as
    from pasta.runtime.rejoin import rejoin

    one, other = (RunDirectory.open(path) for path in options.passes)
    out = options.output or Path(f"{one.path.resolve().name}-joined")
    for path in (one.path.resolve(), other.path.resolve()):
        if path == out.resolve() or path in out.resolve().parents:
            raise ConfigError(
                f"{out} is inside a run to join", remedy="use another directory with -o DIR"
            )
    check_place(out, force=options.force_overwrite)
    with display_progress("joining two passes"):
        done = join_as(
            one, other, out,
            finish=write_text_report, rejoin=rejoin, force=options.force_overwrite,
        )  # fmt: skip
    for warning in done.run.manifest()["warnings"]:
        print(plain(f"note: {warning}", 2000))
    launches = counted(done.launches, "joined launch", "joined launches")
    print(f"{launches}, {sum(done.alone):,} without partner: {os.path.relpath(done.run.path)}")
    return int(print_failures(done.run))
