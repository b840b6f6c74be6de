"""`pasta report DIR`: a run as text, HTML and for other programs; ranks side by side."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pasta.cli.parser import count
from pasta.errors import ConfigError, PastaError, RunError
from pasta.progress import shown
from pasta.run.directory import MANIFEST, RunDirectory, is_run
from pasta.run.failures import failure_text
from pasta.run.root import Root, is_root
from pasta.table import counted, plain

if TYPE_CHECKING:
    from rich.console import Console

    from pasta.report.stacks import CallTree, Weight

_OUT = "pasta-out"
_WEIGHTS = ("device", "host", "bytes")
_MAX_LINE = 2000
_NARROWEST = 20  # columns
_DEFAULT = ""  # of --html: DIR/report.html


def prepare(parser: argparse.ArgumentParser) -> None:
    # fmt: off
    add = parser.add_argument
    add("directory", nargs="?", type=Path, metavar="DIR",
        help="a run directory or a root (default: the latest run of pasta-out or the current one)")
    add("-n", "--rows", type=count, metavar="N", help="rows of each table of the text report")
    add_width(parser)
    add("--rank", type=int, metavar="N", help="of a root: the report of one rank")
    add("--html", nargs="?", const=_DEFAULT, metavar="FILE",
        help="write one HTML file with all tables and figures (default: DIR/report.html)")
    add("--json", metavar="FILE", help="write everything as JSON (- is stdout, here and below)")
    add("--csv", metavar="OUTDIR", help="write each table as TOOL.TABLE.csv")
    add("--parquet", metavar="OUTDIR", help="write each table as TOOL.TABLE.parquet")
    add("--speedscope", metavar="FILE", help="write Python stacks for speedscope.app")
    add("--flamegraph", metavar="FILE", help="write Python stacks as folded lines")
    add("--weight", choices=_WEIGHTS,
        help="of stacks: device or host time, or allocated bytes (default: the first there is)")
    add("--perfetto", metavar="FILE",
        help="write the trace for ui.perfetto.dev, compressed where FILE ends with .gz")
    # fmt: on


def add_width(parser: argparse.ArgumentParser) -> None:
    """Adds --width."""
    help = "columns of the text (default: the terminal's; a pipe or file gets full width)"
    parser.add_argument("--width", type=_width, metavar="N", help=help)


def _width(text: str) -> int:
    if not text.isdecimal() or len(text) > 6 or int(text) < _NARROWEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a width of {_NARROWEST} or more columns")
    return int(text)


def console_for(width: int | None = None) -> Console:
    """Stdout, as wide as its terminal or `width`; a pipe or file has no width of its own."""
    from rich.console import Console

    from pasta.report.layout import UNLIMITED

    console = Console(emoji=False, width=width)
    if width is None and not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = UNLIMITED  # of a pipe Rich would take eighty
    return console


def print_run(run: RunDirectory, rows: int | None = None, width: int | None = None) -> None:
    """Prints the text report."""
    from pasta.report.text import print_parts, render

    with shown(f"reading {run.path}"):
        parts = list(render(run, rows))
    print_parts(parts, console_for(width))


def _print_root(root: Root, options: argparse.Namespace) -> int:
    """Prints a report; 1 where a tool of what it is of was disabled."""
    runs = root.runs
    if options.rank is not None:
        runs = root.of_rank(options.rank)
        for run in runs:
            print_run(run.directory, options.rows, options.width)
    else:
        print_root(root, options.rows, options.width)
    return int(any(run.manifest.get("failures") for run in runs))


def print_root(root: Root, rows: int | None = None, width: int | None = None) -> None:
    """Prints the text report of ranks."""
    from pasta.report.ranks import render
    from pasta.report.text import print_parts

    with shown(f"reading {counted(len(root.runs), 'run')}"):
        parts = list(render(root, rows))
    print_parts(parts, console_for(width))


def _of_rank(root: Root, rank: int | None) -> RunDirectory:
    """The run of a rank's first process. Raises ConfigError where none is named."""
    if rank is None:
        raise ConfigError(
            f"{root.path} has several runs, and a file is of one",
            remedy="name one with --rank N, or make one of all: pasta merge",
        )
    return root.of_rank(rank)[0].directory


def _latest() -> Path:
    """The run that was written last, of pasta-out and the current directory. Raises ConfigError."""
    places = [each for each in (Path(), Path(_OUT)) if each.is_dir()]
    found = [
        path
        for place in places
        for path in (place, *place.iterdir())
        if not path.name.startswith(".") and is_run(path)
    ]
    if not found:
        raise ConfigError(
            f"there is no run in {_OUT} or the current directory", remedy="pasta report DIR"
        )
    return max(found, key=lambda path: (path / MANIFEST).stat().st_mtime_ns)


