"""Names of objects and tensors in tables, and the allocations that hold tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.batch import ABSENT_U64
from pasta.processors.codes import grown
from pasta.processors.rows import combined
from pasta.table import Column, Unit, absent_where, formatted

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from pasta.processors.context import Context
    from pasta.processors.objects import ObjectTable
    from pasta.processors.stacks import Frame

#: Name of the object of an address in no live object.
UNKNOWN = "unknown"
#: Units of `object_columns`.
OBJECT_UNITS: dict[str, Unit] = {"object_address": "address", "object_bytes": "bytes"}
#: Columns of `object_columns` whose content the name of the object includes.
OBJECT_HIDDEN = frozenset(
    {"object_id", "object_address", "object_bytes", "memory"}
    | {
        f"object_{name}"
        for name in ("name", "category", "shape", "dtype", "operator", "module", "line", "file")
    }
)


def memory_numbers(names: Collection[str]) -> list[int]:
    """Numbers of kinds of memory, as in `memory` of events and objects, by name."""
    from pasta import abi

    return [number for number, name in abi.enums()["memory"].items() if name in names]


def object_keys(context: Context) -> list[str]:
    """Columns of `object_columns` that identify an object across runs: without its address."""
    names = ("name", "category", "shape", "dtype", "operator", "module", "line")
    of_tensors = [f"object_{name}" for name in names] if has_tensors(context) else []
    return ["memory", "object_bytes", *of_tensors]


def object_sizes(objects: ObjectTable, ids: NDArray[Any]) -> NDArray[Any]:
    """Bytes (uint64) of objects by id; 0 for -1 and for an object of unknown size."""
    if not len(objects.rows):
        return np.zeros(len(ids), np.uint64)
    bytes = objects.rows["bytes"][ids]
    absent = (ids < 0) | (bytes == np.uint64(ABSENT_U64))
    return np.asarray(np.where(absent, np.uint64(0), bytes))


def object_names(context: Context, ids: NDArray[Any]) -> list[str]:
    """Kind, size and address of objects: `device 4.00 MiB at 0x7f0000`,
    `parameter fc.weight 4.00 MiB at 0x7f0000`, `activation relu 4.00 MiB at 0x7f0000`."""
    return list(object_columns(context, ids)["object"])


def object_columns(context: Context, ids: NDArray[Any]) -> dict[str, Column]:
    """Columns that describe objects; for id -1 the name is `unknown`, the others are absent.

    In a run with tensors of a framework also their category, shape, type and name, and the
    operator, module and line that allocated them.
    """
    distinct, at = np.unique(ids, return_inverse=True)
    columns = _described(context, distinct)
    places = at.tolist()
    return {
        name: [column[place] for place in places] if isinstance(column, list) else column[at]
        for name, column in columns.items()
    }


def _described(context: Context, ids: NDArray[Any]) -> dict[str, list[Any] | NDArray[Any]]:
    """The columns of `object_columns`."""
    from pasta import abi
    from pasta.processors.objects import TENSOR

    memories, unknown = abi.enums()["memory"], ids < 0
    rows = context.objects.rows
    if not len(rows):
        rows, ids = np.zeros(1, rows.dtype), np.full(len(ids), -1)
    found = rows[ids]
    tensors = ~unknown & (found["layer"] == TENSOR)
    kinds = [
        None if none else "tensor" if tensor else memories.get(memory, UNKNOWN)
        for none, tensor, memory in zip(
            unknown.tolist(), tensors.tolist(), found["memory"].tolist(), strict=True
        )
    ]
    more = _tensor_columns(context, ids, tensors)
    unsized = unknown | (found["bytes"] == np.uint64(ABSENT_U64))
    called = [_called(kind, more, at) for at, kind in enumerate(kinds)]
    names = [
        UNKNOWN
        if kind is None
        else f"{kind} {'?' if no_size else formatted(bytes, 'bytes')} at {address:#x}"
        for kind, bytes, no_size, address in zip(
            called,
            found["bytes"].tolist(),
            unsized.tolist(),
            found["address"].tolist(),
            strict=True,
        )
    ]
    return {
        "object": names,
        "object_id": absent_where(ids, unknown),
        "object_address": absent_where(found["address"], unknown),
        "object_bytes": absent_where(found["bytes"], unsized),
        "memory": kinds,
        **more,
    }


def has_tensors(context: Context) -> bool:
    """Whether tensors of a framework were seen in the run."""
    from pasta.processors.objects import TENSOR

    return context.has("tensors") and bool((context.objects.rows["layer"] == TENSOR).any())


def python_line(context: Context, stack: int) -> Frame | None:
    """The program's line of a Python stack; None if unknown."""
    return context.stacks.line(stack, context.strings) if context.has("stacks") else None


