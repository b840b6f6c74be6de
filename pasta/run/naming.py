"""Names of run directories: templates with the usual placeholders of profilers, and names that
processes of a job choose in a shared directory."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pasta.errors import ConfigError


class Rank(NamedTuple):
    """Place of a process in its job; None if the launcher does not set it."""

    rank: int
    local_rank: int | None = None
    world_size: int | None = None


#: Environment variables of job launchers: rank, rank on the host, size of the job. The first that
#: gives a rank wins: it is the innermost launcher when torchrun or mpirun runs in a Slurm job.
_LAUNCHERS: tuple[tuple[str, str | None, str | None], ...] = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),  # torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_SIZE"),  # MVAPICH
    ("PMIX_RANK", None, None),
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),  # MPICH, Intel MPI
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),  # srun without the step's variable
    ("PBS_VNODENUM", None, None),  # pbsdsh
    ("PBS_TASKNUM", None, None),
)
#: A batch script, which is not a rank of a job, has the first variable without the second.
_SLURM_JOB, _SLURM_STEP = "SLURM_JOB_ID", "SLURM_STEP_ID"
#: All variables that determine the place of a process in a job.
RANK_VARIABLES = tuple(
    dict.fromkeys(
        [name for names in _LAUNCHERS for name in names if name] + [_SLURM_JOB, _SLURM_STEP]
    )
)
#: Characters of a program's name in the name of a run.
_MAX_PROGRAM = 40
_TOKEN = re.compile(r"%(?:q\{(?P<variable>[^}]*)\}|(?P<letter>.?))")


def place_in_job(environment: Mapping[str, str]) -> Rank | None:
    """Place of a process in its parallel job, or None outside of one."""
    in_script = _SLURM_JOB in environment and _SLURM_STEP not in environment
    found = [
        Rank(rank, _number(environment, local), _number(environment, size))
        for name, local, size in _LAUNCHERS
        if (rank := _number(environment, name)) is not None
        and not (in_script and name.startswith("SLURM_"))
    ]
    if not found:
        return None
    # Values that the first launcher does not set are taken from others with the same rank.
    agreeing = [each for each in found if each.rank == found[0].rank]
    return Rank(
        found[0].rank,
        next((each.local_rank for each in agreeing if each.local_rank is not None), None),
        next((each.world_size for each in agreeing if each.world_size is not None), None),
    )


def _number(environment: Mapping[str, str], name: str | None) -> int | None:
    text = environment.get(name, "") if name else ""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def rank_of(environment: Mapping[str, str]) -> int | None:
    """Rank of a process in its parallel job, or None outside of one."""
    place = place_in_job(environment)
    return place.rank if place else None


def joined(own: Mapping[str, str], launcher: Mapping[str, str]) -> dict[str, str]:
    """A process's variables, then those of the pasta-preload that started it.

    All rank variables come from the same one of them: torchrun sets them for its children only.
    """
    if place_in_job(own) is None:
        return {**launcher, **own}
    others = {name: value for name, value in launcher.items() if name not in RANK_VARIABLES}
    return {**others, **own}


def host_name() -> str:
    """This host's name without its domain."""
    return os.uname().nodename.partition(".")[0] or "host"


def name_in_root(program: str, pid: int, rank: int | None) -> str:
    """Name of a run in a root: "rank-0003-node1-4711", "app-node1-4711".

    Pids distinguish processes of a host, and names the hosts; if both are equal, as in containers
    or after an exec, `RunDirectory.move_to` adds a suffix.
    """
    what = os.path.basename(program).lstrip(".")[:_MAX_PROGRAM] or "program"
    return f"{what if rank is None else f'rank-{rank:04}'}-{host_name()}-{pid}"


def is_shared(template: str, place: Rank | None) -> bool:
    """Whether `run.out` names one directory for all ranks of this process's job."""
    if place is None or (place.world_size or 1) < 2:
        return False
    return not any(
        match["letter"] in ("p", "r") or match["variable"] in RANK_VARIABLES
        for match in _TOKEN.finditer(template)
    )


