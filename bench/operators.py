"""Overhead of an operator in PyTorch: 100,000 one-element additions on the CPU, one thread.

The program runs alone, under torch.profiler (inside its context, without the work at its end), and
under PASTA with `-c torch`: without and with Python frames, and stopped by `pasta.stop()`. Each
process reports the minimum of five rounds; processes are interleaved, and the result is the median
of their ratios. A separate process measures blocks of `pasta.profile`. Needs PyTorch; the first run
builds PASTA's hooks.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from bench.figures import Figure, environment, preload_command

_PAIRS = 5
_PROGRAM = """
import sys, time, torch
torch.set_num_threads(1)
a, b = torch.ones(1), torch.ones(1)
def round():
    begin = time.perf_counter()
    for _ in range(100_000):
        torch.add(a, b)
    return (time.perf_counter() - begin) * 1e4
round()
if sys.argv[1] == "profiler":
    from torch.profiler import ProfilerActivity, profile
    def profiled():
        with profile(activities=[ProfilerActivity.CPU]):
            return round()
    print(min(profiled() for _ in range(5)))
else:
    if sys.argv[1] == "stopped":
        import pasta
        pasta.stop()
    print(min(round() for _ in range(5)))
"""
_BLOCKS = """
import json, statistics, time, torch, pasta
torch.set_num_threads(1)
a, b = torch.ones(1), torch.ones(1)
def round():
    begin = time.perf_counter()
    for _ in range(20_000):
        torch.add(a, b)
    return (time.perf_counter() - begin) * 5e4
def best():
    return min(round() for _ in range(25))
best()
alone, enter, leave = best(), [], []
for _ in range(20):
    begin = time.perf_counter()
    with pasta.profile("operators", "tensors"):
        entered = time.perf_counter()
        torch.add(a, b)
        ended = time.perf_counter()
    enter.append(entered - begin)
    leave.append(time.perf_counter() - ended)
with pasta.profile("operators", "tensors"):
    inside = best()
print(json.dumps({
    "inside": inside / alone, "after": best() / alone, "first": enter[0] + leave[0],
    "enter": statistics.median(enter), "leave": statistics.median(leave),
}))
"""
_WAYS: dict[str, tuple[str, ...] | None] = {
    "alone": None,
    "profiler": None,
    "without frames": ("--set", "torch.stacks=no"),
    "with frames": (),
    "stopped": (),
}


def _nanoseconds(way: str, program: Path, directory: Path) -> float:
    """Nanoseconds per operator."""
    options = _WAYS[way]
    before: list[str] = []
    if options is not None:
        before = [
            *preload_command(), "-q", "-c", "torch", "--set", "run.events=false", *options,
            "-f", "-o", str(directory / "run"), "--",
        ]  # fmt: skip
    done = subprocess.run(
        [*before, sys.executable, program, way],
        env=environment(), stdout=subprocess.PIPE, text=True, check=True, timeout=300,
    )  # fmt: skip
    return float(done.stdout)


def _blocks(directory: Path) -> dict[str, float]:
    """Slowdown of an operator in a block and after it, and seconds to enter and leave one."""
    program = directory / "blocks.py"
    program.write_text(_BLOCKS)
    done = subprocess.run(
        [sys.executable, program],
        env=environment(), stdout=subprocess.PIPE, text=True, check=True, timeout=300,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure() -> list[Figure]:
    """The figures of this module; none without PyTorch."""
    if importlib.util.find_spec("torch") is None:
        print("operators: PyTorch is not installed", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        program = directory / "add.py"
        program.write_text(_PROGRAM)
        _nanoseconds("with frames", program, directory)  # builds the hooks
        blocks = _blocks(directory)
        rounds = [
            {way: _nanoseconds(way, program, directory) for way in _WAYS} for _ in range(_PAIRS)
        ]

    def ratio(way: str, base: str) -> float:
        return median(each[way] / each[base] for each in rounds)

    return [
        Figure("operators: alone", median(each["alone"] for each in rounds), "ns"),
        Figure("operators: torch.profiler", ratio("profiler", "alone"), "x alone"),
        Figure(
            "operators: without frames",
            ratio("without frames", "profiler"),
            "x torch.profiler",
            most=1.15,
        ),
        Figure(
            "operators: with frames", ratio("with frames", "profiler"), "x torch.profiler", most=2
        ),
        Figure("operators: stopped", ratio("stopped", "alone"), "x alone", most=1.02),
        Figure("operators: in a block", blocks["inside"], "x alone", most=2.5),
        Figure("operators: after a block", blocks["after"], "x alone", most=1.05),
        Figure("operators: first block, enter and leave", blocks["first"], "s"),
        Figure("operators: block, enter", 1e3 * blocks["enter"], "ms", most=50),
        Figure("operators: block, leave", 1e3 * blocks["leave"], "ms", most=200),
    ]
