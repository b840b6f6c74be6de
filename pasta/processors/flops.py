"""Floating-point operations of operators by the shapes of their tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.batch import ABSENT_U32
from pasta.processors.codes import Codes, grown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.conventions import Formula
    from pasta.processors.strings import Strings

#: Tensors with higher numbers have no known shape.
_MAX_TENSORS = 1 << 24
#: Inputs and outputs that formulas get.
_INPUTS, _OUTPUTS = 6, 3
#: Remembered results of formulas.
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
        #: Operators that have not ended, by thread and depth: type, name and shapes of inputs.
        self._open: dict[tuple[int, int], tuple[int, ...]] = {}
        self._known: dict[tuple[int, ...], int] = {}

    def feed(
        self, batch: Batch, ended: NDArray[Any], strings: Strings
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Nodes (int32) of operators, their operations (int64), and the type of their numbers, a
        string id (uint32, 0: unknown). `ended`: the node of each operator_end of the batch."""
        created = batch["tensor_create"]
        created = created[(created["tensor"] < _MAX_TENSORS) & (created["shape"] != 0)]
        begins, ends = batch["operator_begin"], batch["operator_end"]
        begins = begins[self._has_formula(begins["name"], strings) & (begins["inputs"] > 0)]
        nodes: list[int] = []
        counts: list[int] = []
        found_types: list[int] = []
        if len(begins) or self._open:
            inputs = self._of_tensors("shape", begins, "inputs", _INPUTS, created)
            types = self._of_tensors("dtype", begins, "inputs", 2, created)
            depths = {*begins["depth"].tolist(), *(depth for _, depth in self._open)}
            chosen = np.flatnonzero(np.isin(ends["depth"], list(depths)))
            ends, ended = ends[chosen], ended[chosen]
            outputs = self._of_tensors("shape", ends, "outputs", _OUTPUTS, created)
            order = np.argsort(np.concatenate([begins["index"], ends["index"]]), kind="stable")
            rows = [*zip(*(begins[name].tolist() for name in ("thread", "depth")), strict=True)]
            names = begins["name"].tolist()
            ending = [*zip(*(ends[name].tolist() for name in ("thread", "depth")), strict=True)]
            for at in order.tolist():
                if at < len(rows):
                    first, second = types[at]  # the first may be a bias
                    self._open[rows[at]] = (second or first, names[at], *inputs[at])
                    continue
                at -= len(rows)
                given = self._open.pop(ending[at], None)
                if given is not None:
                    nodes.append(int(ended[at]))
                    counts.append(self._count((*given[1:], *outputs[at]), strings))
                    found_types.append(given[0])
        for name, known in self._tensors.items():
            known = grown(known, int(created["tensor"].max(initial=0)) + 1)
            known[created["tensor"]] = created[name]
            self._tensors[name] = known
        return (
            np.asarray(nodes, np.int32),
            np.asarray(counts, np.int64),
            np.asarray(found_types, np.uint32),
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
    ) -> list[list[int]]:
        """String ids of the shapes or types of each record's first tensors, as of the record; 0:
        none."""
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
        return [[*row, *[0] * (width - len(row))] for row in found.tolist()]

    def _count(self, key: tuple[int, ...], strings: Strings) -> int:
        """Operations of an operator by its name and shapes; 0 where the formula does not fit."""
        if key not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            shapes = [_parsed(strings[each]) if each else None for each in key[1:]]
            inputs = [shape for shape in shapes[:_INPUTS] if shape is not None]
            outputs = [shape for shape in shapes[_INPUTS:] if shape is not None]
            try:
                found = self._formulas[strings[key[0]]](inputs, outputs)
            except (IndexError, ValueError):  # fewer tensors, or dimensions
                found = 0
            self._known[key] = found
        return self._known[key]


def _parsed(shape: str) -> tuple[int, ...] | None:
    try:
        return tuple(int(size) for size in shape.split(",")) if shape else ()
    except ValueError:
        return None
