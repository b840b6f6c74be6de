"""What following PyTorch costs an operator: 100,000 one-element additions on the CPU, one thread.

Compared are a program alone, under torch.profiler (within its context, without what it does at
its end), under PASTA with `-c torch`, without and with Python frames, and stopped by
`pasta.stop()`.
Each is a process that takes the best of five rounds; processes are interleaved, and the median of
their ratios counts. Needs PyTorch; the first run builds PASTA's hooks.
"""

from __future__ import annotations

import importlib.util
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
_WAYS: dict[str, tuple[str, ...] | None] = {
    "alone": None,
    "profiler": None,
    "without frames": ("--set", "torch.stacks=no"),
    "with frames": (),
    "stopped": (),
}


def _nanoseconds(way: str, program: Path, directory: Path) -> float:
    """Nanoseconds for an operator."""
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


def measure() -> list[Figure]:
    """The figures of this module; none where there is no PyTorch."""
    if importlib.util.find_spec("torch") is None:
        print("operators: PyTorch is not installed", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        program = directory / "add.py"
        program.write_text(_PROGRAM)
        _nanoseconds("with frames", program, directory)  # builds the hooks
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
    ]
