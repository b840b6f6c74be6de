"""Runs on disk: ten million events written, replayed and reported, and accesses replayed.

The events are synthetic: launches of 200 kernels with their ends and device times. Seconds are
processor time in one process pinned to one core; those of `pasta report` are wall-clock time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench import executor
from bench.figures import Figure, environment

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.strings import Strings
    from pasta.run.directory import RunDirectory

EVENTS = 10_000_000
_KERNELS = 200
_BATCH = 8192  # launches
_ACCESS_ROUNDS = 12
_MIB = 1 << 20


def measure() -> list[Figure]:
    """Throughput of recording and replay, size on disk, and the cost of a report."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as directory:
        text = subprocess.run(
            [sys.executable, "-m", "bench.runs", directory],
            env=environment(), check=True, stdout=subprocess.PIPE, text=True, timeout=600,
        ).stdout  # fmt: skip
        found = json.loads(text)
        seconds, _, memory = report(Path(directory) / "again")
    return [
        Figure("runs: write events", found["written"] / 1e6, "M events/s", least=2),
        Figure("runs: size on disk", found["bytes"], "bytes/event", most=20),
        Figure("runs: replay kernel_freq", found["replayed"] / 1e6, "M events/s", least=5),
        Figure("runs: replay hotness", found["lanes"] / 1e6, "M lanes/s", least=50),
        Figure("runs: report of 10 million events", seconds, "s", most=5),
        Figure("runs: … memory", memory / _MIB, "MiB", most=500),
    ]


def report(run: Path, *options: str) -> tuple[float, float, float]:
    """Seconds, processor seconds and bytes that `pasta report` takes."""
    code = "from pasta.cli.main import main; raise SystemExit(main())"
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", code, "report", str(run), *options],
        env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"pasta report ended with {status}")
    seconds = time.perf_counter() - start
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def _worker(directory: Path) -> None:
    from pasta.config import Config
    from pasta.runtime.replay import Replay

    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    run, written = write_run(directory / "run", EVENTS)
    size = sum(file.stat().st_size for file in run.events.iterdir())
    start = time.process_time()
    Replay(run, Config(tools=["kernel_freq"])).write(directory / "again")
    replayed = time.process_time() - start
    found = {
        "written": EVENTS / written,
        "bytes": size / EVENTS,
        "replayed": EVENTS / replayed,
        "lanes": _replay_accesses(directory),
    }
    print(json.dumps(found))


def write_run(path: Path, events: int) -> tuple[RunDirectory, float]:
    """A run with about `events` events, and the processor seconds of writing them."""
    from pasta.processors.strings import Strings
    from pasta.run.directory import SCHEMA, RunDirectory
    from pasta.run.events import Recorder

    run = RunDirectory.create(path)
    strings = Strings()
    recorder = Recorder(run.events, strings)
    seconds = 0.0
    for first in range(0, events // 3 + 1, _BATCH):
        batch = _launches(first, min(_BATCH, events // 3 + 1 - first), strings)
        start = time.process_time()
        recorder.add(batch)
        if recorder.full:
            recorder.flush()
        seconds += time.process_time() - start
    start = time.process_time()
    recorder.flush()
    seconds += time.process_time() - start
    run.write_manifest(
        {
            "schema": SCHEMA, "command": ["bench"], "executable": "bench", "host": "here",
            "pid": 1, "parent": 0, "environment": {}, "observed_ns": 1, "sources": {},
            "start": {"realtime_ns": 0, "monotonic_ns": 0}, "ended": {"text": ""}, "devices": {},
        }
    )  # fmt: skip
    return run, seconds


def absent(kind: str, count: int) -> NDArray[Any]:
    from pasta import abi

    dtype = abi.dtype(kind)
    records = np.full(count * dtype.itemsize, 0xFF, np.uint8).view(dtype)
    records["kind"], records["slots"] = abi.KINDS[kind], dtype.itemsize // abi.SLOT
    records["flags"], records["thread"], records["device"], records["context"] = 0, 1, 0, 0
    records["correlation"] = 0
    return records


def _launches(first: int, count: int, strings: Strings) -> Batch:
    """Launches from ordinal `first` on, each with its end and its device times."""
    from pasta.processors.batch import Batch

    numbers = np.arange(first, first + count)
    names = [
        strings.id_of(f"void kernel_{each}<float, {each}>(float*)") for each in range(_KERNELS)
    ]
    begins, ends, done = (
        absent(kind, count) for kind in ("kernel_launch", "kernel_launch_end", "kernel_complete")
    )
    jitter = np.random.default_rng(first)
    kernel = jitter.integers(0, _KERNELS, count)
    begins["name"] = np.asarray(names)[kernel]
    begins["grid"], begins["block"] = (64, 1, 1), (128, 1, 1)
    for at, records in enumerate((begins, ends, done)):
        records["index"] = 6 * (numbers - first) + 2 * at
        records["time"] = 10_000 * numbers + 1000 * at + jitter.integers(0, 1000, count)
        records["ordinal"] = numbers
    done["start"] = 10_000 * numbers + 3000
    done["end"] = done["start"] + (500 + 10 * kernel + jitter.integers(0, 50, count)).astype("u8")
    kinds = {"kernel_launch": begins, "kernel_launch_end": ends, "kernel_complete": done}
    return Batch(6 * first, kinds)


def _replay_accesses(directory: Path) -> float:
    """Lanes per second of a whole replay of `hotness`."""
    from pasta.config import Config
    from pasta.probes.kinds import STRIDE
    from pasta.processors.batch import Batch
    from pasta.processors.strings import Strings
    from pasta.run.accesses import TOOL, AccessWriter, part_name
    from pasta.run.directory import RunDirectory
    from pasta.run.events import Recorder
    from pasta.runtime.replay import Replay

    run = RunDirectory.create(directory / "accesses")
    strings = Strings()
    recorder = Recorder(run.events, strings)
    memory = absent("memory_alloc", 1)
    memory["index"], memory["time"], memory["memory"] = 0, 1, 1
    memory["address"], memory["bytes"] = 1 << 46, executor.BYTES
    launch = absent("kernel_launch", 1)
    launch["index"], launch["time"], launch["ordinal"] = 2, 2, 0
    launch["name"] = strings.id_of("kernel")
    recorder.add(Batch(0, {"memory_alloc": memory, "kernel_launch": launch}))
    recorder.flush()
    chunks = executor.records(STRIDE, 1)
    writer = AccessWriter(str(directory))
    for _ in range(_ACCESS_ROUNDS):
        for chunk in chunks:
            writer.add(4, np.frombuffer(chunk, np.int64))
    writer.close()
    place = run.results / TOOL
    place.mkdir(parents=True)
    Path(writer.path).rename(place / part_name(0))
    config = Config(tools=["hotness"])
    Replay(run, config).write(directory / "first")  # compiles
    start = time.process_time()
    Replay(run, config).write(directory / "second")
    return _ACCESS_ROUNDS * executor.WARPS * executor.LANES / (time.process_time() - start)


if __name__ == "__main__":
    _worker(Path(sys.argv[1]))
