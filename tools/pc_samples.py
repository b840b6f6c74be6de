"""Program counter samples: where kernels spend their time, and stall reasons."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.batch import ABSENT_U32, ABSENT_U64
from pasta.processors.groups import Groups
from pasta.processors.kernel_names import at_line, instruction_place, kernel_names
from pasta.stalls.samples import missing_samples
from pasta.table import Figure, Table, absent_where, counted, formatted, shares
from pasta.tool import Finding, Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

#: Minimum share of all samples for an instruction to be a finding, and minimum samples.
_MIN_SHARE, _MIN_SAMPLES = 0.2, 1000
#: Columns of the groups of samples.
_NAME, _PC, _REASON, _IN_MODULE, _MODULE = range(5)


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
        self.unlocated: dict[int, tuple[int, int]] = {}  # reason: samples, records

    def on_launches(self, launches: NDArray[Any]) -> None:
        """Keep the kernel name of each function."""
        functions, first = np.unique(launches["function"], return_index=True)
        self.names.update(zip(functions.tolist(), launches["name"][first].tolist(), strict=True))

    def on_samples(self, samples: NDArray[Any]) -> None:
        """Count samples by kernel, location and stall reason."""
        located = samples["pc"] != ABSENT_U64
        self._count_unlocated(samples[~located])
        samples = samples[located]
        issue_known = samples["not_issued"] != ABSENT_U32
        self.groups.add(
            self._kernels(samples),
            samples["pc"],
            samples["reason"],
            # without a function the offset is relative to the module
            (samples["function"] == ABSENT_U64) & (samples["name"] == 0),
            samples["module_hash"],
            samples=samples["samples"].astype(np.int64),
            not_issued=np.where(issue_known, samples["not_issued"], 0).astype(np.int64),
            known_issue=issue_known.astype(np.int64),
        )

    def _count_unlocated(self, samples: NDArray[Any]) -> None:
        for reason in np.unique(samples["reason"]).tolist():
            mine = samples["samples"][samples["reason"] == reason]
            before, records = self.unlocated.get(reason, (0, 0))
            self.unlocated[reason] = before + int(mine.sum(dtype=np.int64)), records + len(mine)

    def _kernels(self, samples: NDArray[Any]) -> NDArray[Any]:
        """Name ids of the sampled kernels: from the sample, its launch, or its function."""
        launched = np.asarray(self.context.launches.names(samples["ordinal"]), np.uint32)
        names = np.where(samples["name"] == 0, launched, samples["name"])
        unknown = np.flatnonzero(names == 0)
        if len(unknown):
            functions, of = np.unique(samples["function"][unknown], return_inverse=True)
            known = [self.names.get(function, 0) for function in functions.tolist()]
            names[unknown] = np.asarray(known, np.uint32)[of.reshape(-1)]
        return names

    def result(self) -> Result:
        """Tables by kernel, location, source line, stall reason, and all of these."""
        kernels = self._by((_NAME,))
        places, sums = self._by((_NAME, _PC, _IN_MODULE, _MODULE))
        described = self._described(places)
        place_table = self._table(
            (places[:, :3], sums),
            ("kernel", "offset", "within"),
            "Samples by location in the code",
            described=described,
        )
        tables = {
            "kernels": self._table(kernels, ("kernel",), "Samples by kernel"),
            "places": place_table,
            "reasons": self._table(
                self._by((_NAME, _REASON)), ("kernel", "reason"), "Samples by stall reason"
            ),
            "all": self._table(
                self._by((_NAME, _PC, _IN_MODULE, _REASON)),
                ("kernel", "offset", "within", "reason"), "All", shown=0,
            ),
        }  # fmt: skip
        if any(described["line"]):
            tables["lines"] = self._lines(place_table)
        return Result(
            summary=self._summary(kernels),
            tables=tables,
            findings=self._findings(places, place_table),
            figures={"reasons": self._figure()},
            notes=list(self._notes(places[:, 3])),
        )

    def _described(self, places: NDArray[Any]) -> dict[str, list[str | None]]:
        """Source line and text of each instruction, by column."""
        from pasta.sass.places import Place, describe

        names = self.context.strings.many(places[:, 0])
        found = describe(
            [
                Place(module, name, offset)
                for name, offset, module in zip(
                    names, places[:, 1].tolist(), places[:, 3].tolist(), strict=True
                )
            ],
            self.context.images,
        )
        return {
            "line": [each.line for each in found],
            "instruction": [each.text for each in found],
        }

    def _lines(self, places: Table) -> Table:
        """Samples by source line, from the table of locations."""
        rows: dict[tuple[str, str], list[int]] = {}
        for row in places.rows():
            sums = rows.setdefault((row["kernel"], row["line"] or "(unknown)"), [0, 0])
            sums[0] += row["samples"]
            sums[1] += row["not_issued"] or 0
        ordered = sorted(rows.items(), key=lambda item: -item[1][0])
        samples = np.asarray([sums[0] for _, sums in ordered], np.int64)
        not_issued = np.asarray([sums[1] for _, sums in ordered], np.int64)
        return Table(
            {
                "kernel": [kernel for (kernel, _), _ in ordered],
                "line": [line for (_, line), _ in ordered],
                "samples": samples,
                "share": shares(samples, int(samples.sum())),
                "not_issued": not_issued,
            },
            units={"share": "share"},
            labels={"share": "of samples", "not_issued": "not issued"},
            keys=("kernel", "line"),
            sums=("samples", "not_issued"),
            levels=("share",),
            title="Samples by source line",
            shown=self.top,
            hidden=places.hidden & {"not_issued"},
        )

    def _findings(self, places: NDArray[Any], table: Table) -> list[Finding]:
        """Instructions with a large share of all samples; `places`: the groups of the rows."""
        total = int(np.sum(table.columns["samples"]))
        reasons, sums = self._by((_NAME, _PC, _IN_MODULE, _MODULE, _REASON))
        found = []
        for number, row in enumerate(table.rows(int(1 / _MIN_SHARE))):
            if total < _MIN_SAMPLES or row["share"] < _MIN_SHARE:
                break
            most = int(np.argmax((reasons[:, :4] == places[number]).all(axis=1)))  # they are sorted
            share = int(sums["samples"][most]) / row["samples"]
            found.append(
                Finding(
                    "one instruction has a large share of the samples",
                    instruction_place({**row, "pc": row["offset"]}),
                    f"{formatted(row['share'], 'share')} of {counted(total, 'sample')}; most of"
                    f" these, {formatted(share, 'share')}:"
                    f" {_reasons(self.context, reasons[most, 4:])[0]}",
                    at_line(
                        row,
                        "remove the cause of this stall, or hide it with more resident warps "
                        "or more independent instructions",
                    ),
                    gain=row["share"],
                    confidence="low",
                )
            )
        return found

    def _notes(self, modules: NDArray[Any]) -> Iterator[str]:
        """Samples without a place, and modules (hashes) without an image."""
        lost = [
            module
            for module in np.unique(modules).tolist()
            if module != ABSENT_U64 and self.context.images(module) is None
        ]
        if lost:
            yield (
                f"source lines and instructions of {counted(len(lost), 'module')} are unknown "
                "because the code was not kept: record with --record, or raise "
                "probes.code-memory"
            )
        for reason, (samples, records) in sorted(self.unlocated.items()):
            text = self.context.strings[reason]
            if samples:
                more = counted(samples, "further sample has", "further samples have")
                yield f"{more} no place: {text}"
            else:
                yield missing_samples(text, records)

    def _by(self, columns: tuple[int, ...]) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
        """Sums by some columns of the groups, most samples first."""
        rows = np.asarray(self.groups.rows, np.uint64).reshape(-1, 5)[:, columns]
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
        described: Mapping[str, list[str | None]] = MappingProxyType({}),
    ) -> Table:
        rows, sums = groups
        columns: dict[str, Any] = {}
        for at, key in enumerate(keys):
            columns[key] = _COLUMNS[key](self.context, rows[:, at])
        issue = sums["known_issue"] > 0
        return Table(
            {
                **columns,
                **described,
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
            hidden=frozenset(self._hidden({**columns, **described}, bool(issue.any()))),
        )

    @staticmethod
    def _hidden(columns: dict[str, Any], issue_known: bool) -> Iterator[str]:
        """Columns without information."""
        if not issue_known:
            yield "not_issued"
        if "module" not in columns.get("within", ("module",)):
            yield "within"
        yield from (name for name in ("line", "instruction") if not any(columns.get(name, ())))

    def _figure(self) -> Figure:
        rows, sums = self._by((_REASON,))
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
            return (
                "no samples were taken: kernels ran shorter than the sampling interval, or "
                "the device does not sample (AMD devices only with amd.pc_sampling)"
            )
        most = _kernel_names(self.context, rows[:1, 0])[0]
        text = (
            f"{counted(total, 'sample')} in {counted(len(rows), 'kernel')}; most: {most},"
            f" {100 * int(sums['samples'][0]) / total:.1f} %"
        )
        if self.groups.left_out:
            text += (
                f"; {counted(self.groups.left_out, 'record')} dropped: more locations than "
                "the limit"
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
