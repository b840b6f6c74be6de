"""Validated access to files of an untrusted run: names, paths and size limits.

A name from a file is used in a path only if it is plain. Only regular files inside the run are
opened: no link that leads out of it, no pipe or device that would block. Parquet tables are opened
only if their decoded size is in proportion to the file size.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pasta.errors import RunError
from pasta.lazy import pa
from pasta.table import plain, visible

if TYPE_CHECKING:
    import pyarrow.parquet as pq

#: Characters and bytes of a plain name: short enough for the file name NAME.parquet.
MAX_NAME, MAX_NAME_BYTES = 100, 200
NAME_RULE = (
    f"a plain name: at most {MAX_NAME} characters, no slash or control character, no leading dot"
)

#: Maximum cells of a table that is read whole: this many, or this many per byte of the file.
MAX_CELLS, CELLS_PER_BYTE = 1 << 25, 8
#: Maximum decompressed size of a file: this many bytes, or this many per byte of the file.
MAX_UNPACKED, UNPACKED_PER_BYTE = 256 << 20, 64
#: Columns of a table, and decoded bytes of one column in a row group.
MAX_COLUMNS, MAX_CHUNK = 4096, 512 << 20
#: Decoded bytes of one batch of rows.
MAX_BATCH = 128 << 20
_THRIFT = {"thrift_string_size_limit": 16 << 20, "thrift_container_size_limit": 1 << 20}


def is_plain_name(value: object) -> bool:
    """Whether a value is a string that is safe as a file name and prints on one line."""
    return (
        isinstance(value, str)
        and bool(value)
        and not value.startswith(".")
        and not set(value) & {"/", "\\"}
        and visible(value) == value
        and len(value) <= MAX_NAME
        and len(value.encode()) <= MAX_NAME_BYTES
    )


def regular_file(path: Path, run: Path) -> Path:
    """Resolves the links of a file. Raises RunError unless it is a regular file in the run."""
    try:
        real = os.path.realpath(path, strict=True)
        if not Path(real).is_relative_to(os.path.realpath(run)):
            raise RunError(f"{plain(str(path))}: a link that leads out of the run")
        if not stat.S_ISREG(os.lstat(real).st_mode):
            raise RunError(f"{plain(str(path))}: not a regular file")
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    return Path(real)


def unreadable(path: Path, error: BaseException) -> RunError:
    """The exception for a file that cannot be read, with a one-line message."""
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return RunError(f"{plain(str(path))}: cannot be read ({plain(why)})")


def read_bounded(path: Path, run: Path, max_bytes: int) -> bytes:
    """Content of a file of a run. Raises RunError if it cannot be read or exceeds `max_bytes`."""
    real = regular_file(path, run)
    try:
        with real.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise unreadable(path, error) from None
    if len(content) > max_bytes:
        raise RunError(f"{plain(str(path))}: larger than {max_bytes >> 20} MiB")
    return content


def unpacked_limit(path: Path) -> int:
    """Maximum decompressed size of a file, in bytes. Raises OSError."""
    return max(MAX_UNPACKED, UNPACKED_PER_BYTE * path.stat().st_size)


def directories(place: Path, run: Path) -> list[Path]:
    """Subdirectories with plain names, sorted; empty if `place` does not exist. Raises RunError."""
    try:
        with os.scandir(place) as entries:
            found = sorted(each.name for each in entries if each.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(place, error) from None
    if not Path(os.path.realpath(place)).is_relative_to(os.path.realpath(run)):
        raise RunError(f"{plain(str(place))}: a link that leads out of the run")
    return [place / name for name in found if is_plain_name(name)]


# ---- Parquet ----


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns pyarrow's exceptions for a damaged file into a RunError that names the file."""
    try:
        yield
    except (
        OSError, ValueError, LookupError, TypeError, ArithmeticError, MemoryError, RuntimeError,
        pa.ArrowException,
    ) as error:  # fmt: skip
        raise unreadable(path, error) from None


