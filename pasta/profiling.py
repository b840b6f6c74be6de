"""Profiles a block of a program, from inside: `with pasta.profile("operators") as run:`."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, cast

from pasta.config import SETTINGS, Config
from pasta.errors import ConfigError, MissingDependency, RunError, ToolError
from pasta.report.run import Run

if TYPE_CHECKING:
    from pasta.runtime.block import Host
    from pasta.tool import Tool

_OF_TORCH = ("operators", "tensors")
_OF_GPUS = ("kernel_freq",)
#: Sections and keys of settings that a block can have for itself.
_OF_A_BLOCK = (
    "filter.", "torch.", "run.out", "run.force", "run.events", "run.modules", "run.tool-timeout",
)  # fmt: skip
#: Handlers that have something to do where only frameworks and annotations are followed.
_WITHOUT_PRELOAD = {"on_operators", "on_tensors", "on_ranges", "on_batch"}
_PRELOAD = "start the program with pasta-preload"
_NOT_ENDED = "the profiled block has not ended"

_TEMPORARY = ""

#: There is one block at a time: its hooks are global.
_active = threading.Lock()
_warned: list[bool] = []


class profile:
    """Profiles the block of a `with` statement: gives a `Run`, which can be read after it.

    `tools`: names or files (default: operators and tensors where PyTorch is installed, else
    kernel_freq). `config`: presets or TOML files; `settings`: single settings, as in TOML, such as
    {"torch.frames": 5, "operators.top": 30}. `out`: directory of the run (default: one that is
    removed with the run object). In a program that was not started with pasta-preload, PyTorch and
    annotations are followed and GPUs are not. All threads are. Blocks do not nest. Raises
    PastaError.
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
        self._tools = _loaded(self._config)
        self._undo: ExitStack | None = None

    def __enter__(self) -> Run:
        if not _active.acquire(blocking=False):
            raise RunError(
                "another block is being profiled, and blocks do not nest",
                remedy="end it first; all threads are in it",
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
        """Begins the block; `undo` ends it again."""
        from pasta import annotate
        from pasta.runtime.block import Request, this_process

        torch = _torch_of(self._tools, self._config)
        self._host = host = this_process()
        if not host.preloaded:
            _refuse_tools_of_gpus(self._tools)
        ring = host.ring()
        reader = host.started_reader(ring)
        follow = _hooks(torch, host, self._config, self._tools) if torch else None
        self._run, staging, place = self._places()
        was_on, number = ctypes.c_int(), ctypes.c_uint32()
        position = host.library.begin(ctypes.byref(was_on), ctypes.byref(number))
        undo.callback(self._stop, was_on)
        began = time.monotonic_ns()
        try:
            if not host.preloaded:
                annotate.follow(host.library.process)
                undo.callback(annotate.follow, None)
            if follow is not None:
                end, missed = follow()
                undo.callback(end)
                if missed:
                    _warn(f"not followed: {missed}")
            reader.begin(
                Request(
                    str(ring), number.value, position, began, asdict(self._config), str(staging),
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
        """The run, where it is written, and where that goes then."""
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
        if os.getpid() != host.pid:  # a fork's: the block is its parent's
            run._pending = f"the block was profiled in process {host.pid}"
            return
        try:
            undo.close()
            run.path, run._pending = self._collected(), None
        except RunError as problem:
            run._pending = str(problem)
            if error is None:
                raise
            _warn(str(problem))  # what the program raised comes first
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
        """Directory of the run, once it is written."""
        assert self._host.reader is not None
        try:
            return self._host.reader.end(self._position)
        except BaseException:  # also an interrupt: the answer would be taken for another block's
            self._host.drop_reader()
            self._run._pending = "the block was interrupted while its results were written"
            raise


# ---- what a block is configured with -----------------------------------------------------------


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
    for setting in SETTINGS:
        own = setting.key.startswith(_OF_A_BLOCK)
        if not own and getattr(config, setting.attribute) != getattr(usual, setting.attribute):
            raise ConfigError(
                f"pasta.profile: {setting.key} is of the whole program, not of a block",
                remedy=f"pasta-preload --set {setting.key}=…",
            )
    if not config.tools:
        config.tools.extend(_OF_TORCH if _torch_is_there() else _OF_GPUS)
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
            error.message, remedy='name another one in out=, or set {"run.force": True}'
        ) from None


def _loaded(config: Config) -> list[Tool]:
    from pasta.plugins import load_tools

    tools = load_tools(config.tools, config.tool_options, config.tool_paths, config.origins)
    for tool in tools:
        if tool.needs_probes:
            raise ToolError(
                f"tool {tool.name} has probes, which are made before the program starts",
                remedy=f"pasta-preload -t {tool.name} --profile-from-start=off, and pasta.start()",
            )
    config.events = config.events or any(tool.needs_recording for tool in tools)
    return tools


def _refuse_tools_of_gpus(tools: Sequence[Tool]) -> None:
    for tool in tools:
        if not _WITHOUT_PRELOAD.intersection(tool.handlers()) and not (
            tool.needs_operators or tool.needs_tensors
        ):
            raise ToolError(f"tool {tool.name} needs events of a GPU", remedy=_PRELOAD)


def _listed(given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    each = [given] if isinstance(given, (str, os.PathLike)) else given
    return [os.fspath(path) for path in each]


# ---- PyTorch -----------------------------------------------------------------------------------


def _torch_is_there() -> bool:
    return importlib.util.find_spec("torch") is not None


def _torch_of(tools: Sequence[Tool], config: Config) -> ModuleType | None:
    """torch, where a tool asks for something of it. Raises MissingDependency."""
    from pasta.runtime.injection import asked_of_torch

    if not config.torch_follow or not any(asked_of_torch(tools).values()):
        return None
    needed = [tool.name for tool in tools if tool.needs_operators or tool.needs_tensors]
    if not needed:  # it is of use without, too
        return sys.modules.get("torch")
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise MissingDependency(
            f"tool {needed[0]} needs PyTorch, which cannot be imported ({error})",
            remedy="pip install torch",
        ) from None


def _hooks(
    torch: ModuleType, host: Host, config: Config, tools: Sequence[Tool]
) -> Callable[[], tuple[Callable[[], None], str]]:
    """What follows torch from when it is called (hooks.py). Raises RunError."""
    from pasta.runtime.injection import TORCH_HOOKS, asked_of_torch, torch_settings

    settings = {**torch_settings(config, asked_of_torch(tools)), "block": True, "quiet": False}
    spec = importlib.util.spec_from_file_location("_pasta_hooks", TORCH_HOOKS)
    assert spec is not None and spec.loader is not None
    hooks: Any = importlib.util.module_from_spec(spec)
    hooks.settings = json.dumps(settings)
    spec.loader.exec_module(hooks)
    hooks._say = lambda text: print(f"pasta: {text}", file=sys.stderr)
    try:
        prepared = hooks.prepare_block(torch, 0 if host.preloaded else host.library.framework)
    except (RuntimeError, ImportError, OSError) as error:
        raise RunError(f"torch cannot be followed: {error}") from None
    return cast("Callable[[], tuple[Callable[[], None], str]]", prepared)


def _warn_of_gpus() -> None:
    """Once, where the program uses a GPU that is not followed."""
    torch = sys.modules.get("torch")
    # asking whether there is one would start the driver
    if torch is not None and torch.cuda.is_initialized() and not _warned:
        _warned.append(True)
        _warn(f"kernels and copies of GPUs are not followed: {_PRELOAD}")


# ---- the process -------------------------------------------------------------------------------


def _remove(directory: Path, owner: int) -> None:
    if os.getpid() == owner:  # the child of a fork has a copy of the run
        shutil.rmtree(directory, ignore_errors=True)


def _warn(text: str) -> None:
    warnings.warn(f"pasta.profile: {text}", RuntimeWarning, stacklevel=_outside())


def _outside() -> int:
    """How many frames up the program is."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        depth, frame = depth + 1, frame.f_back
    return depth


def _in_child() -> None:
    global _active
    _active = threading.Lock()


os.register_at_fork(after_in_child=_in_child)
