"""Events as Parquet: one table per event kind, in parts `KIND-00000.parquet`.

Columns are the fields of header and payload; `position` is the global order. String ids and
enumerations become dictionary-encoded text, arrays of three become `_x`, `_y`, `_z`, longer arrays
of ids become lists without absent values, and fields that a source does not provide are null.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pasta import abi
from pasta.arrow import to_arrow, to_numpy
from pasta.errors import RunError
from pasta.processors.batch import Batch
from pasta.run.files import batches, open_parquet, plain_schema, with_texts, writing
from pasta.table import plain

if TYPE_CHECKING:
    from pasta.processors.strings import Strings

#: Bytes of records buffered before a part is written.
PART_BYTES = 32 << 20
_SKIPPED = {"index", "kind", "slots"}
_NEVER_ABSENT = {"time", "thread", "flags"}
_ZERO_ABSENT = {"correlation"}
_SORTED = {"position", "time", "ordinal", "correlation", "start", "end"}
_AXES = "xyz"
#: Columns added in schema 3, and in schema 4 for device_sample; absent in older runs.
_ADDED = {
    "pc_sample": {"name", "module_hash", "symbol"},
    "device_sample": {"link_bandwidth"},
}
#: Columns of texts that were numbers before schema 3.
_ONCE_NUMBERS = {"pc_sample": {"reason"}}
#: Receives a line about data that could not be read.
OnWarning = Callable[[str], None]
#: Rows whose distinct values NumPy finds faster than Arrow is imported.
_FEW = 1 << 14
#: A record's `index` is its distance from the first record of its batch: 32 bits.
_MAX_INDEX = 2**32 - 1
_PART = re.compile(r"(?P<kind>[a-z_]+)-(?P<part>\d{5})\.parquet")


@dataclass(frozen=True)
class _Part:
    kind: str
    path: Path
    bytes: int
    rows: int


class Recorder:
    """Writes batches to a directory; a part is complete once it has its final name.

    After `max_bytes`, further events are left out, or with `rotate` the oldest parts are dropped
    except parts that later events need. `counts` are stored events by kind, `left_out` events left
    out or dropped.
    """

    def __init__(
        self, directory: Path, strings: Strings, max_bytes: int = 0, *, rotate: bool = False
    ) -> None:
        self.directory = directory
        self.counts: dict[str, int] = {}
        self.left_out: dict[str, int] = {}
        self._max_bytes, self._rotate = max_bytes, rotate
        self._size = 0
        self._oldest: deque[_Part] = deque()
        self._strings = strings
        self._waiting: dict[str, list[tuple[int, Any]]] = {}
        self._bytes = 0
        self._parts: dict[str, int] = {}
        directory.mkdir(parents=True, exist_ok=True)

    def add(self, batch: Batch) -> None:
        """Buffers a batch, which must not change afterwards."""
        for kind, records in batch:
            if len(records) and self._is_over:
                self.left_out[kind] = self.left_out.get(kind, 0) + len(records)
            elif len(records):
                self._waiting.setdefault(kind, []).append((batch.base, records))
                self._bytes += records.nbytes

    @property
    def full(self) -> bool:
        """Whether the buffer should be flushed."""
        return self._bytes >= (min(PART_BYTES, self._max_bytes) or PART_BYTES)

    def flush(self) -> None:
        """Writes the buffered records. Raises OSError, for example if the disk is full."""
        for kind, pieces in self._waiting.items():
            table = self._table(kind, pieces)
            part = self._parts.get(kind, 0)
            path = self.directory / f"{kind}-{part:05}.parquet"
            temporary = path.with_suffix(".writing")
            delta = {c: "DELTA_BINARY_PACKED" for c in table.column_names if c in _SORTED}
            with writing(temporary) as file:
                pq.write_table(
                    table,
                    file,
                    compression="zstd",
                    compression_level=1,
                    use_dictionary=[c for c in table.column_names if c not in _SORTED],
                    column_encoding=delta,
                    write_statistics=["position", "time"],
                )
            temporary.rename(path)
            self._parts[kind] = part + 1
            self.counts[kind] = self.counts.get(kind, 0) + table.num_rows
            written = _Part(kind, path, path.stat().st_size, table.num_rows)
            self._size += written.bytes
            if kind not in abi.RETAINED:
                self._oldest.append(written)
        self._waiting, self._bytes = {}, 0
        while self._rotate and self._oldest and self._size > self._max_bytes:
            self._drop(self._oldest.popleft())

    @property
    def _is_over(self) -> bool:
        return 0 < self._max_bytes <= self._size and not self._rotate

    def _drop(self, part: _Part) -> None:
        part.path.unlink()
        self._size -= part.bytes
        self.counts[part.kind] -= part.rows
        self.left_out[part.kind] = self.left_out.get(part.kind, 0) + part.rows

    def _table(self, kind: str, pieces: list[tuple[int, Any]]) -> pa.Table:
        position = np.concatenate(
            [records["index"].astype(np.uint64) + np.uint64(base) for base, records in pieces]
        )
        columns: dict[str, Any] = {"position": to_arrow(position)}
        strings, enums = abi.string_fields(kind), abi.enum_fields(kind)
        for name in abi.dtype(kind).names or ():
            if name in _SKIPPED:
                continue
            values = np.concatenate([records[name] for _, records in pieces])
            if name in strings:
                columns[name] = self._text(values)
            elif name in enums:
                columns[name] = _named(values, enums[name])
            elif values.ndim == 2 and values.shape[1] <= len(_AXES):
                for at, axis in enumerate(_AXES[: values.shape[1]]):
                    columns[f"{name}_{axis}"] = _nullable(name, np.ascontiguousarray(values[:, at]))
            elif values.ndim == 2:
                columns[name] = _listed(name, values)
            else:
                columns[name] = _nullable(name, values)
        return pa.table(columns)

    def _text(self, ids: Any) -> pa.Array:
        return _dictionary_of(ids, self._strings.text_or_none)


def _named(values: Any, names: dict[int, str]) -> pa.Array:
    absent = np.iinfo(values.dtype).max
    return _dictionary_of(values, lambda v: None if v == absent else names.get(v, str(v)))


def _dictionary_of(values: Any, text_of: Callable[[int], str | None]) -> pa.Array:
    """Dictionary-encoded texts of numbers; a text that is None makes its rows null."""
    if len(values) < _FEW:  # Arrow's encoder imports pyarrow.compute: 30 ms
        distinct, codes = np.unique(values, return_inverse=True)
        codes = codes.astype(np.int32)
    else:
        encoded = to_arrow(values).dictionary_encode()
        distinct, codes = to_numpy(encoded.dictionary), to_numpy(encoded.indices)
    texts = [text_of(value) for value in distinct.tolist()]
    absent = np.array([text is None for text in texts], bool)
    # not empty, or the array would have no type
    known = to_arrow(["" if text is None else text for text in texts] or [""])
    return pa.DictionaryArray.from_arrays(to_arrow(codes, absent[codes]), known)


def _absent(name: str, dtype: np.dtype[Any]) -> float | None:
    if name in _NEVER_ABSENT:
        return None
    if name in _ZERO_ABSENT:
        return 0
    if dtype.kind == "f":
        return float("nan")  # all bits set is a NaN
    return abi.absent(name, dtype)


def _nullable(name: str, values: Any) -> pa.Array:
    absent = _absent(name, values.dtype)
    mask = None if absent is None else values == absent
    if values.dtype.kind == "f":
        mask = np.isnan(values)
    return to_arrow(values, mask)


def _listed(name: str, values: Any) -> pa.Array:
    """Each row's numbers as a list, without absent ones at its end."""
    present = values != _absent(name, values.dtype)
    width = values.shape[1]
    lengths = np.where(present.any(axis=1), width - present[:, ::-1].argmax(axis=1), 0)
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    held = np.arange(width) < lengths[:, None]
    return pa.ListArray.from_arrays(to_arrow(offsets), _nullable(name, values[held]))


