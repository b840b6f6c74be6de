"""A process's event ring as its consumer and its launcher see it, during its run or after it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta import abi, private
from pasta._native import ffi, lib
from pasta.errors import RunError

if TYPE_CHECKING:
    from pasta.processors.batch import Batch

#: Maximum segments per batch: enough to amortize per-batch work, few enough for the batch to stay
#: in the processor's cache.
BATCH_SEGMENTS = 2
#: Segments whose memory the launcher backs ahead of the producers.
_MIN_AHEAD, _MAX_AHEAD = 8, 64


class Ring:
    """A mapped ring file.

    Positions count 64-byte slots from the process's first event; they are the global order.
    """

    def __init__(self, path: Path) -> None:
        """Maps `path`. Raises RunError if it is not a ring of this version of PASTA, or another
        user could have written it."""
        check(path)
        error = ffi.new("int *")
        self.path = path
        self._ring: Any = lib.pasta_map(os.fsencode(path), error)
        if not self._ring:
            reason = os.strerror(error[0]) if error[0] > 0 else "not an event ring of this version"
            raise RunError(f"{path}: {reason}")
        self.torn = 0
        self._taken = 0

    def __getattr__(self, name: str) -> Any:
        """Fields of pasta_ring, read from shared memory: tail, used, state, consumer, …"""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._ring, name)

    def close(self) -> None:
        """Unmaps the ring."""
        lib.pasta_unmap(self._ring)
        self._ring = ffi.NULL

    @property
    def address(self) -> Any:
        """The mapping, for other native modules."""
        return ffi.cast("void *", self._ring)

    @property
    def held(self) -> int:
        """Segments between the released position and the tail."""
        return int((self.tail - self.released) // self.segment_slots)

    def dropped(self) -> dict[str, int]:
        """Events lost because the ring was full, by kind."""
        counts = self._ring.dropped
        return {name: counts[number] for number, name in abi.NAMES.items() if counts[number]}

    def string(self, identifier: int) -> str | None:
        """Text of an interned string; None for an unknown id."""
        length = ffi.new("uint32_t *")
        text = lib.pasta_string_text(self._ring, identifier, length)
        return ffi.buffer(text, length[0])[:].decode("utf-8", "replace") if text else None

    def strings(self) -> Iterator[tuple[int, str]]:
        """All interned strings, with their ids."""
        length = ffi.new("uint32_t *")
        identifier = 1  # in units of 8 bytes; 0 is the absent string
        while lib.pasta_string_text(self._ring, identifier, length):
            text = self.string(identifier)
            if text is not None:
                yield identifier, text
            identifier += (4 + length[0] + 1 + 7) // 8

    def source_ids(self) -> list[int]:
        """Ids of the names of the sources that the process uses so far; cheap."""
        return [each for each in ffi.unpack(self._ring.sources, lib.PASTA_SOURCES) if each]

    def variables(self) -> dict[str, str]:
        """Variables of the process that PASTA asked for, at the first use of its newest source."""
        text = self.string(self._ring.environment) or ""
        return dict(each.split("=", 1) for each in text.split("\x1f") if "=" in each)

    def first_devices(self, start: int) -> tuple[dict[str, int], int]:
        """Ordinals of devices by uuid, from the `device` records published from `start` on in the
        first segment, and the position up to which it was read."""
        kind, stop = lib.PASTA_EVENT_device, min(self.tail, self.segment_slots)
        if start >= stop or self.released:
            return {}, start
        stretch = ffi.new("pasta_stretch *")
        stretch.ring, stretch.segment_slots, stretch.end = self._ring, self.segment_slots, stop
        setattr(stretch, "from", start)
        lib.pasta_scan(stretch)
        size = ffi.sizeof("pasta_header") + ffi.sizeof("pasta_device")
        memory = ffi.new("uint8_t[]", size * stretch.counts[kind] or 1)
        outputs = ffi.new(f"void *[{lib.PASTA_KINDS}]")
        outputs[kind] = memory
        lib.pasta_gather(stretch, start, outputs)
        found = {}
        for at in range(0, size * stretch.counts[kind], size):
            header = ffi.cast("pasta_header *", memory + at)
            device = ffi.cast("pasta_device *", header + 1)
            if device.uuid and header.device >= 0:
                found[self.string(device.uuid) or ""] = int(header.device)
        return found, int(stretch.end)

    def intern(self, text: str) -> int:
        """Id of a string, for a record that the launcher appends; 0 if there is no room now."""
        encoded = text.encode()
        return int(lib.pasta_intern_text(self._ring, encoded, len(encoded)))

    def append_sample(self, device: int, payload: bytes) -> bool:
        """Appends a device_sample with the current time; False if the ring is full. Not after the
        process's end was marked."""
        kind = lib.PASTA_EVENT_device_sample
        return bool(lib.pasta_append(self._ring, kind, device, payload, len(payload)))

    def batches(
        self, start: int, stop: int | None = None, *, final: bool = False
    ) -> Iterator[tuple[Batch, int]]:
        """Published records from `start` to `stop` (default: the tail), as (batch, position after).

        Stops at the first unpublished record; with `final` (all producers have ended) such records
        are skipped and counted in `torn`.
        """
        stretch = ffi.new("pasta_stretch *")
        stretch.ring = self._ring
        stretch.segment_slots = self.segment_slots
        yield from self._decode(stretch, start, self.tail if stop is None else stop, final)

    def spilled(self, first: int, memory: Any, segments: int) -> Iterator[tuple[Batch, int]]:
        """Records of whole segments copied out of the ring; `first` is the first segment number."""
        stretch = ffi.new("pasta_stretch *")
        stretch.spilled = ffi.from_buffer("uint8_t[]", memory)
        stretch.spilled_first = first
        slots = stretch.segment_slots = self.segment_slots
        yield from self._decode(stretch, first * slots, (first + segments) * slots, True)

    def _decode(
        self, stretch: Any, start: int, stop: int, final: bool
    ) -> Iterator[tuple[Batch, int]]:
        from pasta.processors.batch import Batch

        slots = self.segment_slots
        while start < stop:
            stretch.end = limit = min(stop, (start // slots + BATCH_SEGMENTS) * slots)
            stretch.final = final
            setattr(stretch, "from", start)
            lib.pasta_scan(stretch)
            self.torn += stretch.torn
            if stretch.end == start:
                return
            yield Batch(start, _gather(stretch, start)), stretch.end
            if stretch.end < limit:
                return
            start = stretch.end

    def segment(self, number: int) -> Any:
        """Memory of a logical segment (a cffi buffer); None if it was released."""
        memory = lib.pasta_segment_memory(self._ring, number)
        return ffi.buffer(memory, self.segment_bytes) if memory else None

    def save(self, path: Path) -> None:
        """Writes the ring to a new file after its file was deleted. Raises OSError."""
        size, step = int(self.file_bytes), int(self.segment_bytes)
        memory = ffi.buffer(self._ring, size)
        segments = min(self.segments, self.max_segments)
        nothing = bytes(step)
        temporary = path.with_name(f"{path.name}.writing")
        with open(private.create(temporary, os.O_TRUNC), "wb") as file:
            file.truncate(size)
            for start, stop in (
                (0, self.arena_offset + self.arena_committed),
                (self.data_offset, self.data_offset + segments * step),
            ):
                for offset in range(start, min(stop, size), step):
                    piece = memory[offset : min(offset + step, stop, size)]
                    if piece != nothing[: len(piece)]:
                        file.seek(offset)
                        file.write(piece)
        temporary.rename(path)

    def set_processed(self, position: int) -> None:
        """Publishes the consumer's position and its heartbeat."""
        self._ring.processed = position
        lib.pasta_beat(self._ring)

    def releasable(self, position: int) -> int:
        """Position up to which `release` would free memory; a block's reader may need more than the
        consumer."""
        return int(lib.pasta_releasable(self._ring, position))

    def move_reader(self, block: int, position: int | None) -> bool:
        """Publishes that a block's reader is done with everything before `position`; None: with
        everything. False if the program has abandoned the block."""
        needed = 2**64 - 1 if position is None else position
        return bool(lib.pasta_move_reader(self._ring, block, needed))

    def release(self, position: int) -> None:
        """Releases all whole segments before `position` for reuse by the producers."""
        lib.pasta_release(self._ring, position)

    def back_ahead(self) -> bool:
        """Backs memory of the ring ahead of its producers; whether it grew since the last call.

        Producers can do this too, unless the program installed a seccomp filter without libc. If
        memory is exhausted, the producers detect and report it.
        """
        taken = int(self._ring.segments)
        grown, self._taken = taken - self._taken, taken
        ahead = min(max(_MIN_AHEAD, 4 * grown), _MAX_AHEAD)
        lib.pasta_back_ahead(self._ring, os.fsencode(self.path), ahead)
        return grown > 0

    def mark_ended(self, how: int, status: int) -> None:
        """Records how the process ended, as numbered in pasta.runtime.session."""
        self._ring.ended_status = status
        self._ring.ended = how

    def release_reserve(self) -> None:
        """Frees space for files beside the ring, if its process ended on a full file system."""
        lib.pasta_release_reserve(self._ring)

    def set_critical(self, critical: bool) -> None:
        """Sets whether an exit of the process must wait for the consumer."""
        self._ring.critical = critical

    def wait_finish(self, milliseconds: int) -> bool:
        """Waits until the process asks its consumer to finish; False after the timeout."""
        return bool(lib.pasta_wait_finish(self._ring, milliseconds))

    def wait_finished(self, milliseconds: int) -> bool:
        """Waits until the consumer has finished, at most this long; whether it has."""
        return bool(lib.pasta_wait_finished(self._ring, milliseconds))

    def ask_finish(self) -> None:
        """Asks the consumer to finish."""
        lib.pasta_ask_finish(self._ring)

    def mark_finished(self) -> None:
        """Marks the consumer as finished."""
        lib.pasta_mark_finished(self._ring)


def check(path: Path) -> None:
    """Raises RunError if a file cannot be opened, or another user could have written it."""
    try:
        os.close(private.open_file(path))
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}") from None


def _gather(stretch: Any, base: int) -> dict[str, Any]:
    import numpy as np

    outputs = ffi.new(f"void *[{lib.PASTA_KINDS}]")
    records: dict[str, Any] = {}
    for kind, number in abi.KINDS.items():
        count = stretch.counts[number]
        if count and kind not in abi.UNRECORDED:
            array = records[kind] = np.empty(count, abi.dtype(kind))
            outputs[number] = ffi.cast("void *", array.ctypes.data)
    lib.pasta_gather(stretch, base, outputs)
    return records
