"""Samples of stalled warps, by function."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from pasta.lazy import np
from pasta.processors.batch import ABSENT_U32, ABSENT_U64
from pasta.processors.module_hashes import ModuleHashes
from pasta.processors.rows import combined, places_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.strings import Strings

#: Rows that wait before they are combined.
_PENDING = 1 << 20


class Function(NamedTuple):
    """A function of a module: its mangled name, and the hash of the module's contents; None where
    it is unknown."""

    name: str
    module: int | None


def sample_type() -> Any:
    """A number of samples: `launch` is its ordinal, or -1; `function` an index into `functions`;
    `pc` the offset in the function, in bytes; `reason` the id of its name."""
    return np.dtype(
        [("launch", "i8"), ("function", "i4"), ("pc", "u8"), ("reason", "u4"), ("samples", "i8")]
    )


def missing_samples(reason: str, records: int) -> str:
    """A note on samples whose number is unknown."""
    return f"an unknown number of samples is missing: {reason} ({records:,} times)"


class StallSamples:
    """The samples of a run and its launches, from its batches in order.

    Memory: the distinct samples, and 20 bytes per launch.
    """

    #: Event kinds that `feed` reads.
    KINDS = frozenset({"pc_sample", "kernel_launch", "kernel_complete", "module_load"})

    def __init__(self) -> None:
        self._modules = ModuleHashes()
        self._codes: dict[tuple[int, int], int] = {}  # by name id and hash
        self._of_handle: dict[int, int] = {}
        self._pending: list[NDArray[Any]] = []
        self._waiting = 0
        self._launched: list[NDArray[Any]] = []
        self._took: list[NDArray[Any]] = []
        self._missing: Counter[int] = Counter()  # records of 0 samples by the id of the reason

    @property
    def is_empty(self) -> bool:
        """Whether there are no samples."""
        return not any(map(len, self._pending))

    def feed(self, batch: Batch) -> None:
        """Follows a batch."""
        self._modules.feed(batch)
        launches = batch["kernel_launch"]
        if len(launches):
            codes = self._functions(launches["name"], self._modules.of(launches, batch))
            rows = np.empty(len(launches), [("launch", "u8"), ("function", "i4"), ("pc", "u8")])
            rows["launch"], rows["function"] = launches["ordinal"], codes
            rows["pc"] = launches["entry_pc"]
            self._launched.append(rows)
            handles, first = np.unique(launches["function"], return_index=True)
            self._of_handle.update(zip(handles.tolist(), codes[first].tolist(), strict=True))
        done = batch["kernel_complete"]
        good = (done["end"] >= done["start"]) & (done["end"] < np.uint64(1 << 63))
        if good.any():
            rows = np.empty(int(good.sum()), [("launch", "u8"), ("time", "i8")])
            rows["launch"] = done["ordinal"][good]
            rows["time"] = (done["end"] - done["start"])[good].astype(np.int64)
            self._took.append(rows)
        samples = batch["pc_sample"]
        if len(samples):
            self._add(samples, batch)

    def _functions(self, names: NDArray[Any], hashes: NDArray[Any]) -> NDArray[Any]:
        """Numbers (int32) of functions, by name ids and hashes."""
        pairs = np.empty(len(names), [("name", "u4"), ("hash", "u8")])
        pairs["name"], pairs["hash"] = names, hashes
        distinct, inverse = np.unique(pairs, return_inverse=True)
        codes = [self._codes.setdefault(pair, len(self._codes)) for pair in distinct.tolist()]
        return np.asarray(codes, np.int32)[inverse.reshape(-1)]

    def _add(self, samples: NDArray[Any], batch: Batch) -> None:
        rows = np.zeros(len(samples), sample_type())
        known = samples["ordinal"] != np.uint64(ABSENT_U64)
        rows["launch"] = np.where(known, samples["ordinal"], 0).astype(np.int64)
        rows["launch"][~known] = -1
        rows["pc"], rows["reason"] = samples["pc"], samples["reason"]
        rows["samples"] = np.where(samples["samples"] == ABSENT_U32, 0, samples["samples"])
        self._missing.update(samples["reason"][samples["samples"] == 0].tolist())
        hashes = samples["module_hash"].copy()
        unknown = hashes == np.uint64(ABSENT_U64)
        if unknown.any():
            hashes[unknown] = self._modules.of(samples[unknown], batch)
        rows["function"] = self._functions(samples["name"], hashes)
        unnamed = samples["name"] == 0
        if unnamed.any():
            handles, inverse = np.unique(samples["function"][unnamed], return_inverse=True)
            none = int(self._functions(np.zeros(1, "u4"), np.full(1, ABSENT_U64, "u8"))[0])
            of_handle = [self._of_handle.get(handle, none) for handle in handles.tolist()]
            rows["function"][unnamed] = np.asarray(of_handle, np.int32)[inverse.reshape(-1)]
            by_launch = np.flatnonzero(unnamed & known)
            rows["function"][by_launch] = -1  # `rows()` asks the launch
        rows = rows[rows["samples"] > 0]
        self._pending.append(rows)
        self._waiting += len(rows)
        if self._waiting > max(_PENDING, len(self._pending[0])):
            self._combine()

    def _combine(self) -> None:
        keys = ("launch", "function", "pc", "reason")
        rows = np.concatenate([np.zeros(0, sample_type()), *self._pending])
        self._pending = [combined(rows, keys)]
        self._waiting = 0

    def notes(self, strings: Strings) -> list[str]:
        """What the source said about samples that are missing."""
        return [missing_samples(strings[reason], n) for reason, n in self._missing.items()]

    def functions(self, strings: Strings) -> list[Function]:
        """The functions that were launched or sampled, by number."""
        return [
            Function(strings[name] if name else "", None if hash == ABSENT_U64 else hash)
            for name, hash in self._codes
        ]

    def _merged(self, codes: NDArray[Any]) -> NDArray[Any]:
        """Numbers of functions; of a module that is not known, that of the first known module with
        a function of this name."""
        known: dict[int, int] = {}
        for (name, hash), code in self._codes.items():
            if hash != ABSENT_U64 and name:
                known.setdefault(name, code)
        same = np.arange(len(self._codes) + 1, dtype=np.int32)
        same[-1] = -1  # of -1
        for (name, hash), code in self._codes.items():
            if hash == ABSENT_U64:
                same[code] = known.get(name, code)
        return np.asarray(same[codes])

    def launches(self) -> NDArray[Any]:
        """All launches, by ordinal: `launch` (uint64), `function` (int32), `pc`, the address of
        its first instruction (all ones: unknown), and `time` (int64, ns; -1: unknown)."""
        types = [("launch", "u8"), ("function", "i4"), ("pc", "u8")]
        rows = np.concatenate([np.zeros(0, types), *self._launched])
        rows = rows[np.argsort(rows["launch"], kind="stable")]
        found = np.empty(len(rows), [*types, ("time", "i8")])
        for name, _ in types:
            found[name] = rows[name]
        found["function"] = self._merged(rows["function"])
        found["time"] = -1
        took = np.concatenate([np.zeros(0, [("launch", "u8"), ("time", "i8")]), *self._took])
        at, known = places_of(rows["launch"], took["launch"])
        found["time"][at] = took["time"][known]
        return found

    def rows(self) -> NDArray[Any]:
        """The samples (`sample_type`), combined. Samples that only name a launch are of its
        function; if that launch was not seen, of a function without a name."""
        self._combine()
        rows, launches = self._pending[0], self.launches()
        open_ = np.flatnonzero(rows["function"] < 0)
        if len(open_):
            rows["function"][open_] = self._functions(
                np.zeros(1, "u4"), np.full(1, ABSENT_U64, "u8")
            )[0]
            at, known = places_of(launches["launch"], rows["launch"][open_].astype(np.uint64))
            rows["function"][open_[known]] = launches["function"][at]
        rows["function"] = self._merged(rows["function"])
        return combined(rows, ("launch", "function", "pc", "reason"))
