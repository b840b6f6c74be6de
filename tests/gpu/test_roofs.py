"""Roofs measured on a real GPU, and operations by hardware counters, against arithmetic."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pasta.backends.nvidia.architectures import find_architecture
from pasta.backends.nvidia.roof_kernels import COPY, READ
from pasta.processors.architecture import CACHE, is_bandwidth

from .conftest import TIMEOUT, Build, Ran, Run, environment, script

pytestmark = pytest.mark.counters  # nothing else may run meanwhile
N, LAUNCHES = 1 << 26, 3
SIZE, PRODUCT = 8192, 4096
#: Products of a size and type: fewest milliseconds of each, of zeros or normal numbers.
TIMES = """
import sys, torch
size, zeros = int(sys.argv[2]), sys.argv[3] == "zeros"
make = torch.zeros if zeros else torch.randn
a, b = (make(size, size, device="cuda", dtype=getattr(torch, sys.argv[1])) for _ in range(2))
times = []
for _ in range(20):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record(); a @ b; end.record(); torch.cuda.synchronize()
    times.append(begin.elapsed_time(end))
print(sorted(times)[len(times) // 2])
"""
ONCE = """
import sys, torch
size = int(sys.argv[2])
a, b = (torch.randn(size, size, device="cuda", dtype=getattr(torch, sys.argv[1])) for _ in range(2))
(a @ b).sum().item()
"""
COUNTED = ("-t", "roofline", "--set", "nvidia.source=cupti", "--set", "nvidia.counters=roofline")


@pytest.fixture(scope="module")
def rates() -> dict[str, float]:
    """Rates of the first device by roof."""
    done = subprocess.run(
        [script("pasta"), "doctor", "--roofs"], env=environment({"CUDA_VISIBLE_DEVICES": "0"}),
        capture_output=True, text=True, timeout=TIMEOUT,
    )  # fmt: skip
    assert done.returncode == 0 and "not measured" not in done.stderr, done.stderr
    lines = re.findall(r"  ([^:]+): ([\d,]+) [GF]", done.stdout)
    return {roof: 1e9 * int(rate.replace(",", "")) for roof, rate in lines}


def test_rates_are_near_the_data_sheet(rates: dict[str, float]) -> None:
    """No rate exceeds what the highest clocks allow."""
    import pynvml as nvml

    nvml.nvmlInit()
    device = nvml.nvmlDeviceGetHandleByIndex(0)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(device)
    known = find_architecture(f"sm_{major}{minor}")
    clock = 1e6 * nvml.nvmlDeviceGetMaxClockInfo(device, nvml.NVML_CLOCK_SM)
    memory_clock = 1e6 * nvml.nvmlDeviceGetMaxClockInfo(device, nvml.NVML_CLOCK_MEM)
    memory = 2 * memory_clock * nvml.nvmlDeviceGetMemoryBusWidth(device) / 8
    cores = nvml.nvmlDeviceGetNumGpuCores(device)
    nvml.nvmlShutdown()
    assert known is not None
    multiprocessors = 2 * cores // known.operations["float32"]
    for roof in (READ, COPY):
        assert 0.6 <= rates[roof] / memory <= 1.0, roof
    assert rates[CACHE] > rates["memory"] == max(rates[READ], rates[COPY])
    units = {roof for roof in rates if not is_bandwidth(roof)}
    assert {"float64", "float32", "float16"} <= units
    for roof in units & known.operations.keys():
        peak = clock * multiprocessors * known.operations[roof]
        assert 0.6 <= rates[roof] / peak <= 1.02, (roof, rates[roof], peak)


@pytest.mark.torch
@pytest.mark.parametrize("values", ["zeros", "normal"])
@pytest.mark.parametrize("type", ["bfloat16", "float16"])
def test_products_of_cublas_stay_below(rates: dict[str, float], type: str, values: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TIMES, type, str(SIZE), values], env=environment({}),
        capture_output=True, text=True, timeout=TIMEOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reached = 2 * SIZE**3 / (float(done.stdout) / 1000) / rates[f"{type} matrix"]
    assert 0.6 <= reached <= 1.02


def launches(run: Ran) -> list[dict[str, object]]:
    path = run.directory / "results" / "roofline" / "launches.parquet"
    found: list[dict[str, object]] = pq.read_table(path).to_pylist()
    return found


def test_operations_of_vadd_are_counted_exactly(
    example: Build, native: Run, profiled: Run, rates: dict[str, float]
) -> None:
    """An addition for each element; the roofs are those that were measured before."""
    command = (example("vadd"), "--n", str(N), "--launches", str(LAUNCHES))
    first = {"CUDA_VISIBLE_DEVICES": "0"}  # as the fixture, which measured no other device
    alone, run = native(*command), profiled(*command, options=COUNTED, **first)
    assert (run.status, run.stdout) == (alone.status, alone.stdout), run.stderr
    rows = [row for row in launches(run) if "vadd" in str(row["kernel"])]
    assert [row["flops"] for row in rows] == [N] * LAUNCHES, run.stderr
    assert all(0.9 * 12 * N < int(str(row["bytes"])) < 1.1 * 12 * N for row in rows)
    assert "measuring" not in run.stderr
    path = run.directory / "results" / "roofline" / "roofs.parquet"
    roofs = {row["roof"]: (row["rate"], row["how"]) for row in pq.read_table(path).to_pylist()}
    assert roofs["memory"] == (pytest.approx(rates["memory"], rel=1e-3), "measured")
    assert roofs["float32"] == (pytest.approx(rates["float32"], rel=1e-3), "measured")


@pytest.mark.torch
@pytest.mark.parametrize("type", ["bfloat16", "float16", "float32", "float64"])
def test_operations_of_products_are_counted(
    profiled: Run, tmp_path: Path, type: str, rates: dict[str, float]
) -> None:
    """Within 1 %, by tensor cores and by other units."""
    program = tmp_path / "product.py"
    program.write_text(ONCE)
    run = profiled(sys.executable, str(program), type, str(PRODUCT), options=COUNTED)
    assert run.status == 0, run.stderr
    most = max(float(str(row["flops"])) for row in launches(run) if row["flops"] is not None)
    assert most == pytest.approx(2 * PRODUCT**3, rel=0.01), run.stderr


def test_the_first_run_measures(example: Build, profiled: Run, tmp_path: Path) -> None:
    """The second one has the roofs of the first."""
    for expected in (True, False):
        run = profiled(
            example("vadd"), options=("-t", "roofline"), XDG_CACHE_HOME=str(tmp_path / "cache")
        )
        assert run.status == 0
        assert ("measuring the roofs of " in run.stderr) == expected
        assert "roofs measured by PASTA's own kernels: memory, L2" in run.stderr
    assert os.listdir(tmp_path / "cache" / "pasta" / "roofs")
