"""`pasta tools`: the tools, presets and settings there are."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pasta.config import SETTINGS, find_preset, preset_names
from pasta.plugins import list_tools


def prepare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tool-path", action="append", default=[], metavar="DIR",
                        help="a directory with tools")  # fmt: skip
    parser.add_argument("--options", action="store_true", help="list the options of each tool")
    parser.add_argument("--settings", action="store_true", help="list the settings of -c and --set")


def run(options: argparse.Namespace) -> int:
    console = Console(emoji=False)
    if options.settings:
        console.print(_table(("setting", "meaning"), [(s.key, s.help) for s in SETTINGS]))
        return 0
    tools = list_tools(options.tool_path)
    rows = [(tool.name, tool.error or tool.summary, tool.source) for tool in tools]
    console.print(_table(("tool", "what it tells", "from"), rows))
    if options.options:
        each = [
            (f"{tool.name}.{name}", option.help, f"{option.given}")
            for tool in tools
            for name, option in tool.options.items()
        ]
        console.print(_table(("option", "meaning", "default"), each))
    presets = [(name, str(find_preset(name))) for name in preset_names()]
    console.print(_table(("preset", "file"), presets))
    return 0


def _table(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table()
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
