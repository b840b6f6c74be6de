"""Floating-point operations of operators by the shapes of their tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.batch import ABSENT_U32
from pasta.processors.codes import Codes, RowCodes, grown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.conventions import Formula
    from pasta.processors.strings import Strings

#: Tensors with higher numbers have no known shape.
_MAX_TENSORS = 1 << 24
#: Inputs and outputs that formulas get.
_INPUTS, _OUTPUTS = 6, 3
#: Results of formulas that are kept.
_MAX_KNOWN = 1 << 16


class Flops:
    """Operations of the operators that end in a batch; only those that have a formula.

    Frameworks must report tensors: without their shapes nothing is counted.
    """

    def __init__(self, formulas: Mapping[str, Formula]) -> None:
        self._formulas = formulas
        self._names = Codes()
        self._wanted = np.zeros(0, bool)  # by code of the name
        #: String ids by tensor.
        self._tensors = {"shape": np.zeros(1024, np.uint32), "dtype": np.zeros(1024, np.uint32)}
        #: Operators that have not ended.
        self._open = _Open.none()
        #: Names and shapes, and the operations by their code.
        self._known = RowCodes(_MAX_KNOWN)
        self._counts: NDArray[Any] = np.empty(0, np.int64)

    def feed(
        self, batch: Batch, ended: NDArray[Any], strings: Strings
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Nodes (int32) of operators, their operations (int64), and the type of their numbers, a
        string id (uint32, 0: unknown). `ended`: the node of each operator_end of the batch."""
        created = batch["tensor_create"]
        created = created[(created["tensor"] < _MAX_TENSORS) & (created["shape"] != 0)]
        begins, ends = batch["operator_begin"], batch["operator_end"]
        begins = begins[self._has_formula(begins["name"], strings) & (begins["inputs"] > 0)]
        begun = self._open.and_those(self._begun(begins, created))
        at, self._open = begun.ended_by(ends)
        done, last = begun.those(at >= 0), at[at >= 0]
        outputs = self._of_tensors("shape", ends[last], "outputs", _OUTPUTS, created)
        done.rows[:, -_OUTPUTS:] = outputs
        for name, known in self._tensors.items():
            known = grown(known, int(created["tensor"].max(initial=0)) + 1)
            known[created["tensor"]] = created[name]
            self._tensors[name] = known
        return ended[last].astype(np.int32), self._operations(done.rows, strings), done.types

    def _begun(self, begins: NDArray[Any], created: NDArray[Any]) -> _Open:
        types = self._of_tensors("dtype", begins, "inputs", 2, created)
        rows = np.zeros((len(begins), 1 + _INPUTS + _OUTPUTS), np.uint32)
        rows[:, 0] = begins["name"]
        rows[:, 1 : 1 + _INPUTS] = self._of_tensors("shape", begins, "inputs", _INPUTS, created)
        first, second = types.T  # the first may be a bias
        return _Open(
            _levels(begins), begins["index"].astype(np.int64), rows, np.where(second, second, first)
        )

    def _has_formula(self, names: NDArray[Any], strings: Strings) -> NDArray[Any]:
        codes = self._names.encode(names)
        new = self._names.ids[len(self._wanted) :]
        if new:
            found = [strings[name] in self._formulas for name in new]
            self._wanted = np.append(self._wanted, found)
        return np.asarray(self._wanted[codes], bool)

    def _of_tensors(
        self, what: str, records: NDArray[Any], field: str, width: int, created: NDArray[Any]
    ) -> NDArray[Any]:
        """String ids (uint32) of the shapes or types of each record's first tensors, as of the
        record; 0: none."""
        tensors = records["tensor"][:, :width].astype(np.int64)
        given = np.arange(tensors.shape[1]) < records[field][:, None]
        given &= (tensors != ABSENT_U32) & (tensors < _MAX_TENSORS)
        known = grown(self._tensors[what], int(np.where(given, tensors, 0).max(initial=0)) + 1)
        self._tensors[what] = known
        found = np.where(given, known[np.where(given, tensors, 0)], 0)
        if len(created):
            keys = created["tensor"].astype(np.int64) << 32 | created["index"]
            order = np.argsort(keys, kind="stable")
            at = np.searchsorted(keys[order], tensors << 32 | records["index"][:, None]) - 1
            latest = created[order[np.maximum(at, 0)]]
            here = given & (at >= 0) & (latest["tensor"] == tensors)
            found = np.where(here, latest[what], found)
        wide = np.zeros((len(records), width), np.uint32)
        wide[:, : found.shape[1]] = found
        return wide

    def _operations(self, rows: NDArray[Any], strings: Strings) -> NDArray[Any]:
        """Operations (int64) of operators by their names and shapes."""
        codes, new = self._known.encode_new(np.ascontiguousarray(rows).view(np.uint64))
        if len(new):
            added = [self._count(row, strings) for row in rows[new].tolist()]
            self._counts = np.concatenate([self._counts, np.asarray(added, np.int64)])
        found = self._counts[codes] if len(self._counts) else np.zeros(len(codes), np.int64)
        for at in np.flatnonzero(codes < 0).tolist():
            found[at] = self._count(rows[at].tolist(), strings)
        return np.asarray(found)

    def _count(self, row: list[int], strings: Strings) -> int:
        """Operations of an operator; 0 where the formula does not fit."""
        shapes = [_parsed(strings[each]) if each else None for each in row[1:]]
        inputs = [shape for shape in shapes[:_INPUTS] if shape is not None]
        outputs = [shape for shape in shapes[_INPUTS:] if shape is not None]
        try:
            return self._formulas[strings[row[0]]](inputs, outputs)
        except (IndexError, ValueError):  # fewer tensors, or dimensions
            return 0


