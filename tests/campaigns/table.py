"""The table that every campaign ends with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Row:
    """Tries of one kind: how many, how many failed by kind of failure, and the slowest."""

    what: str
    tried: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0  # s

    def add(self, seconds: float, failures: Iterable[str] = ()) -> None:
        self.tried += 1
        self.slowest = max(self.slowest, seconds)
        self.failed.update(set(failures))


def print_table(rows: Iterable[Row]) -> bool:
    """Prints rows and their sum; whether nothing failed."""
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
