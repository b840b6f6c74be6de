"""How much slower a program runs under PASTA: its own time for a loop of about two seconds.

The program is a small network's forward pass on the reference accelerator (bench/c/steps.c), once
with its kernels on all cores, once on one.  Three ways, in turn: natively, as pasta-preload runs it
(two seconds are too short for Python to be started in it), and with Python started in it at once.
Processor time is told too: on a busy machine it varies less than time on the clock does.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median

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
    figures = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        program = compile_program(directory, "steps")
        for title, env in (
            ("all cores", environment()),
            ("one core", environment(REFACC_THREADS="1")),
        ):
            plain, embedded = _slowdown(program, directory, env)
            figures += [
                Figure(f"slowdown: loop of 2 s, {title}", plain["loop_ns"], "%", most=2),
                Figure(f"slowdown: median step, {title}", plain["step_ns"], "%", most=2),
                Figure(f"slowdown: processor time, {title}", plain["processor_ns"], "%", most=2),
                Figure(f"slowdown: median step with Python, {title}", embedded["step_ns"], "%"),
                Figure(
                    f"slowdown: start of Python, {title}",
                    embedded["more_ns"] / 1e6,
                    "ms of processor",
                ),
            ]
    return figures


def _slowdown(
    program: Path, directory: Path, env: dict[str, str]
) -> tuple[dict[str, float], dict[str, float]]:
    """Per cent more than natively of what the program prints, as PASTA runs it and with Python."""
    trial = values(run([program, "200"], env))
    steps = str(round(_SECONDS * 1e9 / (trial["loop_ns"] / 200)))
    preload = [*preload_command(), "-q", "-f", "-o", str(directory / "run")]
    ways = ([], [*preload, "--"], [*preload, *_EMBEDDED, "--"])
    rounds = [[values(run([*way, program, steps], env)) for way in ways] for _ in range(_ROUNDS)]
    found = [
        {
            name: 100 * (median(r[way][name] / r[0][name] for r in rounds) - 1)
            for name in rounds[0][0]
        }
        for way in (1, 2)
    ]
    found[1]["more_ns"] = median(r[2]["processor_ns"] - r[0]["processor_ns"] for r in rounds)
    return found[0], found[1]


if __name__ == "__main__":
    for figure in measure():
        print(f"{figure.name}: {figure.value:.2f} {figure.unit}")
