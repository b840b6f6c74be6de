"""PASTA, the accelerator profiler (distribution pasta-profiler): its public API.

`with pasta.profile() as run:` profiles a block of a program, and `pasta.load(directory)` reads a
run: both return a `Run`. For a directory of runs of a job's ranks, `pasta.load` returns `Runs`.

`pasta.start()`, `pasta.stop()`, `pasta.step()`, `pasta.range("name")` and `pasta.mark("name")` cost
next to nothing if the program does not run under `pasta-preload`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.version import VERSION as __version__

if TYPE_CHECKING:
    from pasta.annotate import is_active, mark, range, start, step, stop
    from pasta.api.profile import profile
    from pasta.api.runs import Run, Runs, load

__all__ = [
    "Run", "Runs", "__version__", "is_active", "load", "mark", "profile", "range", "start", "step",
    "stop",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "profile":
        from pasta.api.profile import profile

        return profile
    if name in ("Run", "Runs", "load"):
        from pasta.api import runs

        return getattr(runs, name)
    if name in __all__:
        from pasta import annotate

        return getattr(annotate, name)
    raise AttributeError(f"module 'pasta' has no attribute {name!r}")