def _called(kind: str | None, columns: dict[str, list[Any]], at: int) -> str | None:
    """First part of an object's name: for a tensor its category, and its name or operator."""
    if kind != "tensor" or not columns:
        return kind
    made = columns["object_name"][at] or columns["object_operator"][at]
    return " ".join(filter(None, (columns["object_category"][at], made)))


def _tensor_columns(
    context: Context, ids: NDArray[Any], tensors: NDArray[Any]
) -> dict[str, list[Any]]:
    if not has_tensors(context):
        return {}
    columns: dict[str, list[Any]] = {}
    places = np.flatnonzero(tensors).tolist()
    for name, values in TensorNames(context).columns(ids[tensors]).items():
        whole: list[Any] = [None] * len(ids)
        for at, value in zip(places, values, strict=True):
            whole[at] = value
        columns[f"object_{name}"] = whole
    return columns


class TensorNames:
    """Texts on tensors: category, name, shape, type and origin; needs a `context` with tensors."""

    def __init__(self, context: Context) -> None:
        self.context = context
        operators = context.operators
        self.names = _makers(context)
        self.modules, self.stacks = (
            operators.forward_values("module"),
            operators.forward_values("stack"),
        )

    def texts(self, ids: NDArray[Any]) -> list[str | None]:
        """Texts of string ids; None for 0."""
        return [self.context.strings[id] if id else None for id in ids.tolist()]

    def columns(self, ids: NDArray[Any]) -> dict[str, list[Any]]:
        """Category, name, shape, dtype, operator, module, line and file of objects by id."""
        rows = self.context.tensors.rows[ids]
        return {
            "name": self.texts(rows["name"]),
            **self.described(
                self.context.tensors.category(ids), rows["shape"], rows["dtype"], rows["node"]
            ),
        }

    def described(
        self,
        categories: NDArray[Any],
        shapes: NDArray[Any],
        dtypes: NDArray[Any],
        nodes: NDArray[Any],
    ) -> dict[str, list[Any]]:
        """The same columns but `name`, for numbers as in `context.tensors`."""
        called = self.context.tensors.names
        lines = self.context.stacks.lines(self.stacks[nodes], self.context.strings)
        return {
            "category": [called[each] for each in categories.tolist()],
            "shape": self.texts(shapes),
            "dtype": self.texts(dtypes),
            "operator": self.texts(self.names[nodes]),
            "module": self.texts(self.modules[nodes]),
            "line": [None if line is None else str(line) for line in lines],
            "file": [None if line is None else line.file for line in lines],
        }

    def alike(self, rows: NDArray[Any], by: str) -> tuple[dict[str, list[Any]], NDArray[Any]]:
        """Sums over tensors with equal category, shape, type and operator: describing columns, and
        rows with their number `tensors` and the fields of `rows`, largest `by` first.

        `rows` have `object`, each once, and fields; objects other than tensors are
        skipped.
        """
        from pasta.processors.objects import TENSOR

        rows = rows[rows["object"] >= 0]
        ids, layers = rows["object"], self.context.objects.rows["layer"]
        rows = rows[layers[ids] == TENSOR]
        ids = rows["object"]
        known = self.context.tensors.rows[ids]
        keys = np.stack(
            [
                self.context.tensors.category(ids),
                *(known[name] for name in ("shape", "dtype", "node")),
            ],
            axis=1,
        ).astype(np.int64)
        distinct, codes = np.unique(keys, axis=0, return_inverse=True)
        fields = [name for name in rows.dtype.names or () if name != "object"]
        types = [("code", "i8"), ("tensors", "u8"), *((name, rows.dtype[name]) for name in fields)]
        found = np.zeros(len(rows), types)
        found["code"], found["tensors"] = codes.reshape(-1), 1
        for name in fields:
            found[name] = rows[name]
        found = combined(found, ["code"])
        found = found[np.argsort(-found[by].astype(np.float64), kind="stable")]
        return self.described(*distinct[found["code"]].T), found


