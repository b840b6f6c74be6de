"""Slow modules, imported at their first use.

The launcher validates tool names and options before the target starts, within a few
milliseconds: `from pasta.lazy import np` in a tool file does not import NumPy there.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any


class LazyModule:
    """Proxy of a module, which is imported when an attribute is first read."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self.__name__), attribute)
        setattr(self, attribute, value)
        return value

    def __repr__(self) -> str:
        return f"<lazy module {self.__name__}>"


if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
else:
    np = LazyModule("numpy")
    pa = LazyModule("pyarrow")

__all__ = ["LazyModule", "np", "pa"]
