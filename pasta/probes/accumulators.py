"""What maps have counted: executors deliver columns, a tool's `result` reads rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pasta.errors import ToolError
from pasta.lazy import np
from pasta.processors.codes import bit_count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.probes.maps import MapSpec

    Columns = Mapping[str, NDArray[Any]]
    KernelOf = Callable[[NDArray[Any]], NDArray[Any]]
    SizeOf = Callable[[NDArray[Any]], NDArray[Any]]

#: Granules of a bitmap in one word of what executors deliver.
WORD = 64

_TYPES = {"kernel": "u4", "object": "i8"}


class Sums:
    """Rows of fields (uint64) by keys, combined where the keys are equal.

    What was added waits until there are `limit` rows, or as many as were combined before; memory
    is bounded by that and by the number of distinct keys.
    """

    def __init__(
        self, keys: tuple[str, ...], fields: tuple[str, ...], combine: str = "add",
        limit: int = 1 << 20,
    ) -> None:  # fmt: skip
        self.keys = keys
        self.fields = fields
        self.limit = limit
        self._combine = combine
        self._dtype = [
            *((key, _TYPES.get(key, "u8")) for key in keys),
            *((name, "u8") for name in fields),
        ]
        self._pending: list[NDArray[Any]] = []
        self._waiting = 0
        self._rows: NDArray[Any] | None = None

    def __len__(self) -> int:
        """Rows that are held, combined or waiting."""
        return self._waiting + (0 if self._rows is None else len(self._rows))

    def add(self, columns: Columns) -> None:
        count = len(columns[(*self.keys, *self.fields)[0]])
        if not count:
            return
        rows = np.empty(count, self._dtype)
        for name in (*self.keys, *self.fields):
            rows[name] = _as_stored(columns[name], rows.dtype[name])
        self._pending.append(rows)
        self._waiting += count
        if self._waiting >= max(self.limit, 0 if self._rows is None else len(self._rows)):
            self.rows()

    def rows(self) -> NDArray[Any]:
        """Distinct keys in ascending order, with their fields combined: a structured array."""
        before = [] if self._rows is None else [self._rows]
        if self._pending or self._rows is None:
            self._rows = combined(
                np.concatenate([*before, *self._pending, np.empty(0, self._dtype)]),
                self.keys,
                self._combine,
            )
            self._pending.clear()
            self._waiting = 0
        return self._rows

    def keep(self, rows: NDArray[Any]) -> None:
        """Replaces all rows by these, which have distinct keys."""
        self.rows()
        self._rows = rows


def _as_stored(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Bits stay as they are: a 64-bit column may come signed or unsigned."""
    values = np.asarray(values)
    if values.dtype != dtype and values.dtype.itemsize == dtype.itemsize:
        return values.view(dtype)
    return values


def group_starts(rows: NDArray[Any], keys: Iterable[str]) -> NDArray[Any]:
    """Where rows with other `keys` than the row before begin; rows of one key are together."""
    new = np.zeros(len(rows), bool)
    new[:1] = True
    for key in keys:
        new[1:] |= rows[key][1:] != rows[key][:-1]
    return np.flatnonzero(new)


def combined(rows: NDArray[Any], keys: Iterable[str], combine: str = "add") -> NDArray[Any]:
    """Rows with distinct `keys`, sorted by them; other fields are combined by that ufunc."""
    keys = tuple(keys)
    if not len(rows):
        return rows
    if keys:
        rows = rows[np.lexsort([rows[key] for key in reversed(keys)])]
    starts = group_starts(rows, keys)
    if len(starts) == len(rows):
        return rows
    result = rows[starts]
    ufunc = getattr(np, combine)
    for name in rows.dtype.names or ():
        if name not in keys:
            result[name] = ufunc.reduceat(rows[name], starts)
    return np.asarray(result)


def _selected(rows: NDArray[Any], names: Iterable[str]) -> NDArray[Any]:
    """Some columns of rows, as a structured array of its own."""
    names = tuple(names)
    result = np.empty(len(rows), [(name, rows.dtype[name]) for name in names])
    for name in names:
        result[name] = rows[name]
    return result


