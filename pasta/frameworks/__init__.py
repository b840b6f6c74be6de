"""The frameworks whose operators and tensors PASTA follows."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pasta.backends import find_architecture
from pasta.extensions import Registry

if TYPE_CHECKING:
    from pasta.frameworks.base import Framework
    from pasta.processors.conventions import Conventions

#: Modules of frameworks. A new one needs a folder here and its line.
FRAMEWORKS: Registry[Framework] = Registry(
    [
        "pasta.frameworks.torch",
    ],
    "FRAMEWORK",
)


def conventions() -> Conventions:
    """Conventions of all frameworks, and the architectures that backends know."""
    from pasta.processors.conventions import Conventions

    of_backends = Conventions(architectures=(find_architecture,))
    return reduce(or_, (each.conventions for each in FRAMEWORKS.known()), of_backends)
