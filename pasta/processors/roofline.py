"""The roofline model: work of launches against the limits of their device.

A launch that does F operations on B bytes cannot take less than F / (operations per second) nor
less than B / (bytes per second): the larger of the two bounds it, and their quotient with the
measured time is the share of the roof that it reaches (Williams, Waterman and Patterson, 2009).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pasta.findings import Finding
from pasta.lazy import np
from pasta.table import Column, Table, Unit, absent_where, formatted, shares

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A launch: numbers of its kernel, group and operator node; device time (ns), bytes, operations,
#: and the time (ns) that these take at the device's peak. NaN: unknown.
WORK = [
    ("kernel", "i8"), ("group", "i8"), ("node", "i8"),
    ("time", "f8"), ("bytes", "f8"), ("flops", "f8"), ("at_peak", "f8"),
]  # fmt: skip
#: Thresholds of findings: most of the roof, and least of the device time.
LOW, MIN_SHARE = 0.4, 0.1
_GIGA = 1e9
_UNITS: dict[str, Unit] = {
    "device_time": "ns", "bytes": "bytes", "of_time": "share", "of_roof": "share",
}  # fmt: skip
_LABELS = {
    "device_time": "device time",
    "of_time": "of device time",
    "gflop": "GFLOP",
    "intensity": "FLOP per byte",
    "gflop_rate": "GFLOP/s",
    "gb_per_second": "GB/s",
    "bound": "bound by",
    "of_roof": "of the roof",
}


#: How roofs are known.
SET, MEASURED, DATA_SHEET = "set by an option", "measured", "data sheet"


@dataclass(frozen=True)
class Roof:
    """A limit of a device, in bytes or operations per second; `how` it is known."""

    kind: Literal["memory", "cache", "compute"]
    label: str
    rate: float
    how: str


def roofs_table(roofs: Sequence[Roof]) -> Table:
    """The roofs as a table."""
    return Table(
        {
            "roof": [roof.label for roof in roofs],
            "kind": [roof.kind for roof in roofs],
            "rate": np.asarray([roof.rate for roof in roofs], np.float64),
            "how": [roof.how for roof in roofs],
        },
        labels={"rate": "bytes or operations per second"},
        keys=("roof", "kind"),
        sums=(),
        levels=("rate",),
        title="Roofs of the device",
    )


def roof_notes(roofs: Sequence[Roof]) -> Iterator[str]:
    """How roofs are known that no option sets."""
    for how, text in (
        (MEASURED, "roofs measured by PASTA's own kernels"),
        (DATA_SHEET, "roofs from the data sheet, which kernels cannot reach"),
    ):
        if named := [roof.label for roof in roofs if roof.how == how]:
            yield f"{text}: {', '.join(named)}"


def memory_rate(roofs: Sequence[Roof]) -> float | None:
    """Bytes per second of the memory's roof; None without one."""
    return next((roof.rate for roof in roofs if roof.kind == "memory"), None)


def split(work: NDArray[Any]) -> None:
    """Divides the operations of each operator node over its launches in proportion to their device
    times; where times are unknown, to their bytes, and where these are, equally.

    `work` (dtype WORK) has each node's operations in any of its launches.
    """
    node = np.unique(work["node"], return_inverse=True)[1].reshape(-1)
    count = int(node.max()) + 1 if len(node) else 0
    weight = np.ones(len(work))
    for name in ("bytes", "time"):
        unknown = np.bincount(node, np.isnan(work[name]), count)
        total = np.bincount(node, np.nan_to_num(work[name]), count)
        usable = ((unknown == 0) & (total > 0))[node]
        weight = np.where(usable, work[name], weight)
    whole = np.bincount(node, weight, count)[node]
    part = weight / np.where(whole > 0, whole, 1)
    for name in ("flops", "at_peak"):
        # of a node, NaN: operations of a type whose peak is not known
        work[name] = np.bincount(node, work[name], count)[node] * part


