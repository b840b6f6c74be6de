"""Programs with PyTorch, and tables and events of their runs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.support.preload import RunDirectory, base_environment

#: Options of pasta-preload.
TORCH = ("-c", "torch")


def table(run: RunDirectory, tool: str, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(
        run.path / "results" / tool / f"{name}.parquet"
    ).to_pylist()
    return found


def events(run: RunDirectory, kind: str) -> list[dict[str, Any]]:
    parts = sorted((run.path / "events").glob(f"{kind}-*.parquet"))
    return [row for part in parts for row in pq.read_table(part).to_pylist()]


def native(*command: str | Path, **how: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*map(str, command)], env=base_environment(), capture_output=True, text=True, timeout=100,
        **how,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    return done
