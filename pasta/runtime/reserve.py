"""A collector in reserve: a process that has imported what collectors need and waits for rings
(pasta.runtime.collector_reserve)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from pasta.own_python import own_environment, own_python


class Reserve:
    """Starts the process; `session` is only for those who look at its command line, `log` receives
    its output. It ends with this process."""

    def __init__(self, environment: Mapping[str, str], session: Path, log: IO[bytes]) -> None:
        self._process = subprocess.Popen(
            [*own_python("pasta.runtime.collector_reserve"), str(session)],
            stdin=subprocess.PIPE, stdout=log, stderr=log,
            env=own_environment(environment), cwd="/", start_new_session=True,
        )  # fmt: skip

    def take(self, arguments: Sequence[str]) -> subprocess.Popen[bytes] | None:
        """The process, as a collector with these arguments; None if it has died."""
        pipe = self._process.stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps(arguments).encode() + b"\n")
            pipe.close()
        except OSError:
            self.dismiss()
            return None
        return self._process if self._process.poll() is None else None

    def dismiss(self) -> None:
        """End the process."""
        with suppress(OSError):
            self._process.kill()
        self._process.wait()
        pipe = self._process.stdin
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
