"""Active lanes at memory instructions, and load imbalance between the blocks of a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.probes import Counter, PerPC, probe
from pasta.processors.kernel_names import (
    INSTRUCTION_UNITS,
    Launched,
    at_line,
    instruction_columns,
    instruction_hidden,
    instruction_keys,
    instruction_place,
    kernel_names,
)
from pasta.processors.rows import combined
from pasta.table import Figure, Table, counted, formatted
from pasta.tool import Finding, Result, Tool, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

LANES = 32
_MAX_FINDINGS = 10


class Divergence(Tool):
    """Active lanes of memory instructions, and launches with imbalanced accesses of blocks."""

    title = "Divergence and imbalance"
    topic = "accesses"
    estimates = True

    top = option(10, help="rows of each table in the text report; the tables have all", minimum=1)
    blocks = option(
        4096, help="blocks of a launch to count separately; further blocks are combined", minimum=2
    )
    idle = option(100_000, help="finding: minimum idle lanes of an instruction", minimum=1)
    idle_share = option(0.1, help="… and their minimum share of all lanes", minimum=0.0)
    imbalance = option(
        2.0,
        help="finding: minimum imbalance of a launch (accesses per block, maximum / mean)",
        minimum=1.0,
    )
    unequal = option(100_000, help="finding: minimum accesses of a kernel's imbalanced launches")
    lanes = PerPC(bins=LANES + 1)
    by_block = Counter(by=("launch", "block"), fields="accesses", blocks=blocks)

    # Excludes kinds in which one lane acts for the warp, or lanes provide rows of matrices.
    @probe.on("global", "shared", "local", "remote_shared", "async_copy", per="warp")
    def count_lanes(access: Any, maps: Any) -> None:
        """Count a warp's instruction by program counter and number of active lanes."""
        maps.lanes.add(access.pc, access.lanes)

    @probe.memory(per="warp")
    def count_blocks(access: Any, maps: Any) -> None:
        """Sum active lanes by block."""
        maps.by_block.add(access.block, access.lanes)

    def start(self) -> None:
        """Initialize the table of launches."""
        self.launched = Launched(blocks="u8")

    def on_launches(self, launches: NDArray[Any]) -> None:
        """Keep the number of blocks of each launch."""
        self.launched.add(launches, blocks=launches["grid"].astype(np.uint64).prod(axis=1))

    def result(self) -> Result:
        """Tables by instruction, launch and group of blocks, a figure of active lanes, and
        findings."""
        histogram = self.lanes.rows()
        groups = self._groups()
        launches = self._launches(groups)
        instructions = self._instructions(histogram)
        lanes = LANES * int(histogram["count"].sum())
        return Result(
            summary=self._summary(histogram, launches),
            tables={
                "instructions": instructions,
                "launches": launches,
                "groups": self._group_table(groups),
            },
            findings=[*self._idle(instructions, lanes), *self._imbalanced(launches)],
            figures={"lanes": self._figure(histogram)},
        )

    def _idle(self, instructions: Table, lanes: int) -> Iterator[Finding]:
        """Instructions with many idle lanes; the table lists the worst first."""
        for row in instructions.rows(_MAX_FINDINGS):
            if row["idle"] < self.idle or row["idle"] < self.idle_share * lanes:
                return
            yield Finding(
                what="lanes are idle in memory instructions",
                where=instruction_place(row),
                evidence=f"{row['lanes']:.3g} of {LANES} lanes are active on average;"
                f" {formatted(row['partial'], 'share')} of"
                f" {counted(row['instructions'], 'execution')}"
                " are partial",
                remedy=at_line(
                    row,
                    (
                        "make the block size a multiple of 32 threads, and conditions "
                        "uniform within each warp"
                    ),
                ),
                gain=row["idle"] / lanes,
                of="lanes of memory instructions",
                confidence="low",
            )

    def _imbalanced(self, launches: Table) -> Iterator[Finding]:
        """Kernels with launches in which one block makes many more accesses than others. The gain
        is a share of the accesses of the busiest blocks of all launches: gains of kernels add
        up."""
        busiest = int(launches.columns["most"].sum())
        found: dict[str, list[dict[str, Any]]] = {}
        for row in launches.rows():
            if row["imbalance"] < self.imbalance or row["imbalance"] <= 1:
                break  # sorted
            found.setdefault(row["kernel"], []).append(row)
        for kernel, rows in found.items():
            accesses = sum(row["accesses"] for row in rows)
            if accesses < self.unequal:
                continue
            most = sum(row["most"] for row in rows)
            mean = sum(row["mean"] for row in rows)
            yield Finding(
                what="blocks of a launch have unequal work",
                where=f"{kernel}, launch {rows[0]['launch']:,}",
                evidence=f"in {counted(len(rows), 'launch')} one block makes {most / mean:.3g}"
                " times the mean number of accesses; in this launch "
                f"{rows[0]['imbalance']:.3g} times: {rows[0]['most']:,}",
                remedy="give all blocks equal work, or let them take small work items from a queue",
                gain=(most - mean) / busiest,
                of="accesses of the busiest block of each launch",
                confidence="low",
            )

    def _instructions(self, histogram: NDArray[Any]) -> Table:
        pcs, at = np.unique(histogram["pc"], return_inverse=True)
        counts = np.zeros((len(pcs), LANES + 1), np.uint64)
        counts[at.reshape(-1), histogram["bin"].astype(np.intp)] = histogram["count"]
        executed = counts.sum(axis=1)
        lanes = (counts * np.arange(LANES + 1, dtype=np.uint64)).sum(axis=1)
        idle = LANES * executed - lanes
        order = np.argsort(-idle.astype(np.float64), kind="stable")
        counts, executed, lanes, idle = counts[order], executed[order], lanes[order], idle[order]
        where = instruction_columns(self.context, pcs[order])
        return Table(
            {
                **where,
                "instructions": executed,
                "lanes": lanes / np.maximum(executed, 1),
                "share": lanes / np.maximum(LANES * executed, 1),
                "partial": 1 - counts[:, LANES] / np.maximum(executed, 1),
                "idle": idle,
                "active_lanes": counts,
            },
            units={**INSTRUCTION_UNITS, "share": "share", "partial": "share"},
            labels={
                "lanes": "lanes per instruction",
                "share": "of all lanes",
                "partial": "partially active",
                "idle": "idle lanes",
                "active_lanes": "instructions with 0 to 32 active lanes",
            },
            keys=instruction_keys(where),
            sums=("instructions", "idle"),
            levels=("share",),
            important=("offset", "idle", "share", "instructions"),
            title="Memory instructions, most idle lanes first",
            shown=self.top,
            hidden=instruction_hidden(where) | {"active_lanes"},
        )

    def _groups(self) -> NDArray[Any]:
        """Blocks of a launch with equal numbers of accesses: their number, and the first."""
        rows = self.by_block.rows()
        rest = rows["block"] == self.blocks - 1
        rest &= self.launched.of(rows["launch"], "blocks") > self.blocks
        rows = rows[~rest]
        types = [("launch", "u8"), ("accesses", "u8"), ("blocks", "u8"), ("first", "u8")]
        found = np.zeros(len(rows), types)
        found["launch"], found["accesses"] = rows["launch"], rows["accesses"]
        first = found.copy()
        first["first"], found["blocks"] = rows["block"], 1
        found = combined(found, ["launch", "accesses"])
        found["first"] = combined(first, ["launch", "accesses"], "minimum")["first"]
        return combined(
            np.concatenate([found, self._without_accesses(rows, types)]), ["launch", "accesses"]
        )

    def _without_accesses(self, rows: NDArray[Any], types: list[tuple[str, str]]) -> NDArray[Any]:
        """Groups of blocks without accesses, in launches where other blocks have some."""
        launches, starts, seen = np.unique(rows["launch"], return_index=True, return_counts=True)
        every = self.launched.of(launches, "blocks")
        blocks = np.where(every > self.blocks, self._separate_blocks, every).astype(np.int64)
        some = blocks > seen
        silent = np.zeros(int(some.sum()), types)
        silent["launch"] = launches[some]
        silent["blocks"] = (blocks - seen)[some]
        for group, start, count in zip(silent, starts[some], seen[some], strict=True):
            there = rows["block"][start : start + count]  # sorted
            gaps = np.flatnonzero(there != np.arange(count))
            group["first"] = gaps[0] if len(gaps) else count
        return silent

    @property
    def _separate_blocks(self) -> int:
        """Blocks counted separately in launches with more blocks than the limit."""
        return self.blocks - 1

    def _launches(self, groups: NDArray[Any]) -> Table:
        found = np.zeros(
            len(groups),
            [("launch", "u8"), *((name, "u8") for name in ("groups", "blocks", "total", "most"))],
        )
        found["launch"], found["groups"], found["blocks"] = groups["launch"], 1, groups["blocks"]
        found["total"] = groups["accesses"] * groups["blocks"]
        most = found.copy()
        most["most"] = groups["accesses"]
        found = combined(found, ["launch"])
        found["most"] = combined(most, ["launch"], "maximum")["most"]
        mean = found["total"] / np.maximum(found["blocks"], 1)
        imbalance = found["most"] / np.maximum(mean, 1e-300)
        order = np.argsort(-imbalance, kind="stable")
        found, mean, imbalance = found[order], mean[order], imbalance[order]
        every = self.launched.of(found["launch"], "blocks")
        return Table(
            {
                "launch": found["launch"],
                "kernel": kernel_names(self.context, self.launched.of(found["launch"])),
                "blocks": every,
                "told_apart": found["blocks"],
                "accesses": found["total"],
                "mean": mean,
                "most": found["most"],
                "imbalance": imbalance,
                "groups": found["groups"],
            },
            labels={
                "told_apart": "counted separately",
                "mean": "mean per block",
                "most": "maximum per block",
                "imbalance": "maximum / mean",
                "groups": "groups of equal blocks",
            },
            keys=("kernel",),
            sums=("accesses",),
            levels=("imbalance",),
            probed={"accesses": None},
            important=("launch", "imbalance", "most", "mean"),
            title="Launches by imbalance of their blocks' accesses",
            shown=self.top,
        )

    def _group_table(self, groups: NDArray[Any]) -> Table:
        order = np.lexsort([groups["first"], groups["launch"]])
        groups = groups[order]
        return Table(
            {
                "launch": groups["launch"],
                "kernel": kernel_names(self.context, self.launched.of(groups["launch"])),
                "accesses": groups["accesses"],
                "blocks": groups["blocks"],
                "first": groups["first"],
            },
            labels={"accesses": "accesses of each block", "first": "first block"},
            keys=("kernel", "accesses"),
            sums=("blocks",),
            probed={"blocks": None},
            title="Blocks with equal numbers of accesses",
            shown=0,
        )

    def _figure(self, histogram: NDArray[Any]) -> Figure:
        counts = np.zeros(LANES + 1, np.uint64)
        np.add.at(counts, histogram["bin"].astype(np.intp), histogram["count"])
        return Figure(
            "bar",
            "Active lanes of memory instructions",
            np.arange(LANES + 1),
            {"instructions": counts},
            x_label="active lanes",
            y_label="warp instructions",
        )

    def _summary(self, histogram: NDArray[Any], launches: Table) -> str:
        executed = int(histogram["count"].sum())
        if not executed:
            return "no memory accesses were recorded"
        lanes = int((histogram["count"] * histogram["bin"]).sum())
        parts = [
            f"{formatted(lanes / (LANES * executed), 'share')} of the lanes of {executed:,} "
            "warp memory instructions were active"
        ]
        worst = next(launches.rows(1), None)
        if worst is not None and worst["imbalance"] >= 1.01:
            parts.append(
                f"highest imbalance: {worst['kernel']}, launch {worst['launch']:,}: one block "
                f"makes {worst['imbalance']:.2f} times the mean number of accesses"
            )
        beyond = int((launches.columns["blocks"] > launches.columns["told_apart"]).sum())
        if beyond:
            parts.append(
                f"{counted(beyond, 'launch has', 'launches have')} more than the "
                f"{self._separate_blocks:,} blocks that are counted separately"
            )
        return "; ".join(parts)
