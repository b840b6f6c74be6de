"""Runs tools on the events of many runs in parallel, one Dask task per run, in threads of this
process or on the workers of a scheduler."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta.errors import MissingDependency, PastaError, RunError
from pasta.run.directory import RunDirectory
from pasta.runtime.replay import Replay

if TYPE_CHECKING:
    from pasta.config import Config

_CONNECT_SECONDS = 5
#: A run, the directory for its results, the configuration, and whether to replace results.
_Job = tuple[str, str, "Config", bool]


def analyze(
    runs: Mapping[str, Path],
    config: Config,
    out: Path,
    *,
    scheduler: str | None = None,
    workers: int | None = None,
    force: bool = False,
    on_done: Callable[[int], None] = lambda done: None,
) -> dict[str, str | None]:
    """Runs the tools of a configuration on runs; returns None or the error of each, by name.

    The results of the run `name` go to the run directory OUT/NAME. `scheduler` is the address of a
    Dask scheduler, such as tcp://host:8786, whose workers see the same files and have PASTA
    installed; without it, `workers` threads are used (default: one per core). A task holds a few
    row groups of each event kind in memory, and the state of the tools, for runs of any length.
    `on_done` is called with the number of finished runs. Raises MissingDependency, and RunError if
    the scheduler cannot be reached.
    """
    if importlib.util.find_spec("dask") is None:
        raise _missing("dask")
    if not out.is_dir():
        RunDirectory.create(out)
    jobs = [
        (str(path.absolute()), str((out / name).absolute()), config, force)
        for name, path in runs.items()
    ]
    done = (
        _on_workers(jobs, scheduler, on_done) if scheduler else _in_threads(jobs, workers, on_done)
    )
    return dict(zip(runs, done, strict=True))


def _replay(job: _Job) -> str | None:
    """A task: replays a run; None or the error."""
    path, out, config, force = job
    try:
        Replay(RunDirectory.open(Path(path)), config).write(Path(out), force=force)
    except PastaError as error:
        return str(error)
    except Exception as error:  # one run must not end the others
        return f"{path}: {type(error).__name__}: {error}"
    return None


def _replay_on_worker(job: _Job) -> str | None:
    """A task on a worker, limited to the worker's share of threads."""
    distributed: Any = importlib.import_module("distributed")
    pyarrow: Any = importlib.import_module("pyarrow")
    pyarrow.set_cpu_count(distributed.get_worker().state.nthreads)
    return _replay(job)


def _in_threads(
    jobs: Sequence[_Job], workers: int | None, on_done: Callable[[int], None]
) -> list[str | None]:
    from concurrent.futures import ThreadPoolExecutor

    dask: Any = importlib.import_module("dask")
    done = itertools.count(1)
    tasks = [dask.delayed(_replay, pure=False)(job) for job in jobs]
    count = workers or len(os.sched_getaffinity(0))
    with (
        ThreadPoolExecutor(count) as pool,
        dask.callbacks.Callback(posttask=lambda *_: on_done(next(done))),
    ):
        found: tuple[str | None, ...] = dask.compute(*tasks, scheduler="threads", pool=pool)
    return list(found)


def _on_workers(
    jobs: Sequence[_Job], scheduler: str, on_done: Callable[[int], None]
) -> list[str | None]:
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise _missing("distributed") from None
    try:
        client = distributed.Client(scheduler, timeout=_CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        raise RunError(
            f"no Dask scheduler at {scheduler} ({error})", remedy="start one with: dask scheduler"
        ) from None
    with client:
        tasks = [client.submit(_replay_on_worker, job, pure=False) for job in jobs]
        for number, _ in enumerate(distributed.as_completed(tasks), 1):
            on_done(number)
        return [_outcome(task, job) for task, job in zip(tasks, jobs, strict=True)]


def _outcome(task: Any, job: _Job) -> str | None:
    failure = task.exception()
    if failure is not None:  # the worker ended, or PASTA is not installed there
        return f"{job[0]}: {type(failure).__name__}: {failure}"
    found: str | None = task.result()
    return found


def _missing(package: str) -> MissingDependency:
    return MissingDependency(f"{package} is not installed", remedy="pip install dask distributed")
