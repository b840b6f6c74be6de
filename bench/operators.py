"""Overhead of an operator in PyTorch, on the CPU, one thread.

Recording is switched on and off inside one process, on programs that the host bounds
(`bench.host_bound`): additions of one element, the same after other work has used the caches, and a
training step of a small model of GPT-2's structure, eager, mostly nested operators. The parts of
the cost: an empty callback of PyTorch's RecordFunction, without and with tensors; then PASTA with
allocations only, with operators, with their Python frames and modules, and with their tensors too
(`-c torch`); torch.profiler for comparison. Figures are CPU time beyond the same program without
recording: medians of processes, of which each reports its shortest rounds.

Separate processes compare a stopped PASTA with the program alone, and measure blocks of
`pasta.profile`. Needs PyTorch; the first run builds PASTA's hooks.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from bench.figures import Figure, environment, preload_command
from bench.host_bound import ADDS, NESTED_ADDS
from bench.publish import ROOT

_PAIRS = 3
_PROGRAM = """
import sys, time, torch
torch.set_num_threads(1)
a, b = torch.ones(1), torch.ones(1)
def round():
    begin = time.thread_time()
    for _ in range(10_000):
        torch.add(a, b)
    return (time.thread_time() - begin) * 1e5
round()
if sys.argv[1] == "stopped":
    import pasta
    pasta.stop()
print(min(round() for _ in range(50)))
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
#: Options of pasta-preload by what is recorded, and the most ns that an operator may take.
_RECORDED: dict[str, tuple[tuple[str, ...], float | None]] = {
    "allocations": (("-t", "memory_timeline"), None),
    "operators": (("-t", "operators", "--set", "torch.stacks=no"), 250),
    "operators, frames": (("-t", "operators"), None),
    "-c torch": (("-c", "torch"), 500),
}
_PROGRAMS = {
    "add": "add",
    "cold add": "add, caches cold",
    "nested": "nested add",
    "step": "GPT step",
}


def _output(command: list[str | Path], recorded: tuple[str, ...] | None, directory: Path) -> str:
    """What a program prints, alone or under pasta-preload with options."""
    before: list[str | Path] = []
    if recorded is not None:
        before = [
            *preload_command(), "-q", *recorded, "--set", "run.events=false",
            "-f", "-o", str(directory / "run"), "--",
        ]  # fmt: skip
    done = subprocess.run(
        [*before, sys.executable, *command],
        env=environment(), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=600,
    )  # fmt: skip
    return done.stdout


def _nanoseconds(way: str, program: Path, directory: Path) -> float:
    """Nanoseconds per operator."""
    recorded = ("-c", "torch") if way == "stopped" else None
    return float(_output([program, way], recorded, directory))


def _host_bound(directory: Path, recorded: tuple[str, ...] | None) -> dict[str, Any]:
    arguments = ["callbacks", str(directory / "cache")] if recorded is None else ["pasta"]
    text = _output(["-m", "bench.host_bound", *arguments], recorded, directory)
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


def _parts(directory: Path) -> list[Figure]:
    """Cost of an operator by what is recorded, and of a step relative to one without recording."""
    sets = {None: None, **{name: options for name, (options, _) in _RECORDED.items()}}
    runs = [
        {name: _host_bound(directory, options) for name, options in sets.items()}
        for _ in range(_PAIRS)
    ]
    counts = {
        "add": ADDS,
        "cold add": 1,
        "nested": NESTED_ADDS,
        "step": runs[0][None]["operators"]["step"],
    }
    figures = [Figure("operators: operators of a step", counts["step"], "")]
    for program, title in _PROGRAMS.items():
        ways = [(None, way, way, None) for way in runs[0][None]["times"][program] if way != "off"]
        ways += [(name, "pasta", name, most) for name, (_, most) in _RECORDED.items()]
        for of, way, name, most in ways:
            times = [each[of]["times"][program] for each in runs]
            added = median((each[way] - each["off"]) / counts[program] for each in times)
            most = most if program != "cold add" else None
            figures.append(Figure(f"operators: {title}, {name}", 1e9 * added, "ns", most=most))
            if program == "step":
                ratio = median(each[way] / each["off"] for each in times)
                figures.append(Figure(f"operators: {title}, {name}", ratio, "x without"))
    return figures


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
        _nanoseconds("stopped", program, directory)  # builds the hooks
        blocks = _blocks(directory)
        rounds = [
            {way: _nanoseconds(way, program, directory) for way in ("alone", "stopped")}
            for _ in range(_PAIRS)
        ]
        parts = _parts(directory)
    stopped = median(each["stopped"] / each["alone"] for each in rounds)
    return [
        Figure("operators: alone", median(each["alone"] for each in rounds), "ns"),
        *parts,
        Figure("operators: stopped", stopped, "x alone", most=1.02),
        Figure("operators: in a block", blocks["inside"], "x alone", most=2.5),
        Figure("operators: after a block", blocks["after"], "x alone", most=1.05),
        Figure("operators: first block, enter and leave", blocks["first"], "s"),
        Figure("operators: block, enter", 1e3 * blocks["enter"], "ms", most=50),
        Figure("operators: block, leave", 1e3 * blocks["leave"], "ms", most=200),
    ]
