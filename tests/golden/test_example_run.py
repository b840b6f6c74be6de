"""The run recorded on an H200 that PASTA ships: results of tools are known from arithmetic."""

from __future__ import annotations

import re

import pyarrow.compute as pc
import pytest

import pasta
from pasta.api.runs import Run
from pasta.report.stacks import has_operators, read_call_tree
from pasta.report.text import text_report
from pasta.run.directory import RunDirectory
from pasta.run.results import read_results
from tests.support.places import ROOT
from tests.support.widths import WIDTHS, check

RUN = ROOT / "examples" / "runs" / "gpt-h200"
STEPS, BATCH, LENGTH, VOCABULARY, LAYERS, WIDTH = 3, 2, 32, 128, 2, 64
#: The fixture `again` runs every tool on the run.
pytestmark = pytest.mark.slow
#: All tools whose required events an H200 provides.
TOOLS = (
    "operators", "tensors", "kernel_freq", "copies", "memory_timeline", "event_trace",
    "access_count", "coalescing", "bank_conflicts", "divergence", "heatmap", "hotness",
    "working_set", "mem_trace",
)  # fmt: skip
#: Weights and biases: embeddings and head, then those of each block, and the last norm.
BLOCK = 12 * WIDTH * WIDTH + 13 * WIDTH
PARAMETERS = 2 * VOCABULARY * WIDTH + LENGTH * WIDTH + LAYERS * BLOCK + 2 * WIDTH


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> Run:
    recorded = pasta.load(RUN)
    assert isinstance(recorded, Run)
    return recorded.replay(*TOOLS, out=tmp_path_factory.mktemp("replay") / "run")


def total(run: Run, tool: str, table: str, column: str) -> int:
    return int(pc.sum(run.arrow(tool, table)[column]).as_py())


def test_run_is_small_and_names_no_machine() -> None:
    files = [path for path in RUN.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 3 << 20
    run = pasta.load(RUN)
    frames = run.events("python_frame", ["file"])["file"].to_pylist()
    assert all(re.match(r"/app/(train\.py|site-packages/torch/)", file) for file in frames)


def test_operators_and_launches(again: Run) -> None:
    assert total(again, "operators", "operators", "launches") == 767
    rows = again.arrow("operators", "operators").to_pylist()
    calls = {(row["operator"], row["phase"]): row["calls"] for row in rows}
    assert calls["aten::addmm", "forward"] == STEPS * LAYERS * 4
    # two products for each layer of the blocks, and for the head, which has no bias
    assert calls["aten::mm", "backward"] == STEPS * (LAYERS * 4 + 1) * 2
    assert calls["aten::gelu", "forward"] == STEPS * LAYERS


def test_parameters_are_live_at_the_peak(again: Run) -> None:
    rows = again.arrow("tensors", "peak").to_pylist()
    stored = sum(
        row["storage"] for row in rows if row["device"] == 0 and row["category"] == "parameter"
    )
    assert stored == 4 * PARAMETERS


def test_tensor_categories_match(again: Run) -> None:
    """The model built on the CPU has parameters; cuBLAS allocated three workspaces."""
    rows = again.arrow("tensors", "peak").to_pylist()
    on_host = [row for row in rows if row["device"] is None and row["category"] == "parameter"]
    assert sum(row["storage"] for row in on_host) == 4 * PARAMETERS
    workspaces = [row["bytes"] for row in rows if row["category"] == "workspace"]
    assert sorted(workspaces) == [1 << 20, 32 << 20, 32 << 20]
    assert not [each for each in again.findings() if each.of == "peak memory"]


def test_replay_keeps_python_stacks(again: Run) -> None:
    """Stacks are in the run's events; a replay that filters launches has none."""
    replayed, recorded = RunDirectory.open(again.path), RunDirectory.open(RUN)
    assert has_operators(replayed)
    assert read_call_tree(replayed).total("host") == read_call_tree(recorded).total("host") > 0
    replayed.write_manifest({**again.manifest, "config": {"kernel": "gemm"}})
    assert not has_operators(replayed)


def test_accesses(again: Run) -> None:
    """Adam's update reads and writes each parameter, in the only step with recorded accesses."""
    rows = again.arrow("access_count", "operators").to_pylist()
    bytes = {row["operator"]: row["bytes"] for row in rows if row["line"] == "train.py:110 main"}
    assert bytes["aten::_foreach_lerp_"] == (2 + 1) * 4 * PARAMETERS
    assert bytes["aten::_foreach_addcdiv_"] == (3 + 1) * 4 * PARAMETERS
    assert bytes["aten::_foreach_sqrt"] == (1 + 1) * 4 * PARAMETERS
    assert total(again, "access_count", "kernels", "unknown") == 0
    assert total(again, "access_count", "kernels", "probed") < 767
    sectors = total(again, "coalescing", "instructions", "total_sectors")
    assert 0 < total(again, "coalescing", "instructions", "total_ideal_sectors") < sectors


@pytest.mark.parametrize("width", WIDTHS)
def test_tables_are_readable_at_any_width(again: Run, width: int) -> None:
    results = list(read_results(RunDirectory.open(again.path).results, rows="shown"))
    tables = [table for result in results for table in result.tables.values()]
    shown = [table for table in tables if table.shown and len(table)]
    assert len(results) == len(TOOLS) and len(shown) >= 25
    for table in shown:
        check(table, width)


def test_piped_report_is_not_truncated(again: Run) -> None:
    report = (again.path / "report.txt").read_text(encoding="utf-8")
    assert "left out to fit the width" not in report and "total_sectors" not in report
    for name in again.arrow("kernel_freq")["kernel"].to_pylist()[:10]:
        assert name in report
    assert report == text_report(RunDirectory.open(again.path))  # tools were rendered before it
