"""Which tools run and what they are given: options that pasta-preload and pasta replay share."""

from __future__ import annotations

import argparse

from pasta.config import Config

_DEFAULT_TOOL = "kernel_freq"


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    # fmt: off
    add = parser.add_argument
    add("-t", "--tool", action="append", default=[], metavar="TOOL",
        help="a tool by name, or a file: ./mine.py (repeatable; default: kernel_freq)")
    add("-c", "--config", action="append", default=[], metavar="PRESET|FILE",
        help="a preset by name or a TOML file (repeatable; later ones win)")
    add("--set", action="append", default=[], metavar="KEY=VALUE", dest="assignments",
        help="one setting, as in TOML: ring.max=1GiB, kernel_freq.top=5")
    add("--tool-path", action="append", default=[], metavar="DIR",
        help="a directory with tools")
    add("-k", "--kernel-regex", metavar="REGEX", help="only kernels whose name matches")
    add("--exclude", metavar="REGEX", help="no kernels whose name matches")
    add("-s", "--launch-skip", metavar="N", help="skip the first N selected launches")
    add("--launch-count", metavar="N", help="stop after N selected launches")
    add("--range", metavar="REGEX", help="only activity inside ranges that match")
    # fmt: on


def selected(arguments: argparse.Namespace) -> Config:
    """The configuration that the options say. Raises PastaError."""
    config = Config()
    for source in arguments.config:
        config.load(source)
    config.add_tools(arguments.tool, arguments.tool_path)
    if not config.tools:
        config.tools.append(_DEFAULT_TOOL)
    for assignment in arguments.assignments:
        config.set_text(assignment)
    for option, key, value in (
        ("-k", "filter.kernel", arguments.kernel_regex),
        ("--exclude", "filter.exclude", arguments.exclude),
        ("--launch-skip", "filter.launch-skip", arguments.launch_skip),
        ("--launch-count", "filter.launch-count", arguments.launch_count),
        ("--range", "filter.range", arguments.range),
    ):
        if value is not None:
            config.set(key, value, option)
    return config
