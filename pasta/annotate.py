"""Annotations from Python: named ranges and marks, and control of profiling.

Calls go to the preloaded library and do nothing in a program that was not started with
pasta-preload. Names may be any text.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    import ctypes

__all__ = ["is_active", "mark", "pop", "push", "range", "start", "step", "stop"]

P = ParamSpec("P")
R = TypeVar("R")


class _Library:
    """Functions of libpasta, in this process or in an opened library."""

    def __init__(self, opened: ctypes.PyDLL | None = None) -> None:
        import ctypes

        # PyDLL: the calls are short and never wait, so they keep the interpreter lock
        process = opened or ctypes.PyDLL(None)

        def function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
            found = getattr(process, f"pasta_api_{name}")
            found.restype, found.argtypes = result, arguments
            return cast("Callable[..., Any]", found)

        self.start = function("start", None)
        self.stop = function("stop", None)
        self.is_active = function("is_active", ctypes.c_int)
        self.range_push = function("range_push", None, ctypes.c_char_p)
        self.range_pop = function("range_pop", None)
        self.range_start = function("range_start", ctypes.c_uint64, ctypes.c_char_p)
        self.range_end = function("range_end", None, ctypes.c_uint64)
        self.mark = function("mark", None, ctypes.c_char_p)
        self.step = function("step", None)


@functools.cache
def _preloaded() -> _Library | None:
    """The preloaded libpasta, which is loaded before Python; None without it."""
    try:
        return _Library()
    except AttributeError:  # no such symbol
        return None


#: The library of a block that is profiled without pasta-preload.
_block_library: _Library | None = None


def _library() -> _Library | None:
    return _block_library or _preloaded()


def follow(opened: ctypes.PyDLL | None) -> None:
    """Send annotations to this libpasta from now on; None: to the preloaded one, if any."""
    global _block_library
    _block_library = None if opened is None else _Library(opened)


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "replace")


def start() -> None:
    """Starts profiling after `stop`, or in a program started with profiling off."""
    library = _library()
    if library:
        library.start()


def stop() -> None:
    """Stops profiling; allocations, modules and ranges are still followed."""
    library = _library()
    if library:
        library.stop()


def is_active() -> bool:
    """Whether launches of this process are recorded."""
    library = _library()
    return bool(library and library.is_active())


def mark(name: str) -> None:
    """Marks an instant."""
    library = _library()
    if library:
        library.mark(_bytes(name))


def step() -> None:
    """Ends a step of the program, say an iteration, and begins the next.

    It is recorded as the mark `step` of the domain `pasta`. With `probes.window = "steps 1/100"`
    probes run in one step of a hundred; work before the first call is step 0.
    """
    library = _library()
    if library:
        library.step()


def push(name: str) -> None:
    """Opens a range on this thread, nested in the open ones."""
    library = _library()
    if library:
        library.range_push(_bytes(name))


def pop() -> None:
    """Closes the innermost range that this thread pushed."""
    library = _library()
    if library:
        library.range_pop()


class range:
    """A named range: `with range("forward"):` or `@range("forward")`.

    The range is nested in the open ones of this thread, and closed by exceptions. Around a
    coroutine function it is process-wide, as other coroutines run on the thread in between.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> range:
        push(self.name)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pop()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorator: runs `function` in this range at every call."""
        import inspect  # slow to import, and only needed here

        if inspect.iscoroutinefunction(function):
            return cast("Callable[P, R]", self._around_coroutine(function))

        @functools.wraps(function)
        def call(*arguments: P.args, **keywords: P.kwargs) -> R:
            with self:
                return function(*arguments, **keywords)

        return call

    def _around_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def call(*arguments: Any, **keywords: Any) -> Any:
            library = _library()
            if not library:
                return await function(*arguments, **keywords)
            opened = library.range_start(_bytes(self.name))
            try:
                return await function(*arguments, **keywords)
            finally:
                library.range_end(opened)

        return call
