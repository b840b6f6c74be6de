"""Tables of launches whose device times come from one pass and whose bytes from another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pasta.processors.demangle import demangle, distinct_names
from pasta.processors.launch_matching import Matched, matched
from pasta.processors.operator_names import NO_OPERATOR
from pasta.run.pass_launches import BYTES, COUNTS, PassLaunches
from pasta.table import Column, Table, Unit, absent_where, counted, formatted
from pasta.tool import Result

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Columns that tensor stores are added to.
_WITH_STORES = frozenset({"bytes", "write_bytes"})
#: Names of the passes.
TIMES, ACCESSES = "times", "accesses"
#: The result with the tables.
JOINED = "joined"
_NS = 1e9
_UNITS: dict[str, Unit] = {
    "device_time": "ns",
    "mean_time": "ns",
    **dict.fromkeys(BYTES, "bytes"),
    "share_of_peak": "share",
}
_LABELS = {
    "launches_times": "launches in times",
    "launches_accesses": "launches in accesses",
    "device_time": "device time",
    "mean_time": "mean",
    "bytes": "bytes per launch",
    "read_bytes": "read",
    "write_bytes": "written",
    "atomic_bytes": "by atomics",
    "gb_per_second": "GB/s",
    "share_of_peak": "of the peak",
}


@dataclass(frozen=True)
class Joined:
    """The launches of the two passes of a process, and which of them correspond."""

    times: PassLaunches
    accesses: PassLaunches
    pairs: Matched = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pairs", matched(self.times.rows, self.accesses.rows))

    @property
    def alone(self) -> tuple[int, int]:
        """Launches of each pass without partner."""
        return len(self.times) - len(self.pairs), len(self.accesses) - len(self.pairs)

    # ---- columns of the joined launches ----

    @cached_property
    def time(self) -> NDArray[Any]:
        """Device times (int64, ns), -1 if unknown."""
        return np.asarray(self.times.time[self.pairs.one])

    @cached_property
    def probed(self) -> NDArray[Any]:
        """Whether (bool) bytes are known."""
        if not self.accesses.bytes:
            return np.zeros(len(self.pairs), bool)
        return np.asarray(self.accesses.rows["probed"][self.pairs.other])

    def bytes(self, name: str) -> NDArray[Any]:
        """Bytes (uint64) of a column of BYTES, which the accesses have; tensor stores, which no
        access shows, among them."""
        stored = self.stored if name in _WITH_STORES else 0
        return np.asarray(self.accesses.bytes[name][self.pairs.other] + stored)

    @cached_property
    def stored(self) -> NDArray[Any]:
        """Bytes (uint64) that tensor stores wrote, as the other pass implies."""
        return np.asarray(self.times.stored[self.pairs.one])

    @cached_property
    def measured(self) -> NDArray[Any]:
        """Whether (bool) device time and bytes are known."""
        return np.asarray(self.probed & (self.time >= 0))

    @cached_property
    def peak(self) -> NDArray[Any]:
        """Peak bandwidth (bytes/s) of the launches' devices, 0 if unknown."""
        devices = self.times.rows["device"][self.pairs.one]
        peaks = self.times.peak or self.accesses.peak
        found = np.zeros(len(devices))
        for device, peak in peaks.items():
            found[devices == device] = peak
        return found

    # ---- results ----

    def result(self, sources: tuple[str, str], notes: Sequence[str] = ()) -> Result:
        """The tables; `sources` of the two passes, and further notes."""
        tables = {"kernels": self._kernels()}
        if len(self.times.sites) > 1 or len(self.accesses.sites) > 1:
            tables["operators"] = self._operators()
        tables["unmatched"] = self._unmatched()
        passes = (
            f"device times: the pass {TIMES} ({sources[0]}); bytes: the pass {ACCESSES}"
            f" ({sources[1]})"
        )
        return Result(self._summary(), tables, notes=[passes, *self._remarks(), *notes])

    @cached_property
    def _codes(self) -> tuple[list[str], NDArray[Any], NDArray[Any]]:
        """Kernels of both passes, and the kernel's number of each launch of each pass."""
        names = list(dict.fromkeys([*self.times.kernels, *self.accesses.kernels]))
        number = {name: at for at, name in enumerate(names)}
        one, other = (
            np.asarray([number[name] for name in of.kernels], np.int64)[of.rows["kernel"]]
            if len(of)
            else np.empty(0, np.int64)
            for of in (self.times, self.accesses)
        )
        return names, one, other

    def _kernels(self) -> Table:
        names, one, other = self._codes
        groups, columns = self._sums(one[self.pairs.one], len(names))
        kernels = distinct_names([demangle(name) for name in names])
        launches = {
            "launches_times": np.bincount(one, minlength=len(names)),
            "launches_accesses": np.bincount(other, minlength=len(names)),
        }
        order = np.lexsort((-launches["launches_times"], -groups["time"]))
        columns = {"kernel": kernels, **launches, **columns}
        return _table(columns, order, ("kernel",), "Kernels: bytes and device time")

    def _operators(self) -> Table:
        of, rows = self.times, self.pairs.one
        if len(of.sites) < 2:
            of, rows = self.accesses, self.pairs.other
        named = [(name or NO_OPERATOR, str(line) if line else None) for name, line in of.sites]
        numbers = {place: at for at, place in enumerate(dict.fromkeys(named))}
        codes = np.asarray([numbers[place] for place in named])[of.rows["site"][rows]]
        groups, columns = self._sums(codes, len(numbers))
        order = np.argsort(-groups["time"], kind="stable")
        order = order[columns["joined"][order] > 0]
        operators = [name for name, _ in numbers], [line for _, line in numbers]
        columns = {"operator": operators[0], "line": operators[1], **columns}
        return _table(columns, order, ("operator", "line"), "Operators: bytes and device time")

    def _sums(
        self, codes: NDArray[Any], count: int
    ) -> tuple[dict[str, NDArray[Any]], dict[str, Column]]:
        """Sums and columns of the joined launches by group number."""

        def total(values: NDArray[Any], of: NDArray[Any]) -> NDArray[Any]:
            return np.bincount(codes[of], weights=values[of], minlength=count)

        every, timed = np.ones(len(codes), bool), self.time >= 0
        ones = np.ones(len(codes))
        time = total(self.time, timed)
        launches, timed_launches = total(ones, every), total(ones, timed)
        probed, measured = total(ones, self.probed), total(ones, self.measured)
        columns: dict[str, Column] = {
            "joined": launches.astype(np.int64),
            "device_time": absent_where(time.astype(np.int64), timed_launches == 0),
            "mean_time": absent_where(time / np.maximum(timed_launches, 1), timed_launches == 0),
            "probed": probed.astype(np.int64),
            "measured": measured.astype(np.int64),
        }
        for name in self.accesses.bytes:
            amount = total(self.bytes(name), self.probed) / np.maximum(probed, 1)
            columns[name] = absent_where(amount, probed == 0)
        if self.accesses.bytes:
            bytes, of_time = (
                total(self.bytes(BYTES[0]), self.measured),
                total(self.time, self.measured),
            )
            unknown = of_time == 0
            rate = bytes / np.maximum(of_time, 1)  # bytes/ns are GB/s
            columns["gb_per_second"] = absent_where(rate, unknown)
            known = self.measured & (self.peak > 0)
            possible = total(self.peak * self.time / _NS, known)
            reached = total(self.bytes(BYTES[0]), known) / np.maximum(possible, 1)
            if known.any():
                columns["share_of_peak"] = absent_where(reached, possible == 0)
        return {"time": time}, columns

    def _unmatched(self) -> Table:
        names, *codes = self._codes
        found: list[tuple[int, str, str, int, int]] = []
        passes = ((TIMES, self.times, self.pairs.one), (ACCESSES, self.accesses, self.pairs.other))
        shown = distinct_names([demangle(name) for name in names])
        for (name, launches, rows), kernels in zip(passes, codes, strict=True):
            alone = np.ones(len(launches), bool)
            alone[rows] = False
            different, first, counts = np.unique(
                kernels[alone], return_index=True, return_counts=True
            )
            ordinals = launches.rows["ordinal"][alone][first]
            found += [
                (-count, shown[kernel], name, count, ordinal)
                for kernel, ordinal, count in zip(
                    different.tolist(), ordinals.tolist(), counts.tolist(), strict=True
                )
            ]
        found.sort()
        return Table(
            {
                "kernel": [kernel for _, kernel, *_ in found],
                "pass": [name for _, _, name, *_ in found],
                "launches": np.asarray([count for *_, count, _ in found], np.int64),
                "first_launch": np.asarray([ordinal for *_, ordinal in found], np.uint64),
            },
            keys=("kernel", "pass"),
            sums=("launches",),
            title="Launches without a partner in the other pass",
        )

    # ---- texts ----

    def _summary(self) -> str:
        text = (
            f"{counted(len(self.pairs), 'launch')} joined, of {len(self.times):,} in {TIMES} and"
            f" {len(self.accesses):,} in {ACCESSES}"
        )
        if not self.measured.any():
            return text
        bytes = int(self.bytes(BYTES[0])[self.measured].sum(dtype=np.uint64))
        time = int(self.time[self.measured].sum())
        rate = f", {bytes / time:,.3g} GB/s" if time else ""
        return f"{text}; {formatted(bytes, 'bytes')} requested in {formatted(time, 'ns')}{rate}"

    def _remarks(self) -> list[str]:
        found = []
        if any(self.alone):
            found.append(
                f"without partner: {counted(self.alone[0], 'launch')} of {TIMES},"
                f" {counted(self.alone[1], 'launch')} of {ACCESSES} (table unmatched)"
            )
        elsewhere = int(len(self.pairs) - self.pairs.placed.sum())
        if elsewhere:
            found.append(
                f"{counted(elsewhere, 'launch')} joined only by kernel, grid and block, "
                "because the passes made them at different places"
            )
        if not self.accesses.bytes:
            found.append(
                f"no bytes: {COUNTS} did not run in the pass {ACCESSES}; add it with -t {COUNTS}"
            )
        elif len(self.accesses.bytes) < len(BYTES):
            found.append("bytes are not split into reads and writes: an older PASTA counted them")
        probed = int(self.probed.sum())
        if self.accesses.bytes and probed < len(self.pairs):
            found.append(
                f"bytes cover the {probed:,} probed of {len(self.pairs):,} joined launches; "
                "GB/s covers these launches only"
            )
        inferred = int(self.stored[self.probed].sum(dtype=np.uint64))
        if inferred:
            found.append(
                f"bytes include {formatted(inferred, 'bytes')} of tensor stores, inferred from"
                f" executed instructions of {TIMES}"
            )
        untimed = int((self.time < 0).sum())
        if untimed:
            found.append(f"{counted(untimed, 'joined launch', 'joined launches')} without a time")
        return found


def _table(
    columns: dict[str, Column], order: NDArray[Any], keys: Sequence[str], title: str
) -> Table:
    """A table with rows in this order."""
    columns = {
        name: [column[at] for at in order.tolist()] if isinstance(column, list) else column[order]
        for name, column in columns.items()
    }
    atomics = columns.get("atomic_bytes")
    hidden = {"measured"}
    if atomics is None or not atomics.any():
        hidden.add("atomic_bytes")
    has_bytes = any(name in columns for name in BYTES)  # probed: launches whose bytes are known
    if not has_bytes or ("probed" in columns and (columns["probed"] == columns["joined"]).all()):
        hidden.add("probed")
    sums = ("launches_times", "launches_accesses", "joined", "device_time")
    levels = ("mean_time", *BYTES, "gb_per_second", "share_of_peak")
    return Table(
        columns,
        units={name: unit for name, unit in _UNITS.items() if name in columns},
        labels={name: label for name, label in _LABELS.items() if name in columns},
        title=title,
        hidden=frozenset(hidden),
        keys=keys,
        sums=[name for name in sums if name in columns],
        levels=[name for name in levels if name in columns],
        important=[
            name for name in ("gb_per_second", "device_time", "joined", "bytes") if name in columns
        ],
    )