def variables_of(template: str) -> list[str]:
    """Environment variables that a template reads."""
    return [match["variable"] for match in _TOKEN.finditer(template) if match["variable"]]


def check_template(template: str) -> None:
    """Raises ConfigError if a template has an unknown placeholder."""
    expand(template, program="", pid=0, started=0, environment={})


def check_root(template: str, option: str) -> None:
    """Raises ConfigError if runs of many processes cannot be written into that directory.

    `option` is the option that names it, for the remedy. Existing runs are kept: other processes
    of the job may have written them.
    """
    check_template(template)
    for match in _TOKEN.finditer(template):
        if match["letter"] in ("n", "p", "r"):
            raise ConfigError(
                f"{template}: {match[0]} differs between processes, which share one root",
                remedy=f"leave out {match[0]}, or give each process its own directory with -o",
            )
    _check_parent(template, Path(*_before_placeholder((*Path(template).parts, ""))), option)
    from pasta.run.directory import is_run

    if "%" not in template and is_run(Path(template)):
        raise ConfigError(
            f"{template} is a run directory", remedy=f"use another directory with {option} DIR"
        )


def check_output(template: str, *, force: bool) -> None:
    """Raises ConfigError if run directories cannot be written there, or one exists that must not
    be replaced: `force` allows to replace a run directory."""
    if "%" in template:
        _check_parent(template, Path(*_before_placeholder(Path(template).parts)), "-o")
    else:
        check_place(Path(template), force=force)


def check_place(path: Path, *, force: bool) -> None:
    """As `check_output`, for a path without placeholders."""
    _check_parent(str(path), path.parent, "-o")
    if os.path.exists(path) and (not path.is_dir() or not _is_empty(path)):
        from pasta.run.directory import is_run

        if not force:
            raise ConfigError(f"{path} exists", remedy="replace it with -f, or use -o DIR-%p")
        if not is_run(path):
            raise ConfigError(f"{path} is not a run directory, so -f does not replace it")


def _is_empty(directory: Path) -> bool:
    try:
        return not any(directory.iterdir())
    except OSError:  # no permission to read
        return False


def _check_parent(template: str, directory: Path, option: str) -> None:
    parent = directory.absolute()
    while not os.path.exists(parent):
        parent = parent.parent
    if not parent.is_dir():
        raise ConfigError(f"{template}: {parent} is not a directory")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{template}: no permission to write in {parent}",
            remedy=f"use another directory with {option} DIR",
        )


def _before_placeholder(parts: tuple[str, ...]) -> list[str]:
    fixed = []
    for part in parts[:-1]:
        if "%" in part:
            break
        fixed.append(part)
    return fixed


def expand(
    template: str, *, program: str, pid: int, started: int, environment: Mapping[str, str]
) -> Path:
    """Path for one process: %n program, %p pid, %h host, %r rank, %t start (local time),
    %q{ENV} environment variable, %% percent. `started` is ns since 1970. Raises ConfigError."""

    def text(match: re.Match[str]) -> str:
        if match["variable"] is not None:
            return environment.get(match["variable"], "")
        letter = match["letter"]
        if letter == "n":
            return os.path.basename(program) or "program"
        if letter == "p":
            return str(pid)
        if letter == "h":
            return os.uname().nodename
        if letter == "r":
            rank = rank_of(environment)
            return "0" if rank is None else str(rank)
        if letter == "t":
            return time.strftime("%Y%m%d-%H%M%S", time.localtime(started / 1e9))
        if letter == "%":
            return "%"
        raise ConfigError(
            f"run.out = {template!r}: unknown placeholder %{letter}",
            remedy="known placeholders: %n %p %h %r %t %q{ENV} %%",
        )

    return Path(_TOKEN.sub(text, template))
