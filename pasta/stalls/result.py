"""The result of charging stalls: tables that add up to all samples, and findings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from pasta.findings import Finding, Result
from pasta.lazy import np
from pasta.processors.demangle import demangle, distinct_names
from pasta.processors.rows import combined, group_starts, places_of
from pasta.stalls.blamed import LOAD, NO_ACCESS, NO_LAUNCH, NO_OBJECT, WHY, Blamed, FunctionCode
from pasta.stalls.drawing import dot_of, svg_of
from pasta.table import Column, Figure, Table, Unit, absent_where, counted, formatted, shares

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.stalls.charge import Charges
    from pasta.stalls.samples import Function
    from pasta.stalls.views import Forest

#: Columns of the table `objects` that describe a tensor, and by which alike ones are grouped.
DESCRIBED: Final = (
    "category",
    "name",
    "shape",
    "strides",
    "dtype",
    "operator",
    "module",
    "line",
    "file",
)
ALIKE: Final = ("category", "name", "shape", "dtype", "operator", "module", "line")
_OF: Final = {
    "stalls": "stall samples",
    "share": "of all samples",
    "of_memory": "of memory stalls",
}
_SHARES: Final[dict[str, Unit]] = {"share": "share", "of_memory": "share"}
#: Whys of waits for memory; the others wait for something else.
_MEMORY: Final = (LOAD, 2, 3, 4, NO_LAUNCH, NO_ACCESS, NO_OBJECT)
_OTHER: Final = 1
#: Thresholds of findings: minimum share of all samples for tensors of a line, and for a load.
MIN_SHARE: Final = 0.05
_MAX_FINDINGS: Final = 3


@dataclass(frozen=True)
class Stalls:
    """Results about the stalls of a run.

    `objects` has a row for each accessed object, by `object_id`, which is sorted, with the columns
    `object`, `bytes`, `generation` and those of DESCRIBED.
    """

    functions: Sequence[Function]
    reasons: Mapping[int, str]
    samples: NDArray[Any]
    code: FunctionCode
    blamed: Blamed
    charges: Charges
    objects: Table
    top: int = 10

    @property
    def total(self) -> int:
        """All samples."""
        return int(self.samples["samples"].sum())

    @property
    def memory(self) -> int:
        """Samples of warps that waited for memory."""
        rest = self.charges.rest
        return self.total - int(rest["samples"][rest["why"] == _OTHER].sum())

    @property
    def charged(self) -> int:
        """Samples charged to objects."""
        return int(self.charges.charged["samples"].sum())

    def files(self, forest: Forest) -> dict[str, Callable[[BinaryIO], None]]:
        """forest.json, blame.dot and, if Graphviz is installed, blame.svg."""
        sums = combined(self.charges.charged[["object", "samples"]], ["object"])
        trees = forest.trees(dict(sums.tolist()))
        dot = dot_of(trees, self.total)
        content = {
            "forest.json": json.dumps({"samples": self.total, "objects": trees}, indent=1).encode(),
            "blame.dot": dot.encode(),
        }
        if (svg := svg_of(dot)) is not None:
            content["blame.svg"] = svg
        return {name: partial(_write, text) for name, text in content.items()}

    def result(self, notes: Sequence[str] = ()) -> Result:
        """Summary, tables and findings."""
        tensors = self._tensors()
        return Result(
            self._summary(),
            {
                "tensors": tensors,
                "lines": self._lines(),
                "loads": self._loads(),
                "unattributed": self._unattributed(),
                "reasons": self._reasons(),
                "tensor_stall_cost": self._cost(),
                "sass": self._sass(),
            },
            findings=list(self._findings(tensors)),
            figures={"tensors": self._figure(tensors)} if len(tensors) else {},
            notes=[*self._remarks(), *self.code.notes, *notes],
        )

    # ---- texts

    def _summary(self) -> str:
        if not self.total:
            return "no samples of stalled warps"
        objects = len(np.unique(self.charges.charged["object"]))
        waiting = formatted(self.memory / self.total, "share")
        charged = formatted(self.charged / max(self.memory, 1), "share")
        return (
            f"{counted(self.total, 'sample')}, {waiting} waiting for memory; {charged} of "
            "these charged to "
            f"{counted(objects, 'tensor or allocation', 'tensors and allocations')}"
        )

    def _remarks(self) -> list[str]:
        if not self.charges.estimated:
            return []
        return [
            f"{counted(self.charges.estimated, 'sample')} without a certain launch: divided "
            "among the launches of their function in proportion to device time"
        ]

    def _kernels(self, functions: NDArray[Any]) -> list[str]:
        names = distinct_names(
            [demangle(each.name) if each.name else "(unknown)" for each in self.functions]
        )
        return [names[each] for each in functions.tolist()]

    # ---- tables

    def _share_columns(self, stalls: NDArray[Any]) -> dict[str, Column]:
        return {
            "stalls": stalls,
            "share": shares(stalls, self.total),
            "of_memory": shares(stalls, self.memory),
        }

    def _object_rows(self, ids: NDArray[Any]) -> NDArray[Any]:
        """Rows in `objects` of ids; all must be there."""
        at, known = places_of(np.asarray(self.objects.columns["object_id"]), ids)
        if not known.all():
            raise ValueError(f"{int((~known).sum())} accessed objects are not described")
        return at

    def _grouped(self, names: Sequence[str]) -> tuple[dict[str, list[Any]], NDArray[Any]]:
        """Columns of distinct groups of objects, and `samples` and `objects` of each; those with
        most samples first. The column `load` is the load that most are at."""
        rows = combined(self.charges.charged[["object", "samples"]], ["object"])
        at = self._object_rows(rows["object"])
        columns = [self.objects.values(name) for name in names]
        numbers: dict[tuple[Any, ...], int] = {}
        group = [
            numbers.setdefault(tuple(column[row] for column in columns), len(numbers))
            for row in at.tolist()
        ]
        sums = np.zeros(len(numbers), [("samples", "i8"), ("objects", "i8")])
        np.add.at(sums["samples"], group, rows["samples"])
        np.add.at(sums["objects"], group, 1)
        order = np.argsort(-sums["samples"], kind="stable")
        keys, loads = list(numbers), self._most_waited_for(rows["object"], group)
        found = {name: [keys[row][at] for row in order.tolist()] for at, name in enumerate(names)}
        return {**found, "load": [loads[row] for row in order.tolist()]}, sums[order]

    def _most_waited_for(self, objects: NDArray[Any], groups: list[int]) -> list[str]:
        """The load with most stalls of each group of objects, in words."""
        rows = self.charges.charged
        at = np.searchsorted(objects, rows["object"])
        found = np.zeros(
            len(rows), [("group", "i8"), ("function", "i4"), ("pc", "u8"), ("samples", "i8")]
        )
        found["group"] = np.asarray(groups, np.int64)[at]
        for name in ("function", "pc", "samples"):
            found[name] = rows[name]
        found = combined(found, ("group", "function", "pc"))
        found = found[np.lexsort([-found["samples"], found["group"]])]
        found = found[group_starts(found, ("group",))]
        names = self._kernels(found["function"])
        lines = [self.code.line(*pair) for pair in found[["function", "pc"]].tolist()]
        return [
            f"{name} at {line}" if line else f"{name} +{pc:#x}"
            for name, line, pc in zip(names, lines, found["pc"].tolist(), strict=True)
        ]

    def _tensors(self) -> Table:
        names = [*ALIKE, "file"]
        columns, sums = self._grouped(names)
        return Table(
            {
                **columns,
                "tensors": sums["objects"],
                **self._share_columns(sums["samples"]),
                "bound": _bounds(sums["samples"], self.total),
            },
            units=_SHARES,
            labels={**_OF, "bound": "speed-up at most"},
            title="Stalls by tensors, alike in category, shape, type and operator",
            keys=ALIKE,
            sums=("tensors", "stalls"),
            levels=("share", "of_memory"),
            important=("stalls", "share"),
            shown=self.top,
            hidden=frozenset({"dtype", "file", "load"}),
        )

    def _figure(self, tensors: Table) -> Figure:
        rows = list(tensors.rows(self.top))
        return Figure(
            "bar",
            "Stall samples by tensors",
            [_called(row) for row in rows],
            {"samples": [row["stalls"] for row in rows]},
            y_label="samples",
        )

    def _lines(self) -> Table:
        columns, sums = self._grouped(("line", "operator", "module", "file"))
        return Table(
            {**columns, "tensors": sums["objects"], **self._share_columns(sums["samples"])},
            units=_SHARES,
            labels=_OF,
            title="Stalls by the Python line and operator that made the tensors",
            keys=("line", "operator", "module"),
            sums=("tensors", "stalls"),
            levels=("share", "of_memory"),
            shown=self.top,
            hidden=frozenset({"file", "load"}),
        )

    def _loads(self) -> Table:
        rows = self.blamed.rows
        rows = rows[rows["why"] == LOAD]
        found = combined(rows[["function", "blamed", "samples"]], ["function", "blamed"])
        found = found[np.argsort(-found["samples"], kind="stable")]
        return Table(
            {
                "kernel": self._kernels(found["function"]),
                "offset": found["blamed"],
                **self._instructions(found["function"], found["blamed"]),
                **self._share_columns(found["samples"]),
            },
            units={"offset": "address", **_SHARES},
            labels={**_OF, "line": "source line"},
            title="Loads that warps waited for",
            keys=("kernel", "offset"),
            sums=("stalls",),
            levels=("share", "of_memory"),
            shown=self.top,
        )

    def _instructions(self, functions: NDArray[Any], offsets: NDArray[Any]) -> dict[str, Column]:
        pairs = list(zip(functions.tolist(), offsets.tolist(), strict=True))
        return {
            "instruction": [self.code.text(*pair) for pair in pairs],
            "line": [self.code.line(*pair) for pair in pairs],
        }

    def _unattributed(self) -> Table:
        rest = combined(self.charges.rest[["why", "samples"]], ["why"])
        rest = rest[np.argsort(-rest["samples"], kind="stable")]
        return Table(
            {
                "samples": rest["samples"],
                "share": shares(rest["samples"], self.total),
                "of_memory": absent_where(
                    shares(rest["samples"], self.memory), rest["why"] == _OTHER
                ),
                "why": [WHY[each] for each in rest["why"].tolist()],
            },
            units=_SHARES,
            labels=_OF_REST,
            title="Samples not charged to a tensor",
            keys=("why",),
            sums=("samples",),
            levels=("share", "of_memory"),
        )

    def _reasons(self) -> Table:
        found = combined(self.samples[["reason", "samples"]], ["reason"])
        found = found[np.argsort(-found["samples"], kind="stable")]
        return Table(
            {
                "reason": [
                    self.reasons.get(each) or "(unknown)" for each in found["reason"].tolist()
                ],
                "samples": found["samples"],
                "share": shares(found["samples"], self.total),
            },
            units={"share": "share"},
            title="All samples by reason",
            keys=("reason",),
            sums=("samples",),
            levels=("share",),
            shown=self.top,
        )

    def _cost(self) -> Table:
        rows = self.charges.charged
        rows = rows[np.argsort(-rows["samples"], kind="stable")]
        at = self._object_rows(rows["object"]).tolist()
        described = {}
        for name in ("object", "generation", *DESCRIBED):
            values = self.objects.values(name)
            described[name] = [values[row] for row in at]
        return Table(
            {
                **described,
                "object_id": rows["object"],
                "kernel": self._kernels(rows["function"]),
                "launch": rows["launch"],
                "offset": rows["pc"],
                "source_line": self._instructions(rows["function"], rows["pc"])["line"],
                **self._share_columns(rows["samples"]),
                "accesses": rows["accesses"],
                "bytes": rows["bytes"],
            },
            units={"offset": "address", **_SHARES, "bytes": "bytes"},
            labels=_OF,
            title="Stalls by tensor, launch and load",
            keys=("kernel", "offset", *ALIKE),
            sums=("stalls", "accesses", "bytes"),
            levels=("share", "of_memory"),
            shown=0,
        )

    def _sass(self) -> Table:
        """All instructions of functions whose code is known, with samples by reason and the
        instructions that they waited for."""
        columns: dict[str, list[Any]] = {
            name: []
            for name in (
                "kernel",
                "offset",
                "instruction",
                "line",
                "file",
                "samples",
                "reasons",
                "blamed",
                "waited_for",
            )
        }
        rows = self.blamed.rows
        for function, code in sorted(self.code.code.items()):
            (kernel,) = self._kernels(np.asarray([function]))
            mine = rows[rows["function"] == function]
            stalled = _by_place(mine, "pc")
            waited_for = combined(
                mine[mine["blamed"] != mine["pc"]][["blamed", "samples"]], ["blamed"]
            )
            loads = dict(waited_for.tolist())
            for index in range(len(code.form)):
                offset = 16 * index
                here = stalled.get(offset, [])
                columns["kernel"].append(kernel)
                columns["offset"].append(offset)
                columns["instruction"].append(code.text(index))
                place = self.code.place(function, offset)
                line = f"{place.file.rpartition('/')[2]}:{place.line}" if place else None
                columns["line"].append(line)
                columns["file"].append(place.file if place else None)
                columns["samples"].append(sum(count for *_, count in here))
                columns["reasons"].append(self._reasons_at(here))
                columns["blamed"].append(_blamed_at(here, offset))
                columns["waited_for"].append(loads.get(offset, 0))
        return Table(
            columns,
            units={"offset": "address"},
            labels={"blamed": "waits for", "waited_for": "samples that wait for it"},
            title="Instructions with samples, and what they wait for",
            keys=("kernel", "offset"),
            sums=("samples", "waited_for"),
            shown=0,
            hidden=frozenset({"file"}),
        )

    def _reasons_at(self, here: Any) -> str | None:
        sums: dict[str, int] = {}
        for reason, _, count in here:
            name = self.reasons.get(reason) or "(unknown)"
            sums[name] = sums.get(name, 0) + count
        ordered = sorted(sums, key=lambda name: (-sums[name], name))
        return ", ".join(f"{name} {sums[name]:,}" for name in ordered) or None

    # ---- findings

    def _findings(self, tensors: Table) -> Iterator[Finding]:
        for row in tensors.rows(_MAX_FINDINGS):
            if row["share"] < MIN_SHARE:
                break
            what = _called(row)
            where = row["line"] or row["module"] or what
            yield Finding(
                what=f"warps wait for {what}",
                where=where,
                evidence=f"{row['stalls']:,} of {self.total:,} samples ("
                f"{formatted(row['share'], 'share')}), "
                f"{formatted(row['of_memory'], 'share')} of all waits for memory, "
                f"are charged to {counted(row['tensors'], 'tensor')}"
                f"{' of shape ' + row['shape'] if row['shape'] else ''}, mostly at "
                f"the load {row['load']}"
                + (
                    f"; without these stalls kernels would be at most {row['bound']:.2f} "
                    "times as fast"
                    if row["bound"]
                    else ""
                ),
                remedy=(f"{row['line']}: " if row["line"] else "")
                + "read it less often or in a layout that coalesces: use a smaller type, "
                "contiguous() before repeated use, or a fused operator",
                gain=row["share"],
                confidence="medium",
            )


def _write(content: bytes, file: BinaryIO) -> None:
    file.write(content)


_OF_REST = {"share": "of all samples", "of_memory": "of memory stalls"}


def _called(row: Mapping[str, Any]) -> str:
    """Category, and name or operator of a tensor."""
    return " ".join(filter(None, (row["category"], row["name"] or row["operator"])))


def _bounds(stalls: NDArray[Any], total: int) -> Column:
    """T / (T - blamed): how many times as fast at most without these stalls."""
    left = total - stalls
    return absent_where(total / np.maximum(left, 1), left <= 0)


def _by_place(rows: NDArray[Any], name: str) -> dict[int, list[tuple[int, int, int]]]:
    """Reason, blamed offset and samples by offset."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    sums = combined(rows[[name, "reason", "blamed", "samples"]], (name, "reason", "blamed"))
    for place, reason, blamed, count in sums[[name, "reason", "blamed", "samples"]].tolist():
        found.setdefault(place, []).append((reason, blamed, count))
    return found


def _blamed_at(here: Any, offset: int) -> str | None:
    sums: dict[int, int] = {}
    for _, blamed, count in here:
        if blamed != offset:
            sums[blamed] = sums.get(blamed, 0) + count
    ordered = sorted(sums, key=lambda at: (-sums[at], at))
    return ", ".join(f"{at:#x} {sums[at]:,}" for at in ordered[:4]) or None
