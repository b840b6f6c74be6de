"""The reference accelerator's demonstrations in two passes, with numbers from arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

OPTIONS = ("--passes", "auto", "-t", "kernel_freq", "-t", "access_count", "-q", "-o", "run")
#: Of vadd: floats of each vector.
ELEMENTS = 10_000
#: Of graph: replays, and by kernel the floats that a launch reads and writes.
REPLAYS = 3
GRAPH = {"fill": (0, 10_000), "scale": (10_000, 10_000), "vadd": (20_000, 10_000)}
FLOAT = 4


def rows(path: Path) -> list[dict[str, Any]]:
    return list(pq.read_table(path).to_pylist())


def times_of(run: Path) -> dict[int, int]:
    """Device time of each launch in the pass with times, ns."""
    (path,) = (run / "passes" / "times" / "events").glob("kernel_complete-*.parquet")
    return {row["ordinal"]: row["end"] - row["start"] for row in rows(path)}


def test_vadd_reads_two_vectors_and_writes_one(pasta_preload: Any, demo: Any) -> None:
    done = pasta_preload(demo("vadd"), str(ELEMENTS), options=OPTIONS)
    run = done.directory / "run"
    (vadd,) = rows(run / "results" / "joined" / "kernels.parquet")
    (time,) = times_of(run).values()
    assert vadd["read_bytes"] == 2 * ELEMENTS * FLOAT
    assert vadd["write_bytes"] == ELEMENTS * FLOAT
    assert vadd["bytes"] == 3 * ELEMENTS * FLOAT
    assert (vadd["device_time"], vadd["mean_time"]) == (time, time)
    assert vadd["gb_per_second"] == pytest.approx(3 * ELEMENTS * FLOAT / time)


def test_launches_of_a_graph_are_joined(pasta_preload: Any, demo: Any) -> None:
    done = pasta_preload(demo("graph"), str(REPLAYS), options=OPTIONS)
    run = done.directory / "run"
    found = {row["kernel"]: row for row in rows(run / "results" / "joined" / "kernels.parquet")}
    assert set(found) == set(GRAPH)
    for kernel, (read, written) in GRAPH.items():
        row = found[kernel]
        assert row["joined"] == row["launches_times"] == row["launches_accesses"] == REPLAYS
        assert (row["read_bytes"], row["write_bytes"]) == (read * FLOAT, written * FLOAT)
        rate = REPLAYS * (read + written) * FLOAT / row["device_time"]
        assert row["gb_per_second"] == pytest.approx(rate)
    assert sum(row["device_time"] for row in found.values()) == sum(times_of(run).values())
    assert rows(run / "results" / "joined" / "unmatched.parquet") == []


def test_threads_that_launch_the_same_kernels(pasta_preload: Any, demo: Any) -> None:
    threads, streams, rounds = 3, 2, 5
    arguments = [str(number) for number in (threads, streams, rounds)]
    done = pasta_preload(demo("streams"), *arguments, options=OPTIONS)
    run = done.directory / "run"
    (scale,) = rows(run / "results" / "joined" / "kernels.parquet")
    assert scale["joined"] == scale["launches_times"] == threads * streams * rounds
    assert rows(run / "results" / "joined" / "unmatched.parquet") == []
