"""kernel_freq against Nsight Compute's list of launches, as an independent reference."""

from __future__ import annotations

import csv
import shutil
import subprocess
from collections import Counter

import pyarrow.parquet as pq
import pytest

from .conftest import TIMEOUT, Build, Run, environment

METRIC = "gpu__time_duration.sum"


def launches_by_ncu(command: list[str]) -> Counter[str]:
    """Launches by mangled name as ncu counts them."""
    ncu = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    if not ncu:
        pytest.skip("ncu was not found")
    options = ["--clock-control", "none", "--print-summary", "none", "--csv", "--page", "raw"]
    options += ["--print-kernel-base", "mangled", "--metrics", METRIC]
    done = subprocess.run(
        [ncu, *options, *command],
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    lines = done.stdout.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith('"ID"')]
    if not starts:
        pytest.skip(f"ncu cannot profile here: {done.stdout[-300:]}{done.stderr[-300:]}")
    rows = csv.DictReader(lines[starts[0] :])
    return Counter(row["Kernel Name"] for row in rows if (row["ID"] or "").isdigit())


@pytest.mark.counters
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("vadd", ["--launches", "7"]),
        ("two_streams", ["--launches", "20"]),
        ("graph", ["--replays", "4"]),
        ("cudnn_app", []),
    ],
)
def test_launches_match_ncu(example: Build, profiled: Run, name: str, arguments: list[str]) -> None:
    command = [example(name), *arguments]
    theirs = launches_by_ncu(command)
    run = profiled(*command)
    table = pq.read_table(run.directory / "results" / "kernel_freq" / "kernels.parquet")
    ours = dict(zip(table["name"].to_pylist(), table["launches"].to_pylist(), strict=True))
    assert theirs
    assert ours == dict(theirs)
