"""Rooflines of results that have arithmetic intensity and rate by kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pasta.report.overview import MAX_LABEL
from pasta.table import has_columns, plain

if TYPE_CHECKING:
    from pasta.run.results import StoredResult

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


def roofline_of(result: StoredResult) -> Roofline | None:
    """The roofline of a result; None if it has no kernels with operations, bytes and times. Raises
    RunError."""
    kernels, roofs = result.tables.get("kernels"), result.tables.get("roofs")
    if not has_columns(kernels, "kernel", "intensity", "gflop_rate", "device_time", "of_roof"):
        return None
    rows = [
        row
        for row in kernels.rows(_MAX_POINTS)
        if _is_positive(row["intensity"])
        and _is_positive(row["gflop_rate"])
        and _is_positive(row["device_time"])
    ]
    if not rows:
        return None
    known = roofs.rows() if has_columns(roofs, "roof", "kind", "rate") else ()
    return Roofline(
        "Roofline",
        [plain(str(row["kernel"]), MAX_LABEL) for row in rows],
        [float(row["intensity"]) for row in rows],
        [_GIGA * row["gflop_rate"] for row in rows],
        [float(row["device_time"]) for row in rows],
        [row["of_roof"] if _is_positive(row["of_roof"]) else None for row in rows],
        [
            (plain(str(row["roof"]), MAX_LABEL), row["kind"], float(row["rate"]))
            for row in known
            if row["kind"] in ("memory", "compute") and _is_positive(row["rate"])
        ],
    )


def _is_positive(value: object) -> bool:
    """Whether a value of a table, which may have any type, is a positive number."""
    return isinstance(value, (int, float)) and 0 < value < math.inf
