"""Names of run directories: templates with the placeholders that profilers share."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from pasta.errors import ConfigError

#: Rank of this process in its job, by launcher: torchrun, Open MPI, MPICH/PMI, Slurm, PBS.
RANK_VARIABLES = (
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "SLURM_PROCID",
    "PBS_TASKNUM",
)
_TOKEN = re.compile(r"%(?:q\{(?P<variable>[^}]*)\}|(?P<letter>.?))")


def rank_of(environment: Mapping[str, str]) -> int | None:
    """Rank of a process in its parallel job, or None outside of one."""
    for name in RANK_VARIABLES:
        if environment.get(name, "").isdigit():
            return int(environment[name])
    return None


def variables_of(template: str) -> list[str]:
    """Environment variables that a template reads."""
    return [match["variable"] for match in _TOKEN.finditer(template) if match["variable"]]


def check_template(template: str) -> None:
    """Raises ConfigError where a template has an unknown placeholder."""
    expand(template, program="", pid=0, started=0, environment={})


def check_output(template: str, *, force: bool) -> None:
    """Raises ConfigError where run directories cannot be written there, or there is one that
    `force` does not allow to replace."""
    path = Path(template)
    fixed = Path(*_before_placeholder(path.parts))
    parent = fixed.absolute()
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise ConfigError(f"{template}: {parent} is not a directory")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{template}: no permission to write in {parent}",
            remedy="name another place with -o DIR",
        )
    if "%" not in template and path.exists() and (not path.is_dir() or any(path.iterdir())):
        from pasta.run.directory import is_run

        if not force:
            raise ConfigError(f"{path} exists", remedy="replace it with -f, or use -o DIR-%p")
        if not is_run(path):
            raise ConfigError(f"{path} is not a run directory, so -f does not replace it")


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
            remedy="known are %n %p %h %r %t %q{ENV} %%",
        )

    return Path(_TOKEN.sub(text, template))
