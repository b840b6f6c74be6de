"""A root: the directory to which the processes of a job, on all its hosts, write their runs.

    ROOT/rank-0003-node1-4711/    the run of rank 3
    ROOT/app-node1-4712/          the run of a process without a rank
    ROOT/.pasta-…/                a run that is being written, or was never finished
    ROOT/passes/                  runs of two passes, of which the runs in the root were joined

There is no index and no lock: a root is defined by its content, and may be read while processes
write to it.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pasta.errors import RunError
from pasta.run.directory import MANIFEST, RunDirectory
from pasta.run.naming import place_in_job

_UNFINISHED = ".pasta-"
#: Directory of the runs of two passes, in the joined run or the root of the joined runs.
PASSES = "passes"
_NAMED = re.compile(r"rank-([0-9]+)-")
_RANK_DIGITS = 7
#: Scripts among an interpreter's arguments, which name the program.
_SCRIPT = re.compile(r".*\.(py|pyc|sh|jl|pl|rb|lua)", re.DOTALL)


@dataclass(frozen=True)
class RankRun:
    """A finished run of a root. Times are ns, `start` on its host's CLOCK_MONOTONIC."""

    directory: RunDirectory
    manifest: dict[str, Any]
    program: str
    host: str
    pid: int
    rank: int | None
    local_rank: int | None
    world_size: int | None
    start: int
    realtime: int  # of `start`, since 1970
    observed: int
    #: Runs with the same id share their CLOCK_MONOTONIC.
    clock: str
    #: Maximum error of the host's real time; None if unknown.
    clock_error: int | None

    @property
    def name(self) -> str:
        """Name of the run directory."""
        return self.directory.path.name

    @property
    def is_replay(self) -> bool:
        """Whether pasta replay or analyze created it from another run."""
        return "replay" in self.manifest


@dataclass(frozen=True)
class Problem:
    """A directory of a root that is not usable as a run, and why."""

    path: Path
    why: str
    rank: int | None = None


@dataclass(frozen=True)
class Clock:
    """A host's clock: real time is its CLOCK_MONOTONIC plus `offset`."""

    hosts: tuple[str, ...]
    offset: int
    #: Maximum error against real time; None if unknown.
    error: int | None


