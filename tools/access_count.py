"""Memory accesses of kernels by kind of instruction, by launch, and by object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.probes import Counter, probe
from pasta.probes.kinds import KIND, KINDS, NAMES, kinds_of
from pasta.processors.kernel_names import kernel_names
from pasta.processors.object_names import (
    ALIKE,
    ALIKE_HIDDEN,
    ALIKE_KEYS,
    OBJECT_HIDDEN,
    OBJECT_UNITS,
    TensorNames,
    has_tensors,
    object_columns,
    object_keys,
    object_sizes,
)
from pasta.processors.operator_names import GROUP_KEYS, OperatorGroups, kernel_operators, of_probes
from pasta.processors.rows import combined
from pasta.table import Figure, Table, absent_where, counted, formatted, shares
from pasta.tool import Result, Tool, option

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.sampling import Estimate
    from pasta.processors.snapshots import Launches

READ, WRITE, ATOMIC = range(3)
OPERATIONS = 3
#: Number of codes: one for each operation of each kind with an address space (from 1).
CODES = OPERATIONS * max(kind.number for kind in KINDS if kind.space != "none")
#: Kinds of which there are many, by number; the first ones have the numbers from 1.
MANY = ("global", "shared", "local", "remote_shared", "matrix")
LAST = len(MANY)
#: Others, whose lanes access the same number of bytes.
FEW = tuple(
    kind.name for kind in KINDS if kind.space != "none" and kind.name not in (*MANY, "async_copy")
)
#: Kinds with objects, whose accesses are no asynchronous copies.
ATTRIBUTED = tuple(kind for kind in kinds_of("global") if kind != "async_copy")
LANES = 32
COPY = KIND["async_copy"].number
#: Bytes per lane of full warps that are counted by width, in the order of width >> 3.
WIDTHS = (4, 8, 16)
CASES = len(WIDTHS)
#: Bytes of an access to an object, and of an asynchronous copy, which `beyond` is relative to.
USUAL_BYTES, COPIED_BYTES = 4, 16
PAGE = 4096

_COUNTS = ("instructions", "accesses", "reads", "writes", "atomics", "bytes")
#: The parts of `bytes`, by launch.
_PARTS = ("read_bytes", "write_bytes", "atomic_bytes")


class AccessCount(Tool):
    """Accesses inside kernels by kind, launch and object: instructions, lanes and bytes."""

    title = "Memory accesses"
    topic = "accesses"

    estimates = True
    top = option(10, help="rows of each table in the text report; the tables have all", minimum=1)

    # On a GPU every nonzero amount is an atomic addition. The usual cases cost one: full warps that
    # access 4, 8 or 16 bytes per lane, accesses of 4 bytes to an object, and copies of 16 bytes by
    # full warps. `others` has the idle lanes of copies: with those in `copies`, 32 per instruction.
    by_width = Counter(by=("launch", "kernel", CASES * OPERATIONS * LAST), fields=("instructions",))
    others = Counter(by=("launch", "kernel", CODES), fields=("instructions", "lanes", "bytes"))
    by_object = Counter(by=("launch", "kernel", "object"), fields=("accesses", "beyond"))
    copies = Counter(by=("launch", "kernel", "object"), fields=("accesses", "beyond"))

    @probe.on(*MANY, per="warp")
    def count(access: Any, maps: Any) -> None:
        """Count a warp's access by kind, operation and width; lanes and bytes of unusual ones."""
        # atomics write, too: READ, WRITE or ATOMIC
        operation = access.is_write + access.is_atomic
        bytes = access.bytes
        if access.lanes == LANES and (bytes == 4 or bytes == 8 or bytes == 16):
            kind = min(access.kind, LAST) - 1
            maps.by_width.add(CASES * (OPERATIONS * kind + operation) + (bytes >> 3))
        else:
            maps.others.add(
                OPERATIONS * (access.kind - 1) + operation,
                instructions=1,
                lanes=access.lanes,
                bytes=access.lanes * bytes,
            )

    @probe.on(*FEW, per="warp")
    def count_few(access: Any, maps: Any) -> None:
        """Count a warp's access, or a transfer, by kind and operation."""
        maps.others.add(
            OPERATIONS * (access.kind - 1) + access.is_write + access.is_atomic,
            instructions=1,
            lanes=access.lanes,
            bytes=access.warp_bytes,
        )

    @probe.on("async_copy", per="warp")
    def count_copies(access: Any, maps: Any) -> None:
        """Count the idle lanes of a warp's asynchronous copy; `copies` has the others."""
        if access.lanes != LANES:
            maps.others.add(OPERATIONS * (access.kind - 1), lanes=LANES - access.lanes)

    @probe.on("async_copy")
    def attribute_copies(access: Any, maps: Any) -> None:
        """Count a lane's asynchronous copy by object."""
        maps.copies.add(access.object, accesses=1, beyond=access.bytes - COPIED_BYTES)

    @probe.on(*ATTRIBUTED)
    def attribute(access: Any, maps: Any) -> None:
        """Count a lane's access by object."""
        maps.by_object.add(access.object, accesses=1, beyond=access.bytes - USUAL_BYTES)

    def result(self) -> Result:
        """Tables by kernel, kind, object and launch, and by operator if a framework is followed."""
        accesses = _with_bytes(self.by_object.rows(), USUAL_BYTES)
        copies = _with_bytes(self.copies.rows(), COPIED_BYTES)
        rows = self._weighted(_by_kind(self.by_width.rows(), self.others.rows(), copies))
        objects = combined(np.concatenate([accesses, copies]), ["launch", *_OBJECT_KEYS])
        objects = self._weighted(objects)
        kernels = self._kernels(rows, objects)
        return Result(
            summary=self._summary(rows, objects),
            tables={
                "kernels": kernels,
                "kinds": self._kinds(rows),
                "objects": self._objects(objects),
                "launches": self._launches(rows),
                "launch_objects": self._launch_objects(objects),
                **self._missed(),
                **self._of_framework(rows, objects),
            },
            figures={"kernels": self._figure(rows)},
        )

    def _weighted(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Rows with `_ESTIMATED`, their accesses and bytes in all launches (float64)."""
        fields = [(name, rows.dtype[name]) for name in rows.dtype.names or ()]
        found = np.empty(len(rows), [*fields, *((name, "f8") for name in _ESTIMATED)])
        for name, _ in fields:
            found[name] = rows[name]
        weights = self.context.sampling.weights(rows["launch"])
        for name, counts in zip(_ESTIMATED, ("accesses", "bytes"), strict=True):
            found[name] = weights * rows[counts]
        return found

    @property
    def _unestimated(self) -> frozenset[str]:
        """Columns of estimates, which are hidden if all launches were probed."""
        return _ESTIMATE_COLUMNS if self.context.sampling.exact else frozenset()

    def _kernels(self, rows: NDArray[Any], objects: NDArray[Any]) -> Table:
        by_kernel = combined(rows[["kernel", *_COUNTS, *_ESTIMATED]], ["kernel"])
        sampling = self.context.sampling
        launched, counted_in = sampling.seen, sampling.probed
        ids = np.asarray(sorted(launched), np.uint32)
        estimates = self._estimates(rows)
        counts = {name: _values_of(by_kernel, ids, name) for name in _COUNTS}
        touched = self._touched(combined(objects[["kernel", "object", "accesses"]], _OBJECT_KEYS))
        everywhere = _values_of(by_kernel, ids, "all_accesses")
        order = np.argsort(-everywhere, kind="stable")
        probed = np.asarray([counted_in.get(name, 0) for name in ids.tolist()], np.int64)
        columns = {
            "kernel": kernel_names(self.context, ids),
            **kernel_operators(self.context, [(name,) for name in ids.tolist()]),
            "launches": np.asarray([launched[name] for name in ids.tolist()], np.int64),
            "probed": probed,
            "estimate": _absent_if_nan([estimates[name].total for name in ids.tolist()]),
            "error": _absent_if_nan([estimates[name].error for name in ids.tolist()]),
            "share": shares(everywhere, float(everywhere.sum())),
            **counts,
            **{name: _values_of(touched, ids, name) for name in _TOUCHED},
        }
        columns["per_page"] = _per_page(columns)
        for name in ("share", *_COUNTS, *_TOUCHED):  # the others are unknown
            columns[name] = absent_where(columns[name], probed == 0)
        return Table(
            {name: _reordered(column, order) for name, column in columns.items()},
            units={"share": "share", "bytes": "bytes", "object_bytes": "bytes"},
            labels={
                "share": "of accesses",
                "estimate": "accesses in all launches",
                "error": "±",
                **_TOUCHED_LABELS,
            },
            keys=("kernel",),
            sums=("launches", *_COUNTS),
            levels=("per_page",),
            probed={**dict.fromkeys((*_COUNTS, "per_page")), "accesses": "estimate"},
            important=("launches", "estimate", "error", "share", "accesses"),
            title="Accesses by kernel",
            shown=self.top,
            hidden=_HIDDEN | self._unestimated,
        )

    def _estimates(self, rows: NDArray[Any]) -> dict[int, Estimate]:
        """Estimated accesses of each kernel in all of its launches."""
        launches = combined(rows[["launch", "accesses"]], ["launch"])
        return self.context.sampling.estimates(launches["launch"], launches["accesses"])

    def _kinds(self, rows: NDArray[Any]) -> Table:
        rows = combined(rows[["kernel", "kind", *_COUNTS, *_ESTIMATED]], ["kernel", "kind"])
        rows = rows[np.argsort(-rows["all_accesses"], kind="stable")]
        return Table(
            {
                "kernel": kernel_names(self.context, rows["kernel"]),
                "kind": [NAMES[kind] for kind in rows["kind"].tolist()],
                **{name: rows[name] for name in _COUNTS},
                "estimate": _rounded(rows["all_bytes"]),
                "share": shares(rows["all_bytes"], float(rows["all_bytes"].sum())),
            },
            units={"bytes": "bytes", "estimate": "bytes", "share": "share"},
            labels={"share": "of bytes", "estimate": _ESTIMATE},
            keys=("kernel", "kind"),
            sums=_COUNTS,
            probed=_ESTIMATED_BYTES,
            title="Accesses by kernel and kind",
            shown=self.top,
            hidden=self._unestimated,
        )

    def _launches(self, rows: NDArray[Any]) -> Table:
        return Table(
            {
                "launch": rows["launch"],
                "kernel": kernel_names(self.context, rows["kernel"]),
                "kind": [NAMES[kind] for kind in rows["kind"].tolist()],
                **{name: rows[name] for name in (*_COUNTS, *_PARTS)},
            },
            units=dict.fromkeys(("bytes", *_PARTS), "bytes"),
            keys=("kernel", "kind"),
            sums=(*_COUNTS, *_PARTS),
            probed=dict.fromkeys((*_COUNTS, *_PARTS)),
            title="Accesses by launch and kind",
            shown=0,
        )

    def _missed(self) -> dict[str, Table]:
        """Launches that are flagged as probed but have no counts, if there are any."""
        missed = self.context.sampling.all_missed
        if not len(missed):
            return {}
        title = "Launches without counts"
        return {"missed": Table({"launch": missed}, keys=("launch",), title=title, shown=0)}

    def _launch_objects(self, objects: NDArray[Any]) -> Table:
        launches = combined(objects[["launch", "kernel"]], ["launch", "kernel"])
        touched = self._touched(objects[["launch", "object", "accesses"]], "launch")
        columns = {
            name: _values_of(touched, launches["launch"], name, "launch") for name in _TOUCHED
        }
        return Table(
            {
                "launch": launches["launch"],
                "kernel": kernel_names(self.context, launches["kernel"]),
                **columns,
                "per_page": _per_page(columns),
            },
            units={"object_bytes": "bytes"},
            labels=_TOUCHED_LABELS,
            keys=("kernel",),
            sums=("objects", "pages", "known", "unknown"),
            probed=dict.fromkeys(("objects", "pages", "known", "unknown")),
            title="Objects touched by launch",
            shown=0,
        )

    def _objects(self, objects: NDArray[Any]) -> Table:
        rows = combined(objects[[*_OBJECT_KEYS, "accesses", "bytes", *_ESTIMATED]], _OBJECT_KEYS)
        rows = rows[np.argsort(-rows["all_accesses"], kind="stable")]
        return Table(
            {
                "kernel": kernel_names(self.context, rows["kernel"]),
                **object_columns(self.context, rows["object"]),
                "accesses": rows["accesses"],
                "bytes": rows["bytes"],
                "estimate": _rounded(rows["all_bytes"]),
                "share": shares(rows["all_accesses"], float(rows["all_accesses"].sum())),
            },
            units={"bytes": "bytes", "estimate": "bytes", "share": "share", **OBJECT_UNITS},
            labels={
                "share": "of accesses to global memory",
                "bytes": "bytes requested",
                "estimate": _ESTIMATE,
            },
            keys=("kernel", *object_keys(self.context)),
            sums=("accesses", "bytes"),
            probed={"accesses": None, "bytes": "estimate"},
            title="Accesses to objects in global memory",
            shown=self.top,
            hidden=OBJECT_HIDDEN | self._unestimated,
        )

    def _of_framework(self, rows: NDArray[Any], objects: NDArray[Any]) -> dict[str, Table]:
        """Tables by operator and by tensor, if a framework was followed."""
        tables = {}
        if (launches := of_probes(self.context)) is not None:
            tables["operators"] = self._operators(rows, launches)
        if has_tensors(self.context):
            tables["tensors"] = self._tensors(objects)
        return tables

    def _operators(self, rows: NDArray[Any], launches: Launches) -> Table:
        groups = OperatorGroups(self.context)
        fields = [*((name, "u8") for name in _COUNTS), ("all_bytes", "f8")]
        found = np.zeros(len(rows), [("group", "i8"), *fields])
        found["group"] = groups.codes[launches.nodes(rows["launch"])]
        for name, _ in fields:
            found[name] = rows[name]
        found = combined(found, ["group"])
        found = found[np.argsort(-found["all_bytes"], kind="stable")]
        return Table(
            {
                **groups.columns(found["group"]),
                **{name: found[name] for name in _COUNTS},
                "estimate": _rounded(found["all_bytes"]),
                "share": shares(found["all_bytes"], float(found["all_bytes"].sum())),
            },
            units={"bytes": "bytes", "estimate": "bytes", "share": "share"},
            labels={
                "bytes": "bytes requested",
                "share": "of all bytes",
                "estimate": _ESTIMATE,
            },
            keys=GROUP_KEYS,
            sums=_COUNTS,
            probed=_ESTIMATED_BYTES,
            title="Accesses by operator",
            shown=self.top,
            hidden=_HIDDEN | {"file"} | self._unestimated,
        )

    def _tensors(self, objects: NDArray[Any]) -> Table:
        rows = combined(objects[["object", "accesses", "bytes", "all_bytes"]], ["object"])
        columns, found = TensorNames(self.context).alike(rows, "all_bytes")
        return Table(
            {
                **columns,
                **{name: found[name] for name in ("tensors", "accesses", "bytes")},
                "estimate": _rounded(found["all_bytes"]),
                "share": shares(found["all_bytes"], float(objects["all_bytes"].sum())),
            },
            units={"bytes": "bytes", "estimate": "bytes", "share": "share"},
            labels={
                "bytes": "bytes requested",
                "share": "of global memory's",
                "estimate": _ESTIMATE,
            },
            keys=ALIKE_KEYS,
            sums=("tensors", "accesses", "bytes"),
            probed={"accesses": None, "bytes": "estimate"},
            title=f"Accesses by tensors, {ALIKE}",
            shown=self.top,
            hidden=ALIKE_HIDDEN | self._unestimated,
        )

    def _touched(self, rows: NDArray[Any], key: str = "kernel") -> NDArray[Any]:
        """Objects, their bytes and pages, and accesses to them, for each `key` of distinct rows."""
        known = rows["object"] >= 0
        sizes = object_sizes(self.context.objects, rows["object"])
        found = np.zeros(len(rows), [(key, rows.dtype[key]), *((name, "u8") for name in _TOUCHED)])
        found[key] = rows[key]
        found["objects"] = known
        found["object_bytes"] = sizes
        found["pages"] = (sizes + np.uint64(PAGE - 1)) // np.uint64(PAGE)
        found["known"] = np.where(known, rows["accesses"], 0)
        found["unknown"] = np.where(known, 0, rows["accesses"])
        return combined(found, [key])

    def _figure(self, rows: NDArray[Any]) -> Figure:
        totals = combined(rows[["kernel", "all_bytes"]], ["kernel"])
        ids = totals[np.argsort(-totals["all_bytes"], kind="stable")]["kernel"]
        ids = ids[: self.top]
        by_kind = combined(rows[["kernel", "kind", "all_bytes"]], ["kernel", "kind"])
        return Figure(
            "bar",
            "Bytes requested by kernels, by kind of access",
            kernel_names(self.context, ids),
            {
                NAMES[kind]: _rounded(
                    _values_of(by_kind[by_kind["kind"] == kind], ids, "all_bytes")
                )
                for kind in np.unique(by_kind["kind"]).tolist()
            },
            y_label="bytes",
            y_unit="bytes",
        )

    def _summary(self, rows: NDArray[Any], objects: NDArray[Any]) -> str:
        sampling = self.context.sampling
        launches = sum(sampling.seen.values())
        if not launches:
            return "no launches were recorded"
        accesses, instructions = _sum(rows["accesses"]), _sum(rows["instructions"])
        where = counted(launches, "launch") if sampling.exact else "probed launches"
        parts = [
            f"{counted(accesses, 'access')} by {counted(instructions, 'warp instruction')}"
            f" in {where}, {formatted(_sum(rows['bytes']), 'bytes')} requested"
        ]
        if total := sampling.total_text(self._estimates(rows)):
            parts.append(total)
        by_global = _sum(objects["all_accesses"])
        unknown = _sum(objects["all_accesses"][objects["object"] < 0])
        if unknown:
            share = formatted(unknown / by_global, "share")
            parts.append(f"{share} of accesses to global memory were outside known objects")
        return "; ".join(parts)


_OBJECT_KEYS = ("kernel", "object")
#: Accesses and bytes in all launches, estimated from the probed ones.
_ESTIMATED = ("all_accesses", "all_bytes")
_ESTIMATE = "bytes in all launches"
#: Counts of probed launches, with the columns of their estimates.
_ESTIMATED_BYTES = {**dict.fromkeys(_COUNTS), "bytes": "estimate"}
_HIDDEN = frozenset({"operators", "known", "pages", "object_bytes", "reads", "writes", "atomics"})
_ESTIMATE_COLUMNS = frozenset({"probed", "estimate", "error"})
_TOUCHED = ("objects", "object_bytes", "pages", "known", "unknown")
_TOUCHED_LABELS = {
    "object_bytes": "their bytes",
    "known": "accesses to them",
    "unknown": "outside known objects",
    "per_page": "accesses per page",
}


def _by_kind(by_width: NDArray[Any], others: NDArray[Any], copies: NDArray[Any]) -> NDArray[Any]:
    """Counts by width, of other accesses, and of copies by object as launch, kernel, kind,
    `_COUNTS` and `_PARTS`."""
    code, width = np.divmod(by_width["index"], CASES)
    full = _kind_rows(by_width, np.asarray([KIND[name].number for name in MANY]), code)
    full["instructions"] = by_width["instructions"]
    full["accesses"] = LANES * by_width["instructions"]
    full["bytes"] = full["accesses"] * np.asarray(WIDTHS, np.uint64)[width]
    rest = _kind_rows(others, np.arange(1, CODES // OPERATIONS + 1), others["index"])
    rest["instructions"] = others["instructions"]
    rest["accesses"], rest["bytes"] = others["lanes"], others["bytes"]
    read = np.full(len(copies), READ)
    copied = _kind_rows(copies, np.asarray([COPY]), read)
    copied["accesses"], copied["bytes"] = copies["accesses"], copies["bytes"]
    copied["instructions"] = copies["accesses"]  # lanes, and the idle ones: 32 per instruction
    idle = rest["kind"] == COPY
    rest["instructions"][idle], rest["accesses"][idle] = rest["accesses"][idle], 0
    operations = np.concatenate([code, others["index"], read]) % OPERATIONS
    found = np.concatenate([full, rest, copied])
    for operation, name in enumerate(("reads", "writes", "atomics")):
        mine = operations == operation
        found[name] = np.where(mine, found["accesses"], 0)
        found[_PARTS[operation]] = np.where(mine, found["bytes"], 0)
    found = combined(found, ["launch", "kernel", "kind"])
    found["instructions"][found["kind"] == COPY] //= LANES
    return found


def _kind_rows(rows: NDArray[Any], kinds: NDArray[Any], codes: NDArray[Any]) -> NDArray[Any]:
    """Empty counts of the same launches and kernels; `kinds`: by code // OPERATIONS."""
    keys = [("launch", "u8"), ("kernel", "u4"), ("kind", "u1")]
    found = np.zeros(len(rows), [*keys, *((name, "u8") for name in (*_COUNTS, *_PARTS))])
    found["launch"], found["kernel"] = rows["launch"], rows["kernel"]
    found["kind"] = kinds[codes // OPERATIONS]
    return found


def _with_bytes(rows: NDArray[Any], usual: int) -> NDArray[Any]:
    """Rows by object with `bytes`: `usual` ones of each access, and those `beyond` them."""
    names = tuple("bytes" if name == "beyond" else name for name in rows.dtype.names or ())
    found = rows.astype(np.dtype([(name, rows.dtype[at]) for at, name in enumerate(names)]))
    found["bytes"] += np.uint64(usual) * rows["accesses"]
    return found


def _rounded(counts: NDArray[Any]) -> NDArray[Any]:
    """Estimated counts as whole numbers."""
    return np.rint(counts).astype(np.uint64)


def _values_of(
    rows: NDArray[Any], ids: NDArray[Any], name: str, key: str = "kernel"
) -> NDArray[Any]:
    """Values of a column for these ids; 0 if an id has no row. Keys are distinct and sorted."""
    if not len(rows):
        return np.zeros(len(ids), np.uint64)
    at = np.minimum(np.searchsorted(rows[key], ids), len(rows) - 1)
    return np.where(rows[key][at] == ids, rows[name][at], 0)


def _per_page(columns: dict[str, Any]) -> Any:
    pages = columns["pages"]
    return absent_where(columns["known"] / np.maximum(pages, 1), pages == 0)


def _absent_if_nan(values: list[float]) -> Any:
    column = np.asarray(values, np.float64)
    return absent_where(column, np.isnan(column))


def _reordered(column: Any, order: NDArray[Any]) -> Any:
    return [column[at] for at in order.tolist()] if isinstance(column, list) else column[order]


def _sum(column: NDArray[Any]) -> int:
    return int(column.sum(dtype=np.uint64))
