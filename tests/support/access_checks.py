"""Checks of tools' tables for a scenario against arithmetic; each returns the differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.expected_accesses import GLOBAL, SHARED, Expected

LANES = 32

#: Rows of a tool's table, by table name.
Tables = Callable[[str], list[dict[str, Any]]]


def working_set(tables: Tables, wanted: Expected) -> dict[str, Any]:
    """Unique bytes of each launch and the objects it touches; no unknown objects."""
    rows = [row for row in tables("launches") if row["kernel"] in wanted.kernels]
    sizes = wanted.memory.objects
    found, right = Counter[Any](), Counter[Any]()
    for row in rows:
        found[row["kernel"], row["working_set"], row["objects"], row["unknown"]] += 1
    for number, launch in enumerate(wanted.launches):
        touched = wanted.count(GLOBAL, launch=number).objects
        # The last piece of an object ends with it: these kernels touch the last ones of all.
        beyond = sum(-sizes[role] % 32 for role in touched)
        right[launch.kernel, launch.unique_bytes() - beyond, len(touched), 0] += 1
    return _other(found, right)


def hotness(tables: Tables, wanted: Expected) -> dict[str, Any]:
    """Accesses to each object, and the parts whose sum they are."""
    found = Counter(row["accesses"] for row in tables("objects"))
    bins = sum(row["count"] for row in tables("bins"))
    right = wanted.count(GLOBAL)
    wrong = _other(found, Counter(right.objects.values()))
    return wrong | ({} if bins == right.accesses else {"bins": (bins, right.accesses)})


def coalescing(tables: Tables, wanted: Expected) -> dict[str, Any]:
    return _sums(
        tables, wanted, GLOBAL,
        {
            "instructions": "instructions", "accesses": "accesses", "total_sectors": "sectors",
            "total_ideal_sectors": "ideal_sectors", "requested_bytes": "bytes",
        },
    )  # fmt: skip


def bank_conflicts(tables: Tables, wanted: Expected) -> dict[str, Any]:
    names = {"instructions": "instructions", "accesses": "accesses", "total_ways": "wavefronts"}
    return _sums(tables, wanted, SHARED, names)


def divergence(tables: Tables, wanted: Expected) -> dict[str, Any]:
    """Instructions by active lanes, for per-lane accesses."""
    kinds = {"global", "async_copy", "shared", "remote_shared", "local"}
    counts = np.zeros(LANES + 1, np.uint64)
    for row in tables("instructions"):
        if row["kernel"] in wanted.kernels:
            counts += np.asarray(row["active_lanes"], np.uint64)
    found = Counter({lanes: int(count) for lanes, count in enumerate(counts) if count})
    return _other(found, Counter(wanted.count(kinds).lanes))


def heatmap(tables: Tables, wanted: Expected) -> dict[str, Any]:
    """Accesses to words by object, where each access is to one word."""
    right = wanted.count(GLOBAL)
    if right.bytes != 4 * right.accesses:
        return {}
    found = Counter[int]()
    for row in tables("words"):
        if row["kernel"] in wanted.kernels:
            found[row["object_id"]] += row["accesses"]
    return _other(Counter(found.values()), Counter(right.objects.values()))


CHECKS: dict[str, Callable[[Tables, Expected], dict[str, Any]]] = {
    "working_set": working_set,
    "hotness": hotness,
    "coalescing": coalescing,
    "bank_conflicts": bank_conflicts,
    "divergence": divergence,
    "heatmap": heatmap,
}


def _other(found: Counter[Any], right: Counter[Any]) -> dict[str, Any]:
    """Unexpected and missing entries."""
    wrong = {"found": dict(found - right), "missing": dict(right - found)}
    return {name: rows for name, rows in wrong.items() if rows}


def _sums(
    tables: Tables, wanted: Expected, kinds: set[str], names: dict[str, str]
) -> dict[str, Any]:
    """Sums of columns over a kernel's instructions."""
    wrong: dict[str, Any] = {}
    rows = tables("instructions")
    for kernel in wanted.kernels:
        right = wanted.count(kinds, kernel=kernel)
        for column, field in names.items():
            found = sum(row[column] for row in rows if row["kernel"] == kernel)
            if found != getattr(right, field):
                wrong[f"{kernel}: {column}"] = (found, getattr(right, field))
    return wrong
