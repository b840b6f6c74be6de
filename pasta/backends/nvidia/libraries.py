"""Search for NVIDIA's Compute Sanitizer and CUPTI libraries, and ptxas."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from pasta.errors import MissingDependency
from pasta.sass.toolkit import find_cuda_file


def find_sanitizer() -> Path | None:
    """libsanitizer-public.so: PASTA_SANITIZER_LIB, the wheel, or a CUDA toolkit, in that order."""
    named = os.environ.get("PASTA_SANITIZER_LIB")
    if named:
        return Path(named)
    library = "libsanitizer-public.so"
    # wheels of CUDA 13.4 and newer, of 13.0 to 13.3, and of 12
    wheels = ("cu[0-9]*/compute-sanitizer", "cu[0-9]*/lib", "cuda_sanitizer_api/lib")
    return find_cuda_file([f"{each}/{library}" for each in wheels], f"compute-sanitizer/{library}")


def find_cupti() -> Path | None:
    """libcupti.so: PASTA_CUPTI_LIB, the wheel, or a CUDA toolkit, in that order.

    A library that the profiled program has loaded before its first CUDA call is used instead.
    """
    named = os.environ.get("PASTA_CUPTI_LIB")
    if named:
        return Path(named)
    # wheels of CUDA 13, and of 12
    wheels = ("cu[0-9]*/lib/libcupti.so.1[0-9]", "cuda_cupti/lib/libcupti.so.1[0-9]")
    for toolkit in ("extras/CUPTI/lib64/libcupti.so", "lib64/libcupti.so"):
        if found := find_cuda_file(wheels, toolkit):
            return found
    return None


@cache
def find_ptxas() -> Path:
    """ptxas: PASTA_PTXAS, the wheel nvidia-cuda-nvcc, a CUDA toolkit, or PATH, in that order.

    Raises MissingDependency.
    """
    named = os.environ.get("PASTA_PTXAS")
    if named:
        if os.access(named, os.X_OK):
            return Path(named)
        raise MissingDependency(f"PASTA_PTXAS names {named}, which is not executable")
    found = find_cuda_file(("cu[0-9]*/bin/ptxas", "cuda_nvcc/bin/ptxas"), "bin/ptxas", program=True)
    if found:
        return found
    raise MissingDependency(
        "probes on NVIDIA GPUs need ptxas, which was not found",
        remedy="pip install nvidia-cuda-nvcc, or name ptxas in PASTA_PTXAS",
    )
