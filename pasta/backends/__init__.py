"""Registry of backends: built-in ones and those of installed packages.

A package provides a backend through an entry point in the group `pasta.backends` with the
backend's name. It runs only if `--backend` names it; `--backend auto` selects built-in ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pasta.extensions import Registry

if TYPE_CHECKING:
    from pasta.backends.base import Backend
    from pasta.processors.architecture import Architecture

#: Modules of built-in backends. A new one needs a folder here and its line.
BACKENDS: Registry[Backend] = Registry(
    [
        "pasta.backends.nvidia",
        "pasta.backends.amd",
        "pasta.backends.refacc",
    ],
    "BACKEND",
    group="pasta.backends",
)


def find_architecture(name: str) -> Architecture | None:
    """What the backend that knows an architecture documents of it; None if none does."""
    found = (backend.architecture(name) for backend in BACKENDS.known())
    return next((each for each in found if each is not None), None)
