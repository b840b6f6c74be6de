"""Which tools run and what they are given: options that pasta-preload and pasta replay share."""

from __future__ import annotations

import argparse
import os

from pasta.config import Config
from pasta.errors import ConfigError, shown

_DEFAULT_TOOL = "kernel_freq"


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    # fmt: off
    add = parser.add_argument
    add("-t", "--tool", action="append", default=[], metavar="TOOL",
        help="tools by name, or files: copies,./mine.py (repeatable; default: kernel_freq)")
    add("-c", "--config", action="append", default=[], metavar="PRESET|FILE",
        help="presets by name, or TOML files (repeatable; later ones win)")
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


def names(given: list[str], option: str) -> list[str]:
    """The names of a repeatable option, each of which may be several with commas between; a file
    whose name has a comma is one. Raises ConfigError."""
    found = []
    for each in given:
        parts = [each] if os.path.exists(each) else [part.strip() for part in each.split(",")]
        if not all(parts):
            raise ConfigError(f"{option} {shown(each)}: a name is empty", remedy="give NAME,NAME")
        found += parts
    return found


def selected(arguments: argparse.Namespace) -> Config:
    """The configuration that the options say. Raises PastaError."""
    config = Config()
    for source in names(arguments.config, "-c"):
        config.load(source)
    config.add_tools(names(arguments.tool, "-t"), arguments.tool_path)
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
