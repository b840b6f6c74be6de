"""Files of a run that may have come from anywhere: their names, their places, and how much of
them is read.

A name that a file gives is used for a path only if it is plain. A file is opened only if it is a
regular one inside of its run: no link that leads elsewhere, no pipe or device that would block.
Parquet tables are opened only if what they decode to is in proportion to their size.
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

#: Characters of a plain name, and bytes, so that NAME.parquet is the name of a file.
MAX_NAME, MAX_NAME_BYTES = 100, 200
NAME_RULE = (
    f"a plain name: at most {MAX_NAME} characters, no slash or control character, no dot at its"
    " start"
)

#: A table of which more is read than reports show may decode to this many cells, or to so many for
#: each of its bytes.
MAX_CELLS, CELLS_PER_BYTE = 1 << 25, 8
#: What a packed file may unpack to: this, or so much for each of its bytes.
MAX_UNPACKED, UNPACKED_PER_BYTE = 256 << 20, 64
#: Columns of a table, and bytes that one of its columns may decode to in a row group.
MAX_COLUMNS, MAX_CHUNK = 4096, 512 << 20
#: Bytes of texts and numbers that one batch of rows may have.
MAX_BATCH = 128 << 20
_THRIFT = {"thrift_string_size_limit": 16 << 20, "thrift_container_size_limit": 1 << 20}


def is_plain_name(value: object) -> bool:
    """Whether a value is a name that stays in its directory and on its line."""
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
    """A file of a run, its links resolved. Raises RunError unless it is a regular one inside."""
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
    """What to raise for a file that cannot be read, in one line."""
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return RunError(f"{plain(str(path))}: cannot be read ({plain(why)})")


def read_bounded(path: Path, run: Path, most: int) -> bytes:
    """Content of a file of a run. Raises RunError, also where it has above `most` bytes."""
    real = regular_file(path, run)
    try:
        with real.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise unreadable(path, error) from None
    if len(content) > most:
        raise RunError(f"{plain(str(path))}: above {most >> 20} MiB")
    return content


def unpacked_limit(path: Path) -> int:
    """Bytes that a packed file may unpack to. Raises OSError."""
    return max(MAX_UNPACKED, UNPACKED_PER_BYTE * path.stat().st_size)


def directories(place: Path, run: Path) -> list[Path]:
    """Directories with a plain name in a directory of a run, in order; none where it is absent."""
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
    """Turns what pyarrow raises for a damaged file into a RunError that names it."""
    try:
        yield
    except (
        OSError, ValueError, LookupError, TypeError, ArithmeticError, MemoryError, RuntimeError,
        pa.ArrowException,
    ) as error:  # fmt: skip
        raise unreadable(path, error) from None


def open_parquet(path: Path, run: Path, *, whole: bool = True) -> pq.ParquetFile:
    """A Parquet file of a run; its texts are read as dictionaries, each distinct one once.

    Raises RunError for one that is damaged, or, where more is to be read than a few rows, that
    decodes to much more than its size.
    """
    import pyarrow.parquet as pq

    real = regular_file(path, run)
    with reading(path):
        file = pq.ParquetFile(real, **_THRIFT)
        schema = file.schema_arrow
        if len(schema) <= MAX_COLUMNS and (texts := _texts(schema)):
            file = pq.ParquetFile(real, metadata=file.metadata, read_dictionary=texts, **_THRIFT)
        why = _refusal(file, real.stat().st_size, whole)
    if why:
        raise RunError(f"{plain(str(path))}: {why}", remedy="pyarrow.parquet reads it, if you must")
    return file


def _texts(schema: pa.Schema) -> list[str]:
    return [each.name for each in schema if pa.types.is_string(each.type)]


def _refusal(file: pq.ParquetFile, size: int, whole: bool) -> str | None:
    """Why a file is not read; None if it may be."""
    metadata, names = file.metadata, file.schema_arrow.names
    if metadata.num_columns > MAX_COLUMNS:
        return f"{metadata.num_columns:,} columns, at most {MAX_COLUMNS:,} are read"
    if len(set(names)) < len(names):
        return "two columns have the same name"
    most = max(MAX_CELLS, CELLS_PER_BYTE * size)
    if whole and metadata.num_rows * len(names) > most:
        return f"{size:,} bytes that decode to {metadata.num_rows:,} rows of {len(names):,} columns"
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for at in range(metadata.num_columns):
            column = group.column(at)
            name = plain(column.path_in_schema, 80)
            if not 0 <= column.total_uncompressed_size <= MAX_CHUNK:
                return f"column {name} has {column.total_uncompressed_size:,} bytes in a row group"
            if column.num_values < 0 or (whole and column.num_values > most):
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
    """Rows of a file, at most `rows` at a time and fewer where there are many columns; `first`:
    no more than these. Raises RunError for a damaged file."""
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
    """Rows with plain texts instead of dictionaries of them."""
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
        raise ValueError(f"texts of {len(array):,} rows are above {MAX_CHUNK >> 20} MiB")
    return array.dictionary_decode()


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of rows that went through `with_texts`."""
    for at, field in enumerate(schema):
        if pa.types.is_dictionary(field.type) and pa.types.is_string(field.type.value_type):
            schema = schema.set(at, field.with_type(pa.string()))
    return schema
