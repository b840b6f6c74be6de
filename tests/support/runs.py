"""Synthetic run directories of the processes of a job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pasta.run.directory import SCHEMA, RunDirectory
from pasta.run.events import Recorder
from pasta.run.results import write_result
from pasta.table import Table
from pasta.testing import Events
from pasta.tool import Finding, Result

MS = 1_000_000
#: Real time at which the first host's CLOCK_MONOTONIC was 0.
EPOCH = 1_700_000_000_000 * MS


def made_up(
    root: Path,
    rank: int | None,
    *,
    of: int | None = 4,
    host: str = "node1",
    pid: int = 0,
    start: int = 0,
    kernels: Mapping[str, tuple[int, int | None]] | None = None,
    findings: tuple[Finding, ...] = (),
    **manifest: Any,
) -> Path:
    """A run of a rank that started `start` ns after the job; `kernels`: launches, device time."""
    pid = pid or 100 + (rank or 0)
    up = 50_000 * MS if host == "node1" else 90_000 * MS
    name = f"{'app' if rank is None else f'rank-{rank:04}'}-{host}-{pid}"
    run = RunDirectory.create(root / name)
    run.write_manifest(
        {
            "schema": SCHEMA,
            "command": ["app", "--fast"],
            "executable": "/opt/app",
            "host": host,
            "pid": pid,
            "parent": 1,
            "rank": rank,
            "local_rank": 0 if rank is not None else None,
            "world_size": of if rank is not None else None,
            "start": {"realtime_ns": EPOCH + start, "monotonic_ns": up + start},
            "clock": {"boot": f"boot of {host}", "error_ns": 2 * MS},
            "observed_ns": 10 * MS,
            "ended": {"text": "exited with 0"},
            "devices": {"0": "A GPU"},
            "sources": {"refacc": "1.0"},
            "launches": {"seen": 3, "selected": 3},
            "events": {"kernel_launch": 3, "memory_copy": 2},
            "dropped": {},
            "failures": {},
            "warnings": [],
            **manifest,
        }
    )
    if kernels is not None:
        table = Table(
            {
                "kernel": list(kernels),
                "launches": [launches for launches, _ in kernels.values()],
                "total_time": [time for _, time in kernels.values()],
                "demangled": list(kernels),
            },
            units={"total_time": "ns"},
            title="Kernels",
            hidden=frozenset({"demangled"}),
        )
        write_result(run.results, "kernel_freq", Result("kernels", {"kernels": table}, findings))
    return run.path


MANIFEST = {
    "schema": SCHEMA, "command": ["program"], "pid": 7, "host": "here",
    "start": {"realtime_ns": 0, "monotonic_ns": 0}, "observed_ns": 1_500_000,
    "ended": {"text": "exited with 0"}, "devices": {"0": "A GPU"}, "sources": {},
    "failures": {}, "warnings": [],
}  # fmt: skip


TOOLS = ["kernel_freq", "copies", "memory_timeline", "operators", "tensors", "event_trace"]


def recorded(events: Events, directory: Path, *, unfinished: bool = False) -> RunDirectory:
    run = RunDirectory.create(directory)
    recorder = Recorder(run.events, events.strings)
    for number, batch in enumerate(events.batches(range(7, len(events), 61))):
        recorder.add(batch)
        if number % 4 == 3:
            recorder.flush()
    recorder.flush()
    if not unfinished:
        start = {
            "realtime_ns": events.process.start_realtime,
            "monotonic_ns": events.process.start_time,
        }
        run.write_manifest(
            {
                "schema": SCHEMA, "command": ["program"], "executable": events.process.program,
                "host": "here", "pid": events.process.pid, "parent": 1, "environment": {},
                "start": start, "observed_ns": 5, "ended": {"text": "exited with 0"},
                "sources": {}, "devices": {},
            }
        )  # fmt: skip
    return run


def content(results: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(each for each in results.rglob("*") if each.is_file()):
        name = str(path.relative_to(results))
        parquet = path.suffix == ".parquet"
        found[name] = pq.ParquetFile(path).read().to_pylist() if parquet else path.read_bytes()
    return found
