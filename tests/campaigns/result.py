"""Results of a campaign: numbers of trials and failures."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Row:
    """Trials of one kind: their number, failures by kind, and the slowest trial."""

    what: str
    tried: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0  # s

    def add(self, failure: str | None) -> None:
        """Counts one trial; `failure` describes what went wrong, None if nothing did."""
        self.count(0.0, ["failed"] if failure else [])
        if failure:
            print(f"{self.what}: {failure}", file=sys.stderr, flush=True)

    def count(self, seconds: float, kinds: Iterable[str] = ()) -> None:
        """Counts one trial with its duration and failures."""
        self.tried += 1
        self.slowest = max(self.slowest, seconds)
        self.failed.update(set(kinds))


def print_table(rows: Iterable[Row]) -> bool:
    """Prints rows and their sum; returns whether nothing failed."""
    rows = list(rows)
    total = Row("all", sum(row.tried for row in rows))
    for row in rows:
        total.failed.update(row.failed)
        total.slowest = max(total.slowest, row.slowest)
    kinds = sorted(total.failed) or ["failed"]
    headings = ["", "tried", *kinds, "slowest"]
    cells = [
        [row.what, f"{row.tried:,}", *(f"{row.failed[kind]:,}" for kind in kinds),
         f"{row.slowest:.2f} s"]
        for row in (*rows, total)
    ]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    for line in (headings, *cells):
        first, *others = (
            each.ljust(width) if at == 0 else each.rjust(width)
            for at, (each, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join([first, *others]).rstrip())
    return not total.failed.total()
