"""Bank conflicts in shared memory, by instruction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.probes import PerPC, probe
from pasta.processors.kernel_names import (
    INSTRUCTION_UNITS,
    at_line,
    instruction_columns,
    instruction_hidden,
    instruction_keys,
    instruction_place,
)
from pasta.table import Table, counted, formatted, shares
from pasta.tool import Finding, Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_MAX_FINDINGS = 10


class BankConflicts(Tool):
    """Wavefronts of shared memory instructions, with and without bank conflicts."""

    title = "Bank conflicts of shared memory"
    topic = "accesses"
    estimates = True

    top = option(20, help="instructions in the text report; the table has all", minimum=1)
    conflicts = option(10_000, help="finding: minimum extra wavefronts of an instruction")
    conflict_share = option(0.1, help="… and their minimum share of all wavefronts", minimum=0.0)
    requests = PerPC("ways", "ideal_ways", "instructions", "lanes")

    @probe.shared_memory(per="warp")
    def request(access: Any, maps: Any) -> None:
        """Count a warp's shared memory and its wavefronts with and without conflicts."""
        maps.requests.add(
            access.pc,
            instructions=1,
            lanes=access.lanes,
            ways=access.ways,
            ideal_ways=access.ideal_ways,
        )

    def result(self) -> Result:
        """Instructions, those with the most additional wavefronts first, and findings."""
        rows = self.requests.rows()
        extra = rows["ways"].astype(np.int64) - rows["ideal_ways"].astype(np.int64)
        order = np.argsort(-extra, kind="stable")
        rows, extra = rows[order], extra[order]
        table = self._table(rows, extra)
        return Result(
            summary=self._summary(rows, extra),
            tables={"instructions": table},
            findings=list(self._findings(table)),
        )

    def _findings(self, table: Table) -> Iterator[Finding]:
        """Instructions with many conflicts; the table lists the worst first."""
        for row in table.rows(_MAX_FINDINGS):
            if not row["extra"] or row["extra"] < self.conflicts:
                return
            if row["share"] < self.conflict_share:
                return
            yield Finding(
                what="shared memory accesses have bank conflicts",
                where=instruction_place(row),
                evidence=f"{counted(row['total_ways'], 'wavefront')} where "
                f"{row['total_ideal_ways']:,} would suffice: {row['ways']:.3g} per "
                f"execution instead of {row['ideal_ways']:.3g}",
                remedy=at_line(
                    row,
                    ("pad each row of the shared-memory array by one word, or swizzle its columns"),
                ),
                gain=row["share"],
                of="wavefronts of shared memory",
                confidence="medium"
                if row["line"]
                else "low",  # without a line, it may be a library's code
            )

    def _table(self, rows: NDArray[Any], extra: NDArray[Any]) -> Table:
        instructions = np.maximum(rows["instructions"], 1)
        where = instruction_columns(self.context, rows["pc"])
        return Table(
            {
                **where,
                "instructions": rows["instructions"],
                "accesses": rows["lanes"],
                "ways": rows["ways"] / instructions,
                "ideal_ways": rows["ideal_ways"] / instructions,
                "extra": extra,
                "share": shares(extra, int(rows["ways"].sum())),
                "total_ways": rows["ways"],
                "total_ideal_ways": rows["ideal_ways"],
            },
            units={**INSTRUCTION_UNITS, "share": "share"},
            labels={
                "ways": "wavefronts per instruction",
                "ideal_ways": "without conflicts",
                "extra": "extra wavefronts",
                "share": "of all wavefronts",
            },
            keys=instruction_keys(where),
            sums=("extra", "instructions", "total_ways"),
            levels=("ways",),
            important=("offset", "extra", "share", "ways"),
            title="Shared memory instructions, most extra wavefronts first",
            shown=self.top,
            hidden=instruction_hidden(where) | {"total_ways", "total_ideal_ways"},
        )

    def _summary(self, rows: NDArray[Any], extra: NDArray[Any]) -> str:
        if not len(rows):
            return "no shared memory accesses were recorded"
        ways, total = int(rows["ways"].sum()), int(extra.sum())
        text = (
            counted(
                len(rows),
                "shared memory instruction takes",
                "shared memory instructions take",
            )
            + f" {counted(ways, 'wavefront')}"
        )
        if total:
            worst = next(self._table(rows[:1], extra[:1]).rows())
            text += (
                f", {formatted(total / ways, 'share')} of them due to bank conflicts; worst:"
                f" {worst['kernel'] or 'unknown'} at {formatted(worst['offset'], 'address')},"
                f" {worst['extra']:,} extra"
            )
        else:
            text += ", none due to bank conflicts"
        return text
