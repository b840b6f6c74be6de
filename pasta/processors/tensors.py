"""What is known of the tensors in the object table: who made them, what they look like, what for.

A tensor's category follows from its use alone: what an optimizer updates is a parameter, what is
accumulated for one a gradient, what the forward pass makes and the backward pass reads an
activation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pasta.processors.batch import ABSENT_U32
from pasta.processors.codes import grown
from pasta.processors.correlate import OPTIMIZER_STEP

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.correlate import OpenRanges
    from pasta.processors.objects import ObjectTable
    from pasta.processors.operators import Operators
    from pasta.processors.strings import Strings

#: Categories by number; `category` gives the first that fits, from the end.
CATEGORIES = (
    "temporary", "activation", "input", "buffer", "gradient", "optimizer state", "parameter",
)  # fmt: skip
_TEMPORARY, _ACTIVATION, _INPUT, _BUFFER, _GRADIENT, _STATE, _PARAMETER = range(len(CATEGORIES))

# Bits of `flags`.
_TOLD = {"parameter": 1, "gradient": 2, "optimizer_state": 4, "buffer": 8}
_MADE_FORWARD, _MADE_OUTSIDE = 16, 32  # by an operator of the forward pass; outside of modules
_READ_BACKWARD, _READ_IN_MODULE = 64, 128

#: What is known of an object, by its id. `node`: operator that allocated it; `shape`, `dtype`,
#: `name`: ids of strings; `storage`: bytes that it asked for; `reads`: operators that took it.
TENSOR = np.dtype(
    [
        ("node", "i4"),
        ("flags", "u4"),
        ("shape", "u4"),
        ("dtype", "u4"),
        ("name", "u4"),
        ("reads", "u4"),
        ("storage", "u8"),
    ]
)
_DEFINED = np.dtype([("storage", "u8"), ("bytes", "u8"), ("shape", "u4"), ("dtype", "u4")])
_USE = np.dtype(
    [("index", "u4"), ("thread", "u4"), ("tensor", "u4"), ("input", "u1"), ("of", "i4")]
)
_WHERE = np.dtype([("index", "u4"), ("thread", "u4")])
_ACCUMULATE = "torch::autograd::AccumulateGrad"


class Tensors:
    """Follows the tensors of frameworks; `context.tensors`."""

    def __init__(
        self, objects: ObjectTable, operators: Operators, ranges: OpenRanges, strings: Strings
    ) -> None:
        self.attach(objects, operators, ranges, strings)
        self._rows = np.zeros(1024, TENSOR)
        self._defined = np.zeros(1024, _DEFINED)  # by id
        self._accumulates = np.zeros(1024, bool)  # by node
        self._nodes = 1  # that are in it

    def attach(
        self, objects: ObjectTable, operators: Operators, ranges: OpenRanges, strings: Strings
    ) -> None:
        self.objects, self.operators, self.ranges = objects, operators, ranges
        self.strings = strings

    def __getstate__(self) -> dict[str, Any]:
        shared = ("objects", "operators", "ranges", "strings")
        return {name: value for name, value in vars(self).items() if name not in shared}

    @property
    def rows(self) -> NDArray[Any]:
        """What is known of objects by id (dtype TENSOR); zeros for those that are no tensors."""
        self._rows = grown(self._rows, len(self.objects.rows))
        return self._rows[: len(self.objects.rows)]

    def category(self, ids: NDArray[Any]) -> NDArray[Any]:
        """Numbers (int8) in CATEGORIES of objects by id, by their use up to now."""
        flags = self.rows["flags"][ids]
        found = np.full(len(ids), _TEMPORARY, np.int8)
        for number, fits in (
            (_ACTIVATION, _all(flags, _MADE_FORWARD | _READ_BACKWARD)),
            (_INPUT, _all(flags, _MADE_FORWARD | _MADE_OUTSIDE | _READ_IN_MODULE)),
            (_BUFFER, _all(flags, _TOLD["buffer"])),
            (_GRADIENT, _all(flags, _TOLD["gradient"])),
            (_STATE, _all(flags, _TOLD["optimizer_state"])),
            (_PARAMETER, _all(flags, _TOLD["parameter"])),
        ):
            found[fits] = number
        return found

    def feed(self, batch: Batch) -> None:
        """Follows a batch, with which the parts that this one asks have been fed."""
        self._learn_names()
        self._begin_tensors()
        told = batch["tensor_create"]
        is_role = told["tensor"] == ABSENT_U32
        uses = self._uses(batch)
        if len(uses):
            self._use(uses, self._find(uses, told[~is_role]))
        self._define(told[~is_role])
        if is_role.any():
            self._tell(told[is_role])

    def _learn_names(self) -> None:
        names, known = self.operators.nodes["name"], self._nodes
        self._accumulates = grown(self._accumulates, len(names))
        texts = self.strings.many(names[known:])
        self._accumulates[known : len(names)] = [text == _ACCUMULATE for text in texts]
        self._nodes = len(names)

    def _begin_tensors(self) -> None:
        from pasta.processors.objects import TENSOR as LAYER

        changes, objects = self.objects.changes, self.objects.rows
        new = changes[changes["sign"] > 0]
        new = new[objects["layer"][new["object"]] == LAYER]
        if not len(new):
            return
        ids = new["object"]
        where = np.zeros(len(new), _WHERE)
        where["index"], where["thread"] = new["index"], objects["thread"][ids]
        node = self.operators.at(where)
        begun = np.zeros(len(new), TENSOR)
        begun["node"] = node
        forward = ~self.operators.backward[node] & ~self.ranges.within(
            where, OPTIMIZER_STEP, self.strings
        )
        outside = self.operators.nodes["module"][node] == 0
        begun["flags"] = _MADE_FORWARD * forward + _MADE_OUTSIDE * outside
        self.rows[ids] = begun

    def _uses(self, batch: Batch) -> NDArray[Any]:
        """Tensors that operators take or give, in no order; `of` is the operator's node."""
        from pasta import abi

        parts = []
        more = batch["operator_tensors"]
        is_input = more["role"] == next(
            number for number, name in abi.ENUMS["role"].items() if name == "input"
        )
        begins, ends = batch["operator_begin"], batch["operator_end"]
        for records, counts, input, before in (
            (begins, begins["inputs"], True, False),
            (ends, ends["outputs"], False, True),
            (more[is_input], more["count"][is_input], True, True),
            (more[~is_input], more["count"][~is_input], False, True),
        ):
            width = records["tensor"].shape[1]
            held = np.arange(width) < np.minimum(counts, width)[:, None]
            row, column = np.nonzero(held)
            uses = np.zeros(len(row), _USE)
            uses["index"], uses["thread"] = records["index"][row], records["thread"][row]
            uses["tensor"] = records["tensor"][row, column]
            uses["input"] = input
            uses["of"] = self.operators.at(records, before=before)[row]
            parts.append(uses)
        return np.concatenate(parts)

    def _find(self, uses: NDArray[Any], defined: NDArray[Any]) -> NDArray[Any]:
        """What the ids of uses stood for (dtype _DEFINED); zeros for those never told."""
        self._defined = grown(self._defined, int(uses["tensor"].max()) + 1)
        found = self._defined[uses["tensor"]]
        if len(defined):
            keys = _key(defined["tensor"], defined["index"])
            order = np.argsort(keys, kind="stable")
            at = np.searchsorted(keys[order], _key(uses["tensor"], uses["index"]), "right") - 1
            last = defined[order[np.maximum(at, 0)]]
            new = (at >= 0) & (last["tensor"] == uses["tensor"])
            for name in _DEFINED.names or ():
                found[name][new] = last[name][new]
        return np.asarray(found)

    def _define(self, defined: NDArray[Any]) -> None:
        if len(defined):
            ids = defined["tensor"]  # the last of an id stays: NumPy assigns in order
            self._defined = grown(self._defined, int(ids.max()) + 1)
            for name in _DEFINED.names or ():
                self._defined[name][ids] = defined[name]

    def _use(self, uses: NDArray[Any], stood_for: NDArray[Any]) -> None:
        found = self.objects.lookup(stood_for["storage"], uses["index"], "tensor")
        known = found >= 0
        uses, stood_for, ids = uses[known], stood_for[known], found[known]
        rows, of = self.rows, uses["of"]
        inputs = uses["input"] == 1
        flags = _READ_BACKWARD * (inputs & self.operators.backward[of])
        flags = flags + _READ_IN_MODULE * (inputs & (self.operators.nodes["module"][of] != 0))
        flags = flags + _TOLD["gradient"] * (inputs & self._accumulates[of])
        np.bitwise_or.at(rows["flags"], ids, flags.astype(np.uint32))
        rows["reads"] += np.bincount(ids[inputs], minlength=len(rows)).astype(np.uint32)
        # the first that was seen of a storage says what it looks like
        first = np.argsort(uses["index"], kind="stable")[::-1]
        first = first[rows["storage"][ids[first]] == 0]
        for name, field in (("shape", "shape"), ("dtype", "dtype"), ("storage", "bytes")):
            rows[name][ids[first]] = stood_for[field][first]

    def _tell(self, told: NDArray[Any]) -> None:
        from pasta import abi

        found = self.objects.lookup(told["storage"], told["index"], "tensor")
        known = found >= 0
        bits = {number: _TOLD.get(name, 0) for number, name in abi.ENUMS["role"].items()}
        flags = np.asarray([bits.get(role, 0) for role in told["role"][known].tolist()], np.uint32)
        np.bitwise_or.at(self.rows["flags"], found[known], flags)
        named = known & (told["name"] != 0)
        self.rows["name"][found[named]] = told["name"][named]


def _all(flags: NDArray[Any], bits: int) -> NDArray[Any]:
    return np.asarray((flags & bits) == bits)


def _key(tensor: NDArray[Any], index: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(tensor.astype(np.uint64) << np.uint64(32) | index.astype(np.uint64))
