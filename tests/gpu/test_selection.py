"""Kernels that are selected and launches that are sampled: counts stay those of arithmetic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.places import PROGRAMS

from .conftest import Build, Ran, Run, built_with_nvcc

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
    assert row["launches"] == LAUNCHES
    assert row["probed"] in (3, 4)  # the fourth is chosen at random
    assert (row["accesses"], row["estimate"], row["error"]) == (
        row["probed"] * ACCESSES, LAUNCHES * ACCESSES, 0,
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
    """Patches are put back before the first launch of a window."""
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


# ---- launches into streams: the driver holds a lock in their callbacks ----

STREAMS = PROGRAMS / "nvidia" / "streams.cu"
GRIDS = (2, 4, 8, 16, 32)
#: Lanes that load or store in a block.
OF_BLOCK = 2 * 64


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> str:
    return built_with_nvcc(STREAMS, tmp_path_factory.mktemp("streams"))


def kernels(run: Ran) -> dict[str, dict[str, Any]]:
    assert run.status == 0, run.stderr
    return {row["kernel"].partition("(")[0]: row for row in rows(run.directory, "kernels")}


@pytest.mark.parametrize("way", ["plain", "ex", "dependent", "cluster"])
def test_samples_of_launches_into_a_stream(streams: str, profiled: Run, way: str) -> None:
    run = profiled(streams, way, options=("-t", "access_count", "--sample"))
    assert float(run.stdout) == pytest.approx(2.0**101, rel=1e-5)
    found = kernels(run)
    assert set(found) == {"add", "multiply"}
    for row in found.values():
        assert row["launches"] == 20 * len(GRIDS)
        assert 3 * len(GRIDS) <= row["probed"] <= 4 * len(GRIDS)
        assert (row["estimate"], row["error"]) == (20 * sum(GRIDS) * OF_BLOCK, 0)


@pytest.mark.parametrize("way", ["plain", "dependent"])
def test_a_window_of_launches_into_a_stream(streams: str, profiled: Run, way: str) -> None:
    options = ("-t", "access_count", "-k", "add", "--launch-skip", "30", "--launch-count", "20")
    found = kernels(profiled(streams, way, options=options))
    assert set(found) == {"add"}
    # launches 30 to 49 of the kernel: ten of 4 blocks and ten of 8
    assert found["add"]["probed"] == 20
    assert found["add"]["accesses"] == 10 * (4 + 8) * OF_BLOCK


def test_no_kernel_in_a_stream_selected(streams: str, profiled: Run) -> None:
    run = profiled(streams, options=("-t", "access_count", "-k", "nothing_matches"))
    assert run.status == 0, run.stderr
    assert rows(run.directory, "kernels") == []


def test_samples_of_a_captured_graph(streams: str, profiled: Run) -> None:
    """The capture is valid, and the graph is made with patches, which had been taken out."""
    found = kernels(profiled(streams, "graph", options=("-t", "access_count", "--sample")))
    assert set(found) == {"add", "multiply"}
    for row in found.values():
        assert row["launches"] == 20 + 10 and 3 + 3 <= row["probed"] <= 4 + 4
    assert sum(row["estimate"] for row in found.values()) == 2 * (20 * 2 + 10 * 4) * OF_BLOCK


def test_kernels_of_a_graph_have_their_own_counts(streams: str, profiled: Run) -> None:
    found = kernels(profiled(streams, "graph", options=("-t", "access_count")))
    for row in found.values():
        assert row["accesses"] == (20 * 2 + 10 * 4) * OF_BLOCK
