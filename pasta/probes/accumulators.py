"""Counts of maps: executors deliver columns, a tool's `result` reads rows.

Columns are arrays of equal length by name: uint64, `object` int64 (-1: none).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.rows import combined

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.probes.specs import MapSpec
    from pasta.probes.tables import Table
    from pasta.processors.sampling import Estimate, Sampling

    Columns = Mapping[str, NDArray[Any]]
    KernelOf = Callable[[NDArray[Any]], NDArray[Any]]
    SizeOf = Callable[[NDArray[Any]], NDArray[Any]]

#: NumPy types of columns that are not uint64.
TYPES = {"kernel": "u4", "object": "i8", "shape": "u4"}


class Sums:
    """Rows of fields (uint64) by keys; rows with equal keys are combined.

    Added rows are pending until there are `limit` of them, or as many as combined rows; this and
    the number of distinct keys bound the memory.
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
            *((key, TYPES.get(key, "u8")) for key in keys),
            *((name, "u8") for name in fields),
        ]
        self._pending: list[NDArray[Any]] = []
        self._waiting = 0
        self._rows: NDArray[Any] | None = None

    def __len__(self) -> int:
        """Number of stored rows, combined or pending."""
        return self._waiting + (0 if self._rows is None else len(self._rows))

    def add(self, columns: Columns) -> None:
        """Adds rows as columns of equal length: the keys and the fields."""
        count = len(columns[(*self.keys, *self.fields)[0]])
        if not count:
            return
        rows = np.empty(count, self._dtype)
        for name in (*self.keys, *self.fields):
            rows[name] = as_stored(columns[name], rows.dtype[name])
        self._pending.append(rows)
        self._waiting += count
        if self._waiting >= max(self.limit, 0 if self._rows is None else len(self._rows)):
            self.rows()

    def rows(self) -> NDArray[Any]:
        """A structured array: distinct keys in ascending order, with combined fields."""
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
        """Replaces all rows by rows with distinct keys."""
        self.rows()
        self._rows = rows


