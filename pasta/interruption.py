"""Whether a user interrupted the end of a run, so that optional work ends early.

The launcher receives the signal and creates a file, which other processes of the session look for.
"""

from __future__ import annotations

import signal
from pathlib import Path

#: Signals that end a process unless it handles them.
ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
#: Seconds between two looks while something else is awaited.
LOOK_SECONDS = 0.1

_file: Path | None = None


def follow(file: Path) -> None:
    """From now on, an interruption is the existence of this file."""
    global _file
    _file = file


def is_interrupted() -> bool:
    """Whether the run was interrupted; False before `follow`."""
    return _file is not None and _file.exists()