def work_table(
    work: NDArray[Any],
    by: Literal["kernel", "group"],
    names: Mapping[str, Column],
    memory: float | None,
    *,
    title: str,
    shown: int,
    keys: Sequence[str],
    hidden: frozenset[str] = frozenset(),
) -> Table:
    """A row for each number `by`, of which `names` has the columns, longest device time first.

    `memory`: bytes per second of the memory's roof. Bytes and operations are those of all launches:
    launches for which they are unknown count as the mean of the others.
    """
    count = len(next(iter(names.values())))
    code = work[by]

    def total(values: NDArray[Any], chosen: NDArray[Any]) -> NDArray[Any]:
        return np.bincount(code[chosen], values[chosen], count)

    def of_all(name: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Amounts of all launches, and where they are unknown."""
        known = ~np.isnan(work[name])
        counts = np.bincount(code[known], minlength=count)
        return total(work[name], known) * launches / np.maximum(counts, 1), counts == 0

    timed = ~np.isnan(work["time"])
    launches = np.bincount(code, minlength=count)
    time = total(work["time"], timed)
    bytes, no_bytes = of_all("bytes")
    flops, _ = of_all("flops")
    # rates cover launches with both, so that other times do not count
    probed, counted = timed & ~np.isnan(work["bytes"]), timed & ~np.isnan(work["flops"])
    moved, meanwhile = total(work["bytes"], probed), total(work["time"], probed)
    worked, working = total(work["flops"], counted), total(work["time"], counted)
    # of the same launches as `time`
    at_peak = total(work["at_peak"], counted) * _ratio(time, working)
    at_memory = moved / memory * _GIGA if memory else np.zeros(count)
    at_memory *= _ratio(time, meanwhile)
    known_peak = ~np.isnan(at_peak) & (at_peak > 0)
    least = np.fmax(np.where(known_peak, at_peak, 0), at_memory)
    bound = np.where(at_memory >= np.where(known_peak, at_peak, 0), 0, 1)
    unknown_roof = (least <= 0) | (time <= 0)
    no_time, no_flops = time <= 0, flops <= 0
    columns: dict[str, Column] = {
        **names,
        "launches": launches,
        "device_time": absent_where(time.astype(np.int64), no_time),
        "of_time": absent_where(shares(time, float(time.sum())), no_time),
        "gflop": absent_where(flops / _GIGA, no_flops),
        "bytes": absent_where(bytes.astype(np.int64), no_bytes),
        "intensity": absent_where(flops / np.maximum(bytes, 1), no_flops | no_bytes | (bytes <= 0)),
        "gflop_rate": absent_where(_ratio(worked, working), (working <= 0) | no_flops),
        "gb_per_second": absent_where(_ratio(moved, meanwhile), meanwhile <= 0),
        "bound": [
            None if absent else ("memory", "compute")[which]
            for absent, which in zip(unknown_roof.tolist(), bound.tolist(), strict=True)
        ],
        "of_roof": absent_where(least / np.maximum(time, 1), unknown_roof),
    }
    order = np.lexsort((-bytes, -time))
    order = order[launches[order] > 0]
    none = {name for name in ("gflop", "intensity", "gflop_rate") if no_flops.all()}
    none |= {name for name in ("device_time", "of_time", "gflop_rate") if no_time.all()}
    none |= {"gb_per_second"} if (meanwhile <= 0).all() else set()
    none |= {"bound", "of_roof"} if unknown_roof.all() else set()
    return Table(
        {name: _reordered(column, order) for name, column in columns.items()},
        units=_UNITS,
        labels=_LABELS,
        keys=keys,
        sums=("launches", "device_time", "gflop", "bytes"),
        levels=("intensity", "gflop_rate", "gb_per_second", "of_roof"),
        important=("of_roof", "device_time", "intensity", "bound"),
        title=title,
        shown=shown,
        hidden=hidden | frozenset(none),
    )


def findings(kernels: Table, low: float = LOW, least_share: float = MIN_SHARE) -> Iterator[Finding]:
    """Kernels with at least `least_share` of the device time that reach at most `low` of the
    roof."""
    for row in kernels.rows():
        share, of_time = row["of_roof"], row["of_time"]
        if share is None or of_time is None or share > low or of_time < least_share:
            continue
        memory = row["bound"] == "memory"
        rate, unit = (row["gb_per_second"], "GB/s") if memory else (row["gflop_rate"], "GFLOP/s")
        yield Finding(
            what="a kernel reaches little of the device's roof",
            where=row["kernel"],
            evidence=f"{formatted(of_time, 'share')} of the device time at {rate:,.3g} {unit}"
            f", {formatted(share, 'share')} of the "
            f"{'memory' if memory else 'arithmetic'} roof",
            remedy="check how its accesses fall into sectors, and how many lanes are active: "
            f"pasta-preload -t coalescing,divergence -k {row['kernel']} -- PROGRAM",
            gain=of_time * (1 - share),
            confidence="low",
        )


def _ratio(part: NDArray[Any], of: NDArray[Any]) -> NDArray[Any]:
    """Quotients; 0 without a time."""
    return np.where(of > 0, part / np.maximum(of, 1), 0)


def _reordered(column: Column, order: NDArray[Any]) -> Column:
    return [column[at] for at in order.tolist()] if isinstance(column, list) else column[order]