def run(options: argparse.Namespace) -> int:
    directory, html = options.directory, options.html
    if directory is None and html and (is_run(Path(html)) or is_root(Path(html))):
        directory, html = Path(html), _DEFAULT  # pasta report --html DIR
    if directory is None:
        directory = _latest()
        sys.stderr.write(f"pasta: the latest run here: {directory}\n")
    if options.weight and not (options.speedscope or options.flamegraph):
        raise ConfigError("--weight is of --speedscope and --flamegraph", remedy="give one")
    asked = [name for name in _EXPORTS if getattr(options, name) is not None]
    if not is_root(directory):
        if options.rank is not None:
            raise RunError(f"{directory}: --rank is for a directory of runs")
        recorded = RunDirectory.open(directory)
    elif not asked:
        return _print_root(Root.open(directory), options)
    else:
        recorded = _of_rank(Root.open(directory), options.rank)
    if html is not None:
        options.html = html or str(recorded.path / "report.html")
    if not asked:
        print_run(recorded, options.rows, options.width)
        return int(bool(recorded.manifest().get("failures")))
    made = [_export(name, recorded, options) for name in asked]
    return int(not all(made))


def _export(name: str, run: RunDirectory, options: argparse.Namespace) -> bool:
    """Writes a file; False, and a line, where it cannot be made: the others still are."""
    target = getattr(options, name)
    try:
        with shown(f"writing {name}", quiet=target == "-"):
            written = _EXPORTS[name](run, target, options)
    except BrokenPipeError:
        raise
    except PastaError as error:
        say_failure(f"--{name}: {error}")
    except Exception as error:
        say_failure(f"--{name}: {target} cannot be made ({type(error).__name__}: {error})")
    else:
        if target != "-":
            print(f"{name}: {written}")
        return True
    return False


def say_failure(text: str) -> None:
    """Writes a line to stderr."""
    sys.stderr.write(f"pasta: {plain(text, _MAX_LINE)}\n")


def say_failures(run: RunDirectory, where: str = "") -> bool:
    """Writes a line for each tool that was disabled; whether there was one."""
    failures = run.manifest().get("failures", {})
    for name, failure in failures.items():
        say_failure(f"{where}{failure_text(name, failure)}")
    return bool(failures)


def _file(run: RunDirectory, target: str, write: Callable[[BinaryIO], None]) -> str:
    from pasta.report.files import written

    with written(run, target) as file:
        write(file)
    return os.path.relpath(target) if target != "-" else target


def _html(run: RunDirectory, target: str, options: argparse.Namespace) -> str:
    from pasta.report.page import render_page

    page = render_page(run).encode("utf-8")
    return _file(run, target, lambda file: _write(file, page))


def _write(file: BinaryIO, content: bytes) -> None:
    file.write(content)


def _json(run: RunDirectory, target: str, options: argparse.Namespace) -> str:
    from pasta.report.exports import write_json

    return _file(run, target, lambda file: write_json(run, file))


def _csv(run: RunDirectory, target: str, options: argparse.Namespace) -> str:
    from pasta.report.exports import write_csv

    return f"{counted(len(write_csv(run, target)), 'table')} in {target}"


def _parquet(run: RunDirectory, target: str, options: argparse.Namespace) -> str:
    from pasta.report.exports import write_parquet

    return f"{counted(len(write_parquet(run, target)), 'table')} in {target}"


def _stacks(run: RunDirectory, options: argparse.Namespace) -> tuple[CallTree, Weight]:
    from pasta.report.stacks import read_call_tree

    tree = read_call_tree(run)
    return tree, tree.chosen(options.weight, run.path)


def _speedscope(run: RunDirectory, target: str, options: argparse.Namespace) -> str:
    from pasta.report.exports import write_speedscope

    tree, weight = _stacks(run, options)
    name = run.path.resolve().name
    return _file(run, target, lambda file: write_speedscope(tree, weight, name, file))


def _flamegraph(run: RunDirectory, target: str, options: argparse.Namespace) -> str:
    from pasta.report.exports import write_folded

    tree, weight = _stacks(run, options)
    return _file(run, target, lambda file: write_folded(tree, weight, file))


def _perfetto(run: RunDirectory, target: str, options: argparse.Namespace) -> str:
    from pasta.runtime.replay import write_trace

    return _file(run, target, lambda file: write_trace(run, file, target.endswith(".gz")))


_EXPORTS: dict[str, Callable[[RunDirectory, str, argparse.Namespace], str]] = {
    "html": _html,
    "json": _json,
    "csv": _csv,
    "parquet": _parquet,
    "speedscope": _speedscope,
    "flamegraph": _flamegraph,
    "perfetto": _perfetto,
}
