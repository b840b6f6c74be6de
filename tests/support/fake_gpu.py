"""A fake GPU, driver and Sanitizer library in C, and a program that plays kernels on them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from pasta import paths
from tests.support.places import PROGRAMS, ROOT

_SOURCES = PROGRAMS / "nvidia"
_PTXAS = """#!/bin/sh
while [ $# -gt 0 ]; do
    [ "$1" = -o ] && echo cubin >"$2"
    shift
done
"""


def _compiler(optimization: str = "-O1") -> list[str]:
    compiler = shlex.split(os.environ.get("CC", "cc"))
    return [*compiler, "-std=gnu11", "-Wall", "-Wextra", "-Werror", optimization]


def build(directory: Path, optimization: str = "-O1") -> Path:
    """Compiles all into a directory; returns the program."""
    compiler = _compiler(optimization)
    # the source looks for the driver under this name among what is loaded
    shared = ["-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1"]
    library = directory / "libsanitizer-public.so"
    subprocess.run([*compiler, *shared, _SOURCES / "fake_sanitizer.c", "-o", library], check=True)
    program = directory / "program"
    _build_program(program, compiler)
    (directory / "ptxas").write_text(_PTXAS)
    (directory / "ptxas").chmod(0o755)
    compiled = paths.cache("code")  # device code stays apart from the user's: it is none
    if compiled.is_dir():
        unfinished = shutil.ignore_patterns("*.*")
        shutil.copytree(compiled, directory / "cache" / "pasta" / "code", ignore=unfinished)
    return program


def _build_program(output: Path, compiler: list[str], *options: str) -> None:
    source = _SOURCES / "fake_probe_program.c"
    headers = f"-I{ROOT / 'shim' / 'include'}"
    command = [*compiler, headers, *options, source, "-o", output, "-ldl", "-lpthread"]
    subprocess.run(command, check=True)


def build_for_python(directory: Path) -> tuple[str, ...]:
    """Compiles the program as a library of Python; returns the command that plays with it."""
    library = directory / "program.so"
    _build_program(library, _compiler(), "-shared", "-fPIC")
    script = f"import ctypes, sys; sys.exit(ctypes.CDLL({str(library)!r}).main())"
    return (sys.executable, "-c", script)


def environment(directory: Path, version: str = "13.5") -> dict[str, str]:
    """Variables by which pasta-preload finds them; also requires probes.sm=90."""
    return {
        "PASTA_SANITIZER_LIB": str(directory / "libsanitizer-public.so"),
        "PASTA_SANITIZER_VERSION": version,
        "PASTA_PTXAS": str(directory / "ptxas"),
        "XDG_CACHE_HOME": str(directory / "cache"),
    }
