"""Reads the code of probed kernels while the program runs, so that less is left at its end."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from pasta.own_python import lowest_priority
from pasta.progress import report_progress

if TYPE_CHECKING:
    from pasta.probes.coverage import Code
    from pasta.runtime.probe_runtime import ProbeRuntime, Reading

#: Seconds from one look at the kernels to the next: reading starts nvdisasm.
_INTERVAL = 0.5


class CodeAhead:
    """Reads code on a thread of the lowest priority, of kernels that are known at the time."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _INTERVAL
        self._reading: tuple[threading.Thread, Reading, list[Code]] | None = None

    def look(self, probes: ProbeRuntime) -> None:
        """Keep what was read, and begin to read the code of new kernels."""
        if self._reading is not None:
            if self._reading[0].is_alive():
                return
            self._keep(probes)
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _INTERVAL
        if (reading := probes.reading()) is not None:
            codes: list[Code] = []
            thread = threading.Thread(target=_read, args=(reading, codes), daemon=True)
            thread.start()
            self._reading = thread, reading, codes

    def finish(self, probes: ProbeRuntime) -> None:
        """Wait for what is being read, at most a minute."""
        if self._reading is not None:
            report_progress("reading code")
            self._reading[0].join()
            self._keep(probes)

    def _keep(self, probes: ProbeRuntime) -> None:
        assert self._reading is not None
        _, reading, codes = self._reading
        if codes:  # none if the thread failed: they are read at the end
            probes.kernels.learn(reading.unread, codes)
        self._reading = None


def _read(reading: Reading, codes: list[Code]) -> None:
    lowest_priority()
    codes += reading.codes()
