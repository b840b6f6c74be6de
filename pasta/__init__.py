"""PASTA, the accelerator profiler (distribution pasta-profiler): annotations for profiled programs.

`pasta.start()`, `pasta.stop()`, `pasta.step()`, `pasta.range("name")` and `pasta.mark("name")` cost
next to nothing when the program does not run under `pasta-preload`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pasta.annotate import is_active, mark, range, start, step, stop

__version__ = "0.1.0"
__all__ = ["__version__", "is_active", "mark", "range", "start", "step", "stop"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from pasta import annotate

        return getattr(annotate, name)
    raise AttributeError(f"module 'pasta' has no attribute {name!r}")
