"""Comparison of tools' results on streams with known differences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pasta.plugins import load_tools
from pasta.processors.filter import Filter
from pasta.run.diff import Comparison
from pasta.run.directory import RunDirectory
from pasta.run.results import write_result
from pasta.run.thresholds import Threshold
from pasta.testing import Events, run_tools
from tests.support.streams import STEPS, training_run

TOOLS = ["kernel_freq", "copies", "memory_timeline", "operators", "tensors"]


def run_of(path: Path, events: Events, **filter: Any) -> RunDirectory:
    run = RunDirectory.create(path)
    for name, result in run_tools(load_tools(TOOLS), events, filter=Filter(**filter)).items():
        write_result(run.results, name, result)
    return run


@pytest.fixture
def before(tmp_path: Path) -> RunDirectory:
    return run_of(tmp_path / "before", training_run())


def test_equal_runs_have_no_differences(before: RunDirectory, tmp_path: Path) -> None:
    runs = Comparison(before, run_of(tmp_path / "after", training_run()))
    compared = 0
    for tool, names in runs.tables.items():
        for name in names:
            table = runs.table(tool, name)
            assert set(table.sides) <= {"both"}
            for column in table.columns.values():
                assert column.weight == 0
                compared += len(column.changes)
            for column in runs.compared(tool, name):
                if table.columns[column].total and table.columns[column].total.after is not None:
                    threshold = Threshold.parse(f"{tool}.{name}.{column}>+0")
                    assert not list(threshold.check(runs, []))
    assert compared > 200


def test_missing_launches_are_reported(before: RunDirectory, tmp_path: Path) -> None:
    runs = Comparison(before, run_of(tmp_path / "after", training_run(), kernel="vadd"))
    table = runs.table("kernel_freq", "kernels")
    launches = table.columns["launches"]
    assert launches.total is not None and launches.total.difference == -3 * STEPS
    found = {table.label(at): each.difference for at, each in enumerate(launches.changes)}
    assert found == {
        "vadd": 0, "at::native::kernel": -STEPS, "triton_&_fused": -STEPS, "nöyau": -STEPS,
    }  # fmt: skip
    assert runs.table("copies", "directions").columns["bytes"].weight == 0
    rows = [each.row for each in Threshold.parse("launches[native|vadd]<-0").check(runs, [])]
    assert rows == ["at::native::kernel"]