@dataclass(frozen=True)
class _Open:
    """Operators that have begun: thread and depth, index of the begin in its batch (-1: an earlier
    one), string ids of name, inputs' and outputs' shapes, and of the type of their numbers."""

    levels: NDArray[Any]
    begins: NDArray[Any]
    rows: NDArray[Any]
    types: NDArray[Any]

    @classmethod
    def none(cls) -> _Open:
        """No operators."""
        rows = np.empty((0, 1 + _INPUTS + _OUTPUTS), np.uint32)
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), rows, np.empty(0, np.uint32))

    def those(self, chosen: NDArray[Any]) -> _Open:
        """Some of them."""
        return _Open(*(each[chosen] for each in (self.levels, self.begins, self.rows, self.types)))

    def and_those(self, others: _Open) -> _Open:
        """These operators, and those that began in the next batch."""
        earlier = np.full(len(self.begins), -1)
        return _Open(
            np.concatenate([self.levels, others.levels]),
            np.concatenate([earlier, others.begins]),
            np.concatenate([self.rows, others.rows]),
            np.concatenate([self.types, others.types]),
        )

    def ended_by(self, ends: NDArray[Any]) -> tuple[NDArray[Any], _Open]:
        """The end of each, an index of `ends` or -1, and the operators without one. Operators of a
        thread nest: it is the next end at the depth. Of two with the same end, the first one's was
        lost."""
        distinct = np.unique(self.levels)
        of_ends = _levels(ends)
        levels = np.minimum(np.searchsorted(distinct, of_ends), max(len(distinct) - 1, 0))
        chosen = np.flatnonzero(distinct[levels] == of_ends) if len(distinct) else levels[:0]
        keys = (levels[chosen] << 40) + ends["index"][chosen] + 1
        order = np.argsort(keys, kind="stable")
        keys, chosen = keys[order], chosen[order]
        own = np.searchsorted(distinct, self.levels)
        begun = (own << 40) + self.begins + 1
        at = np.searchsorted(keys, begun, "right")
        found = np.full(len(at), -1)
        within = np.flatnonzero(at < len(keys))
        good = within[keys[at[within]] >> 40 == own[within]]
        found[good] = chosen[at[good]]
        order = np.argsort(begun, kind="stable")
        same = (own[order][1:] == own[order][:-1]) & (at[order][1:] == at[order][:-1])
        lost = np.zeros(len(at), bool)
        lost[order[:-1]] = same
        found[lost] = -1
        return found, self.those((found < 0) & ~lost)


def _levels(records: NDArray[Any]) -> NDArray[Any]:
    """Threads and depths of operators, as one number (int64)."""
    return np.asarray(records["thread"].astype(np.int64) << 16 | records["depth"])


def _parsed(shape: str) -> tuple[int, ...] | None:
    try:
        return tuple(int(size) for size in shape.split(",")) if shape else ()
    except ValueError:
        return None