def parts(directory: Path) -> dict[str, list[Path]]:
    """Part files by kind, in order."""
    found: dict[str, list[Path]] = {}
    for path in sorted(directory.glob("*.parquet")):
        match = _PART.fullmatch(path.name)
        if match and match["kind"] in abi.KINDS:
            found.setdefault(match["kind"], []).append(path)
    return found


def counts(directory: Path, on_warning: OnWarning | None = None) -> dict[str, int]:
    """Numbers of recorded events by kind. `on_warning` as in `read_batches`."""
    found: dict[str, int] = {}
    for kind, file in _all_opened(directory, on_warning):
        found[kind] = found.get(kind, 0) + file.metadata.num_rows
    return dict(sorted(found.items()))


def span(directory: Path, on_warning: OnWarning | None = None) -> tuple[int, int]:
    """Times (ns) of the first and last recorded event; (0, 0) without events. `on_warning` as in
    `read_batches`."""
    times: list[int] = []
    for _, file in _all_opened(directory, on_warning):
        metadata = file.metadata
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            for column in map(group.column, range(metadata.num_columns)):
                statistics = column.statistics if column.path_in_schema == "time" else None
                if statistics is not None and statistics.has_min_max:
                    both = (statistics.min, statistics.max)
                    times += [each for each in both if isinstance(each, int) and 0 <= each < 2**63]
    return min(times, default=0), max(times, default=0)


