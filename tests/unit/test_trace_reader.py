"""The consumer's view of an access trace, and its processing in a collector's pipeline."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pasta._native import ffi
from pasta.errors import RunError
from pasta.runtime.collector import Collector
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


def test_launches_with_lost_accesses(tmp_path: Path) -> None:
    path = tmp_path / "1-0.trace"
    write(path, [])
    reader = TraceReader(path)
    assert reader.lost(1000).tolist() == []
    for place, (first, bits) in enumerate([(640, 0b101), (0, 1 << 63)]):
        reader._trace.lost[place].block = first // 64 + 1
        reader._trace.lost[place].launches = bits
    assert reader.lost(1000).tolist() == [63, 640, 642]
    assert reader.lost(641).tolist() == [63, 640]
    reader._trace.lost_first, reader._trace.lost_end = ~700 & (1 << 64) - 1, 1 << 60
    assert reader.lost(703).tolist() == [63, 640, 642, 700, 701, 702]
    reader.close()


def beats(reader: TraceReader, seconds: float) -> bool:
    """Whether a heartbeat arrives within so many seconds."""
    before, end = reader._trace.heartbeat, time.monotonic() + seconds
    while reader._trace.heartbeat == before and time.monotonic() < end:
        time.sleep(0.01)
    return bool(reader._trace.heartbeat != before)


def test_heartbeats_end_without_progress(tmp_path: Path, monkeypatch: Any) -> None:
    """A consumer that hangs does not hang its program."""
    monkeypatch.setattr("pasta.runtime.trace._BEAT_SECONDS", 0.01)
    path = tmp_path / "1-0.trace"
    write(path, [])
    reader = TraceReader(path)
    with beating(path) as progress:
        assert beats(reader, 10)
        monkeypatch.setattr("pasta.runtime.trace.MAX_SILENCE", 0.0)
        time.sleep(0.1)
        assert not beats(reader, 0.1)
        monkeypatch.setattr("pasta.runtime.trace.MAX_SILENCE", 60.0)
        progress()
        assert beats(reader, 10)


def test_a_collector_sends_heartbeats_whatever_it_does(tmp_path: Path, monkeypatch: Any) -> None:
    """Such as compiling a function when it is first called. A run without probes has no trace."""
    monkeypatch.setattr("pasta.runtime.trace._BEAT_SECONDS", 0.01)
    write(tmp_path / "1-0.trace", [])
    reader = TraceReader(tmp_path / "1-0.trace")
    collector: Any = object.__new__(Collector)
    collector.ring = SimpleNamespace(path=tmp_path / "1-0")
    collector.session = SimpleNamespace(probes=tmp_path / "probes")
    monkeypatch.setattr(Collector, "_collect", lambda _: threading.active_count())
    assert collector.collect() == threading.active_count()
    collector.session.probes.touch()
    monkeypatch.setattr(Collector, "_collect", lambda _: beats(reader, 10))
    assert collector.collect()


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
    with beating(path):
        assert beats(reader, 10)
    assert not beats(reader, 0.05)
