"""`pasta tools`: the tools, presets and settings there are, and what one of them does."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pasta.cli.report import console_for
from pasta.config import SETTINGS, Config, find_preset, preset_names
from pasta.errors import ToolError
from pasta.plugins import Listed, find_tools, list_tools
from pasta.tool import Tool


def prepare(parser: argparse.ArgumentParser) -> None:
    # fmt: off
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME",
        help="a tool (or FILE.py) or preset: its documentation, options, tables and needs")
    add("--tool-path", action="append", default=[], metavar="DIR", help="a directory with tools")
    add("--options", action="store_true", help="list the options of each tool")
    add("--settings", action="store_true", help="list the settings of -c and --set")
    # fmt: on


def run(options: argparse.Namespace) -> int:
    console = console_for()
    if options.settings:
        _print(console, ("setting", "meaning"), [(s.key, s.help) for s in SETTINGS])
    elif options.name:
        _print_one(console, options.name, options.tool_path)
    else:
        _print_all(console, list_tools(options.tool_path), with_options=options.options)
    return 0


def _print_all(console: Console, tools: Sequence[Listed], *, with_options: bool) -> None:
    others = any(tool.source != "built-in" for tool in tools)
    rows = [(tool.name, tool.error or tool.summary, tool.source)[: 2 + others] for tool in tools]
    _print(console, ("tool", "what it tells", "from")[: 2 + others], rows)
    if with_options:
        each = [
            (f"{tool.name}.{name}", option.help, f"{option.given}")
            for tool in tools
            for name, option in tool.options.items()
        ]
        _print(console, ("option", "meaning", "default"), each)
    names = {tool.name for tool in tools}
    presets = [(name, *_preset(name)) for name in preset_names() if name not in names]
    _print(console, ("preset", "what it is", "tools"), presets)
    console.print("pasta tools NAME says more of one; -c TOOL takes a tool with its usual options")


def _preset(name: str) -> tuple[str, str]:
    """What a preset says of itself in its first line, and its tools."""
    config = Config()
    config.load(name)
    first = find_preset(name).read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip(), ", ".join(config.tools)


def _print_one(console: Console, name: str, paths: Sequence[str]) -> None:
    try:
        found = find_tools(name, paths)
    except ToolError:
        if name not in preset_names():
            raise
        what, tools = _preset(name)
        console.print(Text(f"{name}: {what}\ntools: {tools}\nfile: {find_preset(name)}"))
        return
    for tool in found:
        _print_tool(console, tool)


def _print_tool(console: Console, tool: type[Tool]) -> None:
    console.print(Text(f"{tool.name}: {inspect.getdoc(tool) or 'no documentation'}\n"))
    for need in _needs(tool):
        console.print(Text(f"needs {need}"))
    options = [
        (name, option.help, str(option.given), option.accepted)
        for name, option in tool.options().items()
    ]
    if options:
        _print(console, ("option", "meaning", "default", "accepted"), options)
    tables = _tables(tool)
    if tables:
        _print(console, ("table", "columns"), tables)
    console.print(Text(f"run it: pasta-preload -t {tool.name} PROGRAM"))


def _needs(tool: type[Tool]) -> Iterator[str]:
    if tool.needs_allocations or (tool.needs_operators and not tool._probes):
        yield "a program that uses PyTorch"
    if tool._probes:
        yield "probes: code that runs inside kernels (NVIDIA, reference accelerator)"
    if tool.needs_recording:
        yield "recorded events (run.events = true)"
    kinds = sorted(tool.wants())
    if kinds:
        yield "of the backend: " + ", ".join(kinds)


def _tables(tool: type[Tool]) -> list[tuple[str, str]]:
    """Tables with their columns: those of a run in which nothing happened."""
    from pasta.processors.filter import Filter
    from pasta.processors.pipeline import Pipeline
    from pasta.processors.strings import Strings
    from pasta.tool import Context

    result = Pipeline(Filter(), [tool()], Context(strings=Strings())).finish().get(tool.name)
    tables = result.tables if result else {}
    return [(name, ", ".join(table.columns)) for name, table in tables.items()]


def _print(console: Console, headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    table = Table(box=SIMPLE)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
