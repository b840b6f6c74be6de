"""A trace of every access of every warp, as Parquet files."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta.lazy import np, pa
from pasta.probes import Trace, probe
from pasta.probes.kinds import ATOMIC, NAMES, READ, STRIDE, WRITE
from pasta.probes.records import Accesses
from pasta.processors.kernel_names import Launched, kernel_names
from pasta.processors.object_names import OBJECT_UNITS, object_columns
from pasta.table import Table, counted, formatted
from pasta.tool import Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

#: Records per task of a thread, and rows per row group, which is the buffer of each thread.
_RECORDS_PER_TASK = 1 << 17
_ROW_GROUP = 1 << 18
#: Words of buffered chunks that start a task even if few of their records are traced.
_MAX_BUFFERED_WORDS = 1 << 21
#: Files that are written concurrently.
_THREADS = max(1, min(12, len(os.sched_getaffinity(0)) - 1))
#: Columns with few distinct values, and columns by which readers skip row groups.
_DICTIONARY_COLUMNS = [
    "launch",
    "pc",
    "kind",
    "bytes",
    "rows",
    "warp",
    "sm",
    "lanes",
    "object",
    "stride",
]
_STATISTICS_COLUMNS = ["launch", "pc", "address"]
_KINDS = [NAMES[number] for number in range(1, len(NAMES) + 1)]


class MemTrace(Tool):
    """Every memory instruction of every warp, with its addresses, as Parquet files."""

    title = "Memory access trace"
    topic = "accesses"

    top = option(10, help="rows of each table in the text report; the tables have all", minimum=1)
    global_memory = option(True, help="trace accesses to global memory")
    shared_memory = option(False, help="trace accesses to shared memory")
    local_memory = option(False, help="trace accesses to local memory")
    values = option(
        False, help="record the values of global memory accesses, if the source provides them"
    )
    directory = option("", help="directory for files until the run ends; default: TMPDIR or /tmp")
    accesses = Trace(values=values)

    @probe.global_memory(per="warp")
    def trace_global(access: Any, maps: Any, options: Any) -> None:
        """Record a warp's access to global memory, unless the option excludes it."""
        if options.global_memory:
            maps.accesses.write(access)

    @probe.shared_memory(per="warp")
    def trace_shared(access: Any, maps: Any, options: Any) -> None:
        """Record a warp's access to shared memory, unless the option excludes it."""
        if options.shared_memory:
            maps.accesses.write(access)

    @probe.local_memory(per="warp")
    def trace_local(access: Any, maps: Any, options: Any) -> None:
        """Record a warp's access to local memory, unless the option excludes it."""
        if options.local_memory:
            maps.accesses.write(access)

    def start(self) -> None:
        """Initialize the list of files and the counts."""
        self.parts: list[str] = []
        self.rows = 0
        self.lanes = 0
        self.per_launch: dict[int, int] = {}
        self.objects: set[int] = set()
        self.launched = Launched()
        self.buffered: list[Accesses] = []
        self._idle: list[_Part] = []
        self._running: deque[Future[_Written]] = deque()
        self._pool: ThreadPoolExecutor | None = None

    def __getstate__(self) -> dict[str, Any]:
        self._close()  # another process continues in its own files
        return super().__getstate__()

    def on_launches(self, launches: NDArray[Any]) -> None:
        """Keep the launches."""
        self.launched.add(launches)

    def on_accesses(self, accesses: Accesses) -> None:
        """Buffer records; full buffers are written by threads."""
        self.buffered.append(accesses)
        records, words = (
            sum(map(len, self.buffered)),
            sum(len(each.words) for each in self.buffered),
        )
        if records >= _RECORDS_PER_TASK or words >= _MAX_BUFFERED_WORDS:
            self._submit()

    def _submit(self) -> None:
        """Submits the buffered accesses to a thread; waits if all threads are busy."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, "mem_trace")
        while len(self._running) > _THREADS or (self._running and self._running[0].done()):
            self._count(self._running.popleft().result())
        self._running.append(self._pool.submit(self._write, self.buffered))
        self.buffered = []

    def _write(self, accesses: list[Accesses]) -> _Written:
        """Runs in a thread. Raises OSError if the disk is full."""
        try:
            part = self._idle.pop()
        except IndexError:
            part = _Part(self.directory, self.values)
            self.parts.append(part.path)
        try:
            return part.add(Accesses.joined(accesses))
        finally:
            self._idle.append(part)

    def _count(self, written: _Written) -> None:
        self.rows += written.rows
        self.lanes += written.lanes
        self.objects.update(written.objects)
        for launch, count in written.launches:
            self.per_launch[launch] = self.per_launch.get(launch, 0) + count

    def _close(self) -> None:
        if self.buffered:
            self._submit()
        while self._running:
            self._count(self._running.popleft().result())
        if self._pool is not None:
            for _ in self._pool.map(_Part.close, self._idle):
                pass
            self._pool.shutdown()
        self._idle, self._pool = [], None

    def result(self) -> Result:
        """Tables by launch and object, and the Parquet files."""
        self._close()
        return Result(
            summary=self._summary(),
            tables={"launches": self._launches(), "objects": self._objects()},
            files={
                f"accesses-{number:03}.parquet": Path(path)
                for number, path in enumerate(self.parts)
            },
        )

    def _launches(self) -> Table:
        launched = self.launched.rows()
        counts = [self.per_launch.get(launch, 0) for launch in launched["launch"].tolist()]
        return Table(
            {
                "launch": launched["launch"],
                "kernel": kernel_names(self.context, launched["kernel"]),
                "instructions": np.asarray(counts, np.int64),
            },
            title="Traced instructions by launch",
            shown=self.top,
        )

    def _objects(self) -> Table:
        ids = np.asarray(sorted(self.objects), np.int64)
        return Table(
            object_columns(self.context, ids),
            units=OBJECT_UNITS,
            title="Objects by their ids in the files",
            shown=0,
        )

    def _summary(self) -> str:
        if not self.rows:
            return "no accesses were traced"
        size = sum(Path(path).stat().st_size for path in self.parts)
        return (
            f"{counted(self.rows, 'warp instruction')} with {counted(self.lanes, 'access')} in"
            f" {counted(len(self.parts), 'file')} of {formatted(size, 'bytes')}"
        )


@dataclass(frozen=True)
class _Written:
    """Contents of a chunk: instructions and accesses, ids of objects, instructions by launch."""

    rows: int
    lanes: int
    objects: list[int]
    launches: list[tuple[int, int]]


class _Part:
    """A file in progress; one thread at a time adds to it."""

    def __init__(self, directory: str, values: bool) -> None:
        self.values = values
        descriptor, self.path = tempfile.mkstemp(
            prefix="pasta-mem_trace-", suffix=".parquet", dir=directory or None
        )
        os.close(descriptor)
        self.buffered: list[Any] = []
        self.writer: Any = None

    def add(self, accesses: Accesses) -> _Written:
        columns, objects = accesses.columns, accesses.first_objects
        table = _table(accesses, columns, objects)
        if self.values:
            table = table.append_column("values", _values(accesses, columns["lanes"]))
        self.buffered.append(table)
        if sum(map(len, self.buffered)) >= _ROW_GROUP:
            self.write()
        launches = columns["launch"]
        begins = np.append(0, np.flatnonzero(launches[1:] != launches[:-1]) + 1)
        counts = np.diff(begins, append=len(launches))
        return _Written(
            len(launches),
            int(columns["lanes"].sum()),
            (np.flatnonzero(np.bincount(objects + 1)) - 1).tolist(),
            list(zip(launches[begins].tolist(), counts.tolist(), strict=True)),
        )

    def write(self) -> None:
        """Writes the buffered tables as a row group."""
        import pyarrow.parquet as pq

        table = pa.concat_tables(self.buffered)
        self.buffered = []
        if self.writer is None:
            self.writer = pq.ParquetWriter(
                self.path,
                table.schema,
                compression="lz4",
                use_dictionary=_DICTIONARY_COLUMNS,
                write_statistics=_STATISTICS_COLUMNS,
            )
        self.writer.write_table(table, row_group_size=_ROW_GROUP)

    def close(self) -> None:
        if self.buffered:
            self.write()
        if self.writer is not None:
            self.writer.close()


def _table(accesses: Accesses, columns: Mapping[str, NDArray[Any]], objects: NDArray[Any]) -> Any:
    """Table of the files: one row per record."""
    from pasta.arrow import to_arrow

    flags, many = columns["flags"], columns["lanes"] > 1
    strided, transfer = columns["form"] == STRIDE, columns["rows"] > 1
    rows = {
        "launch": columns["launch"],
        "pc": columns["pc"],
        "kind": pa.DictionaryArray.from_arrays(
            to_arrow((columns["kind"] - 1).view(np.int8)), _KINDS
        ),
        "reads": (flags & READ) != 0,
        "writes": (flags & WRITE) != 0,
        "atomic": (flags & ATOMIC) != 0,
        "bytes": columns["bytes"],
        "rows": columns["rows"],
        "block": columns["block"],
        "warp": columns["warp"],
        "sm": columns["sm"],
        "lanes": columns["mask"],
        "object": to_arrow(objects, objects < 0),
        "address": columns["address"],
        "stride": to_arrow(columns["stride"], ~(strided | transfer)),
        "addresses": _lists(accesses, ~strided & many),
    }
    return pa.table(
        {
            name: to_arrow(each) if isinstance(each, np.ndarray) else each
            for name, each in rows.items()
        }
    )


def _values(accesses: Accesses, lanes: NDArray[Any]) -> Any:
    """Two words for each lane, the low one first; null for records without values."""
    from pasta.arrow import to_arrow

    found = accesses.values
    ends = np.cumsum(2 * lanes.astype(np.int64))
    starts = np.append(0, ends)
    none = np.ma.getmaskarray(found)[starts[:-1] // 2, 0]
    return pa.ListArray.from_arrays(
        to_arrow(starts.astype(np.int32), np.append(none, False)),
        to_arrow(np.ascontiguousarray(found.filled(0)).reshape(-1)),
    )


def _lists(accesses: Accesses, listed: NDArray[Any]) -> Any:
    """Addresses of all lanes of the `listed` records; null for others."""
    from pasta.arrow import to_arrow

    which = np.flatnonzero(listed)
    if not len(which):
        return pa.nulls(len(listed), pa.list_(pa.uint64()))
    some = accesses.some(which)
    lengths = np.zeros(len(listed), np.int64)
    lengths[which] = some.columns["lanes"]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return pa.ListArray.from_arrays(
        to_arrow(starts.astype(np.int32), np.append(~listed, False)),
        to_arrow(some.lanes["address"]),
    )
