"""`pasta merge ROOT`: merges the runs of all ranks into one run directory."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pasta import private
from pasta.cli.output import print_failures
from pasta.errors import ConfigError
from pasta.progress import display_progress
from pasta.run.naming import check_place
from pasta.run.root import Root
from pasta.table import counted, plain


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments to its parser."""
    parser.add_argument("directory", type=Path, metavar="ROOT", help="a directory of runs")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR",
                        help="run directory to write (default: NAME-merged)")  # fmt: skip
    parser.add_argument("-f", "--force-overwrite", action="store_true",
                        help="replace an existing run directory")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Merges the runs of a root; the exit status. Raises PastaError."""
    private.set_umask()
    from pasta.report.text import write_text_report
    from pasta.run.merge import merge

    root = Root.open(options.directory)
    out = options.output or Path(f"{root.path.resolve().name}-merged")
    if root.path.resolve() in (out.resolve(), out.resolve().parent):
        raise ConfigError(f"{out} is in the root to merge", remedy="name another place with -o DIR")
    check_place(out, force=options.force_overwrite)
    with display_progress(f"merging {counted(len(root.runs), 'run')}"):
        done = merge(root, out, finish=write_text_report, force=options.force_overwrite)
    manifest = done.manifest()
    for warning in manifest["warnings"]:
        print(plain(f"note: {warning}", 2000))
    print(f"{counted(len(root.runs), 'run')}: {os.path.relpath(done.path)}")
    return int(print_failures(done) or bool(manifest["not_merged"]))
