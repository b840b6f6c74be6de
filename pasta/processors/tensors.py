"""Tensors in the object table: the operators that allocated them, shapes, types and categories.

A tensor's category follows from its use alone: a parameter is updated by an optimizer, a gradient
is accumulated for one, an activation is made in the forward pass and read in the backward pass. It
applies to the whole lifetime of the memory, whenever it was learned, and to the tensors that it was
moved from or to (`Module.cuda()`, `Module.bfloat16()`), even after they were freed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pasta import abi
from pasta.compiled import compiled, internal
from pasta.processors.batch import ABSENT_U32
from pasta.processors.codes import grown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.conventions import Conventions
    from pasta.processors.correlate import OpenRanges
    from pasta.processors.objects import ObjectTable
    from pasta.processors.operators import Operators
    from pasta.processors.strings import Strings

#: Categories by number; `category` gives the last that applies.
CATEGORIES = (
    "temporary", "workspace", "activation", "input", "buffer", "gradient", "optimizer state",
    "parameter",
)  # fmt: skip
(
    _TEMPORARY, _WORKSPACE, _ACTIVATION, _INPUT, _BUFFER, _GRADIENT, _STATE, _PARAMETER
) = range(len(CATEGORIES))  # fmt: skip
#: Made outside of modules and read in the backward pass: by `resolved` an activation, such as a
#: loss, an input, such as labels, or a gradient on its way.
_READ_BACKWARD_ONLY = len(CATEGORIES)
#: Name of workspaces in a run whose operators did not report tensors.
_UNKNOWN = "unknown"

# Bits of `flags`.
_ROLE_FLAGS = {"parameter": 1, "gradient": 2, "optimizer_state": 4, "buffer": 8}
_MADE_FORWARD, _MADE_OUTSIDE = 16, 32  # by an operator of the forward pass; outside of modules
_READ_BACKWARD, _READ_IN_MODULE = 64, 128
_READ_TO_ACCUMULATE = _ROLE_FLAGS["gradient"]
#: Flags shared by a tensor and the tensors that it was moved from or to.
_MOVES_ALONG = _ROLE_FLAGS["parameter"] | _ROLE_FLAGS["buffer"] | _READ_IN_MODULE
_HELD = _ROLE_FLAGS["parameter"] | _ROLE_FLAGS["buffer"]
_ROLE_INPUT = next(number for number, name in abi.enums()["role"].items() if name == "input")

#: A tensor by object id. `node`: operator that allocated it; `shape`, `dtype`, `name`: string ids;
#: `storage`: requested bytes, 0 if no tensor was seen; `reads`: operators that read it; `group`:
#: tensors that it was moved from or to, 0 for none; `reader`: the last operator outside of the
#: backward pass that read it.
TENSOR = np.dtype(
    [
        ("node", "i4"),
        ("flags", "u4"),
        ("shape", "u4"),
        ("dtype", "u4"),
        ("name", "u4"),
        ("reads", "u4"),
        ("group", "u4"),
        ("reader", "i4"),
        ("storage", "u8"),
    ]
)
#: A group of tensors that were moved, one into another: `flags` are those of _MOVES_ALONG.
_GROUP = np.dtype([("flags", "u4"), ("live", "i4")])
_DEFINED = np.dtype([("storage", "u8"), ("bytes", "u8"), ("shape", "u4"), ("dtype", "u4")])
#: An input or output tensor of an operator (node `of`), with the definition of its id.
_USE = np.dtype([*_DEFINED.descr, ("index", "i8"), ("of", "i4"), ("input", "u1")])
_WHERE = np.dtype([("index", "u4"), ("thread", "u4")])
#: Tensor ids are below this (a thread has 8,192); larger ones mean damaged records.
_MAX_TENSORS = 1 << 24


@internal
def _use(record, count, of, input, defined, uses, used):  # type: ignore[no-untyped-def]
    """Appends the definitions of a record's tensors to `uses` and returns their number."""
    for i in range(min(count, len(record["tensor"]))):
        id = record["tensor"][i]
        if id >= len(defined) or defined[id]["storage"] == 0:
            continue  # never defined
        known = defined[id]
        use = uses[used]
        use["storage"] = known["storage"]
        use["bytes"] = known["bytes"]
        use["shape"] = known["shape"]
        use["dtype"] = known["dtype"]
        use["index"] = record["index"]
        use["of"] = of
        use["input"] = input
        used += 1
    return used


