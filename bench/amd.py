"""The AMD source under load from its tests' replayer: no AMD hardware has been measured.

The cost of an event is the program's time minus its time when the replayer makes no calls. Launches
complete in another order than they start, as in programs with streams.
"""

from __future__ import annotations

import json
import os
import re
import resource
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median

from bench.figures import (
    NATIVE,
    Figure,
    environment,
    preload_command,
    ring_session,
    run,
)
from tests.support.amd_replayer import Replayer, build
from tests.support.amd_stream import Stream

_BATCHES = 400
_ROUNDS = 50  # in a batch, of four launches each
_DISPATCHES = 1_000_000
_STREAM = 0x55D6D3E60D10


def measure() -> list[Figure]:
    """Cost of an event, of a whole run, and memory of a dispatch."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        replayer = build(directory)
        source = _per_event(replayer, directory, {})
        dry = _per_event(replayer, directory, {"REPLAY_DRY": "1"})
        seconds = _end_to_end(replayer, directory)
        growth = _growth(replayer, directory)
    return [
        Figure("amd: one event through the source, median", source - dry, "ns", most=200),
        Figure("amd: the same, with the replayer's own cost", source, "ns"),
        Figure("amd: 10^6 dispatches to the written run, one core", seconds, "s", most=3),
        Figure("amd: memory of a further dispatch", growth, "bytes", most=0.5),
    ]


def _launches(s: Stream) -> None:
    made = []
    for _ in range(4):
        with s.call("hipLaunchKernel", stream=_STREAM):
            made.append(s.dispatch(1))
    for i in (2, 3, 0, 1):
        s.complete(made[i], by=1)


def _loaded() -> Stream:
    s = Stream()
    s.say("ends 0")
    s.load(2, {1: "_Z4fillIfEvPT_S0_i.kd"})
    return s


def _environment(replayer: Replayer) -> dict[str, str]:
    return {
        **replayer.environment(str(NATIVE / "libpasta_amd.so")),
        "LD_PRELOAD": str(NATIVE / "libpasta.so"),
    }


def _per_event(replayer: Replayer, directory: Path, more: dict[str, str]) -> float:
    """Median over batches of the ns for an event that reaches a tool, in a ring that grows."""
    s = _loaded()
    for _ in range(_BATCHES):
        s.say("clock batch")
        with s.block(f"loop {_ROUNDS} 16"):
            _launches(s)
    s.say("clock batch")
    stream = s.write(directory / "batches.txt")
    with ring_session(1 << 30) as (_, env):
        text = run([replayer.program, stream], {**env, **_environment(replayer), **more})
    marks = [tuple(map(int, found)) for found in re.findall(r"^batch (\d+) (\d+)", text, re.M)]
    return median((b[0] - a[0]) / (b[1] - a[1]) for a, b in pairwise(marks))


def _end_to_end(replayer: Replayer, directory: Path) -> float:
    """Processor seconds of pasta-preload and all that it starts, until the run is written."""
    s = _loaded()
    with s.block(f"loop {_DISPATCHES // 4} 16"):
        _launches(s)
    stream = s.write(directory / "million.txt")
    command = [
        *preload_command(), "-q", "-f", "-o", str(directory / "run"), "--",
        str(replayer.program), str(stream),
    ]  # fmt: skip
    env = environment(**replayer.environment(str(NATIVE / "libpasta_amd.so")))
    cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(cores)})
        seconds = min(_processor_seconds(command, env) for _ in range(3))  # other load only adds
    finally:
        os.sched_setaffinity(0, cores)
    manifest = json.loads((directory / "run" / "run.json").read_text())
    if manifest["dropped"] or manifest["recorded"]["kernel_complete"] != _DISPATCHES:
        raise RuntimeError(f"not all was recorded: {manifest['recorded']}")
    return seconds


def _processor_seconds(command: list[str], env: dict[str, str]) -> float:
    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = used()
    run(command, env)
    return used() - before


def _growth(replayer: Replayer, directory: Path) -> float:
    """Bytes of the process's own memory for a dispatch beyond the first tenth of a million."""
    s = _loaded()
    for dispatches in (_DISPATCHES // 10, _DISPATCHES - _DISPATCHES // 10):
        with s.block(f"loop {dispatches // 4} 16"):
            _launches(s)
        s.say("rss")
    stream = s.write(directory / "growth.txt")
    with ring_session(1 << 20) as (_, env):  # without a consumer it stays at its cap
        text = run([replayer.program, stream], {**env, **_environment(replayer)})
    before, after = map(int, re.findall(r"^rss (\d+)", text, re.M))
    return 1024 * (after - before) / (_DISPATCHES * 0.9)


if __name__ == "__main__":
    for figure in measure():
        print(f"{figure.name}: {figure.measured}")
