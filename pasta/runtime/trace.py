"""The consumer's view of a process's access trace, the file PID-SEQUENCE.trace beside its ring."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta._native import ffi, lib
from pasta.errors import RunError
from pasta.lazy import np
from pasta.runtime.ring import check

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BEAT_SECONDS = 1.0
#: Time (s) for which heartbeats continue without progress of the consumer: it compiles, or a tool
#: works. Producers wait as long.
MAX_SILENCE = 300.0
_MAX_U64 = (1 << 64) - 1


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

    def lost(self, known: int) -> NDArray[Any]:
        """Launches (uint64, in order), below the ordinal `known`, of which accesses were lost over
        which probes had not run. Beyond 14,000, all launches between such ones count as well."""
        blocks = np.frombuffer(ffi.buffer(self._trace.lost), np.uint64).reshape(-1, 2)
        bits = np.unpackbits(np.ascontiguousarray(blocks[:, 1:]).view(np.uint8), 1, None, "little")
        at, bit = np.nonzero(bits)
        single = (blocks[at, 0] - np.uint64(1)) * np.uint64(64) + bit.astype(np.uint64)
        first, end = self._trace.lost_first ^ _MAX_U64, min(self._trace.lost_end, known)
        found = np.union1d(single, np.arange(first, max(first, end), dtype=np.uint64))
        return np.asarray(found[found < known])

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
def beating(path: Path) -> Iterator[Callable[[], None]]:
    """Sends heartbeats to the producers of a trace, which may appear later, from a thread; gives a
    function that reports progress. After `MAX_SILENCE` without it the heartbeats end."""
    done = threading.Event()
    last = time.monotonic()

    def progress() -> None:
        nonlocal last
        last = time.monotonic()

    def beat() -> None:
        reader: TraceReader | None = None
        while not done.wait(_BEAT_SECONDS):
            if time.monotonic() - last > MAX_SILENCE:
                continue
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
        yield progress
    finally:
        done.set()
        thread.join()
