"""What work that takes long is doing: `doing` tells it, `shown` or a launcher shows it.

Work that is done in a collector is told through a file beside its ring, which the launcher reads.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.live import Live

#: Called with what is being done, and how far it is.
Listener = Callable[[str, str], None]

_TERMINAL_SECONDS = 1.0
_LINE_SECONDS = 5.0
_TICK_SECONDS = 0.1

_listener: Listener | None = None
_thread = 0  # the one that is listened to


def doing(what: str, how_far: str = "") -> None:
    """Tells what begins or goes on: `doing("reading events", "3 of 7")`. Does nothing where nobody
    listens, and in other threads than the one that is listened to."""
    if _listener is not None and threading.get_ident() == _thread:
        _listener(what, how_far)


@contextmanager
def heard(listener: Listener) -> Iterator[None]:
    """Has `listener` called with what this thread does meanwhile."""
    global _listener, _thread
    before = _listener, _thread
    _listener, _thread = listener, threading.get_ident()
    try:
        yield
    finally:
        _listener, _thread = before


class Written:
    """Listener that writes to a file, for another process. A file that cannot be written is no
    reason to fail."""

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
        temporary = self._path.with_name(f"{self._path.name}.writing")
        try:
            temporary.write_text(joined(what, how_far), encoding="utf-8")
            temporary.replace(self._path)
        except OSError:
            self._next = float("inf")


def read(path: Path) -> str:
    """What a `Written` wrote last; "" where that is not known."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def joined(what: str, how_far: str) -> str:
    """The two in one line."""
    return f"{what}, {how_far}" if how_far else what


class Display:
    """Shows on stderr what is waited for: on a terminal after a second, elsewhere one line after
    five. `say` writes that line."""

    def __init__(self, title: str, say: Callable[[str], None]) -> None:
        self._title = title
        self._say = say
        self._begun = time.monotonic()
        self._live: Live | None = None
        self._said = self._gone = False

    def show(self, text: Callable[[], str]) -> None:
        """Shows `text`, which is called where it is time to; call this now and then."""
        waited = time.monotonic() - self._begun
        if self._gone or waited <= min(_TERMINAL_SECONDS, _LINE_SECONDS):
            return
        try:
            if sys.stderr.isatty():
                self._draw(text())
            elif waited > _LINE_SECONDS and not self._said:
                self._said = True
                self._say(self._line(text()))
        except (OSError, ValueError):  # the terminal is closed: nobody looks
            self._gone = True

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
        """Takes it from the terminal."""
        live, self._live = self._live, None
        if live is not None:
            with suppress(OSError, ValueError):
                live.stop()


@contextmanager
def shown(title: str, *, quiet: bool = False) -> Iterator[None]:
    """Shows on stderr what is done meanwhile, where that takes long and `quiet` is not set."""
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
        with heard(listen):
            yield
    finally:
        ended.set()
        watcher.join()
        display.close()