def open_parquet(path: Path, run: Path, *, whole: bool = True) -> pq.ParquetFile:
    """Opens a Parquet file of a run; texts are read as dictionaries, each distinct one once.

    Raises RunError if it is damaged or, with `whole`, decodes to much more than its size.
    """
    import pyarrow.parquet as pq

    real = regular_file(path, run)
    with reading(path):
        file = pq.ParquetFile(_native(real), **_THRIFT)
        schema = file.schema_arrow
        if len(schema) <= MAX_COLUMNS and (texts := _texts(schema)):
            file = pq.ParquetFile(
                _native(real), metadata=file.metadata, read_dictionary=texts, **_THRIFT
            )
        why = _refusal(file, real.stat().st_size, whole)
    if why:
        raise RunError(f"{plain(str(path))}: {why}", remedy="read it with pyarrow.parquet")
    return file


def _native(path: Path) -> pa.NativeFile:
    return pa.OSFile(os.fsencode(path))  # pyarrow takes names that are not UTF-8 as bytes only


@contextmanager
def writing(path: Path) -> Iterator[pa.NativeFile]:
    """A new file for pyarrow, removed if writing it fails. Raises OSError."""
    try:
        with pa.OSFile(os.fsencode(path), "wb") as file:
            yield file
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _texts(schema: pa.Schema) -> list[str]:
    return [each.name for each in schema if pa.types.is_string(each.type)]


def _refusal(file: pq.ParquetFile, size: int, whole: bool) -> str | None:
    """Why a file is refused; None if it is accepted."""
    metadata, names = file.metadata, file.schema_arrow.names
    if metadata.num_columns > MAX_COLUMNS:
        return f"{metadata.num_columns:,} columns, at most {MAX_COLUMNS:,} are read"
    if len(set(names)) < len(names):
        return "two columns have the same name"
    max_cells = max(MAX_CELLS, CELLS_PER_BYTE * size)
    if whole and metadata.num_rows * len(names) > max_cells:
        return f"{size:,} bytes that decode to {metadata.num_rows:,} rows of {len(names):,} columns"
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for at in range(metadata.num_columns):
            column = group.column(at)
            name = plain(column.path_in_schema, 80)
            if not 0 <= column.total_uncompressed_size <= MAX_CHUNK:
                return f"column {name} has {column.total_uncompressed_size:,} bytes in a row group"
            if column.num_values < 0 or (whole and column.num_values > max_cells):
                return f"{size:,} bytes that decode to {column.num_values:,} values of {name}"
    return None


def batches(
    file: pq.ParquetFile,
    path: Path,
    columns: Sequence[str] | None = None,
    *,
    rows: int = 1 << 16,
    first: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows of a file, at most `rows` at a time and fewer if it has many columns; `first`: maximum
    number of rows. Raises RunError for a damaged file."""
    wide = max(1, len(columns) if columns is not None else file.metadata.num_columns)
    at_once = max(1, min(rows, MAX_BATCH // (8 * wide)))
    if first is not None:
        at_once = max(1, min(at_once, first))
    left = first
    with reading(path):
        found = file.iter_batches(batch_size=at_once, columns=columns)
    while left is None or left > 0:
        with reading(path):
            batch = next(found, None)
        if batch is None:
            return
        if left is not None:
            batch = batch.slice(0, left)
            left -= len(batch)
        yield batch


def with_texts(batch: pa.RecordBatch, path: Path) -> pa.RecordBatch:
    """The batch with its dictionary-encoded texts decoded. Raises RunError."""
    with reading(path):
        arrays = [_plain_text(each) for each in batch.columns]
        fields = [
            field.with_type(array.type) for field, array in zip(batch.schema, arrays, strict=True)
        ]
        return pa.RecordBatch.from_arrays(
            arrays, schema=pa.schema(fields, metadata=batch.schema.metadata)
        )


def _plain_text(array: pa.Array) -> pa.Array:
    if not (pa.types.is_dictionary(array.type) and pa.types.is_string(array.type.value_type)):
        return array
    import pyarrow.compute as pc

    lengths = pc.binary_length(array.dictionary).take(array.indices)
    if (pc.sum(lengths).as_py() or 0) > MAX_CHUNK:
        raise ValueError(f"texts of {len(array):,} rows are larger than {MAX_CHUNK >> 20} MiB")
    return array.dictionary_decode()


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema after `with_texts`."""
    for at, field in enumerate(schema):
        if pa.types.is_dictionary(field.type) and pa.types.is_string(field.type.value_type):
            schema = schema.set(at, field.with_type(pa.string()))
    return schema
