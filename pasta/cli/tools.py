"""`pasta tools`: lists tools, presets and settings, or describes one."""

from __future__ import annotations

import argparse
import inspect
import shlex
from collections.abc import Iterator, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pasta.backends import BACKENDS
from pasta.capabilities import ACCESSES
from pasta.cli.output import console_for
from pasta.config import Config, all_settings, find_preset, preset_names
from pasta.errors import ConfigError, ToolError
from pasta.frameworks import FRAMEWORKS
from pasta.plugins import Listed, find_tools, list_tools
from pasta.tool import Tool


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments to its parser."""
    # fmt: off
    add = parser.add_argument
    add("name", nargs="?", metavar="TOOL|PRESET",
        help="a tool (or FILE.py) or preset: its documentation, options, tables and needs")
    add("--tool-path", action="append", default=[], metavar="DIR",
        help="an additional directory of tools")
    add("--options", action="store_true", help="list the options of each tool")
    add("--settings", action="store_true", help="list the settings of -c and --set")
    # fmt: on


def run(options: argparse.Namespace) -> int:
    """Lists tools, presets or settings; the exit status. Raises PastaError."""
    console = console_for()
    if options.settings:
        _print(console, ("setting", "meaning"), [(s.key, s.help) for s in all_settings()])
    elif options.name:
        _print_one(console, options.name, options.tool_path)
    else:
        _print_all(console, list_tools(options.tool_path), with_options=options.options)
    return 0


def _print_all(console: Console, tools: Sequence[Listed], *, with_options: bool) -> None:
    others = any(tool.source != "built-in" for tool in tools)
    rows = [(tool.name, tool.error or tool.summary, tool.source)[: 2 + others] for tool in tools]
    _print(console, ("tool", "summary", "from")[: 2 + others], rows)
    if with_options:
        each = [
            (f"{tool.name}.{name}", option.help, f"{option.given}")
            for tool in tools
            for name, option in tool.options.items()
        ]
        _print(console, ("option", "meaning", "default"), each)
    names = {tool.name for tool in tools}
    known = preset_names(installed=True)
    presets = [(name, *_preset(name)) for name in known if name not in names]
    _print(console, ("preset", "summary", "tools"), presets)
    console.print("pasta tools NAME describes one; -c TOOL runs a tool with its preset's options")


def _preset(name: str) -> tuple[str, str]:
    """The description in a preset's first line, or why it cannot be loaded, and its tools."""
    config = Config()
    try:
        config.load(name)
        first = find_preset(name).read_text(encoding="utf-8").partition("\n")[0]
    except ConfigError as error:
        return str(error), ""
    return first.removeprefix("#").strip(), ", ".join(config.tools)


def _print_one(console: Console, name: str, paths: Sequence[str]) -> None:
    try:
        found = find_tools(name, paths)
    except ToolError:
        if name not in preset_names(installed=True):
            raise
        what, tools = _preset(name)
        console.print(Text(f"{name}: {what}\ntools: {tools}\nfile: {find_preset(name)}"))
        return
    for tool in found:
        _print_tool(console, tool, shlex.join(_options(name, tool, paths)))


def _options(name: str, tool: type[Tool], paths: Sequence[str]) -> list[str]:
    """Options that run a tool that was found by this name."""
    if name.partition(":")[0].endswith(".py"):
        return ["-t", name]
    return [*(each for path in paths for each in ("--tool-path", path)), "-t", tool.name]


def _print_tool(console: Console, tool: type[Tool], options_to_run: str) -> None:
    console.print(Text(f"{tool.name}: {inspect.cleandoc(tool.__doc__ or 'no documentation')}\n"))
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
    console.print(Text(f"run it: pasta-preload {options_to_run} PROGRAM"))


def _needs(tool: type[Tool]) -> Iterator[str]:
    needed = tool.needed()
    if "allocations" in needed or ("operators" in needed and "probes" not in needed):
        yield f"a program that uses {' or '.join(each.title for each in FRAMEWORKS.known())}"
    if "probes" in needed:
        able = (
            backend.title
            for backend in BACKENDS.known()
            if any(ACCESSES in source.gives for source in backend.sources)
        )
        yield f"probes: code that runs inside kernels ({', '.join(able)})"
    if "recording" in needed:
        yield "recorded events (run.events = true)"
    kinds = sorted(tool.wants())
    if kinds:
        yield "of the backend: " + ", ".join(kinds)


def _tables(tool: type[Tool]) -> list[tuple[str, str]]:
    """Tables with their columns, from the result of an empty run."""
    from pasta.processors.filter import Filter
    from pasta.processors.strings import Strings
    from pasta.runtime.pipeline import Pipeline
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
