"""Where kernels spend their time: samples of program counters, and what waves waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.groups import Groups
from pasta.processors.kernel_names import kernel_names
from pasta.table import Figure, Table, absent_where, shares
from pasta.tool import Result, Tool, option

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ABSENT_U16 = 0xFFFF
_ABSENT_U32 = 0xFFFF_FFFF
_ABSENT_U64 = 0xFFFF_FFFF_FFFF_FFFF


class PcSamples(Tool):
    """Samples of program counters by kernel, place in its code and stall reason."""

    top = option(10, help="rows of each table in the text report; the tables have all", minimum=1)
    places = option(1 << 18, help="distinct places and reasons to tell apart", minimum=1)

    def start(self) -> None:
        self.names: dict[int, int] = {}  # name ids of kernels by their functions
        self.groups = Groups(self.places, "samples", "not_issued", "told")

    def on_launches(self, launches: NDArray[Any]) -> None:
        functions, first = np.unique(launches["function"], return_index=True)
        self.names.update(zip(functions.tolist(), launches["name"][first].tolist(), strict=True))

    def on_samples(self, samples: NDArray[Any]) -> None:
        issue_told = samples["not_issued"] != _ABSENT_U32
        self.groups.add(
            self._kernels(samples),
            samples["pc"],
            samples["reason"],
            samples=samples["samples"].astype(np.int64),
            not_issued=np.where(issue_told, samples["not_issued"], 0).astype(np.int64),
            told=issue_told.astype(np.int64),
        )

    def _kernels(self, samples: NDArray[Any]) -> NDArray[Any]:
        """Name ids of the kernels that were sampled: by their launches, else by their functions."""
        names = np.asarray(self.context.launches.names(samples["ordinal"]), np.uint32)
        unknown = np.flatnonzero(names == 0)
        if len(unknown):
            functions, of = np.unique(samples["function"][unknown], return_inverse=True)
            known = [self.names.get(function, 0) for function in functions.tolist()]
            names[unknown] = np.asarray(known, np.uint32)[of.reshape(-1)]
        return names

    def result(self) -> Result:
        kernels = self._by((0,))
        return Result(
            summary=self._summary(kernels),
            tables={
                "kernels": self._table(kernels, ("kernel",), "Samples by kernel"),
                "places": self._table(
                    self._by((0, 1)), ("kernel", "offset"), "Samples by place in the code"
                ),
                "reasons": self._table(
                    self._by((0, 2)), ("kernel", "reason"), "Samples by what waves waited for"
                ),
                "all": self._table(
                    self._by((0, 1, 2)), ("kernel", "offset", "reason"), "All", shown=0
                ),
            },
            figures={"reasons": self._figure()},
        )

    def _by(self, columns: tuple[int, ...]) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
        """Sums by some columns of (name, offset, reason), most samples first."""
        rows = np.asarray(self.groups.rows, np.uint64).reshape(-1, 3)[:, columns]
        distinct, of = np.unique(rows, axis=0, return_inverse=True)
        sums = {}
        for name in ("samples", "not_issued", "told"):
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
            if key == "kernel":
                columns[key] = _kernel_names(self.context, rows[:, at])
            else:
                columns[key] = rows[:, at] if key == "offset" else _reasons(rows[:, at])
        issue = sums["told"] > 0
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
            hidden=frozenset() if issue.any() else frozenset({"not_issued"}),
        )

    def _figure(self) -> Figure:
        rows, sums = self._by((2,))
        return Figure(
            "bar",
            "Samples by what waves waited for",
            _reasons(rows[:, 0]),
            {"samples": sums["samples"]},
            y_label="samples",
        )

    def _summary(self, kernels: tuple[NDArray[Any], dict[str, NDArray[Any]]]) -> str:
        rows, sums = kernels
        total = int(sums["samples"].sum())
        if not total:
            return "no samples were taken"
        most = _kernel_names(self.context, rows[:1, 0])[0]
        text = (
            f"{total:,} samples in {len(rows):,} kernels; most: {most},"
            f" {100 * int(sums['samples'][0]) / total:.1f} %"
        )
        if self.groups.left_out:
            text += f"; {self.groups.left_out:,} records of places past the limit are left out"
        return text


def _kernel_names(context: Any, ids: NDArray[Any]) -> list[str]:
    names = kernel_names(context, ids.astype(np.uint32))
    return [name if id else "(not known)" for name, id in zip(names, ids.tolist(), strict=True)]


def _reasons(numbers: NDArray[Any]) -> list[str]:
    from pasta import abi

    names = abi.ENUMS.get("stall", {})
    return [
        "(not told)" if number == _ABSENT_U16 else names.get(number, f"reason {number}")
        for number in numbers.tolist()
    ]
