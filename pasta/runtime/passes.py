"""Two passes of a program: the tools of each, where their runs go, and what they share.

A source of device times may exclude probes, and probes change times. Tools without probes therefore
run in the first pass, and tools with probes in the second; tools with `both_passes` run in both,
but without their probes in the first. Imported only for two passes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pasta.config import ONE_PASS, Config
from pasta.errors import ConfigError, PastaError
from pasta.interruption import ENDING
from pasta.own_python import own_environment, own_python
from pasta.plugins import find_tools
from pasta.run.directory import is_run, places, staging_beside
from pasta.run.naming import expand, is_shared, name_in_root, place_in_job
from pasta.run.root import PASSES
from pasta.tool import Tool

TIMES, ACCESSES = "times", "accesses"


class Pass(NamedTuple):
    """A pass: its name, and its configuration and tools."""

    name: str
    config: Config
    tools: list[Tool]


def has_probes(tool: Tool | type[Tool]) -> bool:
    """Whether a tool runs in the second pass."""
    return "probes" in tool.needed()


def runs_in(name: str, tool: Tool | type[Tool]) -> bool:
    """Whether a tool runs in a pass."""
    return has_probes(tool) if name == ACCESSES else not has_probes(tool) or tool.both_passes


def narrowed(config: Config, tools: Sequence[Tool]) -> tuple[Config, list[Tool]]:
    """The configuration and the tools, without tools of a pass that is not needed."""
    wanted = [name for name in (TIMES, ACCESSES) if all(name in each.passes for each in tools)]
    if len(wanted) != 1:
        return config, list(tools)
    kept = [each for each in tools if runs_in(wanted[0], each)]
    document = {**config.document(), **_tools_of(config, wanted[0])}
    return Config(**document), kept


def split(config: Config, tools: Sequence[Tool], whole: Path) -> list[Pass]:
    """The two passes, with runs in a directory; empty if all tools fit one pass. Raises
    PastaError."""
    groups = {name: [each for each in tools if runs_in(name, each)] for name in (TIMES, ACCESSES)}
    if not all(groups.values()):
        return []
    if not config.events:
        raise ConfigError(
            "run.events = false, but joining two passes requires recorded events",
            remedy="leave run.events on, or use --passes 1",
        )
    if config.rotate:
        raise ConfigError(
            "--rotate keeps the newest events of each pass, which may not correspond",
            remedy="remove it, or use --passes 1",
        )
    return [Pass(name, _of(config, name, mine, whole), mine) for name, mine in groups.items()]


def _of(config: Config, name: str, tools: Sequence[Tool], whole: Path) -> Config:
    """The configuration of a pass with these tools."""
    changed = {
        **_tools_of(config, name),
        "out": str(whole / PASSES / name).replace("%", "%%"),
        "root": "",
        "force": False,
        "passes": ONE_PASS,
    }
    made = Config(**{**config.document(), **changed})
    wanted = frozenset(name for tool in tools if tool.both_passes for name in tool.wants())
    for backend in made.backends():
        if name == ACCESSES:
            backend.leave_to_times(made)
        else:
            backend.adapt_times(made, wanted)
    return made


def _tools_of(config: Config, name: str) -> dict[str, Any]:
    """The entries of a configuration about the tools of a pass."""
    specs: list[str] = []
    names: set[str] = set()
    for spec in config.tools:
        found = find_tools(spec, config.tool_paths)
        mine = [each for each in found if runs_in(name, each)]
        names.update(each.name for each in mine)
        whole_file = len(mine) == len(found)
        specs += [spec] if whole_file else [f"{spec}:{each.__name__}" for each in mine]
    options = {key: of for key, of in config.tool_options.items() if key in names}
    return {"tools": specs, "tool_options": options}


def place_of_whole(config: Config, program: str, started: int) -> Path:
    """The directory of both passes and of the joined run: it has the name that one run would have,
    with this process's pid. Raises ConfigError."""
    job, pid = place_in_job(os.environ), os.getpid()
    path = expand(
        config.root or config.out,
        program=program,
        pid=pid,
        started=started,
        environment=os.environ,
    )
    if config.root or is_shared(config.out, job):
        path /= name_in_root(program, pid, job.rank if job else None)
    if config.force and is_run(path):
        return path
    return next(each for each in places(path, str(pid)) if not _is_taken(each))


