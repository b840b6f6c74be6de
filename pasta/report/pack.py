"""A compact encoding of columns that browsers decode fast.

A block is `{"rows", "columns", "data"}`: `data` is base64 of the zlib-compressed bytes of all
columns, concatenated. Numbers are split into byte planes, the lowest bytes of all rows first, as
many planes as the largest number needs. Fields of a column:

    type      "int", "float", "bool" or "text"
    same      index of an earlier column with equal values; the column has no bytes in `data`
    low       minimum, as text, to add to the numbers in `data`
    delta     true: numbers are zigzag-encoded differences to the previous row; `low` is the first
              value
    width     number of planes
    bits      true: planes are those of float64; long columns keep 32 bits of the mantissa
    missing   true: planes follow a bitmap, least significant bit first, set for absent values

Texts are indices into a dictionary that all blocks share.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import pyarrow as pa

from pasta.arrow import to_arrow, to_numpy
from pasta.report.cells import cell
from pasta.table import Column, Table, visible

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Limit of integers that are exact in JavaScript.
_SAFE = 1 << 53
#: Mantissa bits that longer columns of floats keep: nine digits.
_MANTISSA = 32
_MAX_EXACT_ROWS = 10_000


class Packer:
    """Encodes columns, and collects the dictionary of their texts."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def block(self, columns: Mapping[str, Column], rows: int | None = None) -> dict[str, Any]:
        """Columns as a block for JSON: all rows, or the first `rows`."""
        columns = {name: column[:rows] for name, column in columns.items()}
        coded = {name: self._coded(each) for name, each in columns.items() if _is_text(each)}
        others = {name: each for name, each in columns.items() if name not in coded}
        table = Table(others).to_arrow()
        written: list[bytes] = []
        described: list[dict[str, Any]] = []
        seen: list[tuple[bool, NDArray[Any], NDArray[Any]]] = []
        for name in columns:
            if name in coded:
                kind, values, missing = coded[name]
            else:
                kind, values, missing = self._values(table.column(name).combine_chunks())
            about: dict[str, Any] = {"name": name, "type": kind}
            content = (kind == "text", values, missing)
            at = next((at for at, other in enumerate(seen) if _equal(content, other)), None)
            if at is not None:
                about["same"] = at
            else:
                if missing.any():
                    about["missing"] = True
                    written.append(np.packbits(missing, bitorder="little").tobytes())
                written.append(_numbers(values, about))
            seen.append(content)
            described.append(about)
        data = _deflated(b"".join(written))
        length = max(map(len, columns.values()), default=0)
        return {"rows": length, "columns": described, "data": data}

    def strings(self) -> str:
        """The dictionary as compressed JSON: a list of the texts in index order."""
        texts = json.dumps(list(self._codes), ensure_ascii=False, separators=(",", ":"))
        return _deflated(texts.encode("utf-8"))

    def _values(self, column: Any) -> tuple[str, NDArray[Any], NDArray[Any]]:
        """Type, numbers and null mask of a pyarrow array."""
        missing = to_numpy(column.is_null())
        if pa.types.is_boolean(column.type):
            return "bool", _filled(column.cast(pa.uint8())), missing
        if pa.types.is_integer(column.type):
            return "int", _filled(column), missing
        if pa.types.is_floating(column.type):
            values = _filled(column.cast(pa.float64()))
            whole = np.isfinite(values) & (np.abs(values) < _SAFE) & (values == np.floor(values))
            if whole.all():
                return "float", values.astype(np.int64), missing
            if len(values) <= _MAX_EXACT_ROWS:
                return "float", values, missing
            mantissa, exponent = np.frexp(values)
            places = float(1 << _MANTISSA)
            return "float", np.ldexp(np.rint(mantissa * places) / places, exponent), missing
        return "text", self._texts(column), missing

    def _coded(self, column: list[str | None]) -> tuple[str, NDArray[Any], NDArray[Any]]:
        """Like `_values`, for texts: an object that rows share is encoded once."""
        distinct = {id(text): text for text in column if text is not None}
        codes = {key: self._code(visible(text)) for key, text in distinct.items()}
        values = np.asarray([codes.get(id(text), 0) for text in column], np.int64)
        return "text", values, np.asarray([text is None for text in column], bool)

    def _texts(self, column: Any) -> NDArray[Any]:
        if not pa.types.is_string(column.type):
            column = to_arrow([None if v is None else cell(v) for v in column.to_pylist()])
        if pa.types.is_null(column.type):
            return np.zeros(len(column), np.int64)
        encoded = column.dictionary_encode()
        codes = np.asarray(
            [self._code(visible(text)) for text in encoded.dictionary.to_pylist()] or [0], np.int64
        )
        return np.asarray(codes[_filled(encoded.indices)])

    def _code(self, text: str) -> int:
        return self._codes.setdefault(text, len(self._codes))


def _is_text(column: Column) -> TypeGuard[list[str | None]]:
    return (
        isinstance(column, list)
        and any(each is not None for each in column)
        and all(each is None or isinstance(each, str) for each in column)
    )


def _filled(column: Any) -> NDArray[Any]:
    return to_numpy(column, 0)


def _equal(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(np.array_equal(*each) for each in zip(one, other, strict=True))


def _numbers(values: NDArray[Any], about: dict[str, Any]) -> bytes:
    """The planes of numbers; adds their encoding to `about`."""
    if values.dtype.kind == "f":
        about["bits"] = True
        return _planes(values.astype("<f8").view("<u8"), about)
    if not len(values):
        return _planes(values.astype(np.uint64), about)
    low, high = int(values.min()), int(values.max())
    if low > -_SAFE and high < _SAFE:
        signed = values.astype(np.int64)
        steps = np.diff(signed, prepend=signed[:1])
        zigzag = (steps << 1) ^ (steps >> 63)
        if _bits(zigzag) < _bits(signed - low):
            about.update(low=str(int(signed[0])), delta=True)
            return _planes(zigzag.astype(np.uint64), about)
    about["low"] = str(low)
    # differences of 64-bit integers are exact modulo 2**64
    shifted = values.astype(np.uint64) - np.uint64(low % (1 << 64))
    return _planes(shifted, about)


def _bits(values: NDArray[Any]) -> float:
    """Estimated bits that the values need without leading zeros."""
    return float(np.log2(1.0 + values).sum())


def _planes(values: NDArray[Any], about: dict[str, Any]) -> bytes:
    width = (int(values.max()).bit_length() + 7) // 8 if len(values) else 0
    about["width"] = width
    return bytes(values.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].T.tobytes())


def _deflated(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode("ascii")
