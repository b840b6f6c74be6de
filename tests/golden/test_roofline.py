"""The roofline with work known from arithmetic: a product, and a kernel without operations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from pasta.plugins import find_tools
from pasta.processors.roofline import WORK, split
from pasta.testing import Events, run_tool

TOOL = find_tools("roofline")[0]
#: A product of M x K and K x N float32 numbers, of which the kernel reads a part.
M, K, N = 64, 32, 16
FLOPS = 2 * M * K * N
READ, LANES = 128, 4
#: Device times, ns.
PRODUCT, SPLIT, FILL = 3000, 1000, 4000
MEMORY, COMPUTE = 1e9, 32.768  # bytes/s, GFLOP/s
ROOFS = {"memory_roof": int(MEMORY), "compute_roof": COMPUTE}


def products(calls: int = 2, dtype: str = "float") -> Events:
    """Each call launches a product and its reduction, and is followed by a fill outside of it."""
    events = Events()
    a, b, c = 0x1000_0000, 0x1100_0000, 0x1200_0000
    for address in (a, b, c):
        events.alloc(address, 0x10_0000)
    events.frames(1, ("/my/train.py", "train", 7))
    events.tensor(1, a, 4 * M * K, f"{M},{K}", dtype=dtype)
    events.tensor(2, b, 4 * K * N, f"{K},{N}", dtype=dtype)
    events.tensor(3, c, 4 * M * N, f"{M},{N}", dtype=dtype)
    for _ in range(calls):
        events.operator("aten::mm", stack=1, inputs=[1, 2])
        product, reduction = events.launch("gemm"), events.launch("reduce")
        events.access("global", [a + 4 * lane for lane in range(READ // 4)], launch=product)
        events.access("global", [c + 4 * lane for lane in range(LANES)], launch=reduction)
        events.operator_end(outputs=[3])
        fill = events.launch("fill")
        events.access("global", [c + 4 * lane for lane in range(LANES)], write=True, launch=fill)
        for ordinal, took in ((product, PRODUCT), (reduction, SPLIT), (fill, FILL)):
            events.complete(ordinal, 10_000, 10_000 + took)
    return events


def by_kernel(result: Any) -> dict[str, dict[str, Any]]:
    return {row["kernel"]: row for row in result.tables["kernels"].rows()}


@pytest.mark.parametrize("splits", [[], range(3, 20, 5)])
def test_bytes_of_hardware_counters(splits: Any) -> None:
    """In place of those requested, also where only some launches have them."""
    events = products()
    for ordinal, moved in ((0, 96.0), (1, 64.0), (3, 160.0)):
        events.add("counter", ordinal=ordinal, name="dram__bytes.sum", value=moved)
        events.add("counter", ordinal=ordinal, name="another.sum", value=1e9)
    range = {"ordinal": 2**64 - 1, "instance": "launches 0 to 1"}
    events.add("counter", name="dram__bytes.sum", value=1e9, **range)
    result = run_tool(TOOL, events, options=ROOFS, splits=splits)
    kernels = by_kernel(result)
    gemm, reduce, fill = (kernels[name] for name in ("gemm", "reduce", "fill"))
    assert [each["bytes"] for each in (gemm, reduce, fill)] == [96 + 160, 2 * 64, None]
    assert gemm["gb_per_second"] == pytest.approx((96 + 160) / (2 * PRODUCT))
    assert "320 B of device memory" in result.summary
    assert "bytes are device memory traffic, from hardware counters" in result.notes


@pytest.mark.parametrize("splits", [[], range(3, 20, 5)])
def test_intensity_rate_and_share_of_the_roof(splits: Any) -> None:
    result = run_tool(TOOL, products(), options=ROOFS, splits=splits)
    kernels = by_kernel(result)
    gemm, reduce, fill = (kernels[name] for name in ("gemm", "reduce", "fill"))
    # the operator's operations belong to its kernels in proportion to their times
    assert gemm["gflop"] == pytest.approx(2 * FLOPS * 3 / 4 / 1e9)
    assert reduce["gflop"] == pytest.approx(2 * FLOPS / 4 / 1e9)
    assert fill["gflop"] is None and fill["intensity"] is None
    assert [each["bytes"] for each in (gemm, reduce, fill)] == [2 * READ, 32, 32]
    assert gemm["intensity"] == pytest.approx(FLOPS * 3 / 4 / READ)
    assert gemm["gflop_rate"] == pytest.approx(FLOPS * 3 / 4 / PRODUCT)
    assert fill["gb_per_second"] == pytest.approx(16 / FILL)
    assert (gemm["bound"], fill["bound"]) == ("compute", "memory")
    assert gemm["of_roof"] == pytest.approx(FLOPS * 3 / 4 / PRODUCT / COMPUTE)
    assert fill["of_roof"] == pytest.approx(16 / (MEMORY * FILL / 1e9))
    (operator, outside) = (
        row for row in sorted(result.tables["operators"].rows(), key=lambda row: -row["launches"])
    )
    assert (operator["operator"], operator["line"]) == ("aten::mm", "train.py:7 train")
    assert operator["gflop"] == pytest.approx(2 * FLOPS / 1e9)
    assert operator["gflop_rate"] == pytest.approx(FLOPS / (PRODUCT + SPLIT))
    assert outside["launches"] == 2
    (finding,) = result.findings
    assert finding.where == "fill" and "bytes" not in finding.where


@pytest.mark.parametrize("splits", [[], range(3, 20, 5)])
def test_operations_of_an_operator_whose_callees_launch(splits: Any) -> None:
    """PyTorch's convolution calls the vendor's one, which launches; the bias is added by another
    operator."""
    events = Events()
    events.tensor(1, 4096, 4096, "2,3,8,8")
    events.tensor(2, 8192, 4096, "16,3,3,3")
    events.tensor(3, 12288, 4096, "2,16,6,6")
    flops = 2 * 2 * 16 * 36 * 27
    for _ in range(2):
        events.operator("aten::conv2d", inputs=[1, 2])
        events.operator("aten::convolution", 2, inputs=[1, 2])
        events.operator("aten::cudnn_convolution", 3, inputs=[1, 2])
        first = events.launch("im2col"), events.launch("implicit_gemm")
        events.operator_end(3, outputs=[3])
        events.operator("aten::add_", 3, inputs=[3])
        bias = events.launch("add")
        events.operator_end(3, outputs=[3])
        events.operator_end(2, outputs=[3])
        relu = events.launch("relu")
        events.operator_end(outputs=[3])
        for ordinal, took in zip((*first, bias, relu), (1000, 2000, 1000, 5000), strict=True):
            events.complete(ordinal, 10_000, 10_000 + took)
    result = run_tool(TOOL, events, options=ROOFS, splits=splits)
    found = {name: row["gflop"] for name, row in by_kernel(result).items()}
    assert found == {
        "im2col": pytest.approx(2 * flops / 4 / 1e9),
        "implicit_gemm": pytest.approx(2 * flops / 2 / 1e9),
        "add": pytest.approx(2 * flops / 4 / 1e9),
        "relu": None,
    }
    assert f"{2 * flops / 1e9:.3g} GFLOP" in result.summary


def test_without_roofs_and_times() -> None:
    events = Events()
    events.alloc(0x1000, 4096)
    launch = events.launch("fill")
    events.access("global", [0x1000], launch=launch)
    result = run_tool(TOOL, events)
    (row,) = by_kernel(result).values()
    assert (row["bytes"], row["bound"], row["of_roof"], row["device_time"]) == (4, None, None, None)
    assert len(result.tables["roofs"]) == 0
    assert any("roofs are unknown" in note for note in result.notes)
    assert "operations unknown" in result.summary and "GFLOP" not in result.summary
    assert run_tool(TOOL, Events()).summary.startswith("0 launches")


def test_roofs_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    events = products()
    events.device(bandwidth=2_000_000_000, multiprocessors=4, clock=1000, architecture="sm_90")
    result = run_tool(TOOL, events)
    roofs = {row["kind"]: row for row in result.tables["roofs"].rows()}
    assert roofs["memory"]["rate"] == 2e9
    assert all(row["how"] == "data sheet" for row in roofs.values())
    assert any("data sheet" in note for note in result.notes)


def test_measured_roofs() -> None:
    """Those of the devices that the run used, of the fastest units for a type of numbers, instead
    of the data sheet's."""
    events = products(dtype="Float")
    events.device(
        uuid=events.string("GPU-1"), bandwidth=2_000_000_000, multiprocessors=4, clock=1000,
        architecture="sm_90",
    )  # fmt: skip
    events.roofs = {
        "GPU-1": {"memory": MEMORY, "L2": 4e9, "float32": 1e9, "tf32 matrix": COMPUTE * 1e9},
        "GPU-2": {"memory": 9e9, "tf32 matrix": 9e12},
    }
    result = run_tool(TOOL, events)
    rows = [tuple(row.values()) for row in result.tables["roofs"].rows()]
    assert rows == [
        ("memory", "memory", MEMORY, "measured"),
        ("L2", "cache", 4e9, "measured"),
        ("tf32 matrix", "compute", COMPUTE * 1e9, "measured"),
    ]
    gemm, fill = (by_kernel(result)[name] for name in ("gemm", "fill"))
    assert gemm["of_roof"] == pytest.approx(FLOPS * 3 / 4 / PRODUCT / COMPUTE)
    assert fill["of_roof"] == pytest.approx(16 / (MEMORY * FILL / 1e9))
    assert "roofs measured by PASTA's own kernels: memory, L2, tf32 matrix" in result.notes


