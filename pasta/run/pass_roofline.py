"""The roofline of two passes: operations and bytes of one, device times of the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pasta.arrow import to_numpy
from pasta.probes.unseen import PROBED
from pasta.processors.operator_names import GROUP_KEYS
from pasta.processors.roofline import (
    WORK,
    Roof,
    findings,
    memory_rate,
    roof_notes,
    roofs_table,
    split,
    work_table,
)
from pasta.run.files import reading
from pasta.run.pass_tables import ACCESSES, TIMES
from pasta.run.results import as_table, read_schema, read_summary, read_table, stored_tables
from pasta.table import counted
from pasta.tool import Result

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from pasta.run.pass_launches import RecordedPass
    from pasta.run.pass_tables import Joined

#: The tool, and its tables that are read.
ROOFLINE = "roofline"
_KERNELS, _LAUNCHES, _ROOFS = "kernels", "launches", "roofs"
_PLACE = (*GROUP_KEYS, "file")


def join_roofline(accesses: RecordedPass, joined: Joined) -> Result | None:
    """The roofline with the device times of the other pass; None if the tool did not run in the
    pass with accesses. Raises RunError for a damaged table."""
    results = accesses.run.results
    stored = set(stored_tables(results).get(ROOFLINE, ()))
    if not {_KERNELS, _LAUNCHES, _ROOFS} <= stored:
        return None
    table = read_table(results, ROOFLINE, _LAUNCHES)
    with reading(results / ROOFLINE / f"{_LAUNCHES}.parquet"):
        ordinals = to_numpy(table.column("launch").cast(pa.uint64()).combine_chunks(), 0)
        work, kernels, places = _work(table)
    # launches of the table that are joined, and the pair of each
    theirs = joined.accesses.rows["ordinal"][joined.pairs.other]
    order = np.argsort(theirs, kind="stable")
    at = np.searchsorted(theirs[order], ordinals)
    found = at < len(theirs)
    found[found] = theirs[order][at[found]] == ordinals[found]
    work = work[found]
    time = joined.time[order[at[found]]].astype(np.float64)
    work["time"] = np.where(time >= 0, time, np.nan)
    split(work)
    roofs = _roofs(read_table(results, ROOFLINE, _ROOFS), results)
    memory = memory_rate(roofs)
    names = {name: [place[at] for place in places] for at, name in enumerate(_PLACE)}
    path = results / ROOFLINE / f"{_KERNELS}.parquet"
    shown = as_table(read_schema(results, ROOFLINE, _KERNELS).empty_table(), path).shown
    tables = {
        _KERNELS: work_table(
            work, "kernel", {"kernel": kernels}, memory,
            title="Kernels", shown=shown, keys=("kernel",),
        )
    }  # fmt: skip
    if len(places) > 1:
        tables["operators"] = work_table(
            work, "group", names, memory, title="Operators", shown=shown, keys=GROUP_KEYS,
            hidden=frozenset({"file", "backward"}),
        )  # fmt: skip
    tables[_ROOFS] = roofs_table(roofs)
    notes = [f"device times: the pass {TIMES}; bytes and operations: the pass {ACCESSES}"]
    if PROBED in stored:  # bytes are estimates
        notes.append(f"the pass {ACCESSES}: {read_summary(results, ROOFLINE)}")
    notes.extend(roof_notes(roofs))
    return Result(
        f"{counted(len(work), 'launch')} of {counted(len(tables['kernels']), 'kernel')}, joined",
        tables,
        findings=list(findings(tables[_KERNELS])),
        notes=notes,
    )


def _work(table: pa.Table) -> tuple[NDArray[Any], list[str], list[tuple[Any, ...]]]:
    """Work by launch, without times; the kernels and operators by their numbers."""
    work = np.zeros(len(table), WORK)
    kernels, work["kernel"] = _codes(table, ["kernel"])
    places, work["group"] = _codes(table, _PLACE)
    for name in ("bytes", "flops", "at_peak"):
        work[name] = to_numpy(table.column(name).cast(pa.float64()).combine_chunks(), np.nan)
    work["node"] = to_numpy(table.column("node").cast(pa.int64()).combine_chunks(), 0)
    work["time"] = np.nan
    return work, [str(name) for (name,) in kernels], places


def _codes(table: pa.Table, names: Sequence[str]) -> tuple[list[tuple[Any, ...]], list[int]]:
    """Distinct rows of these columns, and the number of each row's."""
    columns = [table.column(name).to_pylist() for name in names]
    codes: dict[tuple[Any, ...], int] = {}
    found = [codes.setdefault(row, len(codes)) for row in zip(*columns, strict=True)]
    return list(codes), found


def _roofs(table: pa.Table, results: Path) -> list[Roof]:
    with reading(results / ROOFLINE / f"{_ROOFS}.parquet"):
        return [
            Roof(row["kind"], str(row["roof"]), float(row["rate"]), str(row["how"]))
            for row in table.to_pylist()
            if row["kind"] in ("memory", "cache", "compute") and (row["rate"] or 0) > 0
        ]
