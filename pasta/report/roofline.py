"""Rooflines of results that have arithmetic intensity and rate by kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pasta.report.overview import MAX_LABEL
from pasta.table import has_columns, plain

if TYPE_CHECKING:
    from pasta.run.results import StoredResult
    from pasta.table import Table

#: Kernels in a plot: those with most device time.
_MAX_POINTS = 500
_GIGA = 1e9


@dataclass(frozen=True)
class Roofline:
    """Points by device time: operations per byte and per second, device time (ns), share of the
    roof. `roofs`: label, kind ("memory" or "compute") and rate per second."""

    title: str
    name: list[str]
    intensity: list[float]
    rate: list[float]
    time: list[float]
    share: list[float | None]
    roofs: list[tuple[str, str, float]]


def rooflines(result: StoredResult) -> Iterator[Roofline]:
    """Rooflines of a result's kernels and operators with operations, bytes and times. Raises
    RunError."""
    for name, key in (("kernels", "kernel"), ("operators", "operator")):
        plot = _roofline(result.tables.get(name), key, result.tables.get("roofs"))
        if plot is not None:
            yield plot


def _roofline(table: Table | None, key: str, roofs: Table | None) -> Roofline | None:
    if not has_columns(table, key, "intensity", "gflop_rate", "device_time", "of_roof"):
        return None
    rows = [
        row
        for row in table.rows(_MAX_POINTS)
        if _is_positive(row["intensity"])
        and _is_positive(row["gflop_rate"])
        and _is_positive(row["device_time"])
    ]
    if not rows:
        return None
    known = roofs.rows() if has_columns(roofs, "roof", "kind", "rate") else ()
    return Roofline(
        f"Roofline: {key}s",
        [plain(_label(row, key), MAX_LABEL) for row in rows],
        [float(row["intensity"]) for row in rows],
        [_GIGA * row["gflop_rate"] for row in rows],
        [float(row["device_time"]) for row in rows],
        [row["of_roof"] if _is_positive(row["of_roof"]) else None for row in rows],
        [
            (plain(_roof_label(row), MAX_LABEL), row["kind"], float(row["rate"]))
            for row in known
            if row["kind"] in ("memory", "compute") and _is_positive(row["rate"])
        ],
    )


def _label(row: dict[str, Any], key: str) -> str:
    place = row.get("module") or row.get("line")
    return f"{row[key]}, {place}" if place else str(row[key])


def _roof_label(row: dict[str, Any]) -> str:
    """The roof, and how it is known."""
    how = row.get("how")
    return f"{row['roof']} ({how})" if how else str(row["roof"])


def _is_positive(value: object) -> bool:
    """Whether a value of a table, which may have any type, is a positive number."""
    return isinstance(value, (int, float)) and 0 < value < math.inf