@pytest.mark.parametrize("splits", [[], range(3, 20, 5)])
def test_operations_of_hardware_counters(splits: Any) -> None:
    """In place of those by shapes; launches without counters count as the mean of the others."""
    events = products()
    each = {"fadd": 100, "fmul": 10, "ffma": 1000, "hfma": 5, "dadd": 0}
    counted = {
        f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum": n for name, n in each.items()
    }
    counted["sm__ops_path_tensor_src_bf16_dst_fp32.sum"] = 7000
    for name, value in counted.items():
        events.add("counter", ordinal=0, name=name, value=float(value))
        events.add("counter", ordinal=1, name=name, value=0.0)
    events.roofs = {
        "GPU-1": {"memory": 1e12, "float32": 1e9, "float16": 2e9, "bfloat16 matrix": 7e9}
    }
    result = run_tool(TOOL, events, splits=splits)
    assert [row["roof"] for row in result.tables["roofs"].rows()] == [
        "memory", "bfloat16 matrix", "float16", "float32",
    ]  # fmt: skip
    kernels = by_kernel(result)
    flops = {"float32": 100 + 10 + 2 * 1000, "float16": 4 * 5, "bfloat16 matrix": 7000}
    gemm = kernels["gemm"]
    assert gemm["gflop"] == pytest.approx(2 * sum(flops.values()) / 1e9)
    assert gemm["gflop_rate"] == pytest.approx(sum(flops.values()) / PRODUCT)
    least = sum(n / events.roofs["GPU-1"][unit] for unit, n in flops.items()) * 1e9
    assert (gemm["bound"], gemm["of_roof"]) == ("compute", pytest.approx(least / PRODUCT))
    assert kernels["reduce"]["gflop"] is None and kernels["fill"]["gflop"] is None
    assert "GFLOP counted by the hardware" in result.summary
    assert any("count bfloat16 matrix, float16, float32, float64" in each for each in result.notes)