class Root:
    """The runs of a root: first by rank, then those without a rank by start time."""

    def __init__(self, path: Path, runs: list[RankRun], problems: list[Problem]) -> None:
        self.path = path
        self.runs = sorted(
            _with_parents_programs(runs),
            key=lambda run: (run.rank is None, run.rank or 0, run.realtime, run.pid),
        )
        self.problems = problems

    @classmethod
    def open(cls, path: Path) -> Root:
        """Reads the manifests in a root. Raises RunError if `path` contains no run."""
        if not path.is_dir():
            raise RunError(f"{path}: no such directory")
        if _is_run(path):
            raise RunError(f"{path}: a run, not a directory of runs")
        runs, problems = [], []
        try:
            with os.scandir(path) as entries:
                found = sorted(entry.name for entry in entries if entry.is_dir())
        except OSError as error:
            raise RunError(f"{path}: cannot be read ({error.strerror})") from None
        for name in found:
            try:
                run = _read(path / name)
            except (RunError, OSError) as error:
                problems.append(
                    Problem(path / name, _without(path / name, error), _named_rank(name))
                )
                continue
            if isinstance(run, RankRun):
                runs.append(run)
            elif run is not None:
                problems.append(run)
        if not all(run.is_replay for run in runs):  # replays of runs in this root
            problems += [
                Problem(run.directory.path, "made by pasta replay, not the run of a process")
                for run in runs
                if run.is_replay
            ]
            runs = [run for run in runs if not run.is_replay]
        root = cls(path, runs, problems)
        if not root.runs and not any(_is_of_root(problem.path) for problem in problems):
            raise RunError(f"{path}: not a run directory, and contains none")
        return root

    # ---- ranks ----

    @property
    def world_size(self) -> int | None:
        """Number of ranks of the job, according to its launcher; None if unknown."""
        return max((run.world_size for run in self.runs if run.world_size), default=None)

    @property
    def ranks(self) -> list[int]:
        """Ranks with a run."""
        return sorted({run.rank for run in self.runs if run.rank is not None})

    @property
    def missing(self) -> list[int]:
        """Ranks of the job without a finished or unfinished run."""
        seen = {*self.ranks, *(each.rank for each in self.problems)}
        return [rank for rank in range(self.world_size or 0) if rank not in seen]

    def of_rank(self, rank: int) -> list[RankRun]:
        """The runs of a rank: its process, then its children. Raises RunError if there are none."""
        found = [run for run in self.runs if run.rank == rank]
        if found:
            return found
        for problem in self.problems:
            if problem.rank == rank:
                raise RunError(f"rank {rank}: {problem.path}: {problem.why}")
        known = f"there are {numbers(self.ranks)}" if self.ranks else "there are no ranks"
        raise RunError(f"{self.path}: no run of rank {rank}", remedy=known)

    def label(self, run: RankRun) -> str:
        """A short name of a run, unique in the root."""
        if run.rank is None:
            return run.name
        alone = self._runs_of[run.rank] == 1
        return f"rank {run.rank}" if alone else f"rank {run.rank}, process {run.pid}"

    @cached_property
    def _runs_of(self) -> Counter[int | None]:
        return Counter(run.rank for run in self.runs)

    @property
    def programs(self) -> dict[str, list[RankRun]]:
        """Runs by program, the program of the first rank first."""
        return self._by(lambda run: run.program)

    @property
    def hosts(self) -> dict[str, list[RankRun]]:
        """Runs by host."""
        return self._by(lambda run: run.host)

    def _by(self, key: Callable[[RankRun], str]) -> dict[str, list[RankRun]]:
        found: dict[str, list[RankRun]] = {}
        for run in self.runs:
            found.setdefault(key(run), []).append(run)
        return found

    def doubts(self) -> Iterator[str]:
        """Signs that this is not one job with one run per rank, one line each."""
        sizes = sorted({run.world_size for run in self.runs if run.world_size})
        if len(sizes) > 1:
            listed = " and ".join(f"{size:,}" for size in sizes)
            yield f"runs of jobs with {listed} ranks: give each job a separate root"
        twice = [rank for rank in self.ranks if self._independent(rank) > 1]
        if twice:
            yield (
                f"{ranks_text(twice)}: several unrelated processes, from a restart or another "
                "job in the same root"
            )

    def _independent(self, rank: int) -> int:
        mine = [run for run in self.runs if run.rank == rank]
        pids = {(run.clock, run.pid) for run in mine}
        parents = [(run.clock, run.manifest.get("parent")) for run in mine]
        heads = {
            (run.clock, run.pid)
            for run, parent in zip(mine, parents, strict=True)
            if parent not in pids
        }
        return len(heads)

    # ---- one time line ----

    @cached_property
    def clocks(self) -> dict[str, Clock]:
        """Clocks of the hosts by id. All runs of a host share one offset, so that times between
        them stay exact even if real time was set meanwhile."""
        found = {}
        for key in dict.fromkeys(run.clock for run in self.runs):
            mine = [run for run in self.runs if run.clock == key]
            offsets = sorted(run.realtime - run.start for run in mine)
            errors = [run.clock_error for run in mine]
            known = [error for error in errors if error is not None]
            found[key] = Clock(
                tuple(dict.fromkeys(run.host for run in mine)),
                offsets[len(offsets) // 2],
                max(known) + offsets[-1] - offsets[0] if len(known) == len(errors) else None,
            )
        return found

    @cached_property
    def origin(self) -> int:
        """Real time, ns since 1970, at which the first run started."""
        return min((self._real(run, run.start) for run in self.runs), default=0)

    def _real(self, run: RankRun, time: int) -> int:
        return time + self.clocks[run.clock].offset

    def since(self, run: RankRun, time: int) -> int:
        """Converts a run's event time (CLOCK_MONOTONIC of its host) to ns since `origin`."""
        return self._real(run, time) - self.origin

    def error(self, one: RankRun, other: RankRun) -> int | None:
        """Maximum error between times of two runs, in ns: 0 on one host; between hosts the error
        of real time that their kernels report, as good as its synchronization. None if unknown."""
        if one.clock == other.clock:
            return 0
        errors = self.clocks[one.clock].error, self.clocks[other.clock].error
        return None if errors[0] is None or errors[1] is None else errors[0] + errors[1]

    @property
    def worst_error(self) -> int | None:
        """The largest error between any two runs; None if a clock's error is unknown."""
        errors = [clock.error for clock in self.clocks.values()]
        if len(errors) < 2:
            return 0
        known = sorted(error for error in errors if error is not None)
        return known[-1] + known[-2] if len(known) == len(errors) else None


def is_root(path: Path) -> bool:
    """Whether a directory contains runs and is not a run itself."""
    if not path.is_dir() or _is_run(path):
        return False
    if not os.access(path, os.R_OK | os.X_OK):
        return False
    with os.scandir(path) as entries:
        return any(entry.is_dir() and _is_of_root(path / entry.name) for entry in entries)


def _is_run(path: Path) -> bool:
    # not Path's methods, which raise without permission to search the directory
    return os.path.isfile(path / MANIFEST) or os.path.isdir(path / "events")


def _is_of_root(path: Path) -> bool:
    return path.name.startswith(_UNFINISHED) or _is_run(path)


def _read(path: Path) -> RankRun | Problem | None:
    """Reads a directory of a root; None if it is unrelated to PASTA. Raises RunError."""
    unfinished = path.name.startswith(_UNFINISHED)
    if path.name.startswith(".") and not unfinished:
        return None
    if path.name == PASSES and not _is_run(path):
        return None
    if not _is_run(path) and not unfinished:
        return Problem(path, "not a run directory")
    directory = RunDirectory(path)
    manifest = directory.manifest()
    if not path.exists():
        return None  # finished meanwhile, and renamed
    if not manifest or unfinished:
        why = "unfinished: still being written, or its PASTA was killed"
        return Problem(path, why, _recorded_rank(directory))
    if "ranks" in manifest:
        return Problem(path, "made by pasta merge, not the run of a process")
    return _run(directory, manifest)


def _run(directory: RunDirectory, manifest: dict[str, Any]) -> RankRun:
    clock = manifest.get("clock") or {}  # absent in older runs: hosts are distinguished by name
    rank, local_rank, world_size = map(manifest.get, ("rank", "local_rank", "world_size"))
    return RankRun(
        directory,
        manifest,
        program=program_of(manifest["command"], manifest.get("executable")),
        host=manifest["host"],
        pid=manifest["pid"],
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        start=manifest["start"]["monotonic_ns"],
        realtime=manifest["start"]["realtime_ns"],
        observed=manifest["observed_ns"],
        clock=clock.get("boot") or manifest["host"],
        clock_error=clock.get("error_ns"),
    )


def _with_parents_programs(runs: list[RankRun]) -> Iterator[RankRun]:
    """Replaces the program of children that run their parent's executable, as multiprocessing
    starts them, by the parent's."""
    by_pid = {(run.clock, run.pid): run for run in runs}
    for run in runs:
        parent = by_pid.get((run.clock, run.manifest.get("parent", 0)))
        same = parent and parent.manifest.get("executable") == run.manifest.get("executable")
        plain = program_of([], run.manifest.get("executable"))
        yield (
            replace(run, program=parent.program)
            if parent and same and run.program == plain
            else run
        )


def program_of(command: list[str], executable: str | None) -> str:
    """Name that distinguishes programs of a job: "app", "python train.py", "python -m train"."""
    name = os.path.basename(executable or (command[0] if command else "")) or "program"
    arguments = command[1:]
    for at, word in enumerate(arguments):
        if word == "-m" and at + 1 < len(arguments):
            return f"{name} -m {arguments[at + 1]}"
        if _SCRIPT.fullmatch(word):
            return f"{name} {os.path.basename(word)}"
        if not word.startswith("-"):
            break
    return name


def _named_rank(name: str) -> int | None:
    match = _NAMED.match(name)
    return int(match[1]) if match and len(match[1]) <= _RANK_DIGITS else None


def _recorded_rank(directory: RunDirectory) -> int | None:
    """Rank of an unfinished run, from the first event that it recorded."""
    first = directory.events / "process_start-00000.parquet"
    if not first.exists():
        return _named_rank(directory.path.name)
    from pasta.run.events import read_kind

    try:
        batch = next(read_kind(directory.events, "process_start", ["environment"], rows=1), None)
    except RunError:
        return None
    variables = str(batch.column(0)[0].as_py() or "").split("\x1f") if batch else []
    place = place_in_job(dict(each.split("=", 1) for each in variables if "=" in each))
    return place.rank if place else None


def _without(path: Path, error: RunError | OSError) -> str:
    """An error's text without the leading path."""
    if isinstance(error, OSError):
        return f"cannot be read ({error.strerror})"
    text = str(error)
    for beginning in (f"{path / MANIFEST}: ", f"{path}: "):
        text = text.removeprefix(beginning)
    return text


def numbers(values: Iterable[int]) -> str:
    """Ascending numbers as ranges: "0-3, 7"."""
    ranges: list[list[int]] = []
    for value in values:
        if ranges and value == ranges[-1][1] + 1:
            ranges[-1][1] = value
        else:
            ranges.append([value, value])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def ranks_text(ranks: list[int]) -> str:
    """ "rank 3", "ranks 0-2, 5"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {numbers(ranks)}"
