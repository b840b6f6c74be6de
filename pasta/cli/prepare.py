"""`pasta prepare`: compiles what tools need, so that their first run does not wait for it."""

from __future__ import annotations

import argparse
import re

from pasta import private
from pasta.cli.selection import add_selection, selected
from pasta.errors import ConfigError, shown
from pasta.progress import display_progress, report_progress
from pasta.table import counted


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments to its parser."""
    add_selection(parser, usual="all built-in tools and presets")
    parser.add_argument("--arch", action="append", default=[], metavar="N",
                        help="architecture of devices, as 90 or sm_90 (repeatable; default: those "
                        "of this machine)")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Compiles for the selected tools, or for all built-in tools and presets; the exit status.
    Raises PastaError."""
    private.set_umask()
    from pasta.compiled import store
    from pasta.compiled.building import build_missing
    from pasta.runtime.preparation import built_in, compile_probes, functions_of

    architectures = [_architecture(text) for text in options.arch]
    configs = [selected(options)] if options.tool or options.config else list(built_in())
    with display_progress("preparing", quiet=False):
        report_progress("compiling for this CPU")
        functions = functions_of(configs)
        missing = build_missing(functions)
        for each in functions:
            each.prepare()
        report_progress("compiling for devices")
        probes = compile_probes(configs, architectures)
    if missing and not store.is_writable():
        raise ConfigError(
            "compiled code cannot be stored", remedy="set XDG_CACHE_HOME to a writable directory"
        )
    print(f"{counted(missing, 'function')} compiled for {store.level()}, "
          f"{counted(len(functions) - missing, 'function')} already in the cache")  # fmt: skip
    what = f"{counted(probes, 'selection')} of tools" if probes else "no device here (see --arch)"
    print(f"probes for devices: {what}")
    return 0


def _architecture(text: str) -> int:
    found = re.fullmatch(r"(?:sm_)?(\d{2,3})", text)
    if not found:
        raise ConfigError(
            f"--arch {shown(text)} is not an architecture", remedy="use a number such as 90"
        )
    return int(found[1])
