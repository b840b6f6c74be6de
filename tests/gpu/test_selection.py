"""Kernels that are selected and launches that are sampled: counts stay those of arithmetic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from .conftest import Build, Run

FLOATS = 1 << 20
LAUNCHES = 40
#: Lanes that load or store in a launch of vadd: two loads and a store for each float.
ACCESSES = 3 * FLOATS


def rows(directory: Path, table: str, tool: str = "access_count") -> list[dict[str, Any]]:
    file = directory / "results" / tool / f"{table}.parquet"
    return pq.ParquetFile(file).read().to_pylist()  # type: ignore[no-any-return]


def vadd(example: Build) -> tuple[Any, ...]:
    return (example("vadd"), "--n", str(FLOATS), "--launches", str(LAUNCHES))


def test_samples_of_equal_launches_are_exact(example: Build, profiled: Run) -> None:
    run = profiled(*vadd(example), options=("-t", "access_count", "--sample"))
    assert run.status == 0, run.stderr
    (row,) = (row for row in rows(run.directory, "kernels") if "vadd" in row["kernel"])
    assert (row["launches"], row["probed"]) == (LAUNCHES, 3)
    assert (row["accesses"], row["estimate"], row["error"]) == (
        3 * ACCESSES, LAUNCHES * ACCESSES, 0,
    )  # fmt: skip


def test_instructions_of_a_sample_are_those_of_all_launches(example: Build, profiled: Run) -> None:
    """Counted in the table of the run, and by launch in a sample."""
    tools = {
        "coalescing": ("instructions", "total_sectors"),
        "divergence": ("instructions", "idle"),
        "values": ("elements", "stored"),
    }
    found = []
    for more in ((), ("--sample",)):
        run = profiled(*vadd(example), options=("-t", ",".join(tools), *more))
        assert run.status == 0, run.stderr
        found.append(
            {
                tool: sorted(
                    [row["kernel"], row["offset"], *(row[name] for name in columns)]
                    for row in rows(run.directory, "instructions", tool)
                )
                for tool, columns in tools.items()
            }
        )
    assert found[0] == found[1]
    (loads, _, stores) = found[0]["coalescing"]
    assert loads[2] == stores[2] == LAUNCHES * FLOATS // 32


@pytest.mark.parametrize("windows", ["launches 1/4", "launches 3/10"])
def test_launches_in_windows_keep_all_counts(example: Build, profiled: Run, windows: str) -> None:
    """Patches are put back in the callback of the first launch of a window."""
    options = ("-t", "access_count", "--set", f"probes.window={windows}")
    run = profiled(*vadd(example), options=options)
    assert run.status == 0, run.stderr
    counted = [row["accesses"] for row in rows(run.directory, "launches")]
    assert counted and set(counted) == {ACCESSES}
    (row,) = (row for row in rows(run.directory, "kernels") if "vadd" in row["kernel"])
    assert row["accesses"] == row["probed"] * ACCESSES


def test_no_kernel_selected(example: Build, profiled: Run) -> None:
    run = profiled(*vadd(example), options=("-t", "access_count", "-k", "nothing_matches"))
    assert run.status == 0, run.stderr
    assert rows(run.directory, "kernels") == []
    manifest = json.loads((run.directory / "run.json").read_text())
    assert any("the filter selected none" in each for each in manifest["warnings"])
