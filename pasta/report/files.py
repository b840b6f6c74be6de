"""Output files of exports: written atomically, and never over files of the run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pasta.errors import RunError
from pasta.run.directory import RunDirectory

_OF_RUN = frozenset({"run.json", "report.txt", "log.txt", "events", "modules", "results"})


@contextmanager
def written(run: RunDirectory, name: str) -> Iterator[BinaryIO]:
    """A binary file to write to, renamed to `name` when the block ends; `-`: stdout.

    Raises RunError if it cannot be written, or is part of the run.
    """
    if name == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(name)
    _check(run, path)
    special = os.path.exists(path) and not path.is_file()  # a device or pipe: not replaced
    temporary = path if special else path.with_name(f".{path.name}-{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            yield file
        if not special:
            temporary.replace(path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror or error})") from None
    finally:
        if not special and os.path.exists(temporary):
            temporary.unlink()


def directory(run: RunDirectory, name: str) -> Path:
    """A directory to write files to, created if necessary. Raises as `written`."""
    path = Path(name)
    _check(run, path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{path}: cannot be created ({error.strerror or error})") from None
    return path


def _check(run: RunDirectory, path: Path) -> None:
    own = run.path.resolve()
    if any(path.resolve().is_relative_to(own / name) for name in _OF_RUN):
        raise RunError(f"{path} is part of the run", remedy="name another place")
