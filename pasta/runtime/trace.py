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
    """A mapped trace; there is one consumer of it."""

    def __init__(self, path: Path) -> None:
        """Maps `path`. Raises RunError where it cannot be mapped, or not yet."""
        check(path)
        error = ffi.new("int *")
        self._trace: Any = lib.pasta_trace_map(os.fsencode(path), error)
        if not self._trace:
            reason = os.strerror(error[0]) if error[0] > 0 else "no access trace of this version"
            raise RunError(f"{path}: {reason}")

    def chunks(self, *, final: bool = False) -> Iterator[Any]:
        """Records as memory that is valid until the next chunk is asked for.

        Partly filled chunks are taken too. With `final` nobody writes any more.
        """
        size = ffi.new("uint32_t *")
        how = lib.PASTA_TAKE_final if final else lib.PASTA_TAKE_seal
        while True:
            records = lib.pasta_trace_take(self._trace, how, size)
            if not records:
                return
            yield ffi.buffer(records, size[0])
            lib.pasta_trace_release(self._trace)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Shows producers a living consumer while the block works for seconds."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(_BEAT_SECONDS):
                lib.pasta_trace_beat(self._trace)

        lib.pasta_trace_beat(self._trace)
        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    @property
    def dropped(self) -> int:
        """Accesses that were lost because there was no room for longer than producers wait."""
        return int(self._trace.dropped)

    @property
    def waited(self) -> int:
        """Nanoseconds for which producers waited for room."""
        return int(self._trace.waited)

    @property
    def taken(self) -> int:
        """Chunks that were taken."""
        return int(self._trace.consumed)

    @property
    def exhausted(self) -> bool:
        """Whether every chunk that producers have begun was taken."""
        return bool(self._trace.consumed == self._trace.next)

    def close(self) -> None:
        lib.pasta_trace_unmap(self._trace)
        self._trace = ffi.NULL
