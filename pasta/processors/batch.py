"""A stretch of the ring, decoded: one structured array for every kind of event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pasta.lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

ABSENT_U16 = 0xFFFF
ABSENT_U32 = 0xFFFF_FFFF
ABSENT_U64 = 0xFFFF_FFFF_FFFF_FFFF


@dataclass(frozen=True, eq=False)
class Batch:
    """Records of consecutive slots, in one structured array per kind.

    `records[kind]` is in ring order; its field `index` is the record's slot position minus
    `base`, so that `index` orders any two records of a batch and `base + index` any two of a run.
    """

    base: int
    records: Mapping[str, NDArray[Any]]
    _merged: dict[tuple[str, ...], NDArray[Any]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __len__(self) -> int:
        return sum(len(records) for records in self.records.values())

    def __getitem__(self, kind: str) -> NDArray[Any]:
        """Records of one kind, possibly none. Raises KeyError for an unknown kind."""
        found = self.records.get(kind)
        if found is not None:
            return found
        from pasta import abi

        return np.empty(0, abi.dtype(kind))

    def __iter__(self) -> Iterator[tuple[str, NDArray[Any]]]:
        return iter(self.records.items())

    @property
    def span(self) -> tuple[int, int]:
        """Earliest and latest time of its records, ns; 0 and 0 without any."""
        times = [each["time"] for each in self.records.values() if len(each)]
        earliest = min((int(each.min()) for each in times), default=0)
        return earliest, max((int(each.max()) for each in times), default=0)

    @property
    def end(self) -> int:
        """Position in the whole run after the last record; `base` where there is none."""
        indices = [int(records["index"][-1]) for records in self.records.values() if len(records)]
        return self.base + max(indices, default=-1) + 1

    def before(self, position: int) -> Batch:
        """The records before a position of the run."""
        if self.end <= position:
            return self
        count = position - self.base
        records = {kind: each[each["index"] < count] for kind, each in self.records.items()}
        return Batch(self.base, records)

    def positions(self, records: NDArray[Any]) -> NDArray[Any]:
        """Positions of records in the whole run: uint64 of the same length."""
        return np.asarray(records["index"].astype(np.uint64) + np.uint64(self.base))

    def merged(self, *kinds: str) -> NDArray[Any]:
        """Records of several kinds in ring order, distinguished by the field `kind`.

        Kinds with the same payload keep its fields. Different payloads are merged into the union of
        their fields; fields that a record does not have are absent.
        """
        if kinds not in self._merged:
            self._merged[kinds] = self._merge(kinds)
        return self._merged[kinds]

    def _merge(self, kinds: tuple[str, ...]) -> NDArray[Any]:
        parts = [self[kind] for kind in kinds]
        present = [records for records in parts if len(records)]
        dtypes = {records.dtype for records in parts}
        together = parts[0].dtype if len(dtypes) == 1 else _union([part.dtype for part in parts])
        if not present:
            return np.empty(0, together)
        if len(present) == 1 and len(dtypes) == 1:
            return present[0]
        order = np.argsort(np.concatenate([part["index"] for part in present]), kind="stable")
        places = np.empty(len(order), np.intp)
        places[order] = np.arange(len(order))
        merged = _absent(len(order), together, kinds)
        start = 0
        for records in present:
            _place(records, places[start : start + len(records)], merged)
            start += len(records)
        merged.flags.writeable = False  # cached, and shared by tools
        return merged


def _absent(count: int, of: np.dtype[Any], kinds: tuple[str, ...]) -> NDArray[Any]:
    from pasta import abi

    return abi.absent_records(count, of, *kinds)


def _union(dtypes: list[np.dtype[Any]]) -> np.dtype[Any]:
    """Union of the fields of all types, without fields whose formats differ."""
    formats: dict[str, Any] = {}
    clashes = set()
    for dtype in dtypes:
        for name in dtype.names or ():
            form = dtype[name]
            if formats.setdefault(name, form) != form:
                clashes.add(name)
    return np.dtype([(name, form) for name, form in formats.items() if name not in clashes])


def _place(records: NDArray[Any], places: NDArray[Any], merged: NDArray[Any]) -> None:
    """Write records to their places in an array with more fields, which holds sentinels."""
    if records.dtype == merged.dtype:
        merged[places] = records
        return
    for name in set(merged.dtype.names or ()) & set(records.dtype.names or ()):
        merged[name][places] = records[name]
