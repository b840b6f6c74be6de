"""The frameworks whose operators and tensors PASTA follows."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pasta.backends import BACKENDS, find_architecture
from pasta.extensions import Registry

if TYPE_CHECKING:
    from pasta.frameworks.base import Framework
    from pasta.processors.conventions import Conventions

#: Modules of frameworks. A new one needs a folder here and its line.
FRAMEWORKS: Registry[Framework] = Registry(
    [
        "pasta.frameworks.torch",
        "pasta.frameworks.jax",
    ],
    "FRAMEWORK",
)


def conventions() -> Conventions:
    """Conventions of all frameworks, and architectures and sources of backends."""
    from pasta.processors.conventions import Conventions

    sources = (source for backend in BACKENDS.known() for source in backend.sources)
    buffered = tuple(source.name for source in sources if source.is_buffered)
    of_backends = Conventions(
        architectures=(find_architecture,),
        buffered=buffered,
        memory_counters=tuple(
            each for backend in BACKENDS.known() for each in backend.memory_counters
        ),
        flop_counters=tuple(each for backend in BACKENDS.known() for each in backend.flop_counters),
        runtime_images=tuple(
            each for backend in BACKENDS.known() for each in backend.runtime_images
        ),
        runtime_functions=tuple(
            each for backend in BACKENDS.known() for each in backend.runtime_functions
        ),
    )
    return reduce(or_, (each.conventions for each in FRAMEWORKS.known()), of_backends)