def _all_opened(
    directory: Path, on_warning: OnWarning | None
) -> Iterator[tuple[str, pq.ParquetFile]]:
    for kind, files in parts(directory).items():
        for path in files:
            try:
                yield kind, _opened(path)
            except RunError as error:
                if on_warning is None:
                    raise
                on_warning(str(error))


def read_kind(
    directory: Path, kind: str, columns: Sequence[str] | None = None, *, rows: int = 1 << 17
) -> Iterator[pa.RecordBatch]:
    """Recorded events of a kind in order, at most `rows` at a time; all columns, or these. A file
    without events yields a batch without rows.

    Raises RunError if the kind or a column does not exist, or a file cannot be read.
    """
    found = parts(directory)
    if kind not in found:
        known = f"there are {', '.join(sorted(found))}" if found else "there are no events"
        raise RunError(f"{directory}: no events of kind {kind!r}", remedy=known)
    for path in found[kind]:
        file = _opened(path)
        unknown = set(columns or ()) - set(file.schema_arrow.names)
        if unknown:
            raise RunError(
                f"{path}: no column {sorted(unknown)[0]!r}",
                remedy=f"there are {', '.join(file.schema_arrow.names)}",
            )
        if not file.metadata.num_rows:
            fields = [
                field for field in file.schema_arrow if columns is None or field.name in columns
            ]
            yield pa.RecordBatch.from_pylist([], plain_schema(pa.schema(fields)))
        for batch in batches(file, path, columns, rows=rows):
            yield with_texts(batch, path)


def _opened(path: Path) -> pq.ParquetFile:
    return open_parquet(path, path.parents[1])


def read_batches(
    directory: Path,
    strings: Strings,
    *,
    kinds: Collection[str] | None = None,
    on_warning: OnWarning | None = None,
    rows: int = 1 << 17,
) -> Iterator[Batch]:
    """Recorded events as batches, in order: of all kinds, or of these.

    Texts get their ids in `strings`, to which unknown texts are added. Memory is bounded: each kind
    is read a few row groups at a time, and a batch ends where every kind has been read. A file that
    cannot be read is skipped, and `on_warning` receives a line; without it, RunError is raised.
    """
    streams = {
        kind: _Stream(kind, files, strings, rows, on_warning)
        for kind, files in parts(directory).items()
        if kinds is None or kind in kinds
    }
    while True:
        live = [stream for stream in streams.values() if stream.fill()]
        if not live:
            return
        # Stop where some kind has not been read further, since its next records may come first,
        # and where a record's index would exceed 32 bits.
        horizon = min(stream.last for stream in live)
        horizon = min(horizon, min(stream.next for stream in live) + _MAX_INDEX)
        taken = {s.kind: s.take(horizon) for s in live}
        taken = {kind: piece for kind, piece in taken.items() if len(piece[0])}
        base = min(int(piece[0][0]) for piece in taken.values())
        records = {}
        for kind, (position, array) in taken.items():
            array["index"] = position - np.uint64(base)
            records[kind] = array
        yield Batch(base, records)


