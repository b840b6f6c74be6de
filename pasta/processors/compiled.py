"""Whether the compiled processors are in Numba's cache, told without importing Numba.

Compiling takes seconds and must not be cut short by a program that exits: only a collector
compiles; the embedded consumer uses processors that are cached.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pasta.tool import Tool

_SOURCE = Path(__file__).with_name("objects.py")


def needs_compiled(tools: Iterable[Tool]) -> bool:
    """Whether some tool needs a compiled processor."""
    return any(tool.needs_objects or tool.needs_object_history for tool in tools)


def is_cached() -> bool:
    """Whether `compile_now` was called with this source, Numba and Python."""
    return _mark().exists()


def compile_now() -> None:
    """Compiles all compiled processors, or loads them from the cache."""
    from pasta.processors.objects import compile_all

    compile_all()
    try:
        _mark().parent.mkdir(parents=True, exist_ok=True)
        _mark().touch()
    except OSError:
        pass  # no place to remember it: the next run goes to a collector again


def _mark() -> Path:
    status = _SOURCE.stat()
    version = importlib.metadata.version("numba")
    python = sys.implementation.cache_tag
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = f"{python}-numba{version}-{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
    return cache / "pasta" / "compiled" / name
