"""What campaigns tell: how often something was tried, and what failed."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Row:
    """A line of a campaign's table."""

    what: str
    tried: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, failure: str | None) -> None:
        """Counts one try; `failure` says what went wrong, None that nothing did."""
        self.tried += 1
        if failure:
            self.failures.append(failure)
            print(f"{self.what}: {failure}", file=sys.stderr, flush=True)


def print_table(rows: Iterable[Row]) -> bool:
    """Prints what was tried and what failed; whether nothing failed."""
    rows = list(rows)
    print(f"{'tried':>9} {'failed':>7}")
    for row in rows:
        print(f"{row.tried:9,} {len(row.failures):7,}  {row.what}")
    tried, failed = sum(row.tried for row in rows), sum(len(row.failures) for row in rows)
    print(f"{tried:9,} {failed:7,}  in all")
    return not failed
