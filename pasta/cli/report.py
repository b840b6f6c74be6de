"""`pasta report DIR`: a run as text or HTML, exports for other programs, ranks side by side."""

from __future__ import annotations

import argparse
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta.cli.output import add_width, print_failure, print_root, print_run
from pasta.cli.parser import count
from pasta.errors import ConfigError, PastaError, RunError
from pasta.progress import display_progress
from pasta.report.exports import exports
from pasta.report.exports.base import Request
from pasta.report.weights import WEIGHTS
from pasta.run.directory import MANIFEST, RunDirectory, is_run
from pasta.run.root import Root, is_root

if TYPE_CHECKING:
    from pasta.report.exports.base import Export

_OUT = "pasta-out"
_DEFAULT = ""  # target of an option without a value: the format's default in the run


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments to its parser."""
    # fmt: off
    add = parser.add_argument
    add("directory", nargs="?", type=Path, metavar="DIR",
        help="a run directory or a root (default: the latest run in pasta-out or the current"
             " directory)")
    add("-n", "--rows", type=count, metavar="N", help="rows of each table of the text report")
    add_width(parser)
    add("--rank", type=int, metavar="N", help="report one rank of a root")
    add("--serve", action="store_true",
        help="serve the HTML report on this machine, with all rows and events, until Ctrl-C")
    add("--no-source", action="store_true",
        help="omit lines of the program's source from the HTML report")
    for each in exports():
        optional: dict[str, Any] = {} if each.default is None else {"nargs": "?", "const": _DEFAULT}
        add(f"--{each.name}", metavar=each.metavar, help=each.help, **optional)
    add("--weight", choices=tuple(WEIGHTS),
        help="weight of stacks: device or host time, allocated bytes, or memory accesses"
        " (default: the first recorded)")
    # fmt: on


def _print_root(root: Root, options: argparse.Namespace) -> int:
    """Prints a report; exit status 1 if a tool of a reported run was disabled."""
    runs = root.runs
    if options.rank is not None:
        runs = root.of_rank(options.rank)
        for run in runs:
            print_run(run.directory, options.rows, options.width)
    else:
        print_root(root, options.rows, options.width)
    return int(any(run.manifest.get("failures") for run in runs))


def _of_rank(root: Root, rank: int | None) -> RunDirectory:
    """The run of a rank's first process. Raises ConfigError without a rank."""
    if rank is None:
        raise ConfigError(
            f"{root.path} has several runs, and an export covers one",
            remedy="select one with --rank N, or merge them: pasta merge",
        )
    return root.of_rank(rank)[0].directory


def _latest() -> Path:
    """The latest run in pasta-out and the current directory. Raises ConfigError."""
    places = [each for each in (Path(), Path(_OUT)) if each.is_dir()]
    found = [
        path
        for place in places
        for path in (place, *place.iterdir())
        if not path.name.startswith(".") and is_run(path)
    ]
    if not found:
        raise ConfigError(f"no run in {_OUT} or the current directory", remedy="pasta report DIR")
    return max(found, key=lambda path: (path / MANIFEST).stat().st_mtime_ns)


def run(options: argparse.Namespace) -> int:
    """Prints or exports a run; exit status 1 if an export or a tool failed. Raises PastaError."""
    directory, formats = options.directory, exports()
    for each in formats:
        given = getattr(options, each.option)
        if directory is None and each.default and given and _has_runs(Path(given)):
            directory = Path(given)  # pasta report --html DIR
            setattr(options, each.option, _DEFAULT)
    if directory is None:
        directory = _latest()
        sys.stderr.write(f"pasta: the latest run here: {directory}\n")
    asked = [each for each in formats if getattr(options, each.option) is not None]
    if options.serve and asked:
        raise ConfigError(
            f"--serve and --{asked[0].name} exclude each other", remedy="use only one of them"
        )
    if options.weight and not any(each.weighted for each in asked):
        weighted = " and ".join(f"--{each.name}" for each in formats if each.weighted)
        raise ConfigError(f"--weight applies to {weighted}", remedy="add one of them")
    if not is_root(directory):
        if options.rank is not None:
            raise RunError(f"{directory}: --rank applies to a directory of runs only")
        recorded = RunDirectory.open(directory)
    elif not asked and not options.serve:
        return _print_root(Root.open(directory), options)
    else:
        recorded = _of_rank(Root.open(directory), options.rank)
    if options.serve:
        return _serve(recorded, source=not options.no_source)
    if not asked:
        print_run(recorded, options.rows, options.width)
        return int(bool(recorded.manifest().get("failures")))
    made = []
    for each in asked:
        target = getattr(options, each.option)
        if target == _DEFAULT and each.default:
            target = str(recorded.path / each.default)
        request = Request(recorded, target, options.weight, source=not options.no_source)
        made.append(_export(each, request))
    return int(not all(made))


def _serve(run: RunDirectory, *, source: bool) -> int:
    """Serves the report until Ctrl-C. Raises PastaError."""
    from pasta.report.serve import ReportServer

    with suppress(KeyboardInterrupt), ReportServer(run, source=source) as server:
        answering = threading.Thread(target=server.serve_forever, daemon=True)
        answering.start()
        try:
            print(f"{run.path}: {server.address} (Ctrl-C ends it)", flush=True)
            with display_progress(f"reading {run.path}"):
                server.prepare()
            answering.join()
        finally:
            server.shutdown()
    return 0


def _has_runs(path: Path) -> bool:
    return is_run(path) or is_root(path)


def _export(export: Export, request: Request) -> bool:
    """Writes one export; False if it fails, which is printed and does not stop the others."""
    name, target = export.name, request.target
    try:
        with display_progress(f"writing {name}", quiet=target == "-"):
            written = export.write(request)
    except BrokenPipeError:
        raise
    except PastaError as error:
        print_failure(f"--{name}: {error}")
    except Exception as error:
        print_failure(f"--{name}: {target} cannot be written ({type(error).__name__}: {error})")
    else:
        if target != "-":
            print(f"{name}: {written}")
        return True
    return False
