"""Restores process state that a tool changed after the tool returns.

A tool shares its process with PASTA and other tools: a changed working directory, a replaced stream
or an error mode of NumPy would make them fail.
"""

from __future__ import annotations

import _thread  # a thread of PASTA must not be the first to import `threading`
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
    """Restores working directory, standard streams, signal handlers, recursion limit, and error
    modes of NumPy and `warnings`; with `loading` also environment and umask, which targets inherit.

    Does nothing outside of the main thread, which alone may set these.
    """
    if _thread.get_native_id() != os.getpid():
        yield
        return
    with ExitStack() as undo:
        undo.enter_context(warnings.catch_warnings())
        # absent also while another thread imports NumPy: a tool cannot have used it before
        errstate = getattr(sys.modules.get("numpy"), "errstate", None)
        if errstate is not None:
            undo.enter_context(errstate())
        undo.callback(_ProcessState().restore)
        if loading:
            undo.callback(_restore_inherited, dict(os.environ), _umask())
        yield


class _ProcessState:
    """State of the process that tools may change."""

    def __init__(self) -> None:
        self.directory = _directory()
        self.streams = {name: getattr(sys, name, None) for name in _STREAMS}
        self.handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        self.recursion_limit = sys.getrecursionlimit()

    def restore(self) -> None:
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
    """The umask; read from /proc if possible, since setting it would affect other threads."""
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


def _restore_inherited(environment: dict[str, str], umask: int) -> None:
    os.umask(umask)
    if os.environ != environment:
        os.environ.clear()
        os.environ.update(environment)
