"""Words and sectors that the warps of a few blocks access: sharing, gaps and scatter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.probes import Trace, probe
from pasta.probes.sector_counts import OF_WORDS, WORD, WORDS, SectorCounts
from pasta.processors.kernel_names import Launched, kernel_names
from pasta.processors.object_names import OBJECT_HIDDEN, OBJECT_UNITS, object_columns, object_keys
from pasta.processors.rows import combined, group_starts
from pasta.table import Table, counted, formatted
from pasta.tool import Result, Tool, option

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.probes.records import Accesses

_SECTOR = ("kernel", "object", "sector")

PATTERNS: dict[str, str] = {
    "false sharing": "warps use different words of a sector: each of them fetches the whole sector",
    "broadcast": "all warps use the same words: a copy in shared memory would suffice",
    "shared": "some words are used by several warps, others by one",
    "strided": "one warp uses few words of a sector, at equal distances",
    "scattered": "one warp uses few words of a sector, at unequal distances",
    "partial": "one warp uses part of a sector, at the start or end of a longer range",
    "whole": "one warp uses all of a sector",
}
_NAMES = tuple(PATTERNS)
_FALSE, _BROADCAST, _SHARED, _STRIDED, _SCATTERED, _PARTIAL, _WHOLE = range(len(_NAMES))


class Heatmap(Tool):
    """Accesses and distinct warps per 4-byte word and 32-byte sector, for a few blocks."""

    title = "Words and sectors accessed"
    topic = "accesses"

    top = option(10, help="rows of each table in the text report; the tables have all", minimum=1)
    first_block = option(0, help="first selected block", minimum=0)
    blocks = option(4, help="number of selected blocks, from the first one", minimum=1)
    limit = option(
        1 << 22,
        help="maximum number of (word, warp) pairs; further accesses are dropped",
        minimum=1,
    )
    regular = option(
        0.9,
        help="minimum share of equal distances for a pattern to count as strided, not scattered",
        minimum=0,
    )
    accesses = Trace()

    @probe.global_memory
    def take(access: Any, maps: Any, options: Any) -> None:
        """Record the accesses of the selected blocks."""
        if 0 <= access.block - options.first_block < options.blocks:
            maps.accesses.write(access)

    def start(self) -> None:
        """Initialize the counts by sector and warp."""
        self.counts = SectorCounts()
        self.dropped = 0
        self.launched = Launched()

    def on_launches(self, launches: NDArray[Any]) -> None:
        """Keep the launches."""
        self.launched.add(launches)

    def on_accesses(self, accesses: Accesses) -> None:
        """Count lane accesses by launch, object, word and warp, up to the limit."""
        if self.counts.pairs >= self.limit:
            self.dropped += len(accesses)
            return
        objects = self.context.objects.rows
        self.counts.add(accesses, self.launched.of(accesses.records["launch"]), objects["address"])

    def result(self) -> Result:
        """Tables of findings, sectors and words."""
        words, sectors = self._aggregated()
        findings = self._findings(sectors)
        return Result(
            summary=self._summary(sectors, findings),
            tables={
                "findings": findings,
                "sectors": self._sectors(sectors),
                "words": self._words(words),
            },
        )

    def _aggregated(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Rows of words and of sectors: accesses and distinct warps."""
        rows = self.counts.rows()
        of_words = np.stack([rows[name] for name in OF_WORDS], axis=1)
        row, place = np.nonzero(of_words)
        types = [("kernel", "u4"), ("object", "i8"), ("word", "u8")]
        words = np.zeros(len(row), [*types, ("accesses", "u8"), ("warps", "u8")])
        for name in ("kernel", "object"):
            words[name] = rows[name][row]
        words["word"] = rows["sector"][row] * np.uint64(WORDS) + place.astype(np.uint64)
        words["accesses"], words["warps"] = of_words[row, place], 1
        words = combined(words, ["kernel", "object", "word"])
        types = [("kernel", "u4"), ("object", "i8"), ("sector", "u8")]
        sectors = np.zeros(len(rows), [*types, ("warps", "u8")])
        for name in _SECTOR:
            sectors[name] = rows[name]
        sectors["warps"] = 1
        return words, self._classified(words, combined(sectors, _SECTOR))

    def _classified(self, words: NDArray[Any], warps: NDArray[Any]) -> NDArray[Any]:
        """Sectors with their warps, words, accesses to each word, and pattern."""
        more = [("words", "u8"), ("fewest", "u8"), ("most", "u8"), ("accesses", "u8")]
        sectors = np.zeros(
            len(warps), [*warps.dtype.descr, *more, ("of_word", "u8", WORDS), ("pattern", "u1")]
        )
        for name in (*_SECTOR, "warps"):
            sectors[name] = warps[name]
        if not len(words):
            return sectors
        # Both are sorted by kernel, object and position.
        new = np.zeros(len(words), bool)
        new[0] = True
        for name in ("kernel", "object"):
            new[1:] |= words[name][1:] != words[name][:-1]
        sector_of = words["word"] // np.uint64(WORDS)
        new[1:] |= sector_of[1:] != sector_of[:-1]
        starts, at = np.flatnonzero(new), np.cumsum(new) - 1
        sectors["words"] = np.diff(np.append(starts, len(words)))
        sectors["fewest"] = np.minimum.reduceat(words["warps"], starts)
        sectors["most"] = np.maximum.reduceat(words["warps"], starts)
        sectors["accesses"] = np.add.reduceat(words["accesses"], starts)
        place = (words["word"] % np.uint64(WORDS)).astype(np.intp)
        sectors["of_word"][at, place] = words["accesses"]
        one = sectors["warps"] == 1
        edge = np.logical_or.reduceat(_in_run_across(words, sector_of), starts)
        sectors["pattern"] = np.select(
            [
                one & (sectors["words"] == WORDS),
                one & edge,
                one,
                sectors["most"] == 1,
                sectors["fewest"] == sectors["warps"],
            ],
            [_WHOLE, _PARTIAL, _SCATTERED, _FALSE, _BROADCAST],
            _SHARED,
        )
        self._classify_gaps(words, sectors)
        return sectors

    def _classify_gaps(self, words: NDArray[Any], sectors: NDArray[Any]) -> None:
        """Reclassifies scattered sectors: partial without gaps, strided with equal gaps.

        Both are sorted by kernel and object, and have the same pairs of them.
        """
        pair = _numbered(words)
        gaps = np.diff(words["word"])
        some = (pair[1:] == pair[:-1]) & (gaps > 1)
        of_pair = np.zeros(int(some.sum()), [("pair", "i8"), ("gap", "u8"), ("count", "u8")])
        of_pair["pair"], of_pair["gap"], of_pair["count"] = pair[1:][some], gaps[some], 1
        equal = combined(of_pair, ["pair", "gap"])
        total = np.bincount(of_pair["pair"], minlength=pair[-1] + 1)
        most = np.zeros_like(total)
        np.maximum.at(most, equal["pair"], equal["count"].astype(np.int64))
        mine = _numbered(sectors)
        scattered = sectors["pattern"] == _SCATTERED
        sectors["pattern"][scattered & (total == 0)[mine]] = _PARTIAL
        strided = (total > 0) & (most >= self.regular * total)
        sectors["pattern"][scattered & strided[mine]] = _STRIDED

    def _findings(self, sectors: NDArray[Any]) -> Table:
        types = [("kernel", "u4"), ("object", "i8"), ("pattern", "u1")]
        rows = np.zeros(
            len(sectors), [*types, *((n, "u8") for n in ("sectors", "words", "accesses", "warps"))]
        )
        for name in ("kernel", "object", "pattern", "words", "accesses", "warps"):
            rows[name] = sectors[name]
        rows["sectors"] = 1
        whole = combined(rows[["kernel", "object", "sectors"]], ["kernel", "object"])
        rows = combined(rows, ["kernel", "object", "pattern"])
        pairs = {(row["kernel"], row["object"]): row["sectors"] for row in whole}
        of = np.asarray([pairs[row["kernel"], row["object"]] for row in rows], np.uint64)
        order = np.lexsort([-rows["sectors"].astype(np.float64), rows["pattern"] >= _PARTIAL])
        rows, of = rows[order], of[order]
        patterns = [_NAMES[pattern] for pattern in rows["pattern"].tolist()]
        count = np.maximum(rows["sectors"], 1)
        return Table(
            {
                "kernel": kernel_names(self.context, rows["kernel"]),
                **object_columns(self.context, rows["object"]),
                "pattern": patterns,
                "sectors": rows["sectors"],
                "share": rows["sectors"] / np.maximum(of, 1),
                "words": rows["words"] / count,
                "warps": rows["warps"] / count,
                "accesses": rows["accesses"],
                "meaning": [PATTERNS[pattern] for pattern in patterns],
            },
            units={"share": "share", **OBJECT_UNITS},
            labels={
                "share": "of the object's sectors seen",
                "words": "words per sector",
                "warps": "warps per sector",
                "accesses": "accesses to words",
            },
            keys=("kernel", *object_keys(self.context), "pattern"),
            sums=("sectors", "accesses"),
            important=("pattern", "sectors", "share"),
            title="Patterns by kernel and object",
            shown=self.top,
            hidden=OBJECT_HIDDEN | {"meaning"},
        )

    def _sectors(self, sectors: NDArray[Any]) -> Table:
        sectors = sectors[np.argsort(-sectors["accesses"].astype(np.float64), kind="stable")]
        return Table(
            {
                "kernel": kernel_names(self.context, sectors["kernel"]),
                **object_columns(self.context, sectors["object"]),
                "offset": sectors["sector"] * np.uint64(WORD * WORDS),
                "warps": sectors["warps"],
                "accesses": sectors["accesses"],
                "pattern": [_NAMES[pattern] for pattern in sectors["pattern"].tolist()],
                **{f"word_{at}": sectors["of_word"][:, at] for at in range(WORDS)},
            },
            units={"offset": "address", **OBJECT_UNITS},
            labels={
                "accesses": "accesses to words",
                **{f"word_{at}": f"+{WORD * at}" for at in range(WORDS)},
            },
            keys=("kernel", *object_keys(self.context), "offset"),
            sums=("accesses",),
            title="Sectors by accesses, with accesses to each of their words",
            shown=self.top,
            hidden=OBJECT_HIDDEN | {"pattern"},
        )

    def _words(self, words: NDArray[Any]) -> Table:
        return Table(
            {
                "kernel": kernel_names(self.context, words["kernel"]),
                **object_columns(self.context, words["object"]),
                "offset": words["word"] * np.uint64(WORD),
                "accesses": words["accesses"],
                "warps": words["warps"],
            },
            units={"offset": "address", **OBJECT_UNITS},
            keys=("kernel", *object_keys(self.context), "offset"),
            sums=("accesses",),
            title="Words",
            shown=0,
            hidden=OBJECT_HIDDEN,
        )

    def _summary(self, sectors: NDArray[Any], findings: Table) -> str:
        last = self.first_block + self.blocks - 1
        where = f"blocks {self.first_block:,} to {last:,}"
        if not len(sectors):
            return f"no accesses of {where} were recorded"
        parts = [f"{counted(len(sectors), 'sector')} accessed by {where} of each launch"]
        worst = next(findings.rows(1))
        if worst["pattern"] not in _NAMES[_PARTIAL:]:
            parts.append(
                f"most frequent: {worst['pattern']}, in {counted(worst['sectors'], 'sector')} of"
                f" {worst['object']} by {worst['kernel']}"
                f" ({formatted(worst['share'], 'share')} of its sectors seen)"
            )
        if self.dropped:
            parts.append(
                f"{counted(self.dropped, 'warp instruction')} dropped: more than "
                f"{self.limit:,} (word, warp) pairs"
            )
        return "; ".join(parts)


def _numbered(rows: NDArray[Any]) -> NDArray[Any]:
    """Number of each row's pair of kernel and object; rows are sorted by them, at least one."""
    starts = group_starts(rows, ("kernel", "object"))
    return np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(rows))))


def _in_run_across(words: NDArray[Any], sector_of: NDArray[Any]) -> NDArray[Any]:
    """Whether words belong to a contiguous run of words that crosses a sector boundary."""
    new = np.ones(len(words), bool)
    new[1:] = words["word"][1:] != words["word"][:-1] + np.uint64(1)
    for name in ("kernel", "object"):
        new[1:] |= words[name][1:] != words[name][:-1]
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], len(words)) - 1
    return np.asarray((sector_of[starts] != sector_of[ends])[np.cumsum(new) - 1])
