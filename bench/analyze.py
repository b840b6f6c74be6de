"""`pasta analyze` with one Dask worker and with two: the same runs of four ranks, two million
events each. Workers are processes with one thread on this machine; seconds are wall-clock time
without the workers' start, the minimum of three interleaved rounds."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.figures import Figure, environment
from bench.runs import write_run

RANKS = 4
EVENTS = 2_000_000
_ROUNDS = 3


def measure() -> list[Figure]:
    """Throughput of one worker, and the speedup by two; none without Dask."""
    if importlib.util.find_spec("distributed") is None:
        print("analyze: Dask is not installed", file=sys.stderr)
        return []
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as name:
        directory = Path(name)
        runs = {f"rank-{rank}": directory / str(rank) for rank in range(RANKS)}
        for path in runs.values():
            write_run(path, EVENTS)
        seconds: dict[int, list[float]] = {1: [], 2: []}
        with _cluster(directory, 1) as one, _cluster(directory, 2) as two:
            for number in range(_ROUNDS + 1):
                for workers, address in ((1, one), (2, two)):
                    taken = _seconds(runs, directory / "out", address)
                    if number:  # the first round imports
                        seconds[workers].append(taken)
    rate = RANKS * EVENTS / min(seconds[1])
    return [
        Figure("analyze: one worker", rate / 1e6, "M events/s"),
        Figure("analyze: two workers", min(seconds[1]) / min(seconds[2]), "x one", least=1.7),
    ]


def _seconds(runs: dict[str, Path], out: Path, address: str) -> float:
    from pasta.config import Config
    from pasta.runtime.analyze import analyze

    start = time.perf_counter()
    problems = analyze(
        runs, Config(tools=["kernel_freq", "copies"]), out, scheduler=address, force=True
    )
    if any(problems.values()):
        raise RuntimeError(problems)
    return time.perf_counter() - start


@contextmanager
def _cluster(directory: Path, workers: int) -> Iterator[str]:
    """Address of a scheduler with `workers` workers."""
    from distributed import Client

    file = directory / f"scheduler-{workers}.json"
    commands = [
        [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1",
         "--port", "0", "--no-dashboard", "--no-show", "--scheduler-file", str(file)],
        *[[sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(file),
           "--nworkers", "1", "--nthreads", "1", "--no-dashboard", "--no-nanny",
           "--local-directory", str(directory)]] * workers,
    ]  # fmt: skip
    processes = []
    try:
        for command in commands:
            processes.append(
                subprocess.Popen(
                    command, env=environment(), cwd=directory,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )
            )  # fmt: skip
            while not file.exists():
                time.sleep(0.05)
        with Client(scheduler_file=str(file), timeout=30) as client:
            client.wait_for_workers(workers, timeout=60)
            yield client.scheduler.address
    finally:
        for process in processes:
            process.kill()
            process.wait()
