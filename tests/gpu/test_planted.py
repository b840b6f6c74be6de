"""Programs with one planted fault each: it is the first finding, and a good one has none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pasta.run.results import ranked, read_results
from pasta.tool import Finding
from tests.support.places import PROGRAMS

from .conftest import Ran, Run, built_with_nvcc

pytestmark = pytest.mark.counters  # it compares device times
PLANTED = PROGRAMS / "nvidia" / "planted.cu"
TOOLS = ("--set", "nvidia.source=cupti", "-t", "utilization,copies")
LOADER = """
import time, torch
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 40
    def __getitem__(self, at): time.sleep(0.03); return torch.zeros(8)
a = torch.randn(4096, 4096, device="cuda")
for batch in torch.utils.data.DataLoader(Slow(), batch_size=1):
    batch.to("cuda")
    for _ in range(3): a @ a
torch.cuda.synchronize()
"""
#: Sums of gradients that wait for the kernels, which wait for the sums.
REDUCING = """
import os, sys, torch, torch.distributed as dist
import torch.multiprocessing as mp
def train(rank):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
    a, sums = torch.randn(4096, 4096, device="cuda"), torch.zeros(64 << 20, device="cuda")
    for _ in range(500):
        a @ a
        dist.all_reduce(sums)
    torch.cuda.synchronize()
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> str:
    return built_with_nvcc(PLANTED, tmp_path_factory.mktemp("planted"))


def findings(run: Ran, results: Path | None = None) -> list[Finding]:
    """In the order of reports, of the run's results or of others."""
    assert run.status == 0, run.stderr
    read = read_results(results or run.directory / "results")
    return [finding for _, finding in ranked(read)]


@pytest.mark.parametrize(
    ("program", "first"),
    [
        ("host_bound", "the device waits for the host to submit work"),
        ("sync_in_a_loop", "the device is idle while the host waits for it"),
        ("pageable_copies", "copies between pageable host memory and devices"),
        ("tiny_kernels", "the device waits for launches of tiny kernels"),
        ("tail_wave", "the last wave of blocks leaves much of the device idle"),
        ("serialised_streams", "streams wait for each other and never overlap"),
        ("copies_alone", "copies do not overlap with kernels"),
        ("balanced", None),
    ],
)
def test_the_planted_fault_is_the_first_finding(
    program: str, first: str | None, planted: str, profiled: Run
) -> None:
    found = findings(profiled(planted, program, options=TOOLS))
    assert [each.what for each in found[:1]] == ([first] if first else [])


@pytest.mark.parametrize(
    ("program", "first", "devices"),
    [
        (LOADER, "the device is idle while data loads", 1),
        (REDUCING, "communication does not overlap with kernels", 2),
    ],
    ids=["slow loader", "communication alone"],
)
def test_programs_of_pytorch(
    program: str, first: str, devices: int, profiled: Run, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < devices:
        pytest.skip("one device: two are needed")
    script = tmp_path / "program.py"
    script.write_text(program)
    run = profiled(sys.executable, str(script), str(tmp_path / "rendezvous"), options=TOOLS)
    found = [findings(run, path) for path in tmp_path.glob("run*/results")]
    firsts = [each[0].what for each in found if each]
    assert firsts == [first] * devices  # of each process with a device
