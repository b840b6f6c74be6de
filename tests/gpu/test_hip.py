"""The HIP examples on an AMD device: all expected records, by arithmetic.

No such device has been available: these tests have never run.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import GRAPH, INTERNAL, Build, Ran, Run

PROGRAMS = ["vadd", "streams", "graph", "memory"]


def rows(run: Ran, kind: str) -> list[dict[str, Any]]:
    """The program's own records of a kind."""
    table = run.table(kind)
    found = [] if table is None else table.to_pylist()
    return [row for row in found if not row["flags"] & INTERNAL]


@pytest.mark.parametrize("name", PROGRAMS)
def test_counts(hip_example: Build, native: Run, profiled: Run, name: str) -> None:
    program = hip_example(name)
    alone, run = native(program, "--expect"), profiled(program, "--expect")
    assert alone.status == 0, alone.stderr
    assert (run.status, run.stdout) == (alone.status, alone.stdout)
    run.counts.check(run.expected)


def test_source_and_device_are_recorded(hip_example: Build, profiled: Run) -> None:
    run = profiled(hip_example("vadd"))
    manifest = json.loads((run.directory / "run.json").read_text())
    assert set(manifest["sources"]) == {"amd_rocprofiler"}
    (context,) = rows(run, "context_create")
    assert context["device"] == 0
    assert context["name"]
    assert manifest["devices"] == {"0": context["name"]}


def test_launch_fields(hip_example: Build, profiled: Run) -> None:
    run = profiled(hip_example("vadd"), "--n", "1000")
    (launch,) = rows(run, "kernel_launch")
    assert launch["name"] == "_Z4vaddPKfS0_Pfm"
    assert (launch["grid_x"], launch["block_x"]) == (4, 256)
    assert launch["registers"]
    assert (launch["shared_static"], launch["shared_dynamic"]) == (0, 0)
    modules = rows(run, "module_load")
    assert launch["module"] in {module["handle"] for module in modules}
    assert all(module["bytes"] and module["hash"] for module in modules)


def test_device_times(hip_example: Build, profiled: Run) -> None:
    """In the clock domain of events: a kernel runs after its launch and before the program's
    synchronization returns."""
    run = profiled(hip_example("vadd"), "--launches", "200", "--n", "10000000")
    launches = {row["ordinal"]: row for row in rows(run, "kernel_launch")}
    completions = rows(run, "kernel_complete")
    (wait,) = rows(run, "sync")
    assert len(completions) == len(launches) == 200
    last = 0
    for row in sorted(completions, key=lambda row: row["ordinal"]):
        assert launches[row["ordinal"]]["time"] <= row["start"] < row["end"] <= wait["time"]
        assert last <= row["start"]  # of one stream
        last = row["end"]


def test_launches_on_threads(hip_example: Build, profiled: Run) -> None:
    run = profiled(hip_example("streams"), "--launches", "20000")
    launches = rows(run, "kernel_launch")
    assert sorted(row["ordinal"] for row in launches) == list(range(40000))
    assert len({row["thread"] for row in launches}) == 2
    for name in ("left", "right"):
        mine = [row for row in launches if name in row["name"]]
        assert len({row["stream"] for row in mine}) == 1
        grids = [row["grid_x"] for row in sorted(mine, key=lambda row: row["ordinal"])]
        assert grids == [i % 64 + 1 for i in range(20000)]


def test_graph_launches(hip_example: Build, profiled: Run) -> None:
    run = profiled(hip_example("graph"), "--replays", "50")
    in_graphs = [row for row in rows(run, "kernel_launch") if row["flags"] & GRAPH]
    assert len(in_graphs) == 100
    (instance,) = rows(run, "graph_instantiate")
    assert {row["graph"] for row in rows(run, "graph_launch")} == {instance["executable"]}


def test_tool_with_probes_reports_that_it_is_unavailable(hip_example: Build, profiled: Run) -> None:
    run = profiled(hip_example("vadd"), options=("-t", "access_count"))
    assert run.status == 0
    assert "not available on this backend" in (run.directory / "report.txt").read_text()
