"""Time that PASTA adds to a program without an accelerator, and to one that launches one kernel;
time of a tool with probes and of a replay, with and without compiled code in the cache.

Measures the console scripts if PASTA is installed in the environment of this process, otherwise the
commands that the scripts run.
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
    command,
    environment,
    interleaved,
    ring_session,
    seconds_of,
)
from bench.publish import ROOT

_PAIRS = 21
_CHILDREN = 200
_COLD, _WARM = 3, 7
_TOOL = "hotness"


def script(name: str) -> list[str]:
    """An installed console script, or the command that it runs."""
    beside = Path(sys.executable).with_name(name)
    return [str(beside)] if beside.exists() else command(name)


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
        *_compiled(),
    ]


def _compiled() -> list[Figure]:
    """Seconds of a run and of a replay with a tool that has probes, start to finish."""
    figures = []
    with tempfile.TemporaryDirectory() as directory:
        options = ["-q", "-f", "-t", _TOOL, "-o", str(Path(directory, "run"))]
        recorded = str(ROOT / "examples" / "runs" / "gpt-h200")
        program = str(NATIVE / "bin" / "vadd")
        for what, line in (
            ("one short kernel", [*script("pasta-preload"), *options, "--", program]),
            ("replay of gpt-h200", [*script("pasta"), "replay", recorded, *options]),
        ):
            cold = [
                seconds_of(
                    line, environment(XDG_CACHE_HOME=str(Path(directory, what, str(number))))
                )
                for number in range(_COLD)
            ]
            cache = environment(XDG_CACHE_HOME=str(Path(directory, what, "0")))
            warm = [seconds_of(line, cache) for _ in range(_WARM)]
            name = f"startup: {_TOOL}, {what}"
            figures += [
                Figure(f"{name}, nothing compiled", median(cold), "s", most=4),
                Figure(f"{name}, compiled", median(warm), "s", most=0.8),
            ]
    return figures


def _added(program: list[str], options: list[str], env: dict[str, str]) -> float:
    line = [*script("pasta-preload"), *options, *program]
    seconds_of(line, env)  # compiles bytecode
    native, profiled = interleaved(
        lambda: seconds_of(program, env), lambda: seconds_of(line, env), _PAIRS
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
