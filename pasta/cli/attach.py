"""`pasta attach PID`: profiles a Python program that runs already."""

from __future__ import annotations

import argparse
import os
import signal

from pasta import private
from pasta.cli.output import print_failure, print_failures, print_run
from pasta.cli.selection import add_selection, selected
from pasta.config import Config


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments to its parser."""
    # fmt: off
    add = parser.add_argument
    add("pid", type=int, metavar="PID", help="process id of the program")
    add("--detach", action="store_true",
        help="end the profile of another pasta attach, and wait until its run is written")
    add_selection(parser, usual="those of the program's framework")
    add("--duration", metavar="TIME", help="end the profile after this time: 30s, 10min")
    add("-o", "--output", metavar="DIR",
        help="run directory; %%n program, %%p pid, … (default: pasta-out/%%n-%%p)")
    add("-f", "--force-overwrite", action="store_true", help="replace an existing run directory")
    add("-q", "--quiet", action="store_true", help="print only errors")
    # fmt: on


def run(options: argparse.Namespace) -> int:
    """Profiles the program until Ctrl-C, or the end of the time or of the program; the exit status.
    Raises PastaError."""
    private.set_umask()
    from pasta.runtime import attach
    from pasta.runtime.program import examine

    if options.detach:
        attach.detach(options.pid)
        return 0
    config = _configured(options)
    for number in (signal.SIGTERM, signal.SIGHUP):  # before the profile begins
        signal.signal(number, signal.default_int_handler)
    say = _quiet if options.quiet else print_failure
    with attach.Attachment(examine(options.pid), config, say) as attached:
        say(
            f"{attached.program}: {', '.join(config.tools)}; Ctrl-C ends the profile, not the "
            "program"
        )
        for line in attached.unseen:
            say(line)
        attached.follow()
        written = attached.finish()
    if options.quiet:
        return int(print_failures(written))
    print_run(written)
    print(f"results: {os.path.relpath(written.path)}")
    return int(bool(written.manifest()["failures"]))


def _quiet(_text: str) -> None:
    pass


def _configured(options: argparse.Namespace) -> Config:
    """The configuration of the command line. Raises PastaError."""
    from pasta.run.naming import check_output, check_template
    from pasta.runtime.block_tools import check_settings, load_block_tools

    config = selected(options, usual=())
    if options.duration is not None:
        config.set("run.duration", options.duration, "--duration")
    if options.output is not None:
        config.out = options.output
    config.force = config.force or options.force_overwrite
    check_settings(config, Config(), "pasta attach", {"run.duration"})
    check_template(config.out)
    check_output(config.out, force=config.force)
    load_block_tools(config)  # errors in them before the program is touched
    return config
