"""Nanoseconds that a call stack adds to a launch on the reference accelerator, in a program with
and without frame pointers, and memory and seconds of the analysis of a million launches with
stacks.

A figure is the difference of medians over a program's launches, with and without call paths, the
least of three rounds.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.figures import Figure, compile_program, environment, preload_command, run, values
from bench.utilization import _records
from pasta import abi
from pasta.plugins import load_tools
from pasta.processors.batch import Batch
from pasta.processors.filter import Filter
from pasta.processors.strings import Strings
from pasta.runtime.pipeline import Pipeline
from pasta.tool import Context, Process

_DEPTH, _LAUNCHES, _ROUNDS = 25, 20_000, 3
#: Compiler option, way to walk, and the target in ns.
WAYS = (
    ("frame pointers", "-fno-omit-frame-pointer", "frame_pointers", 3_000.0),
    ("no frame pointers", "-fomit-frame-pointer", "eh_frame", 15_000.0),
    ("auto, with frame pointers", "-fno-omit-frame-pointer", "auto", 3_000.0),
)
ANALYZED = 1_000_000
_BATCH, _STACKS, _NAMES = 1 << 15, 256, 64


def _median(program: Path, directory: Path, *options: str) -> float:
    command = [*preload_command(), "-f", "-o", str(directory / "run"), "-t", "kernel_freq"]
    work = [program, str(_DEPTH), str(_LAUNCHES)]
    out = run([*command, *options, "--", *work], environment())
    return values(out)["median"]


def _cost(directory: Path, flag: str, way: str) -> float:
    program = compile_program(directory, "host_stacks", flag, output=f"stacks{flag}")
    with_paths = ("--call-paths", "launches", "--set", f"host.unwind={way}")
    pairs = [
        (_median(program, directory), _median(program, directory, *with_paths))
        for _ in range(_ROUNDS)
    ]
    return min(after for _, after in pairs) - min(before for before, _ in pairs)


def _batch(first: int, names: list[int]) -> Batch:
    """Launches `first` and on, each with its stack and its completion."""
    ordinals = np.arange(first, first + _BATCH, dtype=np.uint64)
    index = np.arange(_BATCH, dtype=np.int64) * 3
    times = 10_000 + ordinals * 2000
    name = np.asarray(names, np.uint32)[(ordinals % _NAMES).astype(np.intp)]
    stack = (0x8000_0001 + ordinals * 7 % _STACKS).astype(np.uint32)
    return Batch(
        3 * first,
        {
            "kernel_launch": _records(
                "kernel_launch", _BATCH, index, time=times, ordinal=ordinals, name=name
            ),
            "host_stack": _records(
                "host_stack", _BATCH, index + 1, time=times, key=ordinals, stack=stack,
                work=abi.KINDS["kernel_launch"], work_time=times, truncated=0,
            ),
            "kernel_complete": _records(
                "kernel_complete", _BATCH, index + 2, time=times, ordinal=ordinals,
                start=times, end=times + 1000,
            ),
        },
    )  # fmt: skip


def _analysis() -> float:
    """Processor seconds of kernel_freq for a million launches with stacks of 30 frames."""
    texts = ["", *(f"kernel{i}" for i in range(_NAMES)), "/home/user/app"]
    strings = Strings(texts.__getitem__)
    context = Context(strings=strings, process=Process())
    pipeline = Pipeline(Filter(), load_tools(["kernel_freq"]), context)
    frames = _records("host_frame", _STACKS * 30, np.arange(_STACKS * 30))
    frames["stack"] = 0x8000_0001 + np.arange(len(frames)) // 30
    frames["depth"], frames["address"] = np.arange(len(frames)) % 30, np.arange(len(frames))
    frames["image"], frames["build"] = len(texts) - 1, 0
    batches = [_batch(first, list(range(1, _NAMES + 1))) for first in range(0, ANALYZED, _BATCH)]
    begin = time.process_time()
    pipeline.feed(Batch(0, {"host_frame": frames}))
    for batch in batches:
        pipeline.feed(batch)
    pipeline.finish()
    if pipeline.failures:
        raise RuntimeError(str(pipeline.failures))
    return time.process_time() - begin


def measure() -> list[Figure]:
    """The figures of this module."""
    with tempfile.TemporaryDirectory() as name:
        costs = [
            Figure(f"host_stacks: {what}, {_DEPTH} calls", _cost(Path(name), flag, way), "ns", most)
            for what, flag, way, most in WAYS
        ]
    seconds = Figure("host_stacks: a million launches analysed", _analysis(), "s", most=60)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [*costs, seconds, Figure("host_stacks: … peak memory", peak, "MiB", most=2048)]
