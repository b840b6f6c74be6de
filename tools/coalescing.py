"""Coalescing: how well the lanes of a warp share sectors of global memory, by instruction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.probes import PerPC, probe
from pasta.probes.kinds import GROUPS
from pasta.processors.kernel_names import (
    INSTRUCTION_UNITS,
    at_line,
    instruction_columns,
    instruction_hidden,
    instruction_keys,
    instruction_place,
)
from pasta.table import Table, counted, formatted
from pasta.tool import Finding, Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

SECTOR = 32
_MAX_FINDINGS = 10
COUNTED_BY_WARPS = tuple(kind for kind in GROUPS["global_memory"] if kind != "async_copy")


class Coalescing(Tool):
    """Sectors that global memory instructions access, and the minimum that would suffice."""

    title = "Coalescing of global memory accesses"
    topic = "accesses"
    estimates = True

    top = option(20, help="instructions in the text report; the table has all", minimum=1)
    wasted = option("1MiB", kind="bytes", help="finding: minimum bytes wasted by an instruction")
    wasted_share = option(
        0.1, help="… and their minimum share of the bytes in all sectors", minimum=0.0
    )
    requests = PerPC("sectors", "ideal_sectors", "instructions", "lanes", "bytes")

    @probe.on(*COUNTED_BY_WARPS, per="warp")
    def request(access: Any, maps: Any) -> None:
        """Count a warp's instruction, its bytes and sectors, and the minimum of sectors."""
        maps.requests.add(
            access.pc,
            instructions=1,
            lanes=access.lanes,
            bytes=access.lanes * access.bytes,
            sectors=access.sectors,
            ideal_sectors=access.ideal_sectors,
        )

    # Lanes of one cp.async may read different numbers of bytes.
    @probe.on("async_copy")
    def copy(access: Any, maps: Any) -> None:
        """Count an asynchronous copy, whose lanes may differ in bytes."""
        maps.requests.add(access.pc, lanes=1, bytes=access.bytes)
        if access.leader:
            maps.requests.add(
                access.pc,
                instructions=1,
                sectors=access.sectors,
                ideal_sectors=access.ideal_sectors,
            )

    def result(self) -> Result:
        """Instructions, those with the most wasted bytes first, and findings."""
        rows = self.requests.rows()
        wasted = rows["sectors"].astype(np.int64) - rows["ideal_sectors"].astype(np.int64)
        order = np.argsort(-wasted, kind="stable")
        rows, wasted = rows[order], SECTOR * wasted[order]
        table = self._table(rows, wasted)
        return Result(
            summary=self._summary(rows, wasted),
            tables={"instructions": table},
            findings=list(self._findings(table)),
        )

    def _findings(self, table: Table) -> Iterator[Finding]:
        """Instructions that waste many bytes; the table lists the worst first."""
        for row in table.rows(_MAX_FINDINGS):
            if not row["wasted_bytes"] or row["wasted_bytes"] < self.wasted:
                return
            if row["share"] < self.wasted_share:
                return
            yield Finding(
                what="global memory accesses are not coalesced",
                where=instruction_place(row),
                evidence=f"{counted(row['total_sectors'], 'sector')} where "
                f"{row['total_ideal_sectors']:,} would suffice, "
                f"{formatted(row['wasted_bytes'], 'bytes')} wasted; "
                f"{row['lanes']:.3g} lanes access {row['sectors']:.3g} sectors per "
                "execution",
                remedy=at_line(
                    row, "have adjacent lanes access adjacent words, aligned to 32 bytes"
                ),
                gain=row["share"],
                of="bytes in sectors of global memory",
                confidence="medium"
                if row["line"]
                else "low",  # without a line, it may be a library's code
            )

    def _table(self, rows: NDArray[Any], wasted: NDArray[Any]) -> Table:
        moved = SECTOR * int(rows["sectors"].sum())
        instructions = np.maximum(rows["instructions"], 1)
        where = instruction_columns(self.context, rows["pc"])
        return Table(
            {
                **where,
                "instructions": rows["instructions"],
                "lanes": rows["lanes"] / instructions,
                "sectors": rows["sectors"] / instructions,
                "ideal_sectors": rows["ideal_sectors"] / instructions,
                "efficiency": rows["ideal_sectors"] / np.maximum(rows["sectors"], 1),
                "wasted_bytes": wasted,
                "share": wasted / max(moved, 1),
                "requested_bytes": rows["bytes"],
                "accesses": rows["lanes"],
                "total_sectors": rows["sectors"],
                "total_ideal_sectors": rows["ideal_sectors"],
            },
            units={
                **INSTRUCTION_UNITS,
                "efficiency": "share",
                "wasted_bytes": "bytes",
                "share": "share",
                "requested_bytes": "bytes",
            },
            labels={
                "lanes": "lanes per instruction",
                "sectors": "sectors per instruction",
                "ideal_sectors": "ideal sectors",
                "efficiency": "ideal / actual",
                "wasted_bytes": "wasted",
                "share": "of bytes in all sectors",
                "requested_bytes": "requested",
            },
            keys=instruction_keys(where),
            sums=("wasted_bytes", "instructions", "total_sectors", "requested_bytes"),
            levels=("efficiency",),
            important=("offset", "wasted_bytes", "share", "efficiency"),
            title="Global memory instructions, most bytes wasted first",
            shown=self.top,
            hidden=instruction_hidden(where)
            | {"accesses", "requested_bytes", "total_sectors", "total_ideal_sectors"},
        )

    def _summary(self, rows: NDArray[Any], wasted: NDArray[Any]) -> str:
        sectors, ideal = int(rows["sectors"].sum()), int(rows["ideal_sectors"].sum())
        if not len(rows):
            return "no global memory accesses were recorded"
        text = (
            counted(len(rows), "global memory instruction uses", "global memory instructions use")
            + f" {formatted(ideal / max(sectors, 1), 'share')} of {counted(sectors, 'sector')}"
        )
        if wasted.any():
            worst = next(self._table(rows[:1], wasted[:1]).rows())
            share = formatted(int(wasted[0]) / int(wasted.sum()), "share")
            text += (
                f"; worst: {worst['kernel'] or 'unknown'} at"
                f" {formatted(worst['offset'], 'address')}, {share} of"
                f" {formatted(int(wasted.sum()), 'bytes')} wasted"
            )
        return text
