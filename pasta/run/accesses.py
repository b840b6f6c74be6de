"""Recorded accesses: Arrow streams of access records, each batch with the position of the events
before it. A truncated file is read up to the damage."""

from __future__ import annotations

import os
import struct
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

#: The tool that records accesses.
TOOL = "record_accesses"
_VERSION = b"1"
#: Maximum size of a decompressed chunk, in bytes.
_MAX_CHUNK = 256 << 20
#: `words`: whole records of a chunk, as defined in pasta_trace.h.
_SCHEMA = pa.schema(
    [("position", pa.uint64()), ("words", pa.large_list(pa.int64()))],
    metadata={b"pasta.accesses": _VERSION},
)


def part_name(number: int) -> str:
    """File name of a part in the tool's results."""
    return f"accesses-{number:03}.arrows"


class AccessWriter:
    """Writes a part to a temporary file at `path`."""

    def __init__(self, directory: str) -> None:
        """Creates the file in a directory; "": TMPDIR or /tmp. Raises OSError."""
        descriptor, self.path = tempfile.mkstemp(
            prefix="pasta-accesses-", suffix=".arrows", dir=directory or None
        )
        os.close(descriptor)
        self._file = pa.OSFile(self.path, "wb")
        compressed = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
        self._stream = pa.ipc.new_stream(self._file, _SCHEMA, options=compressed)

    def add(self, position: int, words: NDArray[Any]) -> None:
        """Writes records (int64 words) that follow the events before `position`."""
        chunk = pa.LargeListArray.from_arrays(to_arrow([0, len(words)]), to_arrow(words))
        at = to_arrow(np.array([position], np.uint64))
        batch = pa.RecordBatch.from_arrays([at, chunk], schema=_SCHEMA)
        self._stream.write_batch(batch)

    def close(self) -> None:
        """Completes the file. Raises OSError."""
        self._stream.close()
        self._file.close()


def recorded_accesses(results: Path) -> list[Path]:
    """Parts of a run, in order."""
    return sorted((results / TOOL).glob("accesses-[0-9]*.arrows"))


def read_accesses(
    paths: list[Path], on_warning: Callable[[str], None]
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Chunks of records (int64 words), each with the position of the events before it.

    `on_warning` receives a line about a truncated file. Raises RunError for another format or
    version.
    """
    for path in paths:
        try:
            real = str(regular_file(path, path.parents[2]))
            with pa.memory_map(real) as file:
                messages = pa.ipc.MessageReader.open_stream(file)
                schema = pa.ipc.read_schema(messages.read_next_message())
                if (schema.metadata or {}).get(b"pasta.accesses") != _VERSION:
                    raise RunError(f"{path}: accesses from another version of PASTA")
                if not schema.equals(_SCHEMA):
                    raise RunError(f"{path}: its columns are not those of accesses")
                yield from _chunks(messages, path, on_warning)
        except StopIteration:
            raise RunError(f"{path}: cannot be read (it is empty)") from None
        except (OSError, ValueError, TypeError, pa.ArrowException) as error:
            raise unreadable(path, error) from None


def _chunks(
    messages: Any, path: Path, on_warning: Callable[[str], None]
) -> Iterator[tuple[int, NDArray[Any]]]:
    count = 0
    while True:
        try:
            message = messages.read_next_message()
            if _unpacked_bytes(message) > _MAX_CHUNK:
                raise ValueError("a chunk exceeds the size limit")
            batch = pa.ipc.read_record_batch(message, _SCHEMA)
            batch.validate(full=True)  # otherwise offsets may be out of bounds
            if any(column.null_count for column in batch.columns):
                raise ValueError("a chunk is null")
        except StopIteration:
            return
        except (OSError, ValueError, TypeError, MemoryError, struct.error, pa.ArrowException):
            on_warning(f"{path.name} is truncated: accesses after chunk {count:,} are missing")
            return
        count += 1
        for position, words in zip(batch.column(0), batch.column(1), strict=True):
            yield position.as_py(), to_numpy(words.values)


def _unpacked_bytes(message: Any) -> int:
    """Decompressed size of a record batch's buffers, in bytes, which Arrow would allocate.

    Each compressed buffer begins with its size. Buffer offsets are in the message's metadata, a
    flatbuffer: https://github.com/apache/arrow/blob/main/format/Message.fbs. Raises struct.error.
    """
    data, body = memoryview(message.metadata), memoryview(message.body or b"")
    header = _field(data, struct.unpack_from("<I", data)[0], 2)
    vector = _field(data, header, 2)
    (count,) = struct.unpack_from("<I", data, vector)
    total = 0
    for number in range(count):
        offset, length = struct.unpack_from("<qq", data, vector + 4 + 16 * number)
        if length:
            (size,) = struct.unpack_from("<q", body, offset)
            total += max(size, length)  # -1: not compressed
    return total


def _field(data: memoryview, table: int, number: int) -> int:
    """Offset of the value that a field of a flatbuffer table refers to."""
    entries = table - struct.unpack_from("<i", data, table)[0]
    (offset,) = struct.unpack_from("<H", data, entries + 4 + 2 * number)
    at: int = table + offset
    return at + int(struct.unpack_from("<I", data, at)[0])
