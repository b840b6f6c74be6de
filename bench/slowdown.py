"""Slowdown of a program under PASTA, by its own time for a loop of about two seconds.

The program is a small network's forward pass on the reference accelerator (bench/c/steps.c), once
with its kernels on all cores, once on one.  Three ways, in turn: natively, under pasta-preload (two
seconds are too short for Python to start in it), and with Python started in it immediately.
Processor time is reported too: on a busy machine it varies less than wall-clock time.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median, quantiles

from bench.figures import (
    Figure,
    compile_program,
    environment,
    preload_command,
    run,
    values,
)

_ROUNDS = 9
_SECONDS = 2.0
_EMBEDDED = ("--set", "python.embed-delay=0")


def measure() -> list[Figure]:
    """Slowdown of the loop, its steps and its processor time."""
    figures = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        program = compile_program(directory, "steps")
        for title, env in (
            ("all cores", environment()),
            ("one core", environment(REFACC_THREADS="1")),
        ):
            rounds = _rounds(program, directory, env)
            figures += [
                _slower(f"slowdown: loop of 2 s, {title}", rounds, 1, "loop_ns", 2),
                _slower(f"slowdown: median step, {title}", rounds, 1, "step_ns", 2),
                _slower(f"slowdown: processor time, {title}", rounds, 1, "processor_ns", 2),
                _slower(f"slowdown: median step with Python, {title}", rounds, 2, "step_ns"),
            ]
            more = [(each[2]["processor_ns"] - each[0]["processor_ns"]) / 1e6 for each in rounds]
            name = f"slowdown: start of Python, {title}"
            figures.append(Figure(name, median(more), "ms CPU", error=_error(more)))
    return figures


def _rounds(program: Path, directory: Path, env: dict[str, str]) -> list[list[dict[str, float]]]:
    """What the program prints, in each round natively, under PASTA, and with Python immediately."""
    trial = values(run([program, "200"], env))
    steps = str(round(_SECONDS * 1e9 / (trial["loop_ns"] / 200)))
    preload = [*preload_command(), "-q", "-f", "-o", str(directory / "run")]
    ways = ([], [*preload, "--"], [*preload, *_EMBEDDED, "--"])
    return [[values(run([*way, program, steps], env)) for way in ways] for _ in range(_ROUNDS)]


def _slower(
    name: str, rounds: list[list[dict[str, float]]], way: int, value: str, most: float | None = None
) -> Figure:
    """Slowdown of a way against the native run in per cent, median over the rounds."""
    more = [100 * (each[way][value] / each[0][value] - 1) for each in rounds]
    return Figure(name, median(more), "%", most=most, error=_error(more))


def _error(sample: list[float]) -> float:
    """Standard error of the median of a normal sample, from its quartiles."""
    lower, _, upper = quantiles(sample, n=4)
    return 1.253 * (upper - lower) / 1.349 / len(sample) ** 0.5


if __name__ == "__main__":
    for figure in measure():
        print(f"{figure.name}: {figure.measured}")
