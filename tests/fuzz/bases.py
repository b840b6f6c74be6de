"""Base runs for mutation: recorded ones, and synthetic ones with every kind of file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pasta.run.directory import RunDirectory
from pasta.run.results import write_result
from pasta.table import Figure, Table
from pasta.tool import Finding, Result

REPOSITORY = Path(__file__).resolve().parents[2]
FIXTURE = REPOSITORY / "tests" / "data" / "runs" / "schema-1"
EXAMPLE = REPOSITORY / "examples" / "runs" / "gpt-h200"
_EVENTS = ("process_start", "context_create", "stream_create", "memory_alloc", "module_load",
           "kernel_launch", "kernel_launch_end", "memory_copy", "probe_data")  # fmt: skip
_ROWS = 400


def fixture(place: Path) -> None:
    """The run of schema 1, with figures, heat maps, a trace and files."""
    shutil.copytree(FIXTURE, place)
    n = np.arange(40)
    windows = Table({
        "window": n // 8, "object": ["weights"] * 40, "object_id": n // 20, "offset": n * 32,
        "count": n, "address": n.astype(np.uint64) + np.uint64(2**47),
    }, units={"address": "address"})  # fmt: skip
    words = {f"word_{word}": n for word in range(8)}
    sectors = Table({"kernel": ["k"] * 40, "object": ["o"] * 40, "offset": n * 32, **words})
    figures = {
        "object_1": Figure("bar", "Accesses to x", [0, 64], {"accesses": [5, 7]}, x_unit="bytes"),
        "line": Figure("line", "Level", [1, 2, 3], {"a": [1.5, float("nan"), 3], "b": [1, 2, 3]}),
    }
    finding = Finding("much", "f", "90 %", "less", 0.5)
    result = Result("heat", {"window_bins": windows, "sectors": sectors}, [finding], figures,
                    {"notes.txt": lambda file: None}, ["a note"])  # fmt: skip
    write_result(place / "results", "hotness", result)


def second(place: Path) -> None:
    """The run of schema 2, with counts of accesses by launch."""
    shutil.copytree(FIXTURE.with_name("schema-2"), place)


def example(place: Path) -> None:
    """A part of the recorded run of a GPT on an H200, with its accesses."""
    place.mkdir()
    for name in ("run.json", "log.txt"):
        shutil.copy(EXAMPLE / name, place / name)
    shutil.copytree(EXAMPLE / "results", place / "results")
    (place / "events").mkdir()
    for kind in _EVENTS:
        name = f"{kind}-00000.parquet"
        events = pq.ParquetFile(EXAMPLE / "events" / name)
        few = pa.Table.from_batches([next(events.iter_batches(_ROWS))])
        pq.write_table(few, place / "events" / name)


def command(entry: str) -> list[str]:
    """The command line of `pasta` or `pasta_preload` of this checkout."""
    return [sys.executable, "-c", f"from pasta_entry import {entry}; {entry}()"]


def demo(place: Path) -> None:
    """A new run of a program of the reference accelerator, with a trace."""
    tools = ["kernel_freq", "copies", "memory_timeline", "event_trace", "hotness", "roofline"]
    program = REPOSITORY / "pasta" / "_native" / "bin" / "gemm"
    chosen = [word for tool in tools for word in ("-t", tool)]
    subprocess.run(
        [*command("pasta_preload"), "-q", *chosen, "--record-accesses",
         "-o", place, program],
        check=True, capture_output=True, timeout=120, cwd=REPOSITORY,
    )  # fmt: skip


def ranked(run: Path, rank: int, size: int) -> None:
    """Turns a run into that of a rank."""
    directory = RunDirectory(run)
    manifest = json.loads((run / "run.json").read_text())
    manifest.update(rank=rank, local_rank=rank, world_size=size)
    manifest["clock"] = {"boot": "b", "error_ns": 5}
    directory.write_manifest(manifest)


BASES: dict[str, Callable[[Path], None]] = {
    "schema-1": fixture, "schema-2": second, "example": example, "demo": demo,
}  # fmt: skip
