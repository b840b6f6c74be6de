"""Shadow maps, values and the device's clock against arithmetic: vadd adds two vectors,
a[i] = i % 1000 and b[i] = i % 7."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pyarrow.parquet as pq
import pytest

from .conftest import Build, Ran, Run

FLOATS = 1 << 16
BLOCKS = FLOATS // 256


def rows(run: Ran, tool: str, table: str) -> list[dict[str, Any]]:
    path = run.directory / "results" / tool / f"{table}.parquet"
    assert path.exists(), run.stdout + run.stderr
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


@pytest.fixture
def vadd(example: Build, profiled: Run) -> Any:
    def run(tool: str, launches: int, *options: str, floats: int = FLOATS) -> Ran:
        done = profiled(
            example("vadd"), "--n", str(floats), "--launches", str(launches),
            options=("-t", tool, *options),
        )  # fmt: skip
        assert done.status == 0, done.stderr
        return done

    return run


def test_each_word_follows_the_launch_before(vadd: Any) -> None:
    run = vadd("pc_dependency", 3)
    kinds: Counter[tuple[str, str]] = Counter()
    for edge in rows(run, "pc_dependency", "edges"):
        kinds[edge["distance"], edge["kind"]] += edge["granules"]
    # two launches read both vectors again and write the third again
    assert kinds == {("launch", "RAR"): 4 * FLOATS, ("launch", "WAW"): 2 * FLOATS}
    objects = rows(run, "pc_dependency", "objects")
    assert sorted(each["cold"] for each in objects if each["object_id"] is not None) == [FLOATS] * 3


def test_granules_without_room_are_lost_and_counted(vadd: Any) -> None:
    run = vadd("pc_dependency", 1, "--set", "pc_dependency.granules=1024")
    summary = json.loads((run.directory / "results" / "pc_dependency" / "result.json").read_text())
    assert "of last did not fit" in summary["summary"]


def test_values_of_loads_and_stores(vadd: Any) -> None:
    run = vadd("values", 1)
    by_elements = rows(run, "values", "instructions")
    assert sorted(each["op"] for each in by_elements) == ["load", "load", "store"]
    assert {each["elements"] for each in by_elements} == {FLOATS}
    zeros = sorted(round(each["zeros"] * FLOATS) for each in by_elements)
    a, b = ([i % each for i in range(FLOATS)] for each in (1000, 7))
    both = [x + y for x, y in zip(a, b, strict=True)]
    assert zeros == sorted(each.count(0) for each in (a, b, both))
    assert {each["narrow_float"] for each in by_elements} == {1.0}  # integers below 1024
    assert {each["redundant"] for each in by_elements} == {0.0}


def test_a_second_launch_stores_the_same(vadd: Any) -> None:
    run = vadd("values", 2)
    (store,) = (each for each in rows(run, "values", "instructions") if each["op"] == "store")
    assert store["redundant"] == 0.5


def test_shares_of_sampled_accesses(vadd: Any) -> None:
    """Of 65,536 warps, 1,024 are sampled in the mean, with a standard deviation of 32."""
    floats = 1 << 21

    def shares(*options: str) -> dict[int, dict[str, Any]]:
        found = rows(vadd("values", 1, *options, floats=floats), "values", "instructions")
        return {each["offset"]: each for each in found}

    whole, some = shares(), shares("--set", "values.every=64")
    for each in some.values():
        assert floats // 80 <= each["elements"] <= floats // 50
    for offset, each in whole.items():
        assert abs(each["zeros"] - some[offset]["zeros"]) < 0.03


def test_every_block_has_a_multiprocessor_and_times(vadd: Any) -> None:
    run = vadd("block_schedule", 2)
    launches = rows(run, "block_schedule", "launches")
    assert [each["blocks"] for each in launches] == [BLOCKS] * 2
    assert all(each["span"] > 0 for each in launches)
    sms = rows(run, "block_schedule", "multiprocessors")
    assert sum(each["blocks"] for each in sms) == 2 * BLOCKS
    blocks = rows(run, "block_schedule", "blocks")
    assert sorted(each["block"] for each in blocks) == list(range(BLOCKS))
    assert max(each["begin"] + each["duration"] for each in blocks) == max(
        each["span"] for each in launches
    )
    trace = json.loads((run.directory / "results" / "block_schedule" / "blocks.json").read_text())
    assert sum(each["ph"] == "X" for each in trace["traceEvents"]) == BLOCKS
