"""PASTA, the accelerator profiler (distribution pasta-profiler): what programs use of it.

`with pasta.profile() as run:` profiles a block of a program, and `pasta.load(directory)` reads a
run: both give a `Run`.

`pasta.start()`, `pasta.stop()`, `pasta.step()`, `pasta.range("name")` and `pasta.mark("name")` cost
next to nothing when the program does not run under `pasta-preload`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pasta.annotate import is_active, mark, range, start, step, stop
    from pasta.profiling import profile
    from pasta.report.run import Run

    load = Run.load

__version__ = "0.1.0"
__all__ = [
    "Run", "__version__", "is_active", "load", "mark", "profile", "range", "start", "step", "stop",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "profile":
        from pasta.profiling import profile

        return profile
    if name in ("Run", "load"):
        from pasta.report.run import Run

        return Run if name == "Run" else Run.load
    if name in __all__:
        from pasta import annotate

        return getattr(annotate, name)
    raise AttributeError(f"module 'pasta' has no attribute {name!r}")