def _makers(context: Context) -> NDArray[Any]:
    """Name ids of the operators that nodes allocate tensors for: the caller's for operators that
    only allocate."""
    nodes = context.operators.nodes
    names, parents = np.array(nodes["name"]), nodes["parent"]
    texts = context.strings.many(names)
    allocators = context.conventions.allocators
    allocates = np.asarray([text.startswith(allocators) for text in texts], bool)
    for node in np.flatnonzero(allocates & (parents != 0)).tolist():
        names[node] = names[parents[node]]  # a node comes after its parent
    return names


#: Grouping by `alike`, for titles of tables.
ALIKE = "alike in category, shape, type and operator"
#: Its columns that text reports hide.
ALIKE_HIDDEN = frozenset({"dtype", "file"})
#: Its columns that identify rows across runs.
ALIKE_KEYS = ("category", "shape", "dtype", "operator", "module", "line")


class AllocatingOperators:
    """Operators that allocate memory of each kind; fed in a tool's `on_batch`."""

    def __init__(self) -> None:
        self._bytes: dict[tuple[int, int], NDArray[Any]] = {}  # by device and kind; by node

    def feed(self, context: Context, new: NDArray[Any]) -> None:
        """Follows allocations (memory_alloc) of a batch; does nothing in a run without
        operators."""
        if not context.has("operators") or not len(new):
            return
        nodes = context.operators.at(new)
        for kind in set(zip(new["device"].tolist(), new["memory"].tolist(), strict=True)):
            mine = (new["device"] == kind[0]) & (new["memory"] == kind[1])
            known = self._bytes.get(kind, np.zeros(1024, np.uint64))
            self._bytes[kind] = grown(known, len(context.operators.nodes))
            np.add.at(self._bytes[kind], nodes[mine], new["bytes"][mine])

    def line(self, context: Context, device: int, memory: int) -> Frame | None:
        """The program's line that allocated most bytes of a memory kind; None if unknown."""
        if (device, memory) not in self._bytes:
            return None
        node = int(self._bytes[device, memory].argmax())
        return python_line(context, int(context.operators.forward_values("stack")[node]))


class TensorOwners:
    """The allocation that held each tensor when it began; fed in a tool's `on_tensors`."""

    def __init__(self) -> None:
        self._owner_plus_1 = np.zeros(1024, np.int64)
        self.tensors = 0

    def feed(self, objects: ObjectTable) -> None:
        """Follows the tensors that began in the current batch."""
        from pasta.processors.objects import TENSOR

        new = objects.begun(TENSOR)
        if not len(new):
            return
        ids = new["object"]
        owners = objects.lookup(objects.rows["address"][ids], new["index"], "memory")
        self._owner_plus_1 = grown(self._owner_plus_1, int(ids.max()) + 1)
        self._owner_plus_1[ids] = owners + 1
        self.tensors += len(ids)

    def allocations(self, ids: NDArray[Any]) -> NDArray[Any]:
        """Ids of the allocations that hold objects: an allocation's own id, -1 for none."""
        known = (ids >= 0) & (ids < len(self._owner_plus_1))
        owners = self._owner_plus_1[np.where(known, ids, 0)]
        return np.where(known & (owners > 0), owners - 1, ids)