@compiled(
    created=[abi.dtype("tensor_create")], begins=[abi.dtype("operator_begin")], began=["i4"],
    ends=[abi.dtype("operator_end")], ended=["i4"], more=[abi.dtype("operator_tensors")],
    of_more=["i4"], defined=[_DEFINED], uses=[_USE],
)  # fmt: skip
def _resolve(created, begins, began, ends, ended, more, of_more, defined, uses):  # type: ignore[no-untyped-def]
    """Writes input and output tensors of operators to `uses`, in ring order, with the definitions
    of their ids at that time, and returns their number. Updates `defined`, by id, to the end of the
    batch."""
    used = c = b = e = m = 0
    none = np.uint32(ABSENT_U32)
    while True:
        at_c = created[c]["index"] if c < len(created) else none
        at_b = begins[b]["index"] if b < len(begins) else none
        at_e = ends[e]["index"] if e < len(ends) else none
        at_m = more[m]["index"] if m < len(more) else none
        first = min(min(at_c, at_b), min(at_e, at_m))
        if first == none:
            return used
        if at_c == first:
            if created[c]["tensor"] < len(defined):
                known = defined[created[c]["tensor"]]
                known["storage"] = created[c]["storage"]
                known["bytes"] = created[c]["bytes"]
                known["shape"] = created[c]["shape"]
                known["dtype"] = created[c]["dtype"]
            c += 1
        elif at_b == first:
            used = _use(begins[b], begins[b]["inputs"], began[b], 1, defined, uses, used)
            b += 1
        elif at_e == first:
            used = _use(ends[e], ends[e]["outputs"], ended[e], 0, defined, uses, used)
            e += 1
        else:
            input = more[m]["role"] == _ROLE_INPUT
            used = _use(more[m], more[m]["count"], of_more[m], input, defined, uses, used)
            m += 1


@internal
def _move(source, to, rows, groups, count):  # type: ignore[no-untyped-def]
    """Adds a tensor to the group of the one that it was copied from, unless an operator of a module
    made the source."""
    if rows[to]["group"] != 0 or not rows[source]["flags"] & np.uint32(_HELD | _MADE_OUTSIDE):
        return
    group = rows[source]["group"]
    if group == 0:
        group = np.uint32(count[0])
        count[0] += 1
        groups[group]["flags"] = rows[source]["flags"] & np.uint32(_MOVES_ALONG)
        groups[group]["live"] = 1
        rows[source]["group"] = group
    groups[group]["live"] += 1
    rows[to]["group"] = group


@compiled(
    uses=[_USE], ids=["i8"], rows=[TENSOR], backward=["?"], in_module=["?"], accumulates=["?"],
    moves=["?"], groups=[_GROUP], count=["i8"],
)  # fmt: skip
def _apply(  # type: ignore[no-untyped-def]
    uses, ids, rows, backward, in_module, accumulates, moves, groups, count
):
    """Updates the objects `ids` (-1: none) of tensors by their uses."""
    for i in range(len(uses)):
        if ids[i] < 0:
            continue
        use, row = uses[i], rows[ids[i]]
        if row["storage"] == 0:  # the first tensor defines shape and type
            row["storage"] = use["bytes"]
            row["shape"] = use["shape"]
            row["dtype"] = use["dtype"]
        if not use["input"]:
            continue
        row["reads"] += np.uint32(1)
        if backward[use["of"]]:
            row["flags"] |= np.uint32(_READ_BACKWARD)
        else:
            row["reader"] = use["of"]
        if in_module[use["of"]]:
            row["flags"] |= np.uint32(_READ_IN_MODULE)
            if row["group"]:
                groups[row["group"]]["flags"] |= np.uint32(_READ_IN_MODULE)
        if accumulates[use["of"]]:
            row["flags"] |= np.uint32(_READ_TO_ACCUMULATE)
        if i > 0 and moves[use["of"]] and uses[i - 1]["index"] == use["index"]:
            to = ids[i - 1]  # copy_(to, source)
            if to >= 0 and to != ids[i] and uses[i - 1]["shape"] == use["shape"]:
                _move(ids[i], to, rows, groups, count)


