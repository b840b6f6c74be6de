"""Blocks on multiprocessors over time, from the results of block_schedule."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pasta.arrow import to_numpy
from pasta.processors.batch import ABSENT_U64
from pasta.processors.rows import group_starts, places_of
from pasta.run.files import reading
from pasta.run.results import read_table, stored_tables

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.run.directory import RunDirectory

_TOOL, _TABLE = "block_schedule", "resident"
_LAUNCH = [("launch", "i8"), ("kernel", "u4"), ("time", "i8")]
_START = [("launch", "i8"), ("start", "i8")]
_ROW = [
    ("launch", "i8"), ("device", "i8"), ("sm", "i8"), ("clock", "i8"), ("duration", "i8"),
    ("blocks", "i8"),
]  # fmt: skip


def with_blocks(kernel: str, count: int) -> str:
    """Name of a slice: the kernel, and the number of its resident blocks if there are several."""
    return kernel if count == 1 else f"{kernel}, {count:,} blocks"


def without_blocks(name: str) -> str:
    """The kernel in the name of a slice."""
    return re.sub(r", [\d,]+ blocks$", "", name)


@dataclass
class Blocks:
    """Resident blocks (`table`, of `_ROW`, times on the clocks of devices), and the launches of the
    run, by which they find their place on the host's clock."""

    table: NDArray[Any]
    _launches: list[NDArray[Any]] = field(default_factory=list)
    _starts: list[NDArray[Any]] = field(default_factory=list)

    def feed(self, batch: Batch) -> None:
        """Follow the launches of a batch, and the device times of their kernels."""
        launches, ended = batch["kernel_launch"], batch["kernel_complete"]
        found = np.empty(len(launches), _LAUNCH)
        for name, values in (("launch", "ordinal"), ("kernel", "name"), ("time", "time")):
            found[name] = launches[values]
        self._launches.append(found)
        ended = ended[(ended["start"] <= ended["end"]) & (ended["end"] != ABSENT_U64)]
        starts = np.empty(len(ended), _START)
        starts["launch"], starts["start"] = ended["ordinal"], ended["start"]
        self._starts.append(starts)

    def _placed(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Rows of launches that were recorded, ids of their kernels' names, and the times (ns of
        the host) at which their clocks were 0.

        The first block begins with the kernel. Where the kernel's times are not known, the clock of
        a device runs with the host's, and no block begins before the call of its launch.
        """
        every = _by_launch(self._launches, _LAUNCH)
        at, known = places_of(every["launch"], self.table["launch"])
        rows = self.table[known]
        first = np.full(len(every), np.iinfo(np.int64).max)
        device = np.full(len(every), -1)
        np.minimum.at(first, at, rows["clock"])
        device[at] = rows["device"]
        zero = every["time"] - first
        for each in np.unique(rows["device"]).tolist():
            zero[device == each] = zero[device == each].max()
        starts = _by_launch(self._starts, _START)
        timed, known = places_of(every["launch"], starts["launch"])
        zero[timed] = starts["start"][known] - first[timed]
        return rows, every["kernel"][at].astype(np.int64), zero[at]

    def slices(self) -> tuple[list[tuple[int, int]], list[tuple[int, int, NDArray[Any]]]]:
        """Names, by the id of a kernel's name and the number of blocks; and device, number and
        slices of each multiprocessor: start, end and index of a name."""
        rows, kernel, zero = self._placed()
        names, name = np.unique(kernel << 32 | rows["blocks"], return_inverse=True)
        start = rows["clock"] + zero
        slices = np.column_stack([start, start + rows["duration"], name.reshape(-1)])
        order = np.lexsort([rows["sm"], rows["device"]])
        begins = group_starts(rows[order], ("device", "sm"))
        devices, sms = (rows[each][order][begins].tolist() for each in ("device", "sm"))
        parts = np.split(slices[order], begins[1:])
        return [divmod(each, 1 << 32) for each in names.tolist()], list(
            zip(devices, sms, parts, strict=False)
        )


def _by_launch(parts: list[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    rows = np.concatenate([np.empty(0, dtype), *parts])
    return rows[np.argsort(rows["launch"], kind="stable")]


def read_blocks(run: RunDirectory) -> Blocks | None:
    """The blocks of a run; None without blocks. Raises RunError."""
    if _TABLE not in stored_tables(run.results).get(_TOOL, ()):
        return None
    table = read_table(run.results, _TOOL, _TABLE)
    found = np.empty(len(table), _ROW)
    with reading(run.results / _TOOL / f"{_TABLE}.parquet"):
        for name, _ in _ROW:
            column = table.column(name).cast(pa.int64(), safe=False).combine_chunks()
            found[name] = to_numpy(column, 0)
    return Blocks(found) if len(found) else None
