"""How much slower a program runs under PASTA: its own time for a loop of about two seconds.

The program is a small network's forward pass on the reference accelerator (bench/c/steps.c), once
with its kernels on all cores, once on one.  The loop's time has everything in it that happens while
the program runs, also the start of Python in it; the median step is what remains after that.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.figures import (
    Figure,
    compile_program,
    environment,
    interleaved,
    median_ratio,
    preload_command,
    run,
    values,
)

_PAIRS = 9
_SECONDS = 2.0


def measure() -> list[Figure]:
    figures = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        program = compile_program(directory, "steps")
        for title, env in (
            ("all cores", environment()),
            ("one core", environment(REFACC_THREADS="1")),
        ):
            loop, step = _slowdown(program, directory, env)
            figures += [
                Figure(f"slowdown: loop of 2 s, {title}", 100 * loop, "%", most=2),
                Figure(f"slowdown: median step, {title}", 100 * step, "%", most=2),
            ]
    return figures


def _slowdown(program: Path, directory: Path, env: dict[str, str]) -> tuple[float, float]:
    """How much longer, as a share, the whole loop and its median step take."""
    trial = values(run([program, "200"], env))
    steps = str(round(_SECONDS * 1e9 / (trial["loop_ns"] / 200)))
    prefix = [*preload_command(), "-q", "-f", "-o", str(directory / "run"), "--"]
    natives, profiled = [], []

    def native() -> float:
        natives.append(values(run([program, steps], env)))
        return natives[-1]["loop_ns"]

    def under_pasta() -> float:
        profiled.append(values(run([*prefix, program, steps], env)))
        return profiled[-1]["loop_ns"]

    loops = interleaved(native, under_pasta, _PAIRS)
    step = [each["step_ns"] for each in natives], [each["step_ns"] for each in profiled]
    return median_ratio(*loops) - 1, median_ratio(*step) - 1


if __name__ == "__main__":
    for figure in measure():
        print(f"{figure.name}: {figure.value:.2f} {figure.unit}")
