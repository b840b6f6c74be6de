"""Progress of long work: `report_progress` reports it, `display_progress` or a launcher shows it.

A collector reports through a file beside its ring, which the launcher reads.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pasta import private

if TYPE_CHECKING:
    from rich.live import Live

#: Called with the current work, and its progress.
Listener = Callable[[str, str], None]

_TERMINAL_SECONDS = 1.0
_LINE_SECONDS = 5.0
_TICK_SECONDS = 0.1

_listener: Listener | None = None
_thread = 0  # whose progress is reported


def report_progress(what: str, how_far: str = "") -> None:
    """Reports current work: `report_progress("reading events", "3 of 7")`. Does nothing without a
    listener, or outside the listener's thread."""
    if _listener is not None and threading.get_ident() == _thread:
        _listener(what, how_far)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Calls `listener` with the progress of this thread in the block."""
    global _listener, _thread
    before = _listener, _thread
    _listener, _thread = listener, threading.get_ident()
    try:
        yield
    finally:
        _listener, _thread = before


class FileListener:
    """Listener that writes to a file, for another process. Errors of writing are ignored, and end
    it."""

    _SECONDS = 0.2

    def __init__(self, path: Path) -> None:
        self._path = path
        self._what = ""
        self._next = 0.0

    def __call__(self, what: str, how_far: str) -> None:
        now = time.monotonic()
        if what == self._what and now < self._next:
            return
        self._what, self._next = what, now + self._SECONDS
        try:
            private.write_atomically(self._path, joined(what, how_far).encode())
        except OSError:
            self._next = float("inf")


def read(path: Path) -> str:
    """Last text of a `FileListener`; empty if unknown."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def joined(what: str, how_far: str) -> str:
    """Work and progress in one line."""
    return f"{what}, {how_far}" if how_far else what


class Display:
    """Shows progress on stderr: on a terminal after 1 s, otherwise one line after 5 s, written by
    `write_line`."""

    def __init__(self, title: str, write_line: Callable[[str], None]) -> None:
        self._title = title
        self._write_line = write_line
        self._begun = time.monotonic()
        self._live: Live | None = None
        self._written = self._closed = False

    def show(self, text: Callable[[], str]) -> None:
        """Shows `text()` if it is time; call this repeatedly."""
        waited = time.monotonic() - self._begun
        if self._closed or waited <= min(_TERMINAL_SECONDS, _LINE_SECONDS):
            return
        try:
            if sys.stderr.isatty():
                self._draw(text())
            elif waited > _LINE_SECONDS and not self._written:
                self._written = True
                self._write_line(self._line(text()))
        except (OSError, ValueError):  # the terminal is closed
            self._closed = True

    def _line(self, text: str) -> str:
        from pasta.table import plain

        return f"{self._title}: {plain(text)}" if text else self._title

    def _draw(self, text: str) -> None:
        from rich.spinner import Spinner
        from rich.text import Text

        line = Text(f"pasta: {self._line(text)}", no_wrap=True, overflow="ellipsis")
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True, emoji=False, highlight=False)
            self._spinner = Spinner("dots", line)
            self._live = Live(
                self._spinner, console=console, transient=True, refresh_per_second=8,
                redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self._live.start()
        else:
            self._spinner.update(text=line)

    def close(self) -> None:
        """Removes the display from the terminal."""
        live, self._live = self._live, None
        if live is not None:
            with suppress(OSError, ValueError):
                live.stop()


@contextmanager
def display_progress(title: str, *, quiet: bool = False) -> Iterator[None]:
    """Shows progress of the block on stderr if it takes long and `quiet` is not set."""
    if quiet or sys.stderr is None:
        yield
        return
    latest = ["", ""]
    ended = threading.Event()
    display = Display(title, lambda text: print(f"pasta: {text}", file=sys.stderr, flush=True))

    def watch() -> None:
        while not ended.wait(_TICK_SECONDS):
            display.show(lambda: joined(*latest))

    def listen(what: str, how_far: str) -> None:
        latest[:] = what, how_far

    watcher = threading.Thread(target=watch, name="pasta-progress", daemon=True)
    watcher.start()
    try:
        with listening(listen):
            yield
    finally:
        ended.set()
        watcher.join()
        display.close()
