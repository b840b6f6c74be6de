"""PASTA, the accelerator profiler (distribution pasta-profiler): what programs use of it.

`with pasta.profile() as run:` profiles a block of a program, and `pasta.load(directory)` reads a
run: both give a `Run`; of a directory of runs, those of a job's ranks, `pasta.load` gives `Runs`.

`pasta.start()`, `pasta.stop()`, `pasta.step()`, `pasta.range("name")` and `pasta.mark("name")` cost
next to nothing when the program does not run under `pasta-preload`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pasta.annotate import is_active, mark, range, start, step, stop
    from pasta.profiling import profile
    from pasta.report.run import Run, Runs, load

__version__ = "0.1.0"
__all__ = [
    "Run", "Runs", "__version__", "is_active", "load", "mark", "profile", "range", "start", "step",
    "stop",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "profile":
        from pasta.profiling import profile

        return profile
    if name in ("Run", "Runs", "load"):
        from pasta.report import run

        return getattr(run, name)
    if name in __all__:
        from pasta import annotate

        return getattr(annotate, name)
    raise AttributeError(f"module 'pasta' has no attribute {name!r}")