def _is_taken(path: Path) -> bool:
    return os.path.lexists(path) and not (path.is_dir() and not os.listdir(path))


class Input:
    """The program's standard input, which both passes read from its beginning."""

    def __init__(self) -> None:
        """Raises ConfigError if it can be read only once."""
        self._offset: int | None = None
        try:
            mode = os.fstat(0).st_mode
        except OSError:  # closed
            return
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            raise ConfigError(
                "standard input is a pipe, which two passes cannot both read",
                remedy="redirect it from a file (< FILE), or from /dev/null if the program "
                "does not read it",
            )
        if stat.S_ISREG(mode):
            self._offset = os.lseek(0, 0, os.SEEK_CUR)

    def rewind(self) -> None:
        """Sets a file to where it was at the start."""
        if self._offset is not None:
            os.lseek(0, self._offset, os.SEEK_SET)


class SignalState:
    """How this process treats signals before the first pass, for the program in both."""

    def __init__(self) -> None:
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, set())
        self._on_child = signal.getsignal(signal.SIGCHLD)

    def restore(self) -> None:
        """Sets what starting a program changes and the next program would inherit."""
        if self._on_child is not None:
            signal.signal(signal.SIGCHLD, self._on_child)


def was_ended(received: set[int]) -> bool:
    """Whether someone ended this process, given the signals that it received during a pass."""
    return bool(ENDING & (received | signal.sigpending()))


class Former:
    """The run that is replaced: set aside before the first pass, since it has the same name."""

    def __init__(self) -> None:
        self._moved: tuple[Path, Path] | None = None

    def set_aside(self, whole: Path) -> None:
        """Renames the run at a place, if there is one."""
        if is_run(whole):
            aside = staging_beside(whole)
            os.rename(whole, aside)
            self._moved = whole, aside

    def remove(self) -> None:
        """Removes the old run, or renames it back if there is no new one."""
        if self._moved is None:
            return
        whole, aside = self._moved
        if whole.exists():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            os.rename(aside, whole)


class Joining(NamedTuple):
    """What became of the passes: lines for the user, the joined runs, and the report of the only
    one."""

    lines: list[str]
    runs: list[Path]
    report: str = ""


def join(
    whole: Path,
    runs: Mapping[str, Sequence[Path]],
    environment: Mapping[str, str],
    *,
    width: int | None,
    quiet: bool,
) -> Joining:  # fmt: skip
    """Joins the runs of the passes in a separate process, since that needs NumPy. Raises
    PastaError. `width`: columns of the terminal."""
    request = {
        "whole": str(whole.absolute()),
        **{name: [str(path.absolute()) for path in paths] for name, paths in runs.items()},
        "width": width,
        "quiet": quiet,
    }
    done = subprocess.run(
        [*own_python("pasta.runtime.join_process"), json.dumps(request)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace",
        env=own_environment(environment),
    )  # fmt: skip
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
        return Joining(answer["lines"], [Path(each) for each in answer["runs"]], answer["report"])
    except (ValueError, LookupError, TypeError):
        raise PastaError(
            f"the passes in {whole} could not be joined (status {done.returncode})",
            remedy="pasta merge --passes A B joins the runs of a process",
        ) from None


def reason(passes: Sequence[Pass]) -> str:
    """Why the program runs twice, in a line."""
    first, second = (", ".join(tool.name for tool in each.tools) for each in passes)
    counts = any("instruction_count" in tool.wants() for tool in passes[0].tools)
    what = "executed instructions" if counts else "device times"
    return (
        f"the program runs twice: first for {what} ({first}), then with probes in kernels ("
        f"{second}), which would change the times; its output appears twice, and both runs "
        "must do the same work"
    )
