"""A fake CUPTI library, CUDA driver, and program that calls it, in C."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.places import PROGRAMS
from tests.support.played import LIBRARY, Played, play

_SOURCES = PROGRAMS / "nvidia"


_COMPILER = [os.environ.get("CC", "cc"), "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1"]
_SHARED = [*_COMPILER, "-shared", "-fPIC", "-fvisibility=hidden"]


def library(output: Path, *sources: str) -> None:
    """Compiles a library of the name by which the source looks for it among what is loaded."""
    paths = [_SOURCES / source for source in sources]
    soname = f"-Wl,-soname,{output.name}"
    subprocess.run([*_SHARED, soname, *paths, "-o", output, "-lpthread"], check=True)


def build(directory: Path) -> Path:
    """Compiles all into a directory; returns it."""
    names = ("", "_sampling", "_counters", "_instructions")
    parts = [f"fake_cupti{name}.c" for name in names]
    library(directory / "libcupti.so.13", *parts)
    library(directory / "libcuda.so.1", "fake_driver.c")
    guest = [
        _SOURCES / "fake_cupti_guest.c",
        directory / "libcupti.so.13",
        f"-Wl,-rpath,{directory}",
    ]
    subprocess.run([*_SHARED, *guest, "-o", directory / "libguest.so"], check=True)
    recorder = [_SOURCES / "cupti_recorder.c", "-o", directory / "librecorder.so"]
    subprocess.run([*_SHARED, *recorder, "-ldl", "-lpthread"], check=True)
    program = [*_COMPILER, _SOURCES / "fake_cupti_program.c", "-o", directory / "program"]
    subprocess.run([*program, "-ldl", "-lpthread"], check=True)
    return directory


def play_cupti(
    built: Path, session: Path, *scripts: str | Path, settings: str = "", **extra: str
) -> Played:
    """Runs scripts of the program under the preloaded library."""
    fake = str(built / "libcupti.so.13")
    if "cupti_lib" not in settings:
        settings += f"cupti_lib={fake}\n"
    environment = {
        "FAKE_GUEST": str(built / "libguest.so"), "FAKE_CUPTI": fake,
        "FAKE_DRIVER": str(built / "libcuda.so.1"),
        "LD_PRELOAD": str(LIBRARY), "CUDA_INJECTION64_PATH": str(LIBRARY), **extra,
    }  # fmt: skip
    return play([built / "program", *scripts], session, settings, **environment)
