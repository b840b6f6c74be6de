"""Functions that Numba compiles and caches: the only use of Numba in modules of PASTA.

Importing Numba takes half a second: import this module only if a tool needs compiled functions.
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
    """Decorator for a function that is compiled to run without the interpreter lock: at its first
    call, or immediately if it has a signature. Code is cached beside this package if that is
    writable, otherwise in the user's cache. `inline`: inline it into compiled callers, which avoids
    reference counting of array arguments."""

    def decorate(function: Any) -> Any:
        numba: Any = config
        previous = numba.CACHE_DIR  # Numba reads it when a function is decorated
        if not previous and not os.access(Path(__file__).parent, os.W_OK):
            numba.CACHE_DIR = str(paths.cache("numba", make=True))
        try:
            how: Literal["always", "never"] = "always" if inline else "never"
            return njit(signature, nogil=True, cache=True, inline=how)(function)
        finally:
            numba.CACHE_DIR = previous

    return decorate


def memory(array: NDArray[Any]) -> int:
    """Address of an array's memory; the caller keeps the array alive. Compiled code counts
    references of array arguments at every call, but not of addresses."""
    return int(array.__array_interface__["data"][0])
