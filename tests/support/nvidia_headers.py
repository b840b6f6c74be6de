"""Locations of NVIDIA's headers and libraries: wheels and toolkits."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterable
from pathlib import Path


def toolkits() -> Iterable[Path]:
    """Directories that may hold CUDA headers: $PASTA_TEST_CUDA (a list), wheels, toolkits."""
    yield from (Path(p) for p in os.environ.get("PASTA_TEST_CUDA", "").split(os.pathsep) if p)
    for packages in {*site.getsitepackages(), *(p for p in sys.path if "site-packages" in p)}:
        yield Path(packages) / "nvidia"
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    yield Path("/usr/local/cuda")


def headers(name: str) -> list[Path]:
    """Directories from which the header, such as `crt/host_defines.h`, is included, each once."""
    up = name.count("/")
    found = (path.parents[up] for root in toolkits() if root.is_dir() for path in root.rglob(name))
    return list(dict.fromkeys(directory.resolve() for directory in found))
