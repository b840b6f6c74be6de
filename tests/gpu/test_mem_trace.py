"""Access records on the device: every access of a kernel is in the files, at the expected
address."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pytest

from .conftest import Build, Ran, Run

FLOATS = 1 << 20


def accesses(run: Ran) -> Any:
    parts = sorted((run.directory / "results" / "mem_trace").glob("accesses-*.parquet"))
    assert parts, run.stdout + run.stderr
    return ds.dataset([str(part) for part in parts]).to_table()


def objects(run: Ran) -> dict[int, int]:
    """Addresses of the three vectors by the ids in the files."""
    table = ds.dataset(str(run.directory / "results" / "mem_trace" / "objects.parquet")).to_table()
    return dict(
        zip(table["object_id"].to_pylist(), table["object_address"].to_pylist(), strict=True)
    )


@pytest.mark.parametrize("launches", [1, 200])
@pytest.mark.parametrize("memory", ["64MiB", "4MiB"])
def test_vadd_matches_arithmetic(example: Build, profiled: Run, launches: int, memory: str) -> None:
    floats = FLOATS if launches == 1 else FLOATS // 16
    run = profiled(
        example("vadd"), "--n", str(floats), "--launches", str(launches),
        options=("-t", "mem_trace", "--set", f"probes.trace-memory={memory}"),
    )  # fmt: skip
    assert run.status == 0, run.stderr
    table = accesses(run)
    warps = floats // 32
    assert table.num_rows == 3 * warps * launches  # 98,304 of 2**20 floats
    masks = table["lanes"].to_numpy()
    assert (masks == 0xFFFF_FFFF).all()  # so 3,145,728 accesses of lanes
    assert set(table["kind"].to_pylist()) == {"global"}
    assert (table["bytes"].to_numpy() == 4).all() and (table["stride"].to_numpy() == 4).all()
    assert table["addresses"].null_count == table.num_rows
    ordinals, counts = np.unique(table["launch"].to_numpy(), return_counts=True)
    assert len(ordinals) == launches and (counts == 3 * warps).all()

    # Each warp reads two vectors and writes the third, at its own offset in all of them.
    address, ids = table["address"].to_numpy(), table["object"].to_numpy()
    linear = table["block"].to_numpy() * np.uint64(8) + table["warp"].to_numpy()
    places = objects(run)
    assert len(places) == 3
    starts = np.asarray([places[each] for each in ids.tolist()], np.uint64)
    assert np.array_equal(address - starts, linear * np.uint64(128))
    order = np.lexsort([linear, ids, table["launch"].to_numpy()])
    expected = np.tile(np.arange(warps, dtype=np.uint64), 3 * launches)
    assert np.array_equal(linear[order], expected)
    writes = {each: table["writes"].to_numpy()[ids == each] for each in places}
    assert sorted((bool(each.all()), bool(each.any())) for each in writes.values()) == [
        (False, False), (False, False), (True, True),
    ]  # fmt: skip


def test_hotness_by_window_matches_arithmetic(example: Build, profiled: Run) -> None:
    """Two launches form a window; kernels record their accesses, and the host counts them."""
    floats, launches = FLOATS // 16, 6
    run = profiled(
        example("vadd"), "--n", str(floats), "--launches", str(launches),
        options=("-t", "hotness", "--set", f"hotness.window={6 * floats}"),
    )  # fmt: skip
    assert run.status == 0, run.stderr
    results = run.directory / "results" / "hotness"
    windows = ds.dataset(str(results / "windows.parquet")).to_table()
    assert sorted(windows["window"].to_pylist()) == sorted(3 * [0, 1, 2])
    assert set(windows["accesses"].to_pylist()) == {2 * floats}
    bins = ds.dataset(str(results / "window_bins.parquet")).to_table()
    assert set(bins["count"].to_pylist()) == {2 * 4096 // 4}  # of 4 KiB, each word in two launches
    assert bins.num_rows == 3 * 3 * floats * 4 // 4096
