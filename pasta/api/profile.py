"""Profiles a block of the running program: `with pasta.profile("operators") as run:`."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

from pasta.api.runs import Run
from pasta.config import Config
from pasta.errors import ConfigError, RunError
from pasta.frameworks import FRAMEWORKS
from pasta.frameworks.base import Framework, Wanted
from pasta.runtime.block_tools import (
    PRELOAD,
    check_settings,
    load_block_tools,
    refuse_tools_of_gpus,
)

if TYPE_CHECKING:
    from pasta.tool import Tool

#: Default tools if no framework is installed.
_USUAL_TOOLS = ("kernel_freq",)
_NOT_ENDED = "the profiled block has not ended"

_TEMPORARY = ""

#: Held by the active block: only one at a time, since hooks are global.
_active = threading.Lock()
_warned: list[bool] = []


class profile:
    """Profiles the block of a `with` statement; its `Run` can be read when the block has ended.

    `tools`: names or files (default: those of an installed framework, otherwise kernel_freq).
    `config`: presets or TOML files; `settings`: single settings, as in TOML, such as
    {"run.events": True, "operators.top": 30}. `out`: directory of the run (default: a temporary
    one, removed with the run object). Covers all threads. Without pasta-preload, frameworks and
    annotations are recorded, but no GPU events. Blocks do not nest. Raises PastaError.
    """

    def __init__(
        self,
        *tools: str,
        config: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
        settings: Mapping[str, object] | None = None,
        out: str | os.PathLike[str] | None = None,
        tool_path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        self._config = _configured(tools, _listed(config), settings or {}, out, _listed(tool_path))
        self._tools = load_block_tools(self._config)
        self._undo: ExitStack | None = None

    def __enter__(self) -> Run:
        if not _active.acquire(blocking=False):
            raise RunError(
                "another block is being profiled, and blocks cannot be nested",
                remedy="end it first; a block covers all threads",
            )
        try:
            with ExitStack() as undo:
                run = self._begin(undo)
                self._undo = undo.pop_all()
        except BaseException:
            _active.release()
            raise
        return run

    def _begin(self, undo: ExitStack) -> Run:
        """Begins the block; closing `undo` ends it."""
        from pasta import annotate
        from pasta.runtime.block import Request, this_process

        followed = _followed(self._tools, self._config)
        self._host = host = this_process()
        if not host.preloaded:
            refuse_tools_of_gpus(self._tools)
        ring = host.ring()
        if host.library.is_read():
            raise RunError(
                "pasta attach is profiling this process", remedy=f"pasta attach --detach {host.pid}"
            )
        reader = host.started_reader(ring)
        wanted = Wanted.by(self._tools)
        library = 0 if host.preloaded else host.library.framework
        begins = [
            each.prepare_block(module, self._config, wanted, library) for each, module in followed
        ]
        self._run, staging, place = self._places()
        was_on, number = ctypes.c_int(), ctypes.c_uint32()
        position = host.library.begin(ctypes.byref(was_on), ctypes.byref(number))
        undo.callback(self._stop, was_on)
        began = time.monotonic_ns()
        try:
            if not host.preloaded:
                annotate.follow(host.library.process)
                undo.callback(annotate.follow, None)
            for begin in begins:
                end, missed = begin()
                undo.callback(end)
                if missed:
                    _warn(f"not followed: {missed}")
            reader.begin(
                Request(
                    str(ring), number.value, position, began, self._config.document(), str(staging),
                    None if place is None else str(place), alone=not host.preloaded,
                )
            )  # fmt: skip
        except BaseException:
            host.drop_reader()
            raise
        return self._run

    def _stop(self, was_on: ctypes.c_int) -> None:
        self._position = self._host.library.end(was_on)

    def _places(self) -> tuple[Run, Path, Path | None]:
        """The run, the directory it is written to, and the path it is moved to, if any."""
        if self._config.out == _TEMPORARY:
            directory = Path(tempfile.mkdtemp(prefix="pasta-"))
            run = Run(directory, pending=_NOT_ENDED)
            weakref.finalize(run, _remove, directory, os.getpid())
            return run, directory, None
        from pasta.run.directory import staging_beside
        from pasta.run.naming import expand

        place = Path.cwd() / expand(
            self._config.out, program=sys.argv[0] or "python", pid=os.getpid(),
            started=time.time_ns(), environment=os.environ,
        )  # fmt: skip
        return Run(place, pending=_NOT_ENDED), staging_beside(place), place

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        undo, self._undo = self._undo, None
        if undo is None:
            return
        host, run = self._host, self._run
        if os.getpid() != host.pid:  # in a fork: the block belongs to the parent
            run._pending = f"the block was profiled in process {host.pid}"
            return
        try:
            undo.close()
            run.path, run._pending = self._collected(), None
        except RunError as problem:
            run._pending = str(problem)
            if error is None:
                raise
            _warn(str(problem))  # the program's own exception takes precedence
            return
        finally:
            _active.release()
        if not host.preloaded:
            _warn_of_gpus()
        for tool, why in run.failures.items():
            _warn(f"tool {tool} was disabled: {why}")
        for text in run.manifest["warnings"]:
            _warn(text)

    def _collected(self) -> Path:
        """Waits until the run is written; its directory."""
        assert self._host.reader is not None
        try:
            return self._host.reader.end(self._position)
        except BaseException:  # even an interrupt: the answer would be read by the next block
            self._host.drop_reader()
            self._run._pending = "the block was interrupted while its results were written"
            raise


# ---- configuration of a block ------------------------------------------------------------------


def _configured(
    tools: Sequence[str],
    files: Sequence[str],
    settings: Mapping[str, object],
    out: str | os.PathLike[str] | None,
    tool_paths: Sequence[str],
) -> Config:
    config = Config(out=_TEMPORARY, events=False)
    for file in files:
        config.load(file)
    config.add_tools(tools, tool_paths)
    for key, value in settings.items():
        config.set(key, value, "pasta.profile")
    if out is not None:
        config.out = os.fspath(out)
    usual = Config(out=_TEMPORARY, events=False)
    check_settings(config, usual, "pasta.profile")
    if not config.tools:
        there = (each.usual_tools for each in FRAMEWORKS.known() if each.is_installed())
        config.tools.extend(next(there, _USUAL_TOOLS))
    if config.out != _TEMPORARY:
        _check_place(config)
    return config


def _check_place(config: Config) -> None:
    from pasta.run.naming import check_output, check_template

    check_template(config.out)
    try:
        check_output(config.out, force=config.force)
    except ConfigError as error:
        raise ConfigError(
            error.message, remedy='use another directory in out=, or set {"run.force": True}'
        ) from None


def _listed(given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    each = [given] if isinstance(given, (str, os.PathLike)) else given
    return [os.fspath(path) for path in each]


# ---- frameworks --------------------------------------------------------------------------------


def _followed(tools: Sequence[Tool], config: Config) -> list[tuple[Framework, ModuleType]]:
    """Frameworks that this process has imported, or that a tool requires, with their modules.
    Raises MissingDependency."""
    if not Wanted.by(tools):
        return []
    needed = [tool.name for tool in tools if "operators" in tool.needed()]
    chosen = [each for each in FRAMEWORKS.known() if each.is_followed(config)]
    there = [(each, sys.modules[each.module]) for each in chosen if sys.modules.get(each.module)]
    if there or not needed:  # other tools work without a framework
        return there
    return [(each, each.imported(needed[0])) for each in chosen[:1]]


def _warn_of_gpus() -> None:
    """Warns once if the program uses a GPU that is not recorded."""
    modules = [(each, sys.modules.get(each.module)) for each in FRAMEWORKS.known()]
    if not _warned and any(each.uses_accelerator(module) for each, module in modules if module):
        _warned.append(True)
        _warn(f"GPU kernels and copies are not followed: {PRELOAD}")


# ---- the process -------------------------------------------------------------------------------


def _remove(directory: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child has a copy of the run
        shutil.rmtree(directory, ignore_errors=True)


def _warn(text: str) -> None:
    warnings.warn(f"pasta.profile: {text}", RuntimeWarning, stacklevel=_outside())


def _outside() -> int:
    """Stack level of the first frame outside this module."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        depth, frame = depth + 1, frame.f_back
    return depth


def _in_child() -> None:
    global _active
    _active = threading.Lock()


os.register_at_fork(after_in_child=_in_child)
