"""Recorded accesses: Arrow streams of access records, each batch with the position of the events
that had come before it. A file that was cut short is read as far as it goes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pasta.arrow import to_arrow, to_numpy
from pasta.errors import RunError
from pasta.run.files import regular_file, unreadable

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The tool that records them.
TOOL = "record_accesses"
_VERSION = b"1"
#: `words`: whole records of a chunk, as pasta_trace.h has them.
_SCHEMA = pa.schema(
    [("position", pa.uint64()), ("words", pa.large_list(pa.int64()))],
    metadata={b"pasta.accesses": _VERSION},
)


def part_name(number: int) -> str:
    """File of a part in the tool's results."""
    return f"accesses-{number:03}.arrows"


class AccessWriter:
    """Writes a part to a temporary file at `path`."""

    def __init__(self, directory: str) -> None:
        """In a directory, "": TMPDIR or /tmp. Raises OSError."""
        descriptor, self.path = tempfile.mkstemp(
            prefix="pasta-accesses-", suffix=".arrows", dir=directory or None
        )
        os.close(descriptor)
        self._file = pa.OSFile(self.path, "wb")
        compressed = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
        self._stream = pa.ipc.new_stream(self._file, _SCHEMA, options=compressed)

    def add(self, position: int, words: NDArray[Any]) -> None:
        """Adds records (int64 words) that came after the events before `position`."""
        chunk = pa.LargeListArray.from_arrays(to_arrow([0, len(words)]), to_arrow(words))
        at = to_arrow(np.array([position], np.uint64))
        batch = pa.RecordBatch.from_arrays([at, chunk], schema=_SCHEMA)
        self._stream.write_batch(batch)

    def close(self) -> None:
        self._stream.close()
        self._file.close()


def recorded_accesses(results: Path) -> list[Path]:
    """Parts that a run has, in their order."""
    return sorted((results / TOOL).glob("accesses-[0-9]*.arrows"))


def read_accesses(
    paths: list[Path], told: Callable[[str], None]
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Chunks of records (int64 words), each with the position of the events before it.

    `told` gets a line for a file that was cut short. Raises RunError for one that is none, or of
    another version.
    """
    for path in paths:
        try:
            real = str(regular_file(path, path.parents[2]))
            with pa.memory_map(real) as file, pa.ipc.open_stream(file) as stream:
                if (stream.schema.metadata or {}).get(b"pasta.accesses") != _VERSION:
                    raise RunError(f"{path}: accesses of another version of PASTA")
                if not stream.schema.equals(_SCHEMA):
                    raise RunError(f"{path}: its columns are not those of accesses")
                yield from _chunks(stream, path, told)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise unreadable(path, error) from None


def _chunks(
    stream: Any, path: Path, told: Callable[[str], None]
) -> Iterator[tuple[int, NDArray[Any]]]:
    count = 0
    while True:
        try:
            batch = stream.read_next_batch()
            batch.validate(full=True)  # or offsets may lead anywhere
            if any(column.null_count for column in batch.columns):
                raise ValueError("a chunk is absent")
        except StopIteration:
            return
        except (OSError, ValueError, MemoryError, pa.ArrowException):
            told(f"{path.name} was cut short: accesses after its chunk {count:,} are missing")
            return
        count += 1
        for position, words in zip(batch.column(0), batch.column(1), strict=True):
            yield position.as_py(), to_numpy(words.values)
