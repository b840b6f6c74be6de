"""Time that PASTA adds to a program without an accelerator, and to one that launches one kernel.

Measures the console script if PASTA is installed in the environment of this process, otherwise the
command that the script runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.figures import (
    NATIVE,
    Figure,
    environment,
    interleaved,
    preload_command,
    ring_session,
    seconds_of,
)

_PAIRS = 21
_CHILDREN = 200


def script() -> list[str]:
    """The installed console script, or the command that it runs."""
    beside = Path(sys.executable).with_name("pasta-preload")
    return [str(beside)] if beside.exists() else preload_command()


def measure() -> list[Figure]:
    """Time added to the start of a program, a run and a child process."""
    with tempfile.TemporaryDirectory() as directory:
        env = environment()
        out = ["-q", "-f", "-o", str(Path(directory, "run")), "--"]
        empty = _added(["/bin/true"], out, env)
        vadd = _added([str(NATIVE / "bin" / "vadd")], out, env)
    native, preloaded = _children()
    return [
        Figure("startup: added to /bin/true", empty * 1e3, "ms", most=80),
        Figure("startup: added to one short kernel, run written", vadd * 1e3, "ms"),
        Figure("startup: added to each child process", (preloaded - native) * 1e3, "ms", most=1),
    ]


def _added(program: list[str], options: list[str], env: dict[str, str]) -> float:
    command = [*script(), *options, *program]
    seconds_of(command, env)  # compiles bytecode
    native, profiled = interleaved(
        lambda: seconds_of(program, env), lambda: seconds_of(command, env), _PAIRS
    )
    return median(profiled) - median(native)


def _children() -> tuple[float, float]:
    """Seconds of a child process that exits immediately, natively and with libpasta preloaded."""
    with ring_session(256 << 20) as (_, env):
        preloaded = {**env, "LD_PRELOAD": str(NATIVE / "libpasta.so")}
        first, second = interleaved(
            lambda: _spawn(dict(os.environ)), lambda: _spawn(preloaded), _CHILDREN
        )
    return median(first), median(second)


def _spawn(env: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run(["/bin/true"], env=env, check=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    for figure in measure():
        print(f"{figure.name}: {figure.measured}")
