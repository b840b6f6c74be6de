"""The consumer's view of an access trace, and its processing in a collector's pipeline."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from pasta._native import ffi
from pasta.errors import RunError
from pasta.runtime.trace import TraceReader, beating

PAGE = 4096


def write(path: Path, chunks: list[bytes], places: int = 4) -> None:
    """A trace as left by producers: each chunk has some bytes, none is sealed."""
    trace = ffi.new("pasta_trace *")
    trace.magic = 0x4543415254534150
    trace.schema, trace.pid = 1, os.getpid()
    trace.chunk_bytes, trace.chunks = PAGE, places
    trace.chunks_offset, trace.data_offset = PAGE, 2 * PAGE
    trace.next = len(chunks)
    trace.dropped, trace.waited = 7, 11
    table = ffi.new("pasta_chunk[]", places)
    content = bytearray(2 * PAGE + places * PAGE)
    for i, chunk in enumerate(chunks):
        table[i].state = table[i].committed = len(chunk)
        content[2 * PAGE + i * PAGE : 2 * PAGE + i * PAGE + len(chunk)] = chunk
    content[: ffi.sizeof("pasta_trace")] = ffi.buffer(trace)[:]
    content[PAGE : PAGE + ffi.sizeof(table)] = ffi.buffer(table)[:]
    path.write_bytes(content)


def test_chunks_arrive_in_order_and_slots_are_released(tmp_path: Path) -> None:
    path = tmp_path / "1-0.trace"
    write(path, [b"a" * 56, b"b" * 64, b"", b"c" * 8])
    reader = TraceReader(path)
    assert [bytes(chunk) for chunk in reader.chunks()] == [b"a" * 56, b"b" * 64, b"c" * 8]
    assert list(reader.chunks(final=True)) == []
    assert (reader.taken, reader.dropped, reader.waited) == (4, 7, 11)
    reader.close()


def test_invalid_trace_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "1-0.trace"
    with pytest.raises(RunError, match="No such file"):
        TraceReader(path)
    path.write_bytes(bytes(4096))
    with pytest.raises(RunError, match="no access trace of this version"):
        TraceReader(path)


def test_busy_consumer_signals_that_it_is_alive(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("pasta.runtime.trace._BEAT_SECONDS", 0.01)
    path = tmp_path / "1-0.trace"
    write(path, [])
    reader = TraceReader(path)

    def heartbeat() -> int:
        return int(reader._trace.heartbeat)

    with beating(path):
        first = heartbeat()
        deadline = time.monotonic() + 10
        while heartbeat() == first and time.monotonic() < deadline:
            time.sleep(0.01)
        assert heartbeat() > first
    last = heartbeat()
    time.sleep(0.05)
    assert heartbeat() == last