def test_operations_are_divided_by_bytes_without_times() -> None:
    work = np.zeros(4, WORK)
    work["node"] = [5, 5, 7, 7]
    work["time"] = [np.nan, 1, np.nan, np.nan]
    work["bytes"] = [30, 10, np.nan, 5]
    work["flops"] = [100, 0, 8, 0]
    split(work)
    assert work["flops"].tolist() == [75, 25, 4, 4]  # by bytes; equally where these are unknown


def test_two_passes(pasta_preload: Any, demo: Any) -> None:
    """Times of one pass and bytes of the other, on the reference accelerator."""
    elements = 10_000
    options = ("--passes", "auto", "-c", "roofline", "-q", "-o", "run")
    roof = ("--set", f"tool.roofline.memory_roof={int(MEMORY)}")
    done = pasta_preload(demo("vadd"), str(elements), options=(*options, *roof))
    run: Path = done.directory / "run"
    (row,) = pq.read_table(run / "results" / "roofline" / "kernels.parquet").to_pylist()
    (path,) = (run / "passes" / "times" / "events").glob("kernel_complete-*.parquet")
    (event,) = pq.read_table(path).to_pylist()
    took = event["end"] - event["start"]
    assert (row["bytes"], row["device_time"]) == (3 * 4 * elements, took)
    assert row["gb_per_second"] == pytest.approx(3 * 4 * elements / took)
    assert row["of_roof"] == pytest.approx(3 * 4 * elements / took)
    assert row["bound"] == "memory"


def test_two_passes_with_samples(pasta_preload: Any, compile_c: Any) -> None:
    """Bytes of launches that were not probed are estimates, as a note states."""
    program = compile_c("int main(void) { launch(100); return 0; }")
    options = ("--passes", "auto", "-c", "roofline", "--sample", "-q", "-o", "run")
    run: Path = pasta_preload(program, options=options).directory / "run"
    results = run / "results" / "roofline"
    (row,) = pq.read_table(results / "kernels.parquet").to_pylist()
    assert row["bytes"] == 100 * 2 * 4 * 32
    (note,) = (
        each
        for each in json.loads((results / "result.json").read_text())["notes"]
        if each.startswith("the pass accesses: ")
    )
    assert "bytes are estimated for all launches" in note and " of 100 launches" in note
