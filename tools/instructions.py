"""Executed instructions: opcodes, operations, source lines, and what tensor stores wrote."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.groups import Groups
from pasta.processors.kernel_names import kernel_names
from pasta.processors.object_names import (
    OBJECT_HIDDEN,
    OBJECT_UNITS,
    object_columns,
    object_keys,
)
from pasta.processors.rows import combined
from pasta.table import Table, absent_where, counted, formatted, shares
from pasta.tool import Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pasta.sass.disassembler import Code

#: Counts of launches with tensor maps that are kept, of 44 bytes each.
_MAX_ROWS = 1 << 22
#: Columns of the groups of counts.
_KERNEL, _FUNCTION, _SYMBOL, _PC = range(4)
_SUMS = ("warps", "threads", "operations")
#: Boxes that the tensor stores of a launch wrote to an object.
_STORED = [("launch", "u8"), ("kernel", "u4"), ("object", "i8"), ("stores", "u8"), ("bytes", "u8")]


class Instructions(Tool):
    """Executed instructions by kernel, opcode, source line and instruction; tensor stores."""

    title = "Executed instructions"
    topic = "time"

    needs = ("objects",)
    top = option(10, help="rows of each table in the text report; the tables have all", minimum=1)
    places = option(
        1 << 20, help="maximum number of distinct instructions, over all kernels", minimum=1
    )

    def start(self) -> None:
        """Start with no counts."""
        self.groups = Groups(self.places, "warps", "threads")
        self.launches: dict[int, int] = {}  # kernel name ids of counted launches
        self.modules: dict[int, None] = {}  # hashes, in the order of their loads
        #: By launch: objects and bytes of a box, by the map's place among the parameters.
        self.maps: dict[int, dict[int, tuple[int, int]]] = {}
        self.of_launches: list[NDArray[Any]] = []  # with tensor maps
        self.kept = self.left_out = 0  # rows of these, launches

    def on_modules(self, modules: NDArray[Any]) -> None:
        """Keep the hashes of modules."""
        self.modules.update(dict.fromkeys(modules["hash"].tolist()))

    def on_tensor_maps(self, maps: NDArray[Any]) -> None:
        """Keep the maps of each launch, with the objects they are in."""
        if self.kept > _MAX_ROWS:
            self.left_out += len(np.unique(maps["ordinal"]))
            return
        objects = self.context.objects.lookup(maps["address"], maps["index"])
        columns = (maps["ordinal"], maps["offset"], objects, maps["box"])
        for ordinal, offset, object, box in zip(*(each.tolist() for each in columns), strict=True):
            self.maps.setdefault(ordinal, {})[offset] = (object, box)

    def on_instruction_counts(self, counts: NDArray[Any]) -> None:
        """Sum executions by instruction; launches with tensor maps keep their own counts."""
        kernels = np.asarray(self.context.launches.names(counts["ordinal"]), np.uint32)
        ordinals, first = np.unique(counts["ordinal"], return_index=True)
        self.launches.update(zip(ordinals.tolist(), kernels[first].tolist(), strict=True))
        functions = np.where(counts["name"] == 0, kernels, counts["name"])
        self.groups.add(
            kernels, functions, counts["symbol"], counts["pc"],
            warps=counts["warps"].astype(np.int64), threads=counts["threads"].astype(np.int64),
        )  # fmt: skip
        with_maps = [ordinal for ordinal in ordinals.tolist() if ordinal in self.maps]
        mapped = np.isin(counts["ordinal"], np.asarray(with_maps, np.uint64))
        fields = ["ordinal", "symbol", "pc", "warps", "threads"]
        rows = np.empty(int(mapped.sum()), [("function", "u4"), *((f, "u8") for f in fields)])
        rows["function"] = functions[mapped]
        for field in fields:
            rows[field] = counts[field][mapped]
        self.of_launches.append(rows)
        self.kept += len(rows)

    def result(self) -> Result:
        """Tables by kernel, opcode, source line and instruction, and of tensor stores."""
        code = _Modules(self.modules, self.context)
        rows = self._rows(code)
        tables = {
            "kernels": self._kernels(rows),
            "opcodes": self._opcodes(rows),
            "instructions": self._instructions(rows),
        }
        if any(rows["line"]):
            tables["lines"] = self._lines(rows)
        stored, unknown = self._stored(code)
        if len(stored):
            tables["tensor_stores"] = self._tensor_stores(stored)
            tables["launch_tensor_stores"] = self._launch_tensor_stores(stored)
        return Result(
            summary=self._summary(rows, stored),
            tables=tables,
            notes=list(self._notes(rows, stored, unknown)),
        )

    # ---- counts ----

    def _rows(self, code: _Modules) -> dict[str, Any]:
        """Columns by instruction of a kernel, most executions first."""
        from pasta.sass.operations import WARP, opcode_of, operations
        from pasta.sass.places import Place, describe_in

        groups = np.asarray(self.groups.rows, np.uint64).reshape(-1, 4)
        warps, threads = self.groups.sum("warps"), self.groups.sum("threads")
        order = np.argsort(-warps, kind="stable")
        groups, warps, threads = groups[order], warps[order], threads[order]
        functions = self.context.strings.many(groups[:, _FUNCTION].astype(np.uint32))
        places = [
            Place(code.module_of(name, symbol), name, pc)
            for name, symbol, pc in zip(
                functions, groups[:, _SYMBOL].tolist(), groups[:, _PC].tolist(), strict=True
            )
        ]
        described = describe_in(code.cubins, places)
        opcodes = [opcode_of(each.text or "") for each in described]
        done = [operations(each) for each in opcodes]
        own = groups[:, _FUNCTION] == groups[:, _KERNEL]
        return {
            "kernel": kernel_names(self.context, groups[:, _KERNEL].astype(np.uint32)),
            "function": [
                None if mine else name for mine, name in zip(own.tolist(), functions, strict=True)
            ],
            "offset": groups[:, _PC],
            "line": [each.line for each in described],
            "instruction": [each.text for each in described],
            "opcode": [each or "(unknown)" for each in opcodes],
            "warps": warps,
            "threads": threads,
            "operations": threads * np.asarray(done, np.int64) // WARP,
        }

    def _kernels(self, rows: dict[str, Any]) -> Table:
        columns = _summed(rows, ("kernel",))
        kernels = columns.pop("kernel")
        ids = np.asarray(list(self.launches.values()), np.uint32)
        launches = Counter(kernel_names(self.context, ids))
        return self._table(
            {"kernel": kernels, "launches": [launches[name] for name in kernels], **columns},
            ("kernel",),
            "Instructions by kernel",
            sums=("launches", *_SUMS),
        )

    def _opcodes(self, rows: dict[str, Any]) -> Table:
        roots = [opcode.partition(".")[0] for opcode in rows["opcode"]]
        columns = _summed({**rows, "opcode": roots}, ("kernel", "opcode"))
        return self._table(columns, ("kernel", "opcode"), "Instructions by kernel and opcode")

    def _lines(self, rows: dict[str, Any]) -> Table:
        lines = [line or "(unknown)" for line in rows["line"]]
        columns = _summed({**rows, "line": lines}, ("kernel", "line"))
        return self._table(columns, ("kernel", "line"), "Instructions by source line")

    def _instructions(self, rows: dict[str, Any]) -> Table:
        columns = {name: column for name, column in rows.items() if name != "opcode"}
        hidden = [name for name in ("function", "line", "instruction") if not any(rows[name])]
        return self._table(
            columns,
            ("kernel", "function", "offset"),
            "Instructions",
            hidden=frozenset({*hidden, "operations"}),
        )

    def _table(
        self,
        columns: dict[str, Any],
        keys: tuple[str, ...],
        title: str,
        sums: tuple[str, ...] = _SUMS,
        hidden: frozenset[str] = frozenset(),
    ) -> Table:
        warps = np.asarray(columns["warps"], np.int64)
        lanes = np.asarray(columns["threads"], np.float64) / np.maximum(warps, 1)
        return Table(
            {**columns, "lanes": lanes, "share": shares(warps, int(warps.sum()))},
            units={"share": "share", **({"offset": "address"} if "offset" in columns else {})},
            labels={
                "warps": "by warps",
                "threads": "by threads",
                "operations": "floating-point operations",
                "lanes": "threads per warp",
                "share": "of all warp instructions",
            },
            keys=keys,
            sums=sums,
            levels=("lanes", "share"),
            title=title,
            shown=self.top,
            hidden=hidden,
        )

    # ---- tensor stores ----

    def _stored(self, code: _Modules) -> tuple[NDArray[Any], int]:
        """Boxes that tensor stores wrote (`_STORED`), and how many were of an unknown map."""
        from pasta.sass.tensor_stores import executed, tensor_stores

        found, unknown = [], 0
        rows = np.concatenate(self.of_launches) if self.of_launches else np.zeros(0)
        if not len(rows):
            return np.zeros(0, _STORED), 0
        functions = np.unique(rows[["function", "symbol"]]).tolist()
        named = [(self.context.strings[function], symbol) for function, symbol in functions]
        for (function, symbol), text in zip(functions, code.read(named), strict=True):
            stores = tensor_stores(text) if text is not None else []
            if not stores:
                continue
            mine = rows[(rows["function"] == function) & (rows["symbol"] == symbol)]
            mine = mine[np.argsort(mine["ordinal"], kind="stable")]
            ordinals, first = np.unique(mine["ordinal"], return_index=True)
            for ordinal, part in zip(ordinals.tolist(), np.split(mine, first[1:]), strict=True):
                counts = _by_instruction(part, len(text.form))
                for store in stores:
                    boxes = executed(store, *counts)
                    map = None if store.offset is None else self.maps[ordinal].get(store.offset)
                    if map is None:
                        unknown += boxes
                    elif boxes:
                        object, box = map
                        kernel = self.launches[ordinal]
                        found.append((ordinal, kernel, object, boxes, boxes * box))
        stored = np.asarray(found, _STORED)
        return combined(stored, ["launch", "kernel", "object"]), unknown

    def _tensor_stores(self, stored: NDArray[Any]) -> Table:
        rows = combined(stored[["kernel", "object", "stores", "bytes"]], ["kernel", "object"])
        rows = rows[np.argsort(-rows["bytes"].astype(np.int64), kind="stable")]
        return Table(
            {
                "kernel": kernel_names(self.context, rows["kernel"]),
                **object_columns(self.context, rows["object"]),
                "stores": rows["stores"],
                "bytes": rows["bytes"],
            },
            units={"bytes": "bytes", **OBJECT_UNITS},
            labels={"bytes": "bytes, inferred"},
            keys=("kernel", *object_keys(self.context)),
            sums=("stores", "bytes"),
            title="Tensor stores to objects",
            shown=self.top,
            hidden=OBJECT_HIDDEN,
        )

    def _launch_tensor_stores(self, stored: NDArray[Any]) -> Table:
        rows = self.context.objects.rows
        known = stored["object"] >= 0
        at = np.where(known, stored["object"], 0)
        address = rows["address"][at] if len(rows) else np.zeros(len(stored), np.uint64)
        return Table(
            {
                "launch": stored["launch"],
                "kernel": kernel_names(self.context, stored["kernel"]),
                "address": absent_where(address, ~known),
                "stores": stored["stores"],
                "bytes": stored["bytes"],
            },
            units={"bytes": "bytes", "address": "address"},
            keys=("kernel",),
            sums=("stores", "bytes"),
            title="Tensor stores by launch",
            shown=0,
        )

    # ---- in words ----

    def _summary(self, rows: dict[str, Any], stored: NDArray[Any]) -> str:
        if not self.launches:
            return (
                "no instructions were counted: no launch was selected, or the source "
                "cannot count them"
            )
        warps, threads = int(rows["warps"].sum()), int(rows["threads"].sum())
        text = (
            f"{counted(warps, 'warp instruction')} in {counted(len(self.launches), 'launch')}"
            f", with {threads / max(1, warps):.1f} active threads on average"
        )
        if total := int(stored["bytes"].sum()):
            text += f"; tensor stores wrote {formatted(total, 'bytes')}"
        if self.groups.left_out:
            text += f"; {counted(self.groups.left_out, 'count')} beyond the limit left out"
        return text

    def _notes(self, rows: dict[str, Any], stored: NDArray[Any], unknown: int) -> Iterator[str]:
        if self.launches and not any(rows["instruction"]):
            yield (
                "opcodes, operations and tensor stores are unknown: recorded modules "
                "(--record) and a disassembler are required (see `pasta doctor`)"
            )
        if len(stored):
            yield (
                "bytes of tensor stores are inferred: executions times the box of the tensor "
                "map, including parts of boxes outside the tensor"
            )
        if unknown:
            more = counted(unknown, "tensor store")
            yield f"{more} with a tensor map that is not a kernel parameter: not shown"
        if self.left_out:
            yield (f"tensor stores of {counted(self.left_out, 'launch')} left out to bound memory")


class _Modules:
    """The code of the run's modules, by function."""

    def __init__(self, hashes: dict[int, None], context: Any) -> None:
        from pasta.sass.places import open_cubins

        self.cubins = open_cubins(hashes, context.images)
        self._of_symbol: dict[tuple[str, int], int] = {}
        self._of_name: dict[str, int] = {}
        for module, cubin in self.cubins.items():
            for number, symbol in enumerate(cubin.symbols):
                if symbol.is_function:
                    self._of_symbol.setdefault((symbol.name, number), module)
                    self._of_name.setdefault(symbol.name, module)

    def module_of(self, function: str, symbol: int) -> int:
        """Hash of the module with a function at a place of its symbol table, else of one with a
        function of this name; 0: none."""
        return self._of_symbol.get((function, symbol), self._of_name.get(function, 0))

    def read(self, functions: list[tuple[str, int]]) -> list[Code | None]:
        """The code of functions, by name and symbol; None if it cannot be read."""
        from pasta.sass.places import read_functions

        keys = [(self.module_of(*each), each[0]) for each in functions]
        wanted: dict[int, set[str]] = {}
        for module, function in keys:
            if module in self.cubins:
                wanted.setdefault(module, set()).add(function)
        found = read_functions({module: self.cubins[module] for module in wanted}, wanted)
        return [found.get(key) for key in keys]


def _summed(rows: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """Sums by some columns, most executions first."""
    numbers: dict[tuple[str, ...], int] = {}
    of = [
        numbers.setdefault(key, len(numbers)) for key in zip(*(rows[k] for k in keys), strict=True)
    ]
    sums = {name: np.zeros(len(numbers), np.int64) for name in _SUMS}
    for name, values in sums.items():
        np.add.at(values, of, rows[name])
    order = np.argsort(-sums["warps"], kind="stable")
    names = list(zip(*numbers, strict=True)) or [()] * len(keys)
    columns: dict[str, Any] = {
        key: [column[at] for at in order.tolist()] for key, column in zip(keys, names, strict=True)
    }
    return {**columns, **{name: sums[name][order] for name in _SUMS}}


def _by_instruction(rows: NDArray[Any], count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Executions by warps and threads of a function's instructions, by number."""
    from pasta.sass.cubin import INSTRUCTION_BYTES

    at = (rows["pc"] // INSTRUCTION_BYTES).astype(np.int64)
    inside = at < count
    found = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for values, name in zip(found, ("warps", "threads"), strict=True):
        np.add.at(values, at[inside], rows[name][inside].astype(np.int64))
    return found