def as_stored(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Values as another type of the same size with the same bits, as 64-bit columns may be signed
    or unsigned."""
    values = np.asarray(values)
    if values.dtype != dtype and values.dtype.itemsize == dtype.itemsize:
        return values.view(dtype)
    return values


class Accumulator:
    """The counts of a map over the run; `rows()` and `total()` are for `result`.

    Executors deliver to `accumulate`, in any order and any number of pieces. Counts of an
    `estimated` map are stored by the shape of their launch, to be weighted.
    """

    def __init__(self, spec: MapSpec) -> None:
        self.spec = spec
        self._kernel_of: KernelOf | None = None
        self._size_of: SizeOf | None = None
        self._sampling: Sampling | None = None
        self._sums = self._make_sums()
        #: Of an estimated map: the first field by launch, for the error.
        self._launches = Sums(("launch",), spec.fields[:1])

    @property
    def _keeps_launch(self) -> bool:
        """Whether sums are stored by launch; otherwise sums over launches."""
        return "launch" in self.spec.by

    def _make_sums(self) -> Sums:
        spec = self.spec
        launch = ("launch",) if self._keeps_launch else ()
        kernel = ("kernel",) if "kernel" in spec.by and not self._keeps_launch else ()
        shape = ("shape",) if spec.estimated else ()
        return Sums((*launch, *kernel, *shape, *spec.keys), spec.fields)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_kernel_of": None, "_size_of": None, "_sampling": None}

    def bind(self, kernel_of: KernelOf, size_of: SizeOf, sampling: Sampling) -> None:
        """Sets the functions from launch ordinals to name ids and from object ids to bytes, and the
        launches that were probed."""
        self._kernel_of = kernel_of
        self._size_of = size_of
        self._sampling = sampling

    def accumulate(self, columns: Columns) -> None:
        """Adds counts of an executor: arrays of equal length, named as `spec.columns`; for an
        estimated map the launch may be missing.

        Raises ValueError for other columns.
        """
        self._check(columns)
        columns = self._with_kernels(columns)
        if self.spec.estimated:
            columns = {**columns, "shape": self._shapes(columns)}
        self._sums.add(columns)

    def _shapes(self, columns: Columns) -> NDArray[Any]:
        """Numbers of the shapes of launches; 0 without a launch."""
        if "launch" not in columns:
            return np.zeros(len(columns[self.spec.fields[0]]), np.uint32)
        assert self._sampling is not None, "not bound"
        self._launches.add({name: columns[name] for name in ("launch", self.spec.fields[0])})
        return self._sampling.numbers(columns["launch"])

    def _check(self, columns: Columns) -> None:
        expected = set(self.spec.columns)
        if self.spec.estimated and "launch" not in columns:
            expected.remove("launch")
        if set(columns) != expected:
            raise ValueError(f"map {self.spec.name}: {list(columns)}, not {self.spec.columns}")

    def take(self, table: Table, sizes: NDArray[Any]) -> None:
        """Adds the counts of the CPU executor in a table, and clears it. `sizes`: bytes of objects
        by id (uint64; all ones: unknown)."""
        self.accumulate(table.columns())
        table.clear()

    def closable(self) -> bool:
        """Whether `close` would free much memory."""
        return False

    def close(self, launch: int) -> None:
        """Called when launches below this ordinal have delivered all their counts."""

    def losses(self) -> list[str]:
        """Drops, for the summary of the tool's result."""
        return []

    def _with_kernels(self, columns: Columns) -> Columns:
        if "kernel" in self._sums.keys:
            return {**columns, "kernel": self._kernels(columns["launch"])}
        return columns

    def _kernels(self, launches: NDArray[Any]) -> NDArray[Any]:
        assert self._kernel_of is not None, "not bound"
        return self._kernel_of(np.asarray(launches).astype(np.uint64, copy=False))

    def rows(self) -> NDArray[Any]:
        """A structured array: a column for each part of `by` (launch: ordinal, kernel: name id,
        object: id in `context.objects`, -1 for none), other keys such as `bin`, and the fields
        (uint64); sorted, with distinct keys. Fields of an estimated map cover all launches."""
        sampling = self._sampling
        if not self.spec.estimated or sampling is None or sampling.exact:
            return self.probed_rows()
        rows = self._stored()
        return self._by_columns(rows, sampling.place_weights()[rows["shape"]])

    def probed_rows(self) -> NDArray[Any]:
        """`rows` with the counts of the probed launches."""
        return self._by_columns(self._stored())

    def _stored(self) -> NDArray[Any]:
        """The rows from which `rows` is computed."""
        return self._complete(self._sums.rows())

    def _complete(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Drops the rows of launches that lost counts; all are kept unless rows are by launch."""
        if self._sampling is None or "launch" not in (rows.dtype.names or ()):
            return rows
        missed = self._sampling.missed(rows["launch"])
        return rows[~missed] if missed.any() else rows

    def is_estimate(self) -> bool:
        """Whether the launch of every count is known, so that rows cover all launches."""
        return self.spec.estimated and bool((self._sums.rows()["shape"] > 0).all())

    def estimates(self) -> dict[int, Estimate]:
        """Totals of the first field by kernel, for all launches, with their errors. The map is
        estimated, or counts by launch."""
        assert self._sampling is not None, "not bound"
        field = self.spec.fields[0]
        rows = (self._sums if self._keeps_launch else self._launches).rows()
        rows = combined(self._complete(rows)[["launch", field]], ("launch",))
        return self._sampling.estimates(rows["launch"], rows[field])

    def _by_columns(self, rows: NDArray[Any], weights: NDArray[Any] | None = None) -> NDArray[Any]:
        """Rows with the columns of `by`, which replace `launch` and `shape`; their fields times the
        weights, as whole numbers."""
        names = self._key_columns()
        types = [(name, TYPES.get(name, "u8")) for name in names]
        fields = [name for name in rows.dtype.names or () if name not in self._sums.keys]
        kind = "u8" if weights is None else "f8"
        result = np.empty(len(rows), [*types, *((name, kind) for name in fields)])
        for name in names:
            result[name] = self._column(name, rows)
        for name in fields:
            result[name] = rows[name] if weights is None else rows[name] * weights
        found = combined(result, names)
        if weights is not None:
            for name in fields:
                found[name] = np.rint(found[name])
        return found.astype([*types, *((name, "u8") for name in fields)], copy=False)

    def _key_columns(self) -> list[str]:
        """Names of the columns of `rows` before the fields."""
        return [*self.spec.by, *(key for key in self.spec.keys if key not in self.spec.by)]

    def _column(self, name: str, rows: NDArray[Any]) -> NDArray[Any]:
        """A column of `rows`, from stored rows."""
        if name == "kernel" and self._keeps_launch:
            return self._kernels(rows["launch"])
        return np.asarray(rows[name])

    def total(self, field: str | None = None) -> int:
        """Sum of a field over all rows; without a name, of the only field. Raises ValueError for an
        unknown or ambiguous field."""
        rows = self.rows()
        fields = [name for name in rows.dtype.names or () if name in self._total_fields]
        if field is None and len(fields) > 1:
            raise ValueError(f"map {self.spec.name} has the fields {', '.join(fields)}: name one")
        if field is not None and field not in fields:
            raise ValueError(f"map {self.spec.name} has no field {field}, only {', '.join(fields)}")
        return int(sum(rows[field or fields[0]].tolist()))

    @property
    def _total_fields(self) -> tuple[str, ...]:
        return self.spec.fields