class Accumulator:
    """What a map has counted in all; `rows()` and `total()` are for `result`.

    Executors deliver through `accumulate`, in any order and any number of pieces.
    """

    def __init__(self, spec: MapSpec) -> None:
        self.spec = spec
        self._kernel_of: KernelOf | None = None
        self._size_of: SizeOf | None = None
        self._keeps_launch = "launch" in spec.by or bool(spec.window)
        self._sums = self._make_sums()

    def _make_sums(self) -> Sums:
        spec = self.spec
        launch = ("launch",) if self._keeps_launch else ()
        kernel = ("kernel",) if "kernel" in spec.by and not self._keeps_launch else ()
        return Sums((*launch, *kernel, *spec.keys), spec.fields)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_kernel_of": None, "_size_of": None}

    def bind(self, kernel_of: KernelOf, size_of: SizeOf) -> None:
        """Where the name ids of launches and the sizes of objects come from."""
        self._kernel_of = kernel_of
        self._size_of = size_of

    def accumulate(self, columns: Columns) -> None:
        """Adds what an executor counted: arrays of equal length, named as `spec.columns`."""
        if set(columns) != set(self.spec.columns):
            raise ValueError(f"map {self.spec.name}: {list(columns)}, not {self.spec.columns}")
        self._sums.add(self._with_kernels(columns))

    def _with_kernels(self, columns: Columns) -> Columns:
        if "kernel" in self._sums.keys:
            return {**columns, "kernel": self._kernels(columns["launch"])}
        return columns

    def _kernels(self, launches: NDArray[Any]) -> NDArray[Any]:
        assert self._kernel_of is not None, "not bound"
        return self._kernel_of(np.asarray(launches).astype(np.uint64, copy=False))

    def rows(self) -> NDArray[Any]:
        """A structured array: a column for each part of `by` (launch: ordinal, kernel: id of the
        name, object: id in `context.objects`, -1 for none), `bin` or `window`, and the fields
        (uint64); sorted, one row for each that was counted."""
        return self._by_columns(self._sums.rows())

    def _by_columns(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Rows with `launch` turned into the columns that `by` asks for."""
        spec = self.spec
        more = [key for key in spec.keys if key not in spec.by]
        names = [*(["window"] if spec.window else []), *spec.by, *more]
        columns: dict[str, NDArray[Any]] = {}
        for name in names:
            if name == "window":
                columns[name] = self._windows(rows)
            elif name == "kernel" and self._keeps_launch:
                columns[name] = self._kernels(rows["launch"])
            else:
                columns[name] = rows[name]
        types = [(name, _TYPES.get(name, "u8")) for name in names]
        fields = [name for name in rows.dtype.names or () if name not in self._sums.keys]
        result = np.empty(len(rows), [*types, *((name, "u8") for name in fields)])
        for name in names:
            result[name] = columns[name]
        for name in fields:
            result[name] = rows[name]
        return combined(result, names)

    def _windows(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Number of the window of each row, by how much launches before its own had added."""
        launches, inverse = np.unique(rows["launch"], return_inverse=True)
        of_launch = np.zeros(len(launches), np.uint64)
        np.add.at(of_launch, inverse.reshape(-1), rows[self.spec.fields[0]])
        before = np.cumsum(of_launch, dtype=np.uint64) - of_launch
        return np.asarray((before // np.uint64(self.spec.window))[inverse.reshape(-1)])

    def total(self, field: str | None = None) -> int:
        """Sum of a field over all rows; without a name, of the only one."""
        rows = self.rows()
        fields = [name for name in rows.dtype.names or () if name in self._total_fields]
        if field is None and len(fields) > 1:
            raise ValueError(f"map {self.spec.name} has the fields {', '.join(fields)}: name one")
        if field is not None and field not in fields:
            raise ValueError(f"map {self.spec.name} has no field {field}: {', '.join(fields)}")
        return int(sum(rows[field or fields[0]].tolist()))

    @property
    def _total_fields(self) -> tuple[str, ...]:
        return self.spec.fields


class BitmapAccumulator(Accumulator):
    """Unique bytes; executors deliver words of 64 granules."""

    def _make_sums(self) -> Sums:
        launch = ("launch",) if self.spec.per_launch else ()
        self._unknown = Sums((*launch, "object"), ("unknown",))
        self._closed = Sums((*launch, "object"), ("bytes",))
        return Sums((*launch, "object", "word"), ("mask",), "bitwise_or")

    def accumulate(self, columns: Columns) -> None:
        if set(columns) != set(self.spec.columns):
            raise ValueError(f"map {self.spec.name}: {list(columns)}, not {self.spec.columns}")
        known = np.asarray(columns["object"]).astype(np.int64, copy=False) >= 0
        unknown = {key: columns[key][~known] for key in self._unknown.keys}
        self._unknown.add({**unknown, "unknown": columns["mask"][~known]})
        self._sums.add({key: columns[key][known] for key in columns})

    def accumulate_bytes(self, columns: Columns) -> None:
        """Adds what an executor counted itself: `launch` if there is one in `by`, `object`,
        `bytes` and `unknown`. No byte may come twice."""
        keys = self._closed.keys
        if set(columns) != {*keys, "bytes", "unknown"}:
            raise ValueError(f"map {self.spec.name}: {list(columns)}")
        for sums in (self._closed, self._unknown):
            some = np.asarray(columns[sums.fields[0]]) != 0
            sums.add({key: np.asarray(columns[key])[some] for key in (*keys, *sums.fields)})

    @property
    def words(self) -> int:
        """Words that are held, some of them more than once."""
        return len(self._sums)

    def close(self, launch: int) -> None:
        """Counts what launches below this one touched: they deliver nothing more."""
        if not self.spec.per_launch:
            return
        rows = self._sums.rows()
        done = rows["launch"] < np.uint64(launch)
        if done.any():
            self._closed.add(self._counted(rows[done]))
            self._sums.keep(rows[~done])

    def _counted(self, rows: NDArray[Any]) -> Columns:
        """Bytes of every word's granules, without what lies beyond the object's end."""
        assert self._size_of is not None, "not bound"
        granule, one = np.uint64(self.spec.granularity), np.uint64(1)
        sizes = np.asarray(self._size_of(rows["object"]), np.uint64)
        last = (np.maximum(sizes, one) - one) // granule
        beyond = (last + one) * granule - sizes
        bit = np.where(last // np.uint64(WORD) == rows["word"], last % np.uint64(WORD), 0)
        has_last = (last // np.uint64(WORD) == rows["word"]) & (
            (rows["mask"] >> bit.astype(np.uint64)) & one == one
        )
        bytes = bit_count(rows["mask"]) * granule - np.where(has_last, beyond, np.uint64(0))
        return {**{key: rows[key] for key in self._closed.keys}, "bytes": bytes}

    def rows(self) -> NDArray[Any]:
        """The columns of `by`, and `bytes` and `unknown` (uint64)."""
        keys = self._closed.keys
        touched, closed = self._counted(self._sums.rows()), self._closed.rows()
        unknown = self._unknown.rows()
        parts = [
            (touched, touched["bytes"], None),
            ({key: closed[key] for key in keys}, closed["bytes"], None),
            ({key: unknown[key] for key in keys}, None, unknown["unknown"]),
        ]
        types = [(key, _TYPES.get(key, "u8")) for key in self.spec.by]
        pieces = []
        for columns, bytes, touches in parts:
            length = len(columns["object"])
            piece = np.zeros(length, [*types, ("bytes", "u8"), ("unknown", "u8")])
            for key in self.spec.by:
                piece[key] = columns[key]
            piece["bytes"] = 0 if bytes is None else bytes
            piece["unknown"] = 0 if touches is None else touches
            pieces.append(piece)
        return combined(np.concatenate(pieces), self.spec.by)

    def total(self, field: str | None = "bytes") -> int:
        return super().total(field)

    @property
    def _total_fields(self) -> tuple[str, ...]:
        return ("bytes", "unknown")


class TopKAccumulator(Accumulator):
    """The largest sums; `other` is what keys beyond the capacity added."""

    def __init__(self, spec: MapSpec) -> None:
        super().__init__(spec)
        self.other = 0
        self._known: NDArray[Any] | None = None

    def accumulate(self, columns: Columns, other: int = 0) -> None:
        """As in all maps; `other` is what the executor itself had no room for."""
        if set(columns) != set(self.spec.columns):
            raise ValueError(f"map {self.spec.name}: {list(columns)}, not {self.spec.columns}")
        self.other += other
        keys = _as_stored(columns["key"], np.dtype("u8"))
        if self._known is None:
            self._known = np.empty(0, np.uint64)
        distinct, first = np.unique(keys, return_index=True)
        new = first[~np.isin(distinct, self._known)]
        kept = keys[np.sort(new)[: self.spec.capacity - len(self._known)]]
        self._known = np.concatenate([self._known, kept])
        fits = np.isin(keys, self._known)
        counts = _as_stored(columns["count"], np.dtype("u8"))
        self.other += sum(counts[~fits].tolist())
        self._sums.add({"key": keys[fits], "count": counts[fits]})

    def rows(self) -> NDArray[Any]:
        """Columns `key` and `count` (uint64), the largest count first, at most `k` rows."""
        rows = self._sums.rows()
        return np.asarray(rows[np.lexsort([rows["key"], ~rows["count"]])][: self.spec.k])

    def total(self, field: str | None = None) -> int:
        """Sum over all keys, `other` included."""
        return int(sum(self._sums.rows()["count"].tolist())) + self.other


class TraceAccumulator(Accumulator):
    """How many accesses were handed to `on_accesses`, and how many were lost before."""

    def _make_sums(self) -> Sums:
        self.written = 0
        self.dropped = 0
        return Sums((), ("written",))

    def rows(self) -> NDArray[Any]:
        raise ToolError(
            f"the map {self.spec.name} keeps nothing", remedy="take its accesses in on_accesses"
        )

    def total(self, field: str | None = None) -> int:
        return self.written
