"""Functions that Numba compiles once for a user: the only way in which modules of PASTA's use it.

Importing Numba takes half a second: import this only where a tool asks for what needs it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from numba import config, njit

from pasta import paths

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


def compiled(signature: str | None = None, *, inline: bool = False) -> Callable[[Any], Any]:
    """Decorates a function that is compiled without Python's lock: at its first call, or at once
    for a signature. Code is kept beside this package, else in the user's cache. `inline`: into
    compiled callers, which saves counting references of arrays that are passed."""

    def decorate(function: Any) -> Any:
        numba: Any = config
        others = numba.CACHE_DIR  # Numba chooses the place when a function is decorated
        if not others and not os.access(Path(__file__).parent, os.W_OK):
            numba.CACHE_DIR = str(paths.cache("numba", make=True))
        try:
            how: Literal["always", "never"] = "always" if inline else "never"
            return njit(signature, nogil=True, cache=True, inline=how)(function)
        finally:
            numba.CACHE_DIR = others

    return decorate


def memory(array: NDArray[Any]) -> int:
    """Address of an array's memory; the caller keeps the array. Passing arrays themselves costs
    compiled code a count of references at every call."""
    return int(array.__array_interface__["data"][0])
