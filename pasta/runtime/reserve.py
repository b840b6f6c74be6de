"""A collector in reserve: a process that has imported what collectors need and waits for rings
(pasta.runtime.collector_reserve)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from contextlib import suppress


class Reserve:
    """The waiting process, to whose standard input a pipe leads. It ends with this process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        self._process, self._pipe = process, process.stdin

    def take(self, arguments: Sequence[str]) -> subprocess.Popen[bytes] | None:
        """The process, as a collector with these arguments; None if it has died."""
        try:
            self._pipe.write(json.dumps(arguments).encode() + b"\n")
            self._pipe.close()
        except OSError:
            self.dismiss()
            return None
        return self._process if self._process.poll() is None else None

    def dismiss(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        with suppress(OSError):  # what it has not read
            self._pipe.close()
