"""`pasta replay DIR`: runs tools on the events of a run, on any machine."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pasta import private
from pasta.cli.output import print_failures, print_run
from pasta.cli.selection import add_selection, replayed
from pasta.errors import ConfigError
from pasta.progress import display_progress
from pasta.run.directory import RunDirectory


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments to its parser."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="a run directory")
    add_selection(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="DIR",
                        help="run directory for the results (default: NAME-replay)")  # fmt: skip
    parser.add_argument("-f", "--force-overwrite", action="store_true",
                        help="replace an existing run directory")  # fmt: skip
    parser.add_argument("-q", "--quiet", action="store_true", help="do not print the report")


def run(options: argparse.Namespace) -> int:
    """Replays a run and prints its report; the exit status. Raises PastaError."""
    private.set_umask()
    from pasta.runtime.replay import Replay

    recorded = RunDirectory.open(options.directory)
    out = options.output or Path(f"{recorded.path.resolve().name}-replay")
    if out.resolve() == recorded.path.resolve():
        raise ConfigError(f"{out} is the run to replay", remedy="use another directory with -o DIR")
    with display_progress(f"replaying {recorded.path}", quiet=options.quiet):
        done = Replay(recorded, replayed(options)).write(out, force=options.force_overwrite)
    if options.quiet:
        return int(print_failures(done))
    print_run(done)
    print(f"results: {os.path.relpath(done.path)}")
    return int(bool(done.manifest()["failures"]))
