"""The consumer's view of a process's access trace, the file PID-SEQUENCE.trace beside its ring."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pasta._native import ffi, lib
from pasta.errors import RunError
from pasta.runtime.ring import check

_BEAT_SECONDS = 1.0


class TraceReader:
    """A mapped access trace, which has one consumer."""

    def __init__(self, path: Path) -> None:
        """Maps `path`. Raises RunError if it cannot be mapped, or is not initialized yet."""
        check(path)
        error = ffi.new("int *")
        self._trace: Any = lib.pasta_trace_map(os.fsencode(path), error)
        if not self._trace:
            reason = os.strerror(error[0]) if error[0] > 0 else "no access trace of this version"
            raise RunError(f"{path}: {reason}")

    def chunks(self, *, final: bool = False) -> Iterator[Any]:
        """Records as buffers that are valid until the next iteration.

        Includes partly filled chunks. `final`: all producers have ended.
        """
        size = ffi.new("uint32_t *")
        how = lib.PASTA_TAKE_final if final else lib.PASTA_TAKE_seal
        while True:
            records = lib.pasta_trace_take(self._trace, how, size)
            if not records:
                return
            yield ffi.buffer(records, size[0])
            lib.pasta_trace_release(self._trace)

    @property
    def dropped(self) -> int:
        """Accesses lost because the trace stayed full longer than producers wait."""
        return int(self._trace.dropped)

    @property
    def waited(self) -> int:
        """Nanoseconds that producers waited for room."""
        return int(self._trace.waited)

    @property
    def taken(self) -> int:
        """Number of chunks consumed."""
        return int(self._trace.consumed)

    @property
    def exhausted(self) -> bool:
        """Whether every chunk that producers have begun was consumed."""
        return bool(self._trace.consumed == self._trace.next)

    def close(self) -> None:
        """Unmaps the trace."""
        lib.pasta_trace_unmap(self._trace)
        self._trace = ffi.NULL


@contextmanager
def beating(path: Path) -> Iterator[None]:
    """Sends heartbeats to the producers of a trace while the block works for seconds; the file may
    appear meanwhile."""
    done = threading.Event()

    def beat() -> None:
        reader: TraceReader | None = None
        while not done.wait(_BEAT_SECONDS):
            try:
                reader = reader or TraceReader(path)
            except RunError:
                continue
            lib.pasta_trace_beat(reader._trace)
        if reader is not None:
            reader.close()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
