"""Events as Parquet: one table per event kind, in parts `KIND-00000.parquet`.

Columns are the header's and payload's fields; `position` is the global order.  String ids and
numbers with names become dictionary-encoded text, arrays of three become `_x`, `_y`, `_z`, longer
ones, ids of which some are absent, become lists, and what a source could not give is null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pasta import abi
from pasta.errors import RunError
from pasta.processors.batch import Batch

if TYPE_CHECKING:
    from pasta.processors.strings import Strings

#: Bytes of records that are collected before a part is written.
PART_BYTES = 32 << 20
_SKIPPED = {"index", "kind", "slots"}
_NEVER_ABSENT = {"time", "thread", "flags"}
_ZERO_ABSENT = {"correlation"}
_SORTED = {"position", "time", "ordinal", "correlation", "start", "end"}
_AXES = "xyz"
_PART = re.compile(r"(?P<kind>[a-z_]+)-(?P<part>\d{5})\.parquet")


class Recorder:
    """Writes batches to a directory; a part is complete as soon as it has its name."""

    def __init__(self, directory: Path, strings: Strings) -> None:
        self.directory = directory
        self.counts: dict[str, int] = {}
        self._strings = strings
        self._waiting: dict[str, list[tuple[int, Any]]] = {}
        self._bytes = 0
        self._parts: dict[str, int] = {}
        directory.mkdir(parents=True, exist_ok=True)

    def add(self, batch: Batch) -> None:
        """Takes a batch, which must not change afterwards."""
        for kind, records in batch:
            if len(records):
                self._waiting.setdefault(kind, []).append((batch.base, records))
                self._bytes += records.nbytes

    @property
    def full(self) -> bool:
        """Whether it is time to flush."""
        return self._bytes >= PART_BYTES

    def flush(self) -> None:
        """Writes what was added. Raises OSError where the disk is full."""
        for kind, pieces in self._waiting.items():
            table = self._table(kind, pieces)
            part = self._parts.get(kind, 0)
            path = self.directory / f"{kind}-{part:05}.parquet"
            temporary = path.with_suffix(".writing")
            delta = {c: "DELTA_BINARY_PACKED" for c in table.column_names if c in _SORTED}
            pq.write_table(
                table,
                temporary,
                compression="zstd",
                compression_level=1,
                use_dictionary=[c for c in table.column_names if c not in _SORTED],
                column_encoding=delta,
                write_statistics=["position", "time"],
            )
            temporary.rename(path)
            self._parts[kind] = part + 1
            self.counts[kind] = self.counts.get(kind, 0) + table.num_rows
        self._waiting, self._bytes = {}, 0

    def _table(self, kind: str, pieces: list[tuple[int, Any]]) -> pa.Table:
        position = np.concatenate(
            [records["index"].astype(np.uint64) + np.uint64(base) for base, records in pieces]
        )
        columns: dict[str, Any] = {"position": pa.array(position)}
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
        return _dictionary_of(ids, self._strings.told)


def _named(values: Any, names: dict[int, str]) -> pa.Array:
    absent = np.iinfo(values.dtype).max
    return _dictionary_of(values, lambda v: None if v == absent else names.get(v, str(v)))


def _dictionary_of(values: Any, text_of: Callable[[int], str | None]) -> pa.Array:
    """Dictionary-encoded texts of numbers; a text that is None makes its rows null."""
    encoded = pa.array(values).dictionary_encode()
    codes = encoded.indices
    texts = [text_of(value) for value in encoded.dictionary.to_pylist()]
    if None in texts:
        absent = np.array([text is None for text in texts])
        codes = pa.array(codes.to_numpy(), mask=absent[codes.to_numpy()])
    values = pa.array(["" if text is None else text for text in texts], pa.string())
    return pa.DictionaryArray.from_arrays(codes, values)


def _absent(name: str, dtype: np.dtype[Any]) -> int | None:
    if name in _NEVER_ABSENT:
        return None
    if name in _ZERO_ABSENT:
        return 0
    return -1 if dtype.kind == "i" else int(np.iinfo(dtype).max)


def _nullable(name: str, values: Any) -> pa.Array:
    absent = _absent(name, values.dtype)
    mask = None if absent is None else values == absent
    return pa.array(values, mask=mask if mask is not None and mask.any() else None)


def _listed(name: str, values: Any) -> pa.Array:
    """Lists of each row's numbers, without those absent at its end."""
    present = values != _absent(name, values.dtype)
    width = values.shape[1]
    lengths = np.where(present.any(axis=1), width - present[:, ::-1].argmax(axis=1), 0)
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    held = np.arange(width) < lengths[:, None]
    return pa.ListArray.from_arrays(pa.array(offsets), _nullable(name, values[held]))


def parts(directory: Path) -> dict[str, list[Path]]:
    """Part files by kind, in order."""
    found: dict[str, list[Path]] = {}
    for path in sorted(directory.glob("*.parquet")):
        match = _PART.fullmatch(path.name)
        if match and match["kind"] in abi.KINDS:
            found.setdefault(match["kind"], []).append(path)
    return found


