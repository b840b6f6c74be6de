"""Pages of stored tables, sorted and searched, for a page that shows them."""

from __future__ import annotations

import json
from collections import OrderedDict
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pasta.arrow import to_numpy
from pasta.report.cells import cell
from pasta.run.results import read_table, stored_tables
from pasta.table import visible

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.run.directory import RunDirectory

#: Rows of a table from which on its pages are asked for.
MIN_ROWS = 1000
_MAX_PAGE = 1000
#: Tables, and their orders, that are kept.
_KEPT = 4
_SAFE = 1 << 53


class LiveTables:
    """The tables of a run, by tool and name. Raises RunError for damaged ones."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._known = stored_tables(run.results)
        self._tables: OrderedDict[tuple[str, str], pa.Table] = OrderedDict()
        self._orders: OrderedDict[tuple[Any, ...], NDArray[Any]] = OrderedDict()

    def _table(self, tool: str, name: str) -> pa.Table:
        key = tool, name
        if key not in self._tables:
            if name not in self._known.get(tool, ()):
                raise KeyError(key)
            self._tables[key] = read_table(self._run.results, tool, name)
            if len(self._tables) > _KEPT:
                self._tables.popitem(last=False)
        self._tables.move_to_end(key)
        return self._tables[key]

    def page(
        self, tool: str, name: str, *, first: int, count: int, sort: str, descending: bool,
        words: list[str], columns: list[str],
    ) -> dict[str, Any]:  # fmt: skip
        """Rows `first` to `first + count` of those with all words in these columns, sorted by a
        column ("": as stored), with the number of all. Raises KeyError for unknown columns."""
        stored = self._table(tool, name)
        for column in (*columns, *([sort] if sort else [])):
            if column not in stored.column_names:
                raise KeyError(column)
        key = (tool, name, sort, descending, tuple(words), tuple(columns))
        if key not in self._orders:
            self._orders[key] = _order(stored, sort, descending, words, columns)
            if len(self._orders) > _KEPT:
                self._orders.popitem(last=False)
        order = self._orders[key]
        at = pa.array(order[first : first + min(count, _MAX_PAGE)])
        rows = stored.take(at)
        return {
            "found": len(order),
            "columns": [
                [_value(each) for each in rows.column(column).to_pylist()]
                for column in stored.column_names
            ],
        }


def _order(
    stored: pa.Table, sort: str, descending: bool, words: list[str], columns: list[str]
) -> NDArray[Any]:
    """Rows with all words in any of the columns, sorted; absent values last."""
    numbered = stored.append_column("", pa.array(np.arange(len(stored))))
    for word in words:
        found = [_has(numbered.column(column), word) for column in columns]
        if found:
            numbered = numbered.filter(reduce(pc.or_, found))
    if sort:
        direction = "descending" if descending else "ascending"
        keys = [(sort, direction), ("", "ascending")]
        numbered = numbered.take(pc.sort_indices(numbered, keys))  # absent values last
    return to_numpy(numbered.column("").combine_chunks(), 0)


def _has(column: pa.ChunkedArray, word: str) -> pa.ChunkedArray:
    """Whether texts contain a word, and numbers begin with it."""
    if pa.types.is_string(column.type) or pa.types.is_dictionary(column.type):
        texts = column.cast(pa.string())
        found = pc.match_substring(texts, word, ignore_case=True)
    else:
        try:
            found = pc.starts_with(column.cast(pa.string()), word.replace(",", ""))
        except pa.ArrowException:  # lists, and other types
            found = pa.chunked_array([pa.array([False] * len(column))])
    return pc.fill_null(found, False)


def _value(value: Any) -> Any:
    """A value for JSON: integers that are not exact in JavaScript are texts."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _SAFE:
        return str(value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return visible(value) if isinstance(value, str) else cell(value)


def dumped(value: Any) -> bytes:
    """A document as JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
