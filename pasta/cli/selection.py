"""Selection of tools and settings: options that pasta-preload and pasta replay share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from pasta.config import Config
from pasta.errors import ConfigError, shown
from pasta.settings import CommandOption, Setting

_DEFAULT_TOOL = "kernel_freq"
#: Section of the settings that select events.
_FILTERS = "filter"


def add_selection(parser: argparse.ArgumentParser, usual: str = _DEFAULT_TOOL) -> None:
    """Adds the options that select tools, presets, settings and filters; `usual` names the default
    tools."""
    # fmt: off
    add = parser.add_argument
    add("-t", "--tool", action="append", default=[], metavar="TOOL",
        help=f"tools by name, or files: copies,./mine.py (repeatable; default: {usual})")
    add("-c", "--config", action="append", default=[], metavar="PRESET|FILE",
        help="presets by name, or TOML files (repeatable; later ones win)")
    add("--set", action="append", default=[], metavar="KEY=VALUE", dest="assignments",
        help="a setting in TOML syntax: ring.max=1GiB, kernel_freq.top=5")
    add("--tool-path", action="append", default=[], metavar="DIR",
        help="an additional directory of tools")
    # fmt: on
    add_options(parser, filters=True)


def _optional(*, filters: bool) -> list[tuple[Setting[Any], CommandOption]]:
    """Settings with a command-line option: the filters, or all others."""
    return [
        (each, each.option)
        for each in Config.settings
        if each.option and (each.section == _FILTERS) == filters
    ]


def add_options(parser: argparse.ArgumentParser, *, filters: bool = False) -> None:
    """Adds the options of settings: of the filters, or of all others."""
    for each, option in _optional(filters=filters):
        flag: dict[str, Any] = {"action": "store_const", "const": option.value}
        parser.add_argument(
            *option.names,
            dest=each.attribute,
            help=(option.help or each.help).replace("%", "%%"),
            **({"metavar": option.metavar} if option.metavar else flag),
        )


def set_options(config: Config, arguments: argparse.Namespace, *, filters: bool = False) -> None:
    """Applies the options of settings. A flag gives way to --set with a value of its own. Raises
    ConfigError."""
    given = {assignment.partition("=")[0].strip() for assignment in arguments.assignments}
    for each, option in _optional(filters=filters):
        value = getattr(arguments, each.attribute)
        if value is not None and (option.metavar or each.key not in given):
            config.set(each.key, value, option.names[0])


def replayed(arguments: argparse.Namespace) -> Config:
    """The configuration that the options select for recorded events. Raises PastaError, also for
    settings of probes, which have run."""
    for assignment in arguments.assignments:
        key = assignment.partition("=")[0].strip()
        if key.startswith("probes."):
            raise ConfigError(
                f"--set {shown(assignment)}: probes run while a program is recorded, not in a "
                "replay",
                remedy=f"pasta-preload --set {key}=…",
            )
    return selected(arguments)


def names(given: list[str], option: str) -> list[str]:
    """The names that a repeatable option lists, separated by commas; the path of an existing file
    is one name. Raises ConfigError."""
    found = []
    for each in given:
        parts = [each] if os.path.exists(each) else [part.strip() for part in each.split(",")]
        if not all(parts):
            raise ConfigError(f"{option} {shown(each)}: a name is empty", remedy="write NAME,NAME")
        found += parts
    return found


def selected(arguments: argparse.Namespace, usual: Sequence[str] = (_DEFAULT_TOOL,)) -> Config:
    """The configuration that the options select; `usual`: the tools if they select none. Raises
    PastaError."""
    config = Config()
    for source in names(arguments.config, "-c"):
        config.load(source)
    config.add_tools(names(arguments.tool, "-t"), arguments.tool_path)
    if not config.tools:
        config.tools.extend(usual)
    for assignment in arguments.assignments:
        config.set_text(assignment)
    set_options(config, arguments, filters=True)
    return config
