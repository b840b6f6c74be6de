"""Segments that an embedded consumer writes to disk, to free the ring without losing events if the
process is killed: copies of ring memory, converted to Parquet after the process has ended."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pasta import private
from pasta.runtime.ring import Ring

if TYPE_CHECKING:
    from pasta.processors.batch import Batch

_NAME = re.compile(r"(\d+)-(\d+)\.segments")
_FILE_SEGMENTS = 16


@dataclass
class Spill:
    """The spilled segments of one ring, in a directory on disk."""

    ring: Ring
    directory: Path
    #: Segments before this one are written. A block that begins meanwhile keeps some in the ring.
    _written: int = 0

    def make_room(self, processed: int) -> None:
        """Writes and releases processed segments once a quarter of the ring is held.

        Raises OSError if the disk is full; the ring then fills up.
        """
        if self.ring.held < max(_FILE_SEGMENTS, self.ring.max_segments // 4):
            return
        slots = self.ring.segment_slots
        first, stop = self.ring.released // slots, self.ring.releasable(processed) // slots
        while first < stop:
            last = min(first + _FILE_SEGMENTS, stop)
            if last > self._written:
                self._write(max(first, self._written), last)
                self._written = last
            self.ring.release(last * slots)
            first = last

    def _write(self, first: int, stop: int) -> None:
        for directory in (self.directory.parent, self.directory):
            private.make_or_check_directory(directory)
        path = self.directory / f"{first:012}-{stop - first:04}.segments"
        temporary = path.with_suffix(".writing")
        with open(private.create(temporary, os.O_TRUNC), "wb") as file:
            for number in range(first, stop):
                file.write(self.ring.segment(number))
        temporary.rename(path)

    def batches(self, start: int) -> Iterator[tuple[Batch, int]]:
        """Spilled records from position `start`, as (batch, position after it)."""
        slots = self.ring.segment_slots
        for path in sorted(self.directory.glob("*.segments")):
            match = _NAME.fullmatch(path.name)
            if not match:
                continue
            first, count = int(match[1]), int(match[2])
            if (first + count) * slots <= start:
                continue
            with (
                open(private.open_file(path), "rb") as file,
                mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory,
            ):
                for batch, position in self.ring.spilled(first, memory, count):
                    if position > start:
                        yield batch, position
