"""Busy and idle time of the reference accelerator against what a program does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

#: How often, and for how many ms, the host sleeps between its groups of launches.
TIMES, ASLEEP = 10, 40
PROGRAM = f"""
int main(void) {{
    for (int i = 0; i < {TIMES}; i++) {{
        launch(20);
        usleep({ASLEEP}000);
    }}
    launch(20);
    return 0;
}}
"""
CAUSES = (
    "start_up",
    "host_waits",
    "host_copies",
    "data_loading",
    "host_behind",
    "launch_latency",
    "work_waits",
    "unknown_submission",
    "after_last",
)


def table(run: Any, name: str) -> list[dict[str, Any]]:
    path: Path = run.path / "results" / "utilization" / f"{name}.parquet"
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


@pytest.mark.main
@pytest.mark.parametrize("way", [(), ("--collector",)], ids=["embedded", "collector"])
def test_idle_time_has_the_cause_that_the_program_gives_it(
    pasta_preload: Any, compile_c: Any, way: tuple[str, ...]
) -> None:
    run = pasta_preload(compile_c(PROGRAM), options=("-t", "utilization", *way)).run
    (device,) = table(run, "devices")
    assert device["busy"] + sum(device[cause] for cause in CAUSES) == device["observed"]
    assert 0 < device["busy"] == device["kernels"] < device["span"]
    gaps = table(run, "gaps")
    assert sum(row["time"] for row in gaps) == device["observed"] - device["busy"]
    inside = [row for row in gaps if row["cause"] not in ("start-up", "after the last work")]
    asleep = max(inside, key=lambda row: row["time"])
    assert asleep["cause"] == "host had submitted no work"
    assert asleep["gaps"] >= TIMES and asleep["time"] >= TIMES * ASLEEP * 900_000
    assert "the device waits for the host to submit work" in run.report
