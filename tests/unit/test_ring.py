"""The consumer's side of the ring in Python, against a model of the published records."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from pasta import abi
from pasta._native import ffi, lib
from pasta.runtime.ring import Ring
from pasta.runtime.session import Ended, mark_ended, marked_ended
from tests.support.examples import examples
from tests.support.places import PROGRAMS
from tests.support.session import RING_SOURCES, Session, compile_c, decode

SLOTS = 16384
EXAMPLES = examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
KINDS = [number for name, number in abi.KINDS.items() if name not in abi.UNRECORDED]


@pytest.fixture(scope="module")
def producer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("producer") / "ring_producer"
    return compile_c(output, [*RING_SOURCES, PROGRAMS / "ring_producer.c"], "-O2")


# ---- the script and its model


@dataclass(frozen=True)
class Publish:
    """`repeat` records of a kind, whose contents are derived from seed, seed + 1, …"""

    kind: int
    seed: int
    repeat: int

    def __str__(self) -> str:
        return f"publish {self.kind} {self.seed} {self.repeat}"


@dataclass(frozen=True)
class Abandon:
    """A record begun and never published."""

    kind: int

    def __str__(self) -> str:
        return f"abandon {self.kind}"


@dataclass(frozen=True)
class Skip:
    """Slots reserved by a producer that never wrote them."""

    slots: int

    def __str__(self) -> str:
        return f"skip {self.slots}"


Step = Publish | Abandon | Skip


@dataclass
class Model:
    """Expected position of every record of a script."""

    tail: int = 0
    torn: int = 0
    first_torn: int | None = None
    records: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # kind: position, seed

    def run(self, script: list[Step]) -> Model:
        for step in script:
            if isinstance(step, Publish):
                for seed in range(step.seed, step.seed + step.repeat):
                    position = self._reserve(step.kind)
                    self.records.setdefault(step.kind, []).append((position, seed))
            elif isinstance(step, Abandon):
                position = self._reserve(step.kind)
                self._lose(position, lib.pasta_kind_slots(step.kind))
            elif self.tail % SLOTS:
                slots = min(step.slots, SLOTS - self.tail % SLOTS)
                self.tail += slots
                self._lose(self.tail - slots, slots)
        return self

    def _reserve(self, kind: int) -> int:
        slots = lib.pasta_kind_slots(kind)
        if self.tail % SLOTS + slots > SLOTS:  # the rest of the segment is padding
            self.tail += SLOTS - self.tail % SLOTS
        self.tail += slots
        return self.tail - slots

    def _lose(self, position: int, slots: int) -> None:
        self.torn += slots
        if self.first_torn is None:
            self.first_torn = position


small = st.builds(Publish, st.sampled_from(KINDS), st.integers(0, 2**31), st.integers(1, 5))
many = st.builds(Publish, st.sampled_from(KINDS), st.integers(0, 2**31), st.integers(5000, 9000))
whole = st.lists(small | many, max_size=8)
broken = st.lists(
    small | many | st.builds(Abandon, st.sampled_from(KINDS)) | st.builds(Skip, st.integers(1, 9)),
    max_size=12,
)


@contextmanager
def published(producer: Path, script: list[Step] | list[str]) -> Iterator[tuple[Any, str]]:
    """The mapped ring of a process that ran a script, and the process's output."""
    with tempfile.TemporaryDirectory() as directory:
        session = Session.create(Path(directory, "session"))
        done = subprocess.run(
            [producer],
            input="".join(f"{step}\n" for step in script),
            env={**os.environ, "PASTA_SHIM": session.configuration()},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        (path,) = session.rings()
        ring = lib.pasta_map(os.fsencode(path), ffi.new("int *"))
        assert ring != ffi.NULL
        try:
            yield ring, done.stdout
        finally:
            lib.pasta_unmap(ring)


def stretch_of(ring: Any, start: int, end: int, *, final: bool) -> Any:
    stretch = ffi.new("pasta_stretch *")
    stretch.ring, stretch.segment_slots, stretch.final = ring, SLOTS, final
    setattr(stretch, "from", start)
    stretch.end = end
    return stretch


def expected_payload(kind: int, seeds: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    size = lib.pasta_kind_slots(kind) * abi.SLOT - ffi.sizeof("pasta_header")
    return ((seeds[:, None] + 7 * np.arange(size)) & 0xFF).astype(np.uint8)


def check(tables: dict[str, np.ndarray[Any, Any]], model: Model, before: int) -> None:
    """Checks that `tables` are the model's records at positions less than `before`."""
    expected = {
        kind: [item for item in items if item[0] < before] for kind, items in model.records.items()
    }
    assert {abi.KINDS[name]: len(table) for name, table in tables.items()} == {
        kind: len(items) for kind, items in expected.items() if items
    }
    for name, table in tables.items():
        positions, seeds = np.array(expected[abi.KINDS[name]], np.int64).T
        np.testing.assert_array_equal(table["index"], positions)
        np.testing.assert_array_equal(table["device"], seeds % 100)
        np.testing.assert_array_equal(table["context"], seeds & 0xFFFF)
        np.testing.assert_array_equal(table["stream"], seeds.astype(np.uint64) * 1000003)
        np.testing.assert_array_equal(table["flags"], seeds & 0xFF)
        np.testing.assert_array_equal(table["correlation"], ~seeds.astype(np.uint64))
        assert (np.diff(table["time"].astype(np.int64)) >= 0).all()
        payload = table.view(np.uint8).reshape(len(table), -1)[:, ffi.sizeof("pasta_header") :]
        np.testing.assert_array_equal(payload, expected_payload(abi.KINDS[name], seeds))


def join(kind: str, tables: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """The tables as one, with all their bytes: np.concatenate would leave out unused ones."""
    return np.concatenate([table.view(np.uint8) for table in tables]).view(abi.dtype(kind))


# ---- properties


@EXAMPLES
@given(script=whole)
def test_all_published_records_are_read(producer: Path, script: list[Step]) -> None:
    model = Model().run(script)
    with published(producer, script) as (ring, _):
        assert lib.pasta_tail(ring) == model.tail
        stretch = stretch_of(ring, 0, model.tail, final=False)
        check(decode(stretch), model, model.tail)
        assert (stretch.end, stretch.torn) == (model.tail, 0)


@EXAMPLES
@given(script=broken)
def test_live_ring_is_read_up_to_the_first_unpublished_record(
    producer: Path, script: list[Step]
) -> None:
    model = Model().run(script)
    stop = model.tail if model.first_torn is None else model.first_torn
    with published(producer, script) as (ring, _):
        stretch = stretch_of(ring, 0, model.tail, final=False)
        check(decode(stretch), model, stop)
        assert stretch.torn == 0
        # padding before an abandoned record that did not fit is published, and is passed
        assert stretch.end == stop


@EXAMPLES
@given(script=broken)
def test_dead_ring_loses_only_unpublished_records(producer: Path, script: list[Step]) -> None:
    model = Model().run(script)
    with published(producer, script) as (ring, _):
        stretch = stretch_of(ring, 0, model.tail, final=True)
        check(decode(stretch), model, model.tail)
        assert (stretch.end, stretch.torn) == (model.tail, model.torn)


@EXAMPLES
@given(script=whole, batch=st.integers(1, 3))
def test_batches_concatenate_to_all_records(producer: Path, script: list[Step], batch: int) -> None:
    model = Model().run(script)
    pieces: dict[str, list[np.ndarray[Any, Any]]] = {}
    with published(producer, script) as (ring, _):
        position = 0
        while position < model.tail:
            end = min((position // SLOTS + batch) * SLOTS, model.tail)
            stretch = stretch_of(ring, position, end, final=False)
            for name, table in decode(stretch).items():
                table["index"] += position  # it counts from the batch's first slot
                pieces.setdefault(name, []).append(table)
            assert stretch.end == end
            position = end
    check({name: join(name, tables) for name, tables in pieces.items()}, model, model.tail)


@EXAMPLES
@given(script=broken)
def test_spilled_segments_equal_the_ring(producer: Path, script: list[Step]) -> None:
    model = Model().run(script)
    segments = -(-model.tail // SLOTS)
    with published(producer, script) as (ring, _):
        copied = b"".join(
            ffi.buffer(lib.pasta_segment_memory(ring, number), ring.segment_bytes)[:]
            for number in range(segments)
        )
    stretch = stretch_of(ffi.NULL, 0, model.tail, final=True)
    stretch.spilled = ffi.from_buffer("uint8_t[]", copied)
    check(decode(stretch), model, model.tail)
    assert stretch.torn == model.torn


def test_records_needed_by_a_block_reader_are_kept(producer: Path) -> None:
    script = [Publish(KINDS[0], 1, 5 * SLOTS)]
    with published(producer, script) as (ring, _):
        tail = lib.pasta_tail(ring)
        ring.reader = 9 << 48 | 1
        assert not lib.pasta_move_reader(ring, 8, SLOTS)
        assert lib.pasta_releasable(ring, tail) == 0
        assert lib.pasta_move_reader(ring, 9, 2 * SLOTS + 7)
        assert lib.pasta_releasable(ring, SLOTS) == SLOTS
        assert lib.pasta_releasable(ring, tail) == 2 * SLOTS + 7
        lib.pasta_release(ring, tail)
        assert ring.released == 2 * SLOTS
        segments = [lib.pasta_segment_memory(ring, number) for number in (1, 2)]
        held = [any(ffi.buffer(each, ring.segment_bytes)[:]) for each in segments]
        assert held == [False, True]
        assert lib.pasta_move_reader(ring, 9, 2**64 - 1)
        assert not lib.pasta_move_reader(ring, 9, tail)
        lib.pasta_release(ring, tail)
        assert ring.released == tail // SLOTS * SLOTS


@EXAMPLES
@given(texts=st.lists(st.binary(max_size=300) | st.text(max_size=5).map(str.encode), max_size=40))
def test_strings(producer: Path, texts: list[bytes]) -> None:
    script = [f"intern {text.hex()}" for text in texts]
    with published(producer, script) as (ring, output):
        ids = list(map(int, output.split()))
        length = ffi.new("uint32_t *")
        for text, number in zip(texts, ids, strict=True):
            found = lib.pasta_string_text(ring, number, length)
            assert ffi.buffer(found, length[0])[:] == text
    assert len(set(ids)) == len(set(texts))
    assert 0 not in ids


@EXAMPLES
@given(number=st.integers(0, 2**32 - 1))
def test_any_string_id_is_safe(producer: Path, number: int) -> None:
    """A damaged id gives no text, or bytes of the arena; nothing outside is read."""
    with published(producer, [f"intern {b'text'.hex()}"]) as (ring, _):
        length = ffi.new("uint32_t *")
        text = lib.pasta_string_text(ring, number, length)
        if text:
            offset = int(ffi.cast("uintptr_t", text)) - int(ffi.cast("uintptr_t", ring))
            assert ring.arena_offset < offset
            assert offset + length[0] <= ring.arena_offset + ring.arena_used


@pytest.mark.parametrize("damage", ["empty", "short", "magic", "schema", "size"])
def test_invalid_ring_files(producer: Path, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "ring"
    with published(producer, []) as (ring, _):
        header = bytearray(ffi.buffer(ring, ffi.sizeof("pasta_ring"))[:])
    content = {
        "empty": b"",
        "short": bytes(header[:100]),
        "magic": b"x" + bytes(header[1:]),
        "schema": bytes(header[:8]) + b"\xff" + bytes(header[9:]),
        "size": bytes(header),
    }[damage]
    path.write_bytes(content)
    error = ffi.new("int *")
    assert lib.pasta_map(os.fsencode(path), error) == ffi.NULL
    assert error[0] == -1
    assert lib.pasta_map(os.fsencode(tmp_path / "missing"), error) == ffi.NULL
    assert error[0] == 2


def test_process_end_is_reported_if_no_file_can_be_written(producer: Path, tmp_path: Path) -> None:
    """On a full file system a collector must not wait forever."""
    session = Session.create(tmp_path / "session")
    environment = {**os.environ, "PASTA_SHIM": session.configuration()}
    subprocess.run([producer], input="", text=True, env=environment, check=True)
    (path,) = session.rings()
    assert marked_ended(Ring(Path(path))) is None
    for ended in (Ended("exit", 3), Ended("signal", 9), Ended("exec"), Ended("gone")):
        mark_ended(Ring(Path(path)), ended)
        assert marked_ended(Ring(Path(path))) == ended