class Tensors:
    """Tensors of frameworks: `context.tensors`."""

    def __init__(
        self,
        objects: ObjectTable,
        operators: Operators,
        ranges: OpenRanges,
        strings: Strings,
        conventions: Conventions,
    ) -> None:
        self.attach(objects, operators, ranges, strings, conventions)
        self._rows = np.zeros(1024, TENSOR)
        self._defined = np.zeros(1024, _DEFINED)  # by id
        self._accumulates = np.zeros(1024, bool)  # by node
        self._moves = np.zeros(1024, bool)
        self._nodes = 1  # covered by both
        self._groups = np.zeros(1024, _GROUP)  # 0: no group
        self._group_count = np.ones(1, np.int64)
        self._followed = False  # whether an operator ever reported a tensor

    def attach(
        self,
        objects: ObjectTable,
        operators: Operators,
        ranges: OpenRanges,
        strings: Strings,
        conventions: Conventions,
    ) -> None:
        """Use the processors of this process, which are not part of the pickled state."""
        self.objects, self.operators, self.ranges = objects, operators, ranges
        self.strings, self.conventions = strings, conventions

    def __getstate__(self) -> dict[str, Any]:
        shared = ("objects", "operators", "ranges", "strings", "conventions")
        return {name: value for name, value in vars(self).items() if name not in shared}

    @property
    def rows(self) -> NDArray[Any]:
        """Tensors by object id (dtype TENSOR); zeros for other objects."""
        self._rows = grown(self._rows, len(self.objects.rows))
        return self._rows[: len(self.objects.rows)]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of categories by number in this run."""
        if self._followed:
            return CATEGORIES
        return (*CATEGORIES[:_WORKSPACE], _UNKNOWN, *CATEGORIES[_WORKSPACE + 1 :])

    def category(self, ids: NDArray[Any]) -> NDArray[Any]:
        """Numbers (int8) in CATEGORIES of objects by id, by their use up to now."""
        rows = self.rows[ids]
        return self.resolved(self.category_of(rows), rows["node"], rows["reader"])

    def resolved(
        self, categories: NDArray[Any], nodes: NDArray[Any], readers: NDArray[Any]
    ) -> NDArray[Any]:
        """Numbers (int8) in CATEGORIES from results of `category_of`, the nodes that made the
        tensors and their last readers outside of the backward pass."""
        forward = self.operators.nodes["forward"]
        differentiated = np.zeros(len(forward), bool)
        differentiated[forward[forward != 0]] = True
        differentiated = self.operators.within(differentiated)
        made = np.select(
            [differentiated[nodes], differentiated[readers]], [_ACTIVATION, _INPUT], _TEMPORARY
        )
        return np.where(categories == _READ_BACKWARD_ONLY, made, categories).astype(np.int8)

    @staticmethod
    def is_resolved(categories: NDArray[Any]) -> NDArray[Any]:
        """Whether results of `category_of` (bool) do not depend on nodes."""
        return np.asarray(categories != _READ_BACKWARD_ONLY)

    def category_of(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Categories (int8) to be `resolved`, from the fields `flags`, `group` and `storage` of
        copies of `rows`, also of freed objects. They may change until they are `settled`."""
        flags = rows["flags"] | self._groups["flags"][rows["group"]]
        found = np.full(len(rows), _TEMPORARY, np.int8)
        for number, fits in (
            (_WORKSPACE, rows["storage"] == 0),
            (_ACTIVATION, _all(flags, _MADE_FORWARD | _READ_BACKWARD)),
            (_READ_BACKWARD_ONLY, _all(flags, _MADE_FORWARD | _MADE_OUTSIDE | _READ_BACKWARD)),
            (_INPUT, _all(flags, _MADE_FORWARD | _MADE_OUTSIDE | _READ_IN_MODULE)),
            (_BUFFER, _all(flags, _ROLE_FLAGS["buffer"])),
            (_GRADIENT, _all(flags, _ROLE_FLAGS["gradient"])),
            (_STATE, _all(flags, _ROLE_FLAGS["optimizer_state"])),
            (_PARAMETER, _all(flags, _ROLE_FLAGS["parameter"])),
        ):
            found[fits] = number
        return found

    def settled(self, groups: NDArray[Any]) -> NDArray[Any]:
        """Whether categories of freed objects of these groups (bool) can no longer change."""
        return np.asarray((groups == 0) | (self._groups["live"][groups] <= 0))

    def feed(self, batch: Batch) -> None:
        """Follows a batch, with which the processors that this one queries have been fed."""
        self._learn_names()
        self._begin_tensors()
        created = batch["tensor_create"]
        uses = self._uses(batch, created)
        if len(uses):
            self._use(uses)
        is_role = created["role"] != 0
        if is_role.any():
            self._assign_roles(created[is_role])
        changes = self.objects.changes
        freed = self.rows["group"][changes["object"][changes["sign"] < 0]]
        np.subtract.at(self._groups["live"], freed[freed != 0], 1)

    def _learn_names(self) -> None:
        nodes, known = self.operators.nodes, self._nodes
        self._accumulates = grown(self._accumulates, len(nodes))
        self._moves = grown(self._moves, len(nodes))
        texts = self.strings.many(nodes["name"][known:])
        parents = self.strings.many(nodes["name"][nodes["parent"][known:]])
        self._accumulates[known : len(nodes)] = [
            text in self.conventions.gradient_sums for text in texts
        ]
        moves = [pair in self.conventions.moves for pair in zip(texts, parents, strict=True)]
        new = slice(known, len(nodes))
        outside = (nodes["module"][new] == 0) & ~self.operators.backward[new]
        self._moves[new] = np.asarray(moves, bool) & outside
        self._nodes = len(nodes)

    def _begin_tensors(self) -> None:
        from pasta.processors.objects import TENSOR as LAYER

        objects, new = self.objects.rows, self.objects.begun(LAYER)
        if not len(new):
            return
        ids = new["object"]
        where = np.zeros(len(new), _WHERE)
        where["index"], where["thread"] = new["index"], objects["thread"][ids]
        node = self.operators.at(where)
        begun = np.zeros(len(new), TENSOR)
        begun["node"] = node
        forward = ~self.operators.backward[node] & ~self.ranges.within(
            where, self.conventions.optimizer_steps, self.strings
        )
        outside = self.operators.nodes["module"][node] == 0
        begun["flags"] = _MADE_FORWARD * forward + _MADE_OUTSIDE * outside
        self.rows[ids] = begun

    def _uses(self, batch: Batch, created: NDArray[Any]) -> NDArray[Any]:
        """Input and output tensors of operators, in ring order (dtype _USE)."""
        begins, ends, more = (
            batch["operator_begin"], batch["operator_end"], batch["operator_tensors"]
        )  # fmt: skip
        room = 0
        for records, count in ((begins, "inputs"), (ends, "outputs"), (more, "count")):
            width = records["tensor"].shape[1]
            room += int(np.minimum(records[count], width).sum(dtype=np.int64))
        if not room and not len(created):
            return np.empty(0, _USE)
        ids = created["tensor"][created["tensor"] < _MAX_TENSORS]
        self._defined = grown(self._defined, int(ids.max(initial=0)) + 1)
        uses = np.empty(room, _USE)
        used = _resolve(
            created, begins, self.operators.began, ends, self.operators.ended,
            more, self.operators.at(more), self._defined, uses,
        )  # fmt: skip
        return uses[:used]

    def _use(self, uses: NDArray[Any]) -> None:
        ids = self.objects.lookup(uses["storage"], uses["index"], "tensor")
        in_module = self.operators.nodes["module"] != 0
        moves = int(self._moves[self.operators.began].sum())
        self._groups = grown(self._groups, int(self._group_count[0]) + moves)
        self._followed = True
        _apply(
            uses, ids, self.rows, self.operators.backward, in_module, self._accumulates,
            self._moves, self._groups, self._group_count,
        )  # fmt: skip

    def _assign_roles(self, roles: NDArray[Any]) -> None:
        found = self.objects.lookup(roles["storage"], roles["index"], "tensor")
        known = found >= 0
        bits = {number: _ROLE_FLAGS.get(name, 0) for number, name in abi.enums()["role"].items()}
        flags = np.asarray([bits.get(role, 0) for role in roles["role"][known].tolist()], np.uint32)
        np.bitwise_or.at(self.rows["flags"], found[known], flags)
        group, held = self.rows["group"][found[known]], flags & np.uint32(_HELD)
        np.bitwise_or.at(self._groups["flags"], group[group != 0], held[group != 0])
        named = known & (roles["name"] != 0)
        self.rows["name"][found[named]] = roles["name"][named]


def _all(flags: NDArray[Any], bits: int) -> NDArray[Any]:
    return np.asarray((flags & bits) == bits)
