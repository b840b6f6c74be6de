"""Program counter samples: where kernels spend their time, and stall reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.groups import Groups
from pasta.processors.kernel_names import kernel_names
from pasta.table import Figure, Table, absent_where, counted, shares
from pasta.tool import Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

_ABSENT_U32 = 0xFFFF_FFFF
_ABSENT_U64 = 0xFFFF_FFFF_FFFF_FFFF


class PcSamples(Tool):
    """Program counter samples by kernel, location in its code and stall reason."""

    title = "Stalls: program counter samples"
    topic = "time"

    top = option(10, help="rows of each table in the text report; the tables have all", minimum=1)
    places = option(1 << 18, help="maximum number of distinct locations and reasons", minimum=1)

    def start(self) -> None:
        """Initialize the counts by kernel, location and stall reason."""
        self.names: dict[int, int] = {}  # kernel name ids by function
        self.groups = Groups(self.places, "samples", "not_issued", "known_issue")

    def on_launches(self, launches: NDArray[Any]) -> None:
        """Keep the kernel name of each function."""
        functions, first = np.unique(launches["function"], return_index=True)
        self.names.update(zip(functions.tolist(), launches["name"][first].tolist(), strict=True))

    def on_samples(self, samples: NDArray[Any]) -> None:
        """Count samples by kernel, location and stall reason."""
        issue_known = samples["not_issued"] != _ABSENT_U32
        self.groups.add(
            self._kernels(samples),
            samples["pc"],
            samples["reason"],
            # without a function the offset is relative to the module
            (samples["function"] == _ABSENT_U64) & (samples["name"] == 0),
            samples=samples["samples"].astype(np.int64),
            not_issued=np.where(issue_known, samples["not_issued"], 0).astype(np.int64),
            known_issue=issue_known.astype(np.int64),
        )

    def _kernels(self, samples: NDArray[Any]) -> NDArray[Any]:
        """Name ids of the sampled kernels: given, or by launch or, if unknown, by function."""
        launched = np.asarray(self.context.launches.names(samples["ordinal"]), np.uint32)
        names = np.where(samples["name"] == 0, launched, samples["name"])
        unknown = np.flatnonzero(names == 0)
        if len(unknown):
            functions, of = np.unique(samples["function"][unknown], return_inverse=True)
            known = [self.names.get(function, 0) for function in functions.tolist()]
            names[unknown] = np.asarray(known, np.uint32)[of.reshape(-1)]
        return names

    def result(self) -> Result:
        """Tables by kernel, location, stall reason, and all of these."""
        kernels = self._by((0,))
        return Result(
            summary=self._summary(kernels),
            tables={
                "kernels": self._table(kernels, ("kernel",), "Samples by kernel"),
                "places": self._table(
                    self._by((0, 1, 3)),
                    ("kernel", "offset", "within"),
                    "Samples by location in the code",
                ),
                "reasons": self._table(
                    self._by((0, 2)), ("kernel", "reason"), "Samples by stall reason"
                ),
                "all": self._table(
                    self._by((0, 1, 3, 2)), ("kernel", "offset", "within", "reason"), "All", shown=0
                ),
            },
            figures={"reasons": self._figure()},
        )

    def _by(self, columns: tuple[int, ...]) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
        """Sums by some columns of (name, offset, reason), most samples first."""
        rows = np.asarray(self.groups.rows, np.uint64).reshape(-1, 4)[:, columns]
        distinct, of = np.unique(rows, axis=0, return_inverse=True)
        sums = {}
        for name in ("samples", "not_issued", "known_issue"):
            sums[name] = np.zeros(len(distinct), np.int64)
            np.add.at(sums[name], of.reshape(-1), self.groups.sum(name))
        order = np.argsort(-sums["samples"], kind="stable")
        return distinct[order], {name: values[order] for name, values in sums.items()}

    def _table(
        self,
        groups: tuple[NDArray[Any], dict[str, NDArray[Any]]],
        keys: tuple[str, ...],
        title: str,
        shown: int | None = None,
    ) -> Table:
        rows, sums = groups
        columns: dict[str, Any] = {}
        for at, key in enumerate(keys):
            columns[key] = _COLUMNS[key](self.context, rows[:, at])
        issue = sums["known_issue"] > 0
        return Table(
            {
                **columns,
                "samples": sums["samples"],
                "share": shares(sums["samples"], int(sums["samples"].sum())),
                "not_issued": absent_where(sums["not_issued"], ~issue),
            },
            units={"share": "share", **({"offset": "address"} if "offset" in keys else {})},
            labels={"share": "of samples", "not_issued": "not issued"},
            keys=keys,
            sums=("samples", "not_issued"),
            levels=("share",),
            title=title,
            shown=self.top if shown is None else shown,
            hidden=frozenset(self._hidden(columns, bool(issue.any()))),
        )

    @staticmethod
    def _hidden(columns: dict[str, Any], issue_known: bool) -> Iterator[str]:
        """Columns without information."""
        if not issue_known:
            yield "not_issued"
        if "module" not in columns.get("within", ("module",)):
            yield "within"

    def _figure(self) -> Figure:
        rows, sums = self._by((2,))
        return Figure(
            "bar",
            "Samples by stall reason",
            _reasons(self.context, rows[:, 0]),
            {"samples": sums["samples"]},
            y_label="samples",
        )

    def _summary(self, kernels: tuple[NDArray[Any], dict[str, NDArray[Any]]]) -> str:
        rows, sums = kernels
        total = int(sums["samples"].sum())
        if not total:
            return "no samples were taken (amd.pc_sampling enables them)"
        most = _kernel_names(self.context, rows[:1, 0])[0]
        text = (
            f"{counted(total, 'sample')} in {counted(len(rows), 'kernel')}; most: {most},"
            f" {100 * int(sums['samples'][0]) / total:.1f} %"
        )
        if self.groups.left_out:
            text += (
                f"; {counted(self.groups.left_out, 'record')} of locations beyond the limit dropped"
            )
        return text


def _kernel_names(context: Any, ids: NDArray[Any]) -> list[str]:
    names = kernel_names(context, ids.astype(np.uint32))
    return [name if id else "(unknown)" for name, id in zip(names, ids.tolist(), strict=True)]


def _reasons(context: Any, ids: NDArray[Any]) -> list[str]:
    return [context.strings[id] if id else "(unknown)" for id in ids.tolist()]


def _offsets(_context: Any, offsets: NDArray[Any]) -> NDArray[Any]:
    return offsets


def _places(_context: Any, in_module: NDArray[Any]) -> list[str]:
    return ["module" if each else "kernel" for each in in_module.tolist()]


_COLUMNS: dict[str, Callable[[Any, NDArray[Any]], Any]] = {
    "kernel": _kernel_names,
    "offset": _offsets,
    "within": _places,
    "reason": _reasons,
}