class _Stream:
    """Records of one kind, read a bounded number of rows at a time."""

    def __init__(
        self,
        kind: str,
        files: list[Path],
        strings: Strings,
        rows: int,
        on_warning: OnWarning | None,
    ) -> None:
        self.kind = kind
        self._strings, self._on_warning = strings, on_warning
        self._pieces = self._read(files, rows)
        self._position: Any = np.empty(0, np.uint64)
        self._records: Any = np.empty(0, abi.dtype(kind))
        self._read_to = -1  # position of the last record read

    def _read(self, files: list[Path], rows: int) -> Iterator[tuple[Any, Any]]:
        for path in files:
            try:
                for chunk in batches(_opened(path), path, rows=rows):
                    if len(chunk):
                        yield self._converted(path, chunk)
            except RunError as error:
                if self._on_warning is None:
                    raise
                self._on_warning(f"{error}: its events are missing")

    def fill(self) -> bool:
        """Reads a piece if the buffer is empty; False at the end."""
        if not len(self._position):
            piece = next(self._pieces, None)
            if piece is not None:
                self._position, self._records = piece
        return len(self._position) > 0

    @property
    def next(self) -> int:
        return int(self._position[0])

    @property
    def last(self) -> int:
        return int(self._position[-1])

    def take(self, horizon: int) -> tuple[Any, Any]:
        """Records up to and including position `horizon`."""
        count = int(np.searchsorted(self._position, np.uint64(horizon), side="right"))
        taken = self._position[:count], self._records[:count]
        self._position, self._records = self._position[count:], self._records[count:]
        return taken

    def _converted(self, path: Path, chunk: pa.RecordBatch) -> tuple[Any, Any]:
        try:
            position, records = self._records_of(chunk)
            if position[0] <= self._read_to or (position[1:] <= position[:-1]).any():
                raise ValueError("positions are not ascending")
        except (
            LookupError, pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError
        ) as error:  # fmt: skip
            why = plain(str(error) or type(error).__name__)
            raise RunError(f"{plain(str(path))}: not written by PASTA ({why})") from None
        self._read_to = int(position[-1])
        return position, records

    def _records_of(self, chunk: pa.RecordBatch) -> tuple[Any, Any]:
        kind = self.kind
        dtype = abi.dtype(kind)
        records = np.zeros(chunk.num_rows, dtype)
        records["kind"] = abi.KINDS[kind]
        records["slots"] = dtype.itemsize // abi.SLOT
        strings, enums = abi.string_fields(kind), abi.enum_fields(kind)
        added = _ADDED.get(kind, set()).difference(chunk.schema.names)
        for name in added:
            records[name] = 0 if name in strings else abi.absent(name, dtype[name])
        for name in dtype.names or ():
            if name in _SKIPPED or name in added:
                continue
            if name in strings:
                records[name] = self._ids(name, chunk.column(name))
            elif name in enums:
                records[name] = _numbers(name, chunk.column(name), enums[name], dtype[name])
            elif dtype[name].shape and dtype[name].shape[0] <= len(_AXES):
                for at, axis in enumerate(_AXES[: dtype[name].shape[0]]):
                    column = chunk.column(f"{name}_{axis}")
                    records[name][:, at] = _filled(name, column, dtype[name].base)
            elif dtype[name].shape:
                records[name] = _unlisted(name, chunk.column(name), dtype[name])
            else:
                records[name] = _filled(name, chunk.column(name), dtype[name])
        position = _checked("position", chunk.column("position"), np.dtype(np.uint64), None)
        return position, records

    def _ids(self, name: str, column: Any) -> Any:
        if name in _ONCE_NUMBERS.get(self.kind, ()) and pa.types.is_integer(column.type):
            column = column.cast(pa.string())
        texts, codes = _dictionary(name, column)
        ids = [0 if text is None else self._strings.id_of(text) for text in texts] or [0]
        return np.where(codes < 0, np.uint32(0), np.asarray(ids, np.uint32)[np.maximum(codes, 0)])


def _dictionary(name: str, column: Any) -> tuple[list[str | None], Any]:
    """Distinct texts and their index per row, -1 for null. Raises ValueError for other types."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    if not pa.types.is_string(column.type.value_type):
        raise ValueError(f"{name} is {column.type.value_type}, not text")
    codes = to_numpy(column.indices, -1)
    return column.dictionary.to_pylist(), codes


def _numbers(name: str, column: Any, names: dict[int, str], dtype: np.dtype[Any]) -> Any:
    texts, codes = _dictionary(name, column)
    by_name = {name: number for number, name in names.items()}
    absent = int(np.iinfo(dtype).max)
    numbers = np.array(
        [absent if t is None else by_name.get(t, absent) for t in texts] or [absent], dtype
    )
    return np.where(codes < 0, dtype.type(absent), numbers[np.maximum(codes, 0)])


def _unlisted(name: str, column: Any, dtype: np.dtype[Any]) -> Any:
    (width,) = dtype.shape
    if not pa.types.is_list(column.type) or column.null_count:
        raise ValueError(f"{name} is {column.type}, not a list in each row")
    lengths = to_numpy(column.value_lengths())
    if lengths.max(initial=0) > width:
        raise ValueError(f"{name} has {lengths.max()} values in a row, of at most {width}")
    values = np.full((len(column), width), _absent(name, dtype.base), dtype.base)
    starts = np.cumsum(lengths) - lengths
    row = np.repeat(np.arange(len(lengths)), lengths)
    values[row, np.arange(len(row)) - starts[row]] = _filled(name, column.flatten(), dtype.base)
    return values


def _filled(name: str, column: Any, dtype: np.dtype[Any]) -> Any:
    return _checked(name, column, dtype, _absent(name, dtype))


def _checked(name: str, column: Any, dtype: np.dtype[Any], absent: float | None) -> Any:
    """A column's numbers cast to this type. Raises ValueError if they do not fit."""
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        type = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        raise ValueError(f"{name} is {type}, not a number")
    if absent is None and column.null_count:
        raise ValueError(f"{name} is absent in {column.null_count:,} rows")
    wanted = pa.from_numpy_dtype(dtype)
    if column.type != wanted:
        try:
            column = column.cast(wanted)
        except pa.ArrowInvalid as error:
            raise ValueError(f"{name}: {error}") from None
    return to_numpy(column, absent)
