"""Which segments of a ring an embedded consumer writes to disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from pasta.runtime.spill import Spill

SLOTS = 4


class Segments:
    """Of a ring: `reader` is the position from which a block keeps them, or None."""

    segment_slots, max_segments = SLOTS, 64

    def __init__(self, published: int) -> None:
        self.published, self.released = published, 0
        self.reader: int | None = None
        self.begins_at: int | None = None  # the segment that is read when a block begins

    @property
    def held(self) -> int:
        return self.published - self.released // SLOTS

    def releasable(self, position: int) -> int:
        return position if self.reader is None else min(self.reader, position)

    def release(self, position: int) -> None:
        self.released = max(self.released, self.releasable(position) // SLOTS * SLOTS)

    def segment(self, number: int) -> bytes:
        if number == self.begins_at:
            self.reader = self.released
        return bytes([number])


def written(directory: Path) -> list[int]:
    """Numbers of the segments in all files."""
    files = sorted(directory.glob("*.segments"))
    return [number for file in files for number in file.read_bytes()]


@pytest.mark.parametrize("begins_at", [None, 3, 17])
def test_each_segment_is_written_once(tmp_path: Path, begins_at: int | None) -> None:
    """Also if a block begins during the writing, and keeps in the ring what is written."""
    segments = Segments(40)
    segments.begins_at = begins_at
    spill = Spill(cast("Any", segments), tmp_path / "run" / "spill")
    spill.make_room(30 * SLOTS)
    segments.reader = None  # the block has ended
    segments.published = 60
    spill.make_room(50 * SLOTS)
    assert written(tmp_path / "run" / "spill") == list(range(50))
    assert segments.released == 50 * SLOTS
