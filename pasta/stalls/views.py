"""Tensors and their views: the operator that created each view of a storage, and the number of
in-place changes by operators."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, BinaryIO

from pasta.lazy import np
from pasta.processors.batch import ABSENT_U32
from pasta.processors.codes import RowCodes, grown
from pasta.processors.object_names import TensorNames, has_tensors
from pasta.processors.rows import group_starts, places_of
from pasta.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.context import Context

#: Views of a run; of further ones nothing is known.
_MAX_VIEWS = 1 << 22
#: Tensor ids are below this; larger ones mean damaged records.
_MAX_TENSORS = 1 << 24
_32 = 32  # bits of an index


def _use_type() -> Any:
    """Use of a tensor (id) by an operator: `call` is a row of the batch's begins, -1 if unknown."""
    return np.dtype(
        [("index", "i8"), ("tensor", "u4"), ("node", "i4"), ("call", "i8"), ("made", "?")]
    )


class Views:
    """Views of tensors' storages, from the operators that take and return them.

    A view is an object (the storage) with offset, shape, strides and type. The operator that first
    returned it created it; its parent is the view of the same storage among that operator's inputs.
    """

    #: Event kinds that `feed` reads.
    KINDS = frozenset({"tensor_create", "operator_begin", "operator_end", "operator_tensors"})

    def __init__(self) -> None:
        self._shapes = RowCodes(_MAX_VIEWS)  # offset, shape, strides, type
        self._codes = RowCodes(_MAX_VIEWS)  # object, number of the shape
        self._storage = np.zeros(1024, np.uint64)  # by tensor id; 0: not defined
        self._shape = np.zeros(1024, np.int64)
        self._node = np.zeros(1024, np.int32)  # by view
        self._parent_plus_1 = np.zeros(1024, np.int64)
        self._versions = np.zeros(1024, np.int64)
        self._threads: dict[int, int] = {}
        #: The last begin of each thread and depth, and its inputs (call, object, view).
        self._open = np.zeros(0, np.uint64)
        self._inputs = np.zeros((0, 3), np.int64)

    def feed(self, context: Context, batch: Batch) -> None:
        """Follows a batch, with which the context's processors have been fed."""
        created = batch["tensor_create"]
        created = created[created["tensor"] < _MAX_TENSORS]
        uses, begun = self._uses(context, batch)
        storages, shapes = self._resolved(created, uses)
        known = storages != 0
        uses, storages, shapes = uses[known], storages[known], shapes[known]
        objects = context.objects.lookup(storages, uses["index"], "tensor")
        known = (objects >= 0) & (shapes >= 0)
        uses, objects, shapes = uses[known], objects[known], shapes[known]
        before = len(self._codes)
        views = self._codes.encode(np.column_stack([objects, shapes]).astype(np.uint64))
        self._follow(context, uses, objects, views, begun, before)

    def _uses(self, context: Context, batch: Batch) -> tuple[NDArray[Any], NDArray[Any]]:
        """Uses in ring order, and the keys of the calls of open and begun operators, sorted."""
        begins, ends = batch["operator_begin"], batch["operator_end"]
        more = batch["operator_tensors"]
        operators = context.operators
        keys = np.concatenate([self._open, self._key(begins, begins["depth"])])
        order = np.argsort(keys, kind="stable")
        rank = np.empty(len(keys), np.int64)
        rank[order] = np.arange(len(keys))
        keys = keys[order]
        wanted = self._key(ends, ends["depth"])
        calls = np.searchsorted(keys, wanted) - 1
        same = calls >= 0
        same[same] = keys[calls[same]] >> _32 == wanted[same] >> _32
        moved = self._inputs.copy()
        moved[:, 0] = rank[moved[:, 0]]
        self._inputs = moved
        parts = [
            _flat(begins, begins["inputs"], operators.began, rank[len(self._open) :], made=False),
            _flat(ends, ends["outputs"], operators.ended, np.where(same, calls, -1), made=True),
        ]
        if len(more):
            nodes, none = operators.at(more), np.full(len(more), -1)
            is_input = more["role"] == _role_of_inputs()
            for chosen, made in ((is_input, False), (~is_input, True)):
                some = more[chosen]
                parts.append(_flat(some, some["count"], nodes[chosen], none[chosen], made=made))
        uses = np.concatenate(parts)
        return uses[np.argsort(uses["index"], kind="stable")], keys

    def _key(self, records: NDArray[Any], depths: NDArray[Any]) -> NDArray[Any]:
        """Thread, depth and position (from 1) of records as a number."""
        threads, inverse = np.unique(records["thread"], return_inverse=True)
        numbers = [self._threads.setdefault(id, len(self._threads)) for id in threads.tolist()]
        slots = np.asarray(numbers, np.uint64)[inverse.reshape(-1)]
        place = slots << np.uint64(16) | depths.astype(np.uint64)
        return np.asarray(place << _32 | (records["index"].astype(np.uint64) + np.uint64(1)))

    def _resolved(
        self, created: NDArray[Any], uses: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Storage addresses and numbers of shapes of uses, as defined last; 0 if never."""
        words = np.column_stack([created[name] for name in ("offset", "shape", "strides", "dtype")])
        shapes = self._shapes.encode(words.astype(np.uint64))
        most = int(max(created["tensor"].max(initial=0), 0)) + 1
        self._storage, self._shape = grown(self._storage, most), grown(self._shape, most)
        ids = np.minimum(uses["tensor"], len(self._storage) - 1)
        outside = uses["tensor"] >= len(self._storage)
        storages, found = self._storage[ids], self._shape[ids]
        storages[outside] = 0
        keys = created["tensor"].astype(np.uint64) << _32 | created["index"].astype(np.uint64)
        order = np.argsort(keys)
        wanted = uses["tensor"].astype(np.uint64) << _32 | uses["index"].astype(np.uint64)
        at = np.searchsorted(keys[order], wanted) - 1
        here = at >= 0
        here[here] = keys[order][at[here]] >> _32 == wanted[here] >> _32
        last = order[at[here]]
        storages[here], found[here] = created["storage"][last], shapes[last]
        self._storage[created["tensor"]] = created["storage"]  # in order: the last one stays
        self._shape[created["tensor"]] = shapes
        return storages, found

    def _follow(
        self, context: Context, uses: NDArray[Any], objects: NDArray[Any], views: NDArray[Any],
        begun: NDArray[Any], before: int,
    ) -> None:  # fmt: skip
        count = len(self._codes)
        self._node, self._versions = grown(self._node, count), grown(self._versions, count)
        self._parent_plus_1 = grown(self._parent_plus_1, count)
        taken = ~uses["made"] & (uses["call"] >= 0) & (views >= 0)
        new_inputs = np.column_stack([uses["call"][taken], objects[taken], views[taken]])
        inputs = np.concatenate([self._inputs, new_inputs.astype(np.int64)])
        order = np.lexsort([np.arange(len(inputs)), inputs[:, 1], inputs[:, 0]])
        inputs = inputs[order]
        made = np.flatnonzero(uses["made"] & (views >= 0))
        sources = _sources(inputs, uses["call"][made], objects[made])
        names = context.operators.nodes["name"]
        self._count_versions(context, uses[made], views[made], sources, names)
        distinct, first = np.unique(views, return_index=True)
        new = first[(distinct >= before) & (distinct >= 0)]
        new = new[uses["made"][new]]
        self._node[views[new]] = uses["node"][new]
        of_made = np.full(len(uses), -1, np.int64)
        of_made[made] = sources
        source = of_made[new]
        self._parent_plus_1[views[new]] = np.where(source == views[new], -1, source) + 1
        last = np.flatnonzero(np.append(begun[1:] >> _32 != begun[:-1] >> _32, True)[: len(begun)])
        kept = np.full(len(begun), -1, np.int64)
        kept[last] = np.arange(len(last))
        # in the next batch, before its first record
        self._open = np.asarray(begun[last] >> _32 << _32, np.uint64)
        left = inputs[kept[inputs[:, 0]] >= 0]
        left[:, 0] = kept[left[:, 0]]
        self._inputs = left

    def _count_versions(
        self, context: Context, made: NDArray[Any], views: NDArray[Any], sources: NDArray[Any],
        names: NDArray[Any],
    ) -> None:  # fmt: skip
        """Count operators with in-place names that returned an input, except nested ones."""
        same = sources == views
        nodes, inverse = np.unique(made["node"][same], return_inverse=True)
        parents = context.operators.nodes["parent"][nodes]
        in_place = [
            name.endswith("_") and not parent.endswith("_")
            for name, parent in zip(
                context.strings.many(names[nodes]),
                context.strings.many(names[parents]),
                strict=True,
            )
        ]
        changed = np.asarray(in_place, bool)[inverse.reshape(-1)]
        np.add.at(self._versions, views[same][changed], 1)

    # ---- results

    def generations(self, context: Context, ids: NDArray[Any]) -> NDArray[Any]:
        """How many objects of its layer began at the address of each before it (int64)."""
        rows = context.objects.rows
        if not len(ids):
            return np.zeros(0, np.int64)
        every = np.lexsort([rows["address"], rows["layer"]])
        starts = group_starts(rows[every], ("layer", "address"))
        sizes = np.diff(np.append(starts, len(every)))
        earlier = np.empty(len(every), np.int64)
        earlier[every] = np.arange(len(every)) - np.repeat(starts, sizes)
        return np.asarray(earlier[ids])

    def _bases(self, wanted: NDArray[Any]) -> NDArray[Any]:
        """Views of the wanted objects, by object and order of appearance: columns object, shape
        number, view."""
        if not self._codes.rows:
            return np.zeros((0, 3), np.int64)
        rows = np.asarray(self._codes.rows, np.uint64).astype(np.int64)
        rows = np.column_stack([rows, np.arange(len(rows))])
        rows = rows[np.isin(rows[:, 0], wanted)]
        return np.asarray(rows[np.lexsort([rows[:, 2], rows[:, 0]])])

    def strides(self, context: Context, ids: NDArray[Any]) -> list[str | None]:
        """Strides of the first view of each object; None if unknown."""
        rows = self._bases(ids)
        found: dict[int, str | None] = {}
        for object, shape, _ in rows.tolist():
            strides = self._shapes.rows[shape][2]
            found.setdefault(object, context.strings[strides] if strides else None)
        return [found.get(id) for id in ids.tolist()]

    def forest(self, context: Context, objects: Table) -> Forest:
        """The views of objects (a table as `Stalls.objects`)."""
        rows = self._bases(np.asarray(objects.columns["object_id"]))
        if not has_tensors(context):
            return Forest(objects, [])
        strings, sizes = context.strings, dict(context.conventions.item_sizes)
        nodes = self._node[rows[:, 2]]
        zero = np.zeros(len(rows), np.int64)
        made = TensorNames(context).described(zero, zero, zero, nodes) if len(rows) else {}
        views = []
        for at, (object, shape, view) in enumerate(rows.tolist()):
            offset, *texts = self._shapes.rows[shape]
            size, strides, dtype = (strings[id] if id else "" for id in texts)
            known = bool(nodes[at])
            views.append(
                View(
                    object,
                    view,
                    int(self._parent_plus_1[view]) - 1,
                    int(offset),
                    size,
                    strides,
                    dtype,
                    extent_of(size, strides, sizes.get(dtype)),
                    int(self._versions[view]),
                    *(made[name][at] if known else None for name in ("operator", "module", "line")),
                )
            )
        return Forest(objects, views)


@dataclass(frozen=True)
class View:
    """A view of an object; `parent` is another `view` of it, or -1. `extent` in bytes, None if
    unknown; `versions`: operators that changed the object through it, in place."""

    object: int
    view: int
    parent: int
    offset: int
    shape: str
    strides: str
    dtype: str
    extent: int | None
    versions: int
    operator: str | None
    module: str | None
    line: str | None


#: Fields of a view, the columns of its table.
VIEW_FIELDS = tuple(field.name for field in fields(View))


@dataclass(frozen=True)
class Forest:
    """A tree of views for each object."""

    objects: Table
    views: list[View]

    def table(self) -> Table:
        """The views."""
        columns: dict[str, Any] = {
            name: [getattr(each, name) for each in self.views] for name in VIEW_FIELDS
        }
        for name in ("object", "view", "parent", "offset", "versions"):
            columns[name] = np.asarray(columns[name], np.int64)
        return Table(
            columns,
            units={"offset": "bytes", "extent": "bytes"},
            labels={"versions": "changes in place"},
            title="Views of the objects that loads read",
            keys=("shape", "strides", "dtype", "operator", "module", "line"),
            sums=("versions",),
            shown=0,
        )

    def trees(self, stalls: Mapping[int, int] | None = None) -> list[dict[str, Any]]:
        """Objects with their views, for JSON; with `stalls` by object id, most stalls first."""
        by_object: dict[int, list[View]] = {}
        for view in self.views:
            by_object.setdefault(view.object, []).append(view)
        trees = []
        for row in self.objects.rows():
            id = row.pop("object_id")
            tree = {"id": id, **row, "views": _nested(by_object.get(id, []))}
            if stalls is not None:
                tree["stalls"] = stalls.get(id, 0)
            trees.append(tree)
        if stalls is not None:
            trees.sort(key=lambda tree: (-tree["stalls"], tree["id"]))
        return trees

    def write(self, file: BinaryIO) -> None:
        """Writes the trees as JSON."""
        file.write(json.dumps({"objects": self.trees()}, indent=1).encode())


def _nested(views: list[View]) -> list[dict[str, Any]]:
    names = (
        "offset",
        "shape",
        "strides",
        "dtype",
        "extent",
        "versions",
        "operator",
        "module",
        "line",
    )
    made: dict[int, dict[str, Any]] = {}
    roots: list[dict[str, Any]] = []
    for view in views:  # a parent appears before its views
        made[view.view] = {**{name: getattr(view, name) for name in names}, "views": []}
        parent = made.get(view.parent)
        (roots if parent is None else parent["views"]).append(made[view.view])
    return roots


def extent_of(shape: str, strides: str, item_size: int | None) -> int | None:
    """Bytes from the first to the last element, (Σ (size - 1) · stride + 1) · item size; 0 without
    elements, None if the strides or the size of an element are not known."""
    sizes = _numbers(shape)
    steps = _numbers(strides)
    if item_size is None or sizes is None or steps is None or len(sizes) != len(steps):
        return None
    if 0 in sizes:
        return 0
    return (sum((size - 1) * step for size, step in zip(sizes, steps, strict=True)) + 1) * item_size


def _numbers(text: str) -> list[int] | None:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        return None


def _flat(
    records: NDArray[Any], counts: NDArray[Any], nodes: NDArray[Any], calls: NDArray[Any],
    *, made: bool,
) -> NDArray[Any]:  # fmt: skip
    """Uses by records, in order of their tensors."""
    tensors = records["tensor"]
    inside = np.arange(tensors.shape[1]) < counts.astype(np.int64)[:, None]
    row, column = np.nonzero(inside & (tensors != ABSENT_U32))
    uses = np.zeros(len(row), _use_type())
    uses["index"], uses["tensor"] = records["index"][row], tensors[row, column]
    uses["node"], uses["call"], uses["made"] = nodes[row], calls[row], made
    return uses


def _sources(inputs: NDArray[Any], calls: NDArray[Any], objects: NDArray[Any]) -> NDArray[Any]:
    """The first view of each object that a call took (sorted rows of call, object, view);
    -1: none."""
    if not len(inputs):
        return np.full(len(calls), -1, np.int64)
    pairs = np.column_stack([calls, objects])
    both = np.concatenate([inputs[:, :2], pairs])
    _, code = np.unique(both, axis=0, return_inverse=True)
    code = code.reshape(-1)
    known, first = np.unique(code[: len(inputs)], return_index=True)
    at, there = places_of(known, code[len(inputs) :])
    found = np.full(len(calls), -1, np.int64)
    found[there] = inputs[first[at], 2]
    return found


def _role_of_inputs() -> int:
    from pasta import abi

    return next(number for number, name in abi.enums()["role"].items() if name == "input")
