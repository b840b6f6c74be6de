"""Runs of every schema version can be read: `tests/data/runs/schema-N` has one each."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pasta
from pasta.errors import RunError
from pasta.processors.strings import Strings
from pasta.run.directory import SCHEMA
from pasta.run.events import read_batches
from tests.support.places import DATA

RUNS = DATA / "runs"


def test_every_schema_has_a_recorded_run() -> None:
    assert {path.name for path in RUNS.iterdir()} == {
        f"schema-{number}" for number in range(1, SCHEMA + 1)
    }


@pytest.mark.parametrize("path", sorted(RUNS.iterdir()), ids=lambda path: path.name)
def test_old_runs_read_unchanged(path: Path) -> None:
    run = pasta.load(path)
    assert run.tables()["kernel_freq"][0] == "kernels"
    kernels = run.arrow("kernel_freq").to_pydict()
    assert sorted(kernels["launches"]) == [12, 12, 12, 12]
    assert "nöyau" in kernels["kernel"]
    assert run.event_counts()["kernel_launch"] == 48
    launches = run.events("kernel_launch", ["name", "grid_x"]).to_pylist()
    assert launches[5] == {"name": "_ZN2at6native6kernelIfEEvT_", "grid_x": 2}
    assert run.events("operator_begin").column("tensor").to_pylist()[0] == [1, 2]
    report = str(run)
    assert "process 4242 on node1" in report
    assert "note: a note" in report
    again = run.replay("kernel_freq", "operators")
    then, now = run.arrow("kernel_freq"), again.arrow("kernel_freq")  # which may have more by now
    assert now.select(then.column_names).to_pylist() == then.to_pylist()
    assert operators(again) == operators(run)


def test_joined_passes_of_schema_2_read_unchanged() -> None:
    run = pasta.load(RUNS / "schema-2" / "joined")
    assert run.arrow("joined", "kernels").column("share_of_peak").to_pylist() == [0.24, 1.28]
    assert run.arrow("access_count", "launches").column("write_bytes").to_pylist()[0] == 32
    assert run.manifest["passes"]["times"]["directory"] == "passes/times"
    assert "passes times (process 4242) and accesses (process 4242)" in str(run)


def test_samples_of_schema_2_have_numbered_reasons(tmp_path: Path) -> None:
    """Their reasons become texts; names and modules are absent."""
    run = tmp_path / "run"
    shutil.copytree(RUNS / "schema-3", run)
    file = run / "events" / "pc_sample-00000.parquet"
    table = pq.read_table(file).drop_columns(["name", "module_hash", "symbol"])
    reasons = pa.array([3, 7, None], pa.uint16())
    table = table.set_column(table.schema.get_field_index("reason"), "reason", reasons)
    pq.write_table(table, file)
    (batch,) = read_batches(run / "events", strings := Strings(), kinds={"pc_sample"})
    samples = batch["pc_sample"]
    assert strings.many(samples["reason"]) == ["3", "7", ""]
    assert samples["name"].tolist() == [0, 0, 0]
    assert samples["symbol"].tolist() == [0xFFFF_FFFF] * 3
    assert samples["samples"].tolist() == [5, 90, 5]


def test_samples_of_schema_3_have_no_bandwidth_of_links(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(RUNS / "schema-4", run)
    file = run / "events" / "device_sample-00000.parquet"
    for expected in (450_000, 0xFFFF_FFFF):
        (batch,) = read_batches(run / "events", Strings(), kinds={"device_sample"})
        assert batch["device_sample"]["link_bandwidth"].tolist() == [expected]
        table = pq.read_table(file)
        if "link_bandwidth" in table.column_names:
            pq.write_table(table.drop_columns(["link_bandwidth"]), file)


def operators(run: pasta.Run) -> list[dict[str, Any]]:
    """Operators in the schema's first runs, which had no time outside operators; shares now include
    it."""
    columns = ["operator", "phase", "calls", "own_time", "host_time", "launches", "allocated"]
    rows = run.arrow("operators").select(columns).to_pylist()
    inside = [row for row in rows if not row["operator"].startswith("(")]
    return sorted(inside, key=lambda row: (row["operator"], row["phase"]))


def test_newer_schema_is_rejected(tmp_path: Path) -> None:
    place = tmp_path / "run"
    shutil.copytree(RUNS / "schema-1", place)
    manifest = json.loads((place / "run.json").read_text())
    (place / "run.json").write_text(json.dumps({**manifest, "schema": SCHEMA + 1}))
    with pytest.raises(RunError, match="written by a newer PASTA"):
        str(pasta.load(place))