def read_batches(
    directory: Path,
    strings: Strings,
    *,
    rows: int = 1 << 17,
    kinds: Collection[str] | None = None,
) -> Iterator[Batch]:
    """Recorded events as batches again, in their order: all, or those of some kinds.

    Texts have the ids that they have in `strings`, which receives those that it lacks.  Memory is
    bounded: each kind is read a few row groups at a time and batches are cut where every kind has
    been read far enough.  Raises RunError for a file that cannot be read.
    """
    streams = {
        kind: _Stream(kind, files, strings, rows)
        for kind, files in parts(directory).items()
        if kinds is None or kind in kinds
    }
    while True:
        live = [stream for stream in streams.values() if stream.fill()]
        if not live:
            return
        # No further than every kind has been read: what follows there may come before.
        horizon = min(stream.last for stream in live)
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

    def __init__(self, kind: str, files: list[Path], strings: Strings, rows: int) -> None:
        self.kind = kind
        self._strings = strings
        self._pieces = self._read(files, rows)
        self._position: Any = np.empty(0, np.uint64)
        self._records: Any = np.empty(0, abi.dtype(kind))

    def _read(self, files: list[Path], rows: int) -> Iterator[tuple[Any, Any]]:
        for path in files:
            try:
                for chunk in pq.ParquetFile(path).iter_batches(batch_size=rows):
                    yield self._records_of(chunk)
            except (OSError, pa.ArrowInvalid) as error:
                raise RunError(f"{path}: cannot be read ({error})") from None

    def fill(self) -> bool:
        """Makes sure that records are waiting; False where there are none left."""
        if not len(self._position):
            piece = next(self._pieces, None)
            if piece is not None:
                self._position, self._records = piece
        return len(self._position) > 0

    @property
    def last(self) -> int:
        return int(self._position[-1])

    def take(self, horizon: int) -> tuple[Any, Any]:
        """Records up to and including position `horizon`."""
        count = int(np.searchsorted(self._position, np.uint64(horizon), side="right"))
        taken = self._position[:count], self._records[:count]
        self._position, self._records = self._position[count:], self._records[count:]
        return taken

    def _records_of(self, chunk: pa.RecordBatch) -> tuple[Any, Any]:
        kind = self.kind
        dtype = abi.dtype(kind)
        records = np.zeros(chunk.num_rows, dtype)
        records["kind"] = abi.KINDS[kind]
        records["slots"] = dtype.itemsize // abi.SLOT
        strings, enums = abi.string_fields(kind), abi.enum_fields(kind)
        for name in dtype.names or ():
            if name in _SKIPPED:
                continue
            if name in strings:
                records[name] = self._ids(chunk.column(name))
            elif name in enums:
                records[name] = _numbers(chunk.column(name), enums[name], dtype[name])
            elif dtype[name].shape and dtype[name].shape[0] <= len(_AXES):
                for at, axis in enumerate(_AXES[: dtype[name].shape[0]]):
                    column = chunk.column(f"{name}_{axis}")
                    records[name][:, at] = _filled(name, column, dtype[name].base)
            elif dtype[name].shape:
                records[name] = _unlisted(name, chunk.column(name), dtype[name])
            else:
                records[name] = _filled(name, chunk.column(name), dtype[name])
        return chunk.column("position").to_numpy(), records

    def _ids(self, column: Any) -> Any:
        texts, codes = _dictionary(column)
        ids = [0 if text is None else self._strings.id_of(text) for text in texts] or [0]
        return np.where(codes < 0, np.uint32(0), np.asarray(ids, np.uint32)[np.maximum(codes, 0)])


def _dictionary(column: Any) -> tuple[list[str | None], Any]:
    """Distinct texts and their index per row, -1 for null."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    codes = column.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return column.dictionary.to_pylist(), codes


def _numbers(column: Any, names: dict[int, str], dtype: np.dtype[Any]) -> Any:
    texts, codes = _dictionary(column)
    by_name = {name: number for number, name in names.items()}
    absent = int(np.iinfo(dtype).max)
    numbers = np.array(
        [absent if t is None else by_name.get(t, absent) for t in texts] or [absent], dtype
    )
    return np.where(codes < 0, dtype.type(absent), numbers[np.maximum(codes, 0)])


def _unlisted(name: str, column: Any, dtype: np.dtype[Any]) -> Any:
    values = np.full((len(column), *dtype.shape), _absent(name, dtype.base), dtype.base)
    lengths = column.value_lengths().to_numpy()
    starts = np.cumsum(lengths) - lengths
    row = np.repeat(np.arange(len(lengths)), lengths)
    values[row, np.arange(len(row)) - starts[row]] = _filled(name, column.flatten(), dtype.base)
    return values


def _filled(name: str, column: Any, dtype: np.dtype[Any]) -> Any:
    absent = _absent(name, dtype)
    if column.null_count:
        column = column.fill_null(pa.scalar(absent, column.type))
    return column.to_numpy(zero_copy_only=False)
