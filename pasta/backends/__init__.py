"""The backends there are: the built-in ones, and those of installed packages.

A package gives one through an entry point of the group `pasta.backends` that has its name. It runs
where `--backend` names it; with `--backend auto` the built-in ones do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pasta.extensions import Registry

if TYPE_CHECKING:
    from pasta.backends.base import Backend

#: A built-in backend is a folder here, and its line.
BACKENDS: Registry[Backend] = Registry(
    [
        "pasta.backends.nvidia",
        "pasta.backends.amd",
        "pasta.backends.refacc",
    ],
    "BACKEND",
    group="pasta.backends",
)
