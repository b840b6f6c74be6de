"""Processor time and memory of every built-in tool, by the number of launches.

    python -m bench tools
    python -m bench.tools --launches 1000000 [NAME ...]

The program (bench/c/many.c) launches a small kernel of the reference accelerator over 512 buffers,
with copies, waits, and buffers that are freed and allocated anew. Seconds are processor time of the
whole command, the program and its probes included, beyond that of the program alone; memory is that
of the largest process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.figures import Figure, compile_program, environment, preload_command

LAUNCHES = 10_000
#: The most seconds, by launches.
_MOST = {10_000: 3.0, 1_000_000: 60.0}
_MIB = 2048


def _ran(command: list[str]) -> tuple[float, float]:
    """Processor time in s, and the largest memory in MiB, of a command and its children."""
    with open(os.devnull, "w") as nothing:
        process = subprocess.Popen(command, env=environment(), stdout=nothing, stderr=nothing)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command}: {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def measure(launches: int = LAUNCHES, names: list[str] | None = None) -> list[Figure]:
    """Seconds and MiB of the named tools, by default all, slowest first."""
    from pasta.plugins import built_in_names

    found: list[tuple[str, float, float]] = []
    with tempfile.TemporaryDirectory() as temporary:
        program = [str(compile_program(Path(temporary), "many")), str(launches)]
        run = Path(temporary, "run")
        alone, _ = _ran(program)
        for name in names or built_in_names():
            command = [*preload_command(), "-q", "--collector", "-t", name, "-f", "-o", str(run)]
            _ran([*command, "--", program[0], "1"])  # compiles
            seconds, memory = _ran([*command, "--", *program])
            if failures := json.loads((run / "run.json").read_text())["failures"]:
                raise RuntimeError(failures)
            found.append((name, seconds - alone, memory))
    found.sort(key=lambda each: -each[1])
    most = _MOST.get(launches)
    what = f"{launches:,} launches"
    return [
        figure
        for name, seconds, memory in found
        for figure in (
            Figure(f"tools: {name}, {what}", seconds, "s", most=most),
            Figure(f"tools: {name}, {what}, memory", memory, "MiB", most=_MIB),
        )
    ]


def main() -> int:
    """Measure and print; 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.tools")
    parser.add_argument("names", nargs="*", metavar="NAME", help="tools; default: all")
    parser.add_argument("--launches", type=int, default=LAUNCHES)
    given = parser.parse_args()
    figures = measure(given.launches, given.names)
    for figure in figures:
        print(f"{figure.name:60} {figure.measured:>14}  {figure.target:12} {figure.verdict}")
    return int(any(figure.verdict == "MISSED" for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
