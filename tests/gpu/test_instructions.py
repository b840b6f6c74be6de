"""Executed instructions on a real GPU."""

from __future__ import annotations

import sys

import pyarrow.parquet as pq
import pytest

from .conftest import Build, Ran, Run

pytestmark = pytest.mark.counters  # one process can count at a time
N, LAUNCHES = 1 << 26, 3
VADD = ("--n", str(N), "--launches", str(LAUNCHES), "--expect")
EXECUTED = "sm__inst_executed.sum"
OPTIONS = ("-t", "instructions", "--record")
#: Products that cuBLAS computes with tensor stores; prints how many bytes the results have.
PRODUCTS = """
import torch
x = torch.randn(2048, 768, device="cuda", dtype=torch.bfloat16)
w = torch.randn(768, 3072, device="cuda", dtype=torch.bfloat16)
for _ in range(3):
    y = x @ w
torch.cuda.synchronize()
print(y.numel() * y.element_size())
"""


def by_launch(run: Ran) -> dict[int, int]:
    warps: dict[int, int] = {}
    for row in run.rows("instruction_count"):
        warps[row["ordinal"]] = warps.get(row["ordinal"], 0) + row["warps"]
        assert 0 <= row["threads"] <= 32 * row["warps"]
    return warps


def test_instructions_of_vadd(example: Build, native: Run, profiled: Run) -> None:
    """As many as the hardware's counter, and the program is unharmed."""
    alone = native(example("vadd"), *VADD)
    run = profiled(example("vadd"), *VADD, options=OPTIONS)
    assert (run.status, run.stdout) == (alone.status, alone.stdout), run.stderr
    warps = by_launch(run)
    counting = ("-t", "counters", "--record", "--set", f"nvidia.counters={EXECUTED}")
    counted = profiled(example("vadd"), *VADD, options=counting)
    expected = {row["ordinal"]: row["value"] for row in counted.rows("counter")}
    assert len(expected) == LAUNCHES
    assert warps == expected, run.stderr


def test_bytes_of_tensor_stores(native: Run, profiled: Run) -> None:
    """The boxes that a product's kernel stores are its result."""
    alone = native(sys.executable, "-c", PRODUCTS)
    run = profiled(sys.executable, "-c", PRODUCTS, options=OPTIONS)
    assert (run.status, run.stdout) == (alone.status, alone.stdout), run.stderr
    stored: dict[int, int] = {}
    path = run.directory / "results" / "instructions" / "launch_tensor_stores.parquet"
    for row in pq.read_table(path).to_pylist():
        stored[row["launch"]] = stored.get(row["launch"], 0) + row["bytes"]
    assert list(stored.values()) == 3 * [int(run.stdout)], run.stderr


def test_tensor_stores_with_maps_of_the_driver(kernels: str, profiled: Run) -> None:
    """Boxes that are partly outside of their tensors count as a whole."""
    run = profiled(kernels, "tensor", options=OPTIONS)
    assert run.status == 0, run.stderr
    words = [line.split() for line in run.stdout.splitlines() if line.startswith("object ")]
    addresses = {role: int(address, 0) for _, role, address, _ in words}
    path = run.directory / "results" / "instructions" / "tensor_stores.parquet"
    found = {
        row["kernel"]: (row["object_address"], row["stores"], row["bytes"])
        for row in pq.read_table(path).to_pylist()
    }
    assert found == {
        "tensor_1d": (addresses["to1"], 4, 4 * 256 * 4),
        "tensor_2d": (addresses["to2"], 16, 16 * 32 * 16 * 4),
        "tensor_3d": (addresses["to3"], 27, 27 * 16 * 8 * 4 * 4),
    }, run.stderr
