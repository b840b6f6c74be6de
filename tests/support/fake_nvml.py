"""A stand-in for NVML, which the launcher's sampler loads, and what it did."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections import Counter
from pathlib import Path

from tests.support.places import PROGRAMS


def build(directory: Path) -> Path:
    """Compiles it into a directory, under the name by which it is loaded."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    compiler += ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    library = directory / "libnvidia-ml.so.1"
    source = PROGRAMS / "nvidia" / "fake_nvml.c"
    subprocess.run([*compiler, "-Wl,-soname,libnvidia-ml.so.1", source, "-o", library], check=True)
    return library


def environment(directory: Path, log: Path | None = None, **variables: str) -> dict[str, str]:
    """Variables by which the launcher finds it; `variables` without FAKE_NVML_."""
    paths = [str(directory), os.environ.get("LD_LIBRARY_PATH", "")]
    found = {"LD_LIBRARY_PATH": ":".join(filter(None, paths))}
    if log is not None:
        found["FAKE_NVML_LOG"] = str(log)
    return {**found, **{f"FAKE_NVML_{name}": value for name, value in variables.items()}}


def uuid(device: int) -> str:
    """The uuid of a device."""
    return f"GPU-0000000{device}-1111-2222-3333-444444444444"


def calls(log: Path) -> Counter[tuple[str, int]]:
    """How often each function was called, by name and device."""
    if not log.exists():
        return Counter()
    lines = (line.split() for line in log.read_text().splitlines())
    return Counter((line[0], int(line[1])) for line in lines if len(line) == 2)
