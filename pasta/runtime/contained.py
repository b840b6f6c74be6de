"""What a tool may change of the process it runs in is put back when it returns.

A tool shares its process with PASTA and with other tools: a working directory that it leaves, a
stream that it replaces or an error mode of NumPy would make these fail after it.
"""

from __future__ import annotations

import _thread  # a program's own `threading` must not first be imported by a thread of ours
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_STREAMS = ("stdin", "stdout", "stderr")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)


@contextmanager
def contained(*, loading: bool = False) -> Iterator[None]:
    """Puts back working directory, standard streams, signal handlers, and how NumPy and `warnings`
    take errors; with `loading` also environment and umask, which targets inherit.

    Does nothing in other threads than the main one, which may not set these for all.
    """
    if _thread.get_native_id() != os.getpid():
        yield
        return
    with ExitStack() as undo:
        undo.enter_context(warnings.catch_warnings())
        if "numpy" in sys.modules:
            undo.enter_context(sys.modules["numpy"].errstate())
        undo.callback(_ProcessState().put_back)
        if loading:
            undo.callback(_put_back_inherited, dict(os.environ), _umask())
        yield


class _ProcessState:
    """What a tool may have changed."""

    def __init__(self) -> None:
        self.directory = _directory()
        self.streams = {name: getattr(sys, name, None) for name in _STREAMS}
        self.handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        self.recursion_limit = sys.getrecursionlimit()

    def put_back(self) -> None:
        if self.directory is not None and _directory() != self.directory:
            os.chdir(self.directory)
        for name, stream in self.streams.items():
            setattr(sys, name, stream)
        for number, handler in self.handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        sys.setrecursionlimit(self.recursion_limit)


def _directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


def _umask() -> int:
    """Read without setting it, which other threads would notice, where /proc is there."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            found = next((line for line in status if line.startswith("Umask:")), None)
    except OSError:
        found = None
    if found is not None:
        return int(found[6:], 8)
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def _put_back_inherited(environment: dict[str, str], umask: int) -> None:
    os.umask(umask)
    if os.environ != environment:
        os.environ.clear()
        os.environ.update(environment)
