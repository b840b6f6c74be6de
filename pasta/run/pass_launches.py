"""The launches of a recorded run with their contents, device times and requested bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pasta import abi
from pasta.arrow import to_numpy
from pasta.errors import RunError
from pasta.frameworks import conventions
from pasta.probes.kinds import kinds_of
from pasta.processors.launch_keys import LaunchKeys
from pasta.processors.rows import places_of
from pasta.processors.strings import Strings
from pasta.progress import report_progress
from pasta.run.directory import RunDirectory
from pasta.run.events import parts, read_batches, read_kind
from pasta.run.files import batches, open_parquet, reading
from pasta.run.results import stored_tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pasta.processors.stacks import Frame

#: The tool and the table with the bytes of each launch; its columns, the first with all bytes.
COUNTS, _TABLE = "access_count", "launches"
#: Its table of launches that are flagged as probed, but have no counts.
_MISSED = "missed"
BYTES = ("bytes", "read_bytes", "write_bytes", "atomic_bytes")
#: The tool and the table with the bytes that tensor stores of each launch wrote.
INSTRUCTIONS, _STORES = "instructions", "launch_tensor_stores"
_COMPLETE, _LAUNCH, _DEVICE = "kernel_complete", "kernel_launch", "device"


class RecordedPass:
    """A recorded run as one of two passes of a program."""

    def __init__(self, run: RunDirectory) -> None:
        """Raises RunError for a run without recorded launches."""
        self.run = run
        self.manifest = run.manifest()
        self.events = run.recorded().events
        self.kinds = frozenset(parts(self.events))
        if not self.manifest:
            raise RunError(f"{run.path}: unfinished", remedy="finish it with pasta recover")
        if "passes" in self.manifest:
            raise RunError(f"{run.path}: already joined", remedy="name the runs of its passes")
        if _LAUNCH not in self.kinds:
            raise RunError(
                f"{run.path}: no launches were recorded, which joining requires",
                remedy="record it again with run.events on",
            )

    @cached_property
    def is_probed(self) -> bool:
        """Whether probes ran in any launch. Raises RunError."""
        flags = (batch.column(0) for batch in read_kind(self.events, _LAUNCH, ["flags"]))
        return any(((to_numpy(each, 0) & abi.FLAG_PROBED) != 0).any() for each in flags)

    @property
    def is_timed(self) -> bool:
        """Whether launches have device times."""
        return _COMPLETE in self.kinds

    @property
    def has_counts(self) -> bool:
        """Whether executed instructions were counted; the source then records no device times."""
        return "instruction_count" in self.kinds

    @property
    def has_bytes(self) -> bool:
        """Whether the bytes of launches were counted. Raises RunError."""
        return _TABLE in stored_tables(self.run.results).get(COUNTS, ())

    @property
    def sources(self) -> str:
        """Sources with their versions, in words."""
        texts = [f"{name} {version}".strip() for name, version in self.manifest["sources"].items()]
        return ", ".join(texts) or "no source"


@dataclass(frozen=True)
class PassLaunches:
    """The launches of a pass: arrays of one length, by ordinal.

    `time`: ns on the device, -1 if unknown. `bytes`: requested bytes of global memory by name in
    BYTES, 0 for launches that were not probed; empty if they were not counted, and without parts if
    an older PASTA counted them. `peak`: bytes per second of devices' memory, by device. `stored`:
    bytes (uint64) that tensor stores wrote, inferred from executed instructions.
    """

    rows: NDArray[Any]  # LAUNCH of pasta.processors.launch_keys
    kernels: list[str]
    sites: list[tuple[str, Frame | None]]
    time: NDArray[Any]
    bytes: dict[str, NDArray[Any]]
    peak: dict[int, int]
    stored: NDArray[Any]

    def __len__(self) -> int:
        return len(self.rows)


class Reader:
    """Reads the launches of a pass."""

    def __init__(self, of: RecordedPass, *, times: bool) -> None:
        """`times`: read device times; otherwise bytes."""
        self._of, self._times = of, times
        strings = Strings()
        self.keys = LaunchKeys(strings, conventions())
        kinds = {*LaunchKeys.KINDS, _DEVICE, *([_COMPLETE] if times else [])}
        ordinals, taken = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        self._peak: dict[int, int] = {}
        count = 0
        for batch in read_batches(of.events, strings, kinds=kinds):
            count += len(batch)
            report_progress(f"reading {of.run.path.name}", f"{count:,} events")
            self.keys.feed(batch)
            done = batch[_COMPLETE]
            good = (done["end"] >= done["start"]) & (done["end"] < np.uint64(1 << 63))
            ordinals.append(done["ordinal"][good])
            taken.append((done["end"] - done["start"])[good].astype(np.int64))
            self._add_devices(batch[_DEVICE])
        self._ordinals, self._taken = np.concatenate(ordinals), np.concatenate(taken)

    def _add_devices(self, devices: NDArray[Any]) -> None:
        absent = abi.absent("bandwidth", devices.dtype["bandwidth"])
        for device, peak in zip(
            devices["device"].tolist(), devices["bandwidth"].tolist(), strict=True
        ):
            if 0 < peak != absent:
                self._peak[device] = peak

    def launches(self, *, operators: bool) -> PassLaunches:
        """All launches; without `operators`, those around them are ignored. Raises RunError."""
        rows = self.keys.rows(operators=operators)
        if not self._times:
            rows["probed"] &= ~np.isin(rows["ordinal"], self._missed())
        time = np.full(len(rows), -1, np.int64)
        at, known = places_of(rows["ordinal"], self._ordinals)
        time[at] = self._taken[known]
        bytes = {} if self._times or not self._of.has_bytes else self._bytes(rows["ordinal"])
        return PassLaunches(
            rows,
            self.keys.kernels,
            self.keys.sites,
            time,
            bytes,
            self._peak,
            self._stored(rows["ordinal"]),
        )

    def _stored(self, ordinals: NDArray[Any]) -> NDArray[Any]:
        tables = stored_tables(self._of.run.results) if self._of.has_counts else {}
        if _STORES not in tables.get(INSTRUCTIONS, ()):
            return np.zeros(len(ordinals), np.uint64)
        return self._sums(ordinals, (INSTRUCTIONS, _STORES), ["bytes"])["bytes"]

    def _missed(self) -> NDArray[Any]:
        """Ordinals (uint64) of launches that were not counted, though flagged as probed."""
        found = [np.empty(0, np.uint64)]
        if _MISSED in stored_tables(self._of.run.results).get(COUNTS, ()):
            path = self._of.run.results / COUNTS / f"{_MISSED}.parquet"
            file = open_parquet(path, self._of.run.path, whole=False)
            for mine in batches(file, path, ["launch"]):
                with reading(path):
                    found.append(to_numpy(mine.column("launch").cast(pa.uint64()), 0))
        return np.concatenate(found)

    def _bytes(self, ordinals: NDArray[Any]) -> dict[str, NDArray[Any]]:
        return self._sums(ordinals, (COUNTS, _TABLE), BYTES, kinds_of("global"))

    def _sums(
        self,
        ordinals: NDArray[Any],
        of: tuple[str, str],
        wanted: Sequence[str],
        kinds: Sequence[str] = (),
    ) -> dict[str, NDArray[Any]]:
        """Sums (uint64) by launch of the wanted columns that a tool's table has; `kinds`: only rows
        of these kinds."""
        run, (tool, table) = self._of.run, of
        path = run.results / tool / f"{table}.parquet"
        file = open_parquet(path, run.path, whole=False)
        columns = [name for name in wanted if name in file.schema_arrow.names]
        found = {name: np.zeros(len(ordinals), np.uint64) for name in columns}
        for mine in batches(file, path, ["launch", *(["kind"] if kinds else []), *columns]):
            with reading(path):
                if kinds:
                    of_kinds = pc.is_in(mine.column("kind").cast(pa.string()), pa.array(kinds))
                    mine = mine.filter(of_kinds)
                launches, *amounts = (
                    to_numpy(mine.column(name).cast(pa.uint64()), 0)
                    for name in ("launch", *columns)
                )
            at, known = places_of(ordinals, launches)
            for name, amount in zip(columns, amounts, strict=True):
                np.add.at(found[name], at, amount[known])
        return found


def read_launches(times: RecordedPass, accesses: RecordedPass) -> tuple[PassLaunches, PassLaunches]:
    """The launches of two passes. Operators count only if both recorded them. Raises RunError."""
    readers = Reader(times, times=True), Reader(accesses, times=False)
    operators = all(reader.keys.has_operators for reader in readers)
    one, other = (reader.launches(operators=operators) for reader in readers)
    return one, other
