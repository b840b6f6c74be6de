"""kernel_freq against Nsight Compute's list of launches, as an independent reference."""

from __future__ import annotations

from collections import Counter

import pyarrow.parquet as pq
import pytest

from tests.support.ncu import launch_rows

from .conftest import Build, Run

METRIC = "gpu__time_duration.sum"


def launches_by_ncu(command: list[str]) -> Counter[str]:
    """Launches by mangled name as ncu counts them."""
    rows = launch_rows(command, "--print-summary", "none", "--metrics", METRIC)
    return Counter(row["Kernel Name"] for row in rows)


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
