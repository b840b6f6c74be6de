"""Processor time that samples of the host add to a program, and memory and seconds of the analysis
of a million samples.

A cost is the difference of the least of interleaved rounds, with and without samples.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.figures import Figure, compile_program, environment, preload_command, run, values
from bench.utilization import _records
from pasta.plugins import load_tools
from pasta.processors.batch import Batch
from pasta.processors.filter import Filter
from pasta.processors.strings import Strings
from pasta.runtime.pipeline import Pipeline
from pasta.tool import Context, Process

#: Samples in each second of processor time, and the target as a share of the program's time.
RATES = ((199, 0.05), (1999, 0.2))
ANALYZED = 1_000_000
_STEPS, _ROUNDS = 600_000_000, 5
_BATCH, _STACKS, _DEPTH, _TEXTS = 20_000, 5_000, 25, 500


def _seconds(program: Path, directory: Path, rate: int) -> float:
    options = ["-q", "-f", "-o", directory / "run", "--collector", "-t", "copies"]
    command = [*preload_command(), *map(str, options), "--set", f"host.sample-rate={rate}"]
    return values(run([*command, "--", program, str(_STEPS)], environment()))["seconds"]


def _costs(directory: Path) -> list[Figure]:
    program = compile_program(directory, "host_samples")
    rates = (0, *(rate for rate, _ in RATES))
    rounds = [[_seconds(program, directory, rate) for rate in rates] for _ in range(_ROUNDS)]
    plain, *sampled = (min(each) for each in zip(*rounds, strict=True))
    return [
        Figure(
            f"host_samples: {rate:,} a second, added share", after / plain - 1, "of time", most=most
        )
        for (rate, most), after in zip(RATES, sampled, strict=True)
    ]


def _analysis() -> float:
    """Processor seconds of host_samples for a million samples of 64 threads."""
    texts = ["", *(f"/home/user/function{i}" for i in range(_TEXTS))]
    context = Context(strings=Strings(texts.__getitem__), process=Process())
    pipeline = Pipeline(Filter(), load_tools(["host_samples"]), context)
    count = _STACKS * _DEPTH
    at = np.arange(count)
    frames = _records("python_frame", count, at)
    frames["stack"], frames["depth"] = 0xC000_0001 + at // _DEPTH, at % _DEPTH
    frames["file"], frames["function"] = 1 + at % 99, 1 + at * 7 % _TEXTS
    frames["line"] = frames["first_line"] = 1 + at % 1000
    begin = time.process_time()
    pipeline.feed(Batch(0, {"python_frame": frames}))
    for first in range(0, ANALYZED, _BATCH):
        number = np.arange(first, first + _BATCH)
        samples = _records(
            "host_sample", _BATCH, np.arange(_BATCH), time=1000 * number, period=5_000_000, lost=0,
            thread=1 + number % 64, stack=0xC000_0001 + number * 7919 % _STACKS, in_kernel=0,
            truncated=0,
        )  # fmt: skip
        pipeline.feed(Batch(count + first, {"host_sample": samples}))
    pipeline.finish()
    if pipeline.failures:
        raise RuntimeError(str(pipeline.failures))
    return time.process_time() - begin


def measure() -> list[Figure]:
    """The figures of this module."""
    seconds = Figure("host_samples: a million samples analysed", _analysis(), "s", most=60)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    memory = Figure("host_samples: … peak memory", peak, "MiB", most=2048)
    with tempfile.TemporaryDirectory() as name:
        return [*_costs(Path(name)), seconds, memory]
