"""NCCL with one rank, by torch.distributed: calls are recorded, and nothing changes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.nvidia_headers import headers
from tests.support.places import PROGRAMS, ROOT

from .conftest import Run, script

pytestmark = pytest.mark.torch

#: The environment of a job with one rank, whose store takes a free port.
JOB = {
    "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",
}  # fmt: skip
EXAMPLE = str(ROOT / "examples" / "torch" / "parallel_train.py")
TRAIN = (EXAMPLE, "--parallel", "data", "--steps", "3")
CALLS = """
import ctypes, torch, torch.distributed as dist
torch.cuda.set_device(0)
dist.init_process_group("nccl")
x = torch.ones(1000, device="cuda")
for _ in range(3):
    dist.all_reduce(x)
dist.broadcast(x, 0)
out = torch.empty(1000, device="cuda")
dist.all_gather_into_tensor(out, x)
dist.reduce_scatter_tensor(out, x)
half = dist.new_group([0])
dist.all_reduce(x, group=half)
torch.cuda.synchronize()
print(float(x.sum()), float(out.sum()))
dist.destroy_process_group()
"""


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)


def test_declarations_match_the_header() -> None:
    """Those of the NCCL that PyTorch brings; types of numbers do not matter."""
    # with wheels, crt/ comes with the compiler
    found = [headers(name) for name in ("nccl.h", "cuda_runtime_api.h", "crt/host_defines.h")]
    assert all(found), found
    folders = [f"-I{places[0]}" for places in found]
    without = [f"-D__CUDA_{name}_H__" for name in ("FP16", "BF16", "FP8")]
    check = PROGRAMS / "communication" / "nccl_abi_check.c"
    subprocess.run(["cc", *without, *folders, "-c", check, "-o", os.devnull], check=True)


@pytest.mark.usefixtures("job")
def test_training_does_not_change(native: Run, profiled: Run, python: str) -> None:
    alone = native(python, *TRAIN)
    run = profiled(python, *TRAIN, options=("-t", "collectives"))
    assert (run.status, run.stdout) == (0, alone.stdout), run.stderr
    assert len(run.stdout.split()) == 3


@pytest.mark.usefixtures("job")
def test_calls_of_one_rank(native: Run, profiled: Run, python: str, tmp_path: Path) -> None:
    """Each call with its bytes, in two communicators. A single rank's calls launch copies, or
    nothing."""
    program = tmp_path / "calls.py"
    program.write_text(CALLS)
    alone = native(python, str(program))
    run = profiled(python, str(program), options=("-t", "collectives"))
    assert (run.status, run.stdout) == (0, alone.stdout), run.stderr
    (tables,) = run.directory.rglob("results/collectives")
    made = pq.read_table(tables / "communicators.parquet").to_pylist()
    assert {(each["member"], each["ranks"], each["device"]) for each in made} == {(0, 1, 0)}
    assert 1 <= len(made) <= 2 and all(each["library"].startswith("NCCL 2.") for each in made)
    calls = pq.read_table(tables / "calls.parquet").to_pylist()
    found = [each["operation"] for each in calls if each["bytes"] == 4000]
    # PyTorch 2.11 does not call NCCL to reduce and scatter among one rank
    expected = [*["all_reduce"] * 3, "broadcast", "all_gather", "all_reduce"]
    assert [each for each in found if each != "reduce_scatter"] == expected, calls
    assert {each["type"] for each in calls if each["bytes"] == 4000} == {"float32"}
    assert len({each["id"] for each in calls}) == len(made)


def test_late_rank_of_two(native: Run, profiled: Run, python: str, tmp_path: Path) -> None:
    """Training on two GPUs, of which the second rank is late."""
    devices = native(python, "-c", "import torch; print(torch.cuda.device_count())")
    if int(devices.stdout) < 2:
        pytest.skip("one device: two ranks of NCCL need two")
    torchrun = (
        python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
    )  # fmt: skip
    run = profiled(*torchrun, *TRAIN[:-1], "50", "--late", "1", options=("-t", "collectives"))
    assert run.status == 0, run.stderr
    merged = tmp_path / "merged"
    subprocess.run([script("pasta"), "merge", run.directory, "-o", merged], check=True)
    document = json.loads((merged / "results" / "arrivals" / "result.json").read_text())
    late, *_ = document["findings"]
    assert (late["what"], late["where"]) == (
        "other ranks wait for a late rank", "rank 1",
    )  # fmt: skip
    rows = pq.read_table(merged / "results" / "collectives" / "collectives.parquet").to_pylist()
    assert any(row["operation"] == "all_reduce" and row["bus"] > 0 for row in rows)
