"""Conversions between Arrow arrays and NumPy arrays or lists.

The conversions of pyarrow import pandas if installed: a third of a second for every run, and into
the program itself if PASTA reads events in its process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_MAX_OFFSET = 2**31 - 1  # of texts and lists, int32
_NUMBERS = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64",
)  # fmt: skip
_TYPES: dict[str, pa.DataType] = {
    **{np.dtype(name).str: getattr(pa, name)() for name in _NUMBERS},
    np.dtype(bool).str: pa.bool_(),
}
_DTYPES = {kind: np.dtype(name) for name, kind in _TYPES.items()}


def to_arrow(values: Any, mask: NDArray[Any] | None = None) -> pa.Array:
    """An Arrow array of a NumPy array, or of a sequence in which None is absent.

    `mask` (bool): further absent values. Numbers of a contiguous array are not copied.
    """
    if isinstance(values, np.ndarray):
        if values.ndim == 1 and values.dtype.str in _TYPES:
            return _numbers(values, mask)
        values = values.tolist()
    if mask is not None:
        values = [None if absent else value for value, absent in zip(values, mask, strict=True)]
    return _of_sequence(values)


def _numbers(values: NDArray[Any], mask: NDArray[Any] | None) -> pa.Array:
    stored = np.packbits(values, bitorder="little") if values.dtype == bool else values
    buffers = [_bitmap(mask), pa.py_buffer(np.ascontiguousarray(stored))]
    return pa.Array.from_buffers(_TYPES[values.dtype.str], len(values), buffers)


def _bitmap(mask: NDArray[Any] | None) -> pa.Buffer | None:
    if mask is None or not mask.any():
        return None
    return pa.py_buffer(np.packbits(~mask, bitorder="little"))


def _of_sequence(values: Sequence[Any]) -> pa.Array:
    absent = np.array([value is None for value in values], bool)
    kinds = {type(value) for value in values} - {type(None)}
    if not kinds:
        return pa.nulls(len(values))
    if kinds == {str}:
        found = _texts(values, absent)
    elif kinds <= {tuple, list}:
        found = _lists(values, absent)
    else:
        found = _plain(values, kinds, absent)
    return pa.array(values) if found is None else found


def _plain(values: Sequence[Any], kinds: set[type], absent: NDArray[Any]) -> pa.Array | None:
    dtype: type
    if kinds == {bool}:
        dtype = bool
    elif kinds == {int} and all(value is None or abs(value) < 2**63 for value in values):
        dtype = np.int64
    elif kinds == {float}:
        dtype = np.float64
    else:
        return None
    return _numbers(np.array([0 if value is None else value for value in values], dtype), absent)


def _offsets(lengths: Sequence[int]) -> NDArray[Any] | None:
    """Begin of each item and end of the last one (int32); None if they exceed int32."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets.astype(np.int32) if offsets[-1] <= _MAX_OFFSET else None


def _texts(values: Sequence[Any], absent: NDArray[Any]) -> pa.Array | None:
    encoded = [b"" if value is None else value.encode() for value in values]
    offsets = _offsets([len(text) for text in encoded])
    if offsets is None:
        return None
    buffers = [_bitmap(absent), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def _lists(values: Sequence[Any], absent: NDArray[Any]) -> pa.Array | None:
    held = _of_sequence([each for value in values if value is not None for each in value])
    offsets = _offsets([0 if value is None else len(value) for value in values])
    if offsets is None:
        return None
    buffers = [_bitmap(absent), pa.py_buffer(offsets)]
    kind = pa.list_(held.type)
    return pa.Array.from_buffers(kind, len(values), buffers, children=[held])


def to_numpy(column: pa.Array | pa.ChunkedArray, absent: float | None = None) -> NDArray[Any]:
    """Values of a column, read-only, with `absent` for absent ones.

    Types other than numbers and bool are converted by pyarrow, as are columns with absent values
    if `absent` is None.
    """
    whole = _whole(column) if isinstance(column, pa.ChunkedArray) else column
    dtype = _DTYPES.get(whole.type)
    if dtype is None or (whole.null_count and absent is None):
        found: NDArray[Any] = whole.to_numpy(zero_copy_only=False)
        return found
    valid, stored = whole.buffers()
    if not len(whole):
        return np.empty(0, dtype)
    if pa.types.is_boolean(whole.type):
        values = _bits(stored, whole)
    else:
        values = np.frombuffer(stored, dtype, len(whole), whole.offset * dtype.itemsize)
    return np.where(_bits(valid, whole), values, dtype.type(absent)) if whole.null_count else values


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks else pa.nulls(0, column.type)


def _bits(buffer: pa.Buffer, of: pa.Array) -> NDArray[Any]:
    bits = np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little")
    return bits[of.offset : of.offset + len(of)].astype(bool)
