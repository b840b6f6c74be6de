"""Files of NVIDIA's CUDA toolkit, and the error of reading GPU code."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from pasta import paths
from pasta.errors import PastaError


class SassError(PastaError):
    """GPU code cannot be read."""


def find_cuda_file(wheels: Sequence[str], toolkit: str, *, program: bool = False) -> Path | None:
    """A file of NVIDIA's wheels in this environment, or of a CUDA toolkit, in that order.

    `wheels` are patterns below the packages' common directory, the newest packages' first;
    `toolkit` is a path in a toolkit. A program must be executable, and may also be on PATH.
    """
    homes = (
        os.environ.get("CUDA_HOME"),
        os.environ.get("CUDA_PATH"),
        "/usr/local/cuda",
        "/opt/cuda",
    )
    candidates = [
        *(
            found
            for site in paths.module_path()
            for pattern in wheels
            for found in sorted(Path(site, "nvidia").glob(pattern), reverse=True)
        ),
        *(Path(home, toolkit) for home in homes if home),
    ]
    for candidate in candidates:
        if candidate.is_file() and (not program or os.access(candidate, os.X_OK)):
            return candidate
    on_path = shutil.which(Path(toolkit).name) if program else None
    return Path(on_path) if on_path else None


def find_nvdisasm() -> Path | None:
    """nvdisasm: PASTA_NVDISASM, the wheels, a CUDA toolkit, or PATH, in that order."""
    named = os.environ.get("PASTA_NVDISASM")
    if named:
        return Path(named)
    wheels = ("cu[0-9]*/bin/nvdisasm", "cuda_nvdisasm/bin/nvdisasm")
    return find_cuda_file(wheels, "bin/nvdisasm", program=True)
