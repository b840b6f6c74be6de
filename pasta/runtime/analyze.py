"""Tools on the events of many runs at once, each run a task of Dask's: threads of this process, or
the workers of a scheduler."""

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
#: A run, the directory of its results, with what, and whether that may be there already.
_Job = tuple[str, str, "Config", bool]


def analyze(
    runs: Mapping[str, Path],
    config: Config,
    out: Path,
    *,
    scheduler: str | None = None,
    workers: int | None = None,
    force: bool = False,
    told: Callable[[int], None] = lambda done: None,
) -> dict[str, str | None]:
    """Runs the tools of a configuration on runs; by name, None or why there are no results.

    The results of the run `name` go to the run directory OUT/NAME. A scheduler is the address of
    one of Dask's, such as tcp://host:8786, whose workers see the same files and have PASTA; without
    one, `workers` threads do it (default: one for each core). A task holds at most some row groups
    of each kind of event in memory, and what the tools keep, however long the run is. `told` hears
    how many are done. Raises MissingDependency, and RunError where there is no such scheduler.
    """
    if importlib.util.find_spec("dask") is None:
        raise _missing("dask")
    if not out.is_dir():
        RunDirectory.create(out)
    jobs = [
        (str(path.absolute()), str((out / name).absolute()), config, force)
        for name, path in runs.items()
    ]
    done = _on_workers(jobs, scheduler, told) if scheduler else _in_threads(jobs, workers, told)
    return dict(zip(runs, done, strict=True))


def _replay(job: _Job) -> str | None:
    """A task: why it has no results, or None."""
    path, out, config, force = job
    try:
        Replay(RunDirectory.open(Path(path)), config).write(Path(out), force=force)
    except PastaError as error:
        return str(error)
    except Exception as error:  # of one run, which must not end the others
        return f"{path}: {type(error).__name__}: {error}"
    return None


def _replay_on_worker(job: _Job) -> str | None:
    """A task of a worker, which may have no more threads than its share of the machine."""
    distributed: Any = importlib.import_module("distributed")
    pyarrow: Any = importlib.import_module("pyarrow")
    pyarrow.set_cpu_count(distributed.get_worker().state.nthreads)
    return _replay(job)


def _in_threads(
    jobs: Sequence[_Job], workers: int | None, told: Callable[[int], None]
) -> list[str | None]:
    from concurrent.futures import ThreadPoolExecutor

    dask: Any = importlib.import_module("dask")
    done = itertools.count(1)
    tasks = [dask.delayed(_replay, pure=False)(job) for job in jobs]
    count = workers or len(os.sched_getaffinity(0))
    with (
        ThreadPoolExecutor(count) as pool,
        dask.callbacks.Callback(posttask=lambda *_: told(next(done))),
    ):
        found: tuple[str | None, ...] = dask.compute(*tasks, scheduler="threads", pool=pool)
    return list(found)


def _on_workers(
    jobs: Sequence[_Job], scheduler: str, told: Callable[[int], None]
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
            told(number)
        return [_outcome(task, job) for task, job in zip(tasks, jobs, strict=True)]


def _outcome(task: Any, job: _Job) -> str | None:
    failure = task.exception()
    if failure is not None:  # its worker is gone, or has no PASTA
        return f"{job[0]}: {type(failure).__name__}: {failure}"
    found: str | None = task.result()
    return found


def _missing(package: str) -> MissingDependency:
    return MissingDependency(
        f"{package} is not installed", remedy="pip install pasta-profiler[dask]"
    )
