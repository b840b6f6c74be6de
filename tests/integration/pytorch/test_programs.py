"""Real programs: their output is the same with PASTA, and all their operators are recorded."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.places import ROOT
from tests.support.pytorch import TORCH, events, native, table

GPT = ROOT / "examples" / "torch" / "gpt_train.py"
RESNET = ROOT / "examples" / "cuda" / "resnet18_train.py"
SMALL = ("--device=cpu", "--steps=3", "--batch=2", "--length=16", "--layers=2", "--width=64",
         "--vocabulary=100")  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [(), ("--amp",), ("--checkpoint",), ("--workers=2",), ("--compile", "--layers=1")],
    ids=lambda options: options[0].strip("-") if options else "plain",
)
def test_transformer_output_is_unchanged(pasta_preload, options: tuple[str, ...]) -> None:
    alone = native(sys.executable, GPT, *SMALL, *options)
    done = pasta_preload(sys.executable, GPT, *SMALL, *options, options=TORCH)
    assert (done.exit_status, done.stdout, done.target_stderr) == (0, alone.stdout, alone.stderr)
    phases = {row["phase"] for row in table(done.run, "operators", "operators")}
    assert phases == {"forward", "backward", "optimizer"}
    assert done.run.manifest["dropped"] == {}


def test_resnet18_output_is_unchanged(pasta_preload) -> None:
    options = ("--device=cpu", "--steps=2", "--batch=2", "--size=32")
    alone = native(sys.executable, RESNET, *options)
    done = pasta_preload(sys.executable, RESNET, *options, options=TORCH)
    assert (done.exit_status, done.stdout, done.target_stderr) == (0, alone.stdout, alone.stderr)
    modules = {row["module"] for row in table(done.run, "operators", "modules")}
    kinds = {module.rpartition(" ")[2] for module in modules}
    assert {"(Conv2d)", "(BatchNorm2d)", "(Linear)", "(ReLU)", "(MaxPool2d)"} <= kinds


#: Counts operators by name with torch's own profiler, or with PASTA.
COUNTED = """
import json, sys, torch
from torch import nn
net = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5)
)
optimizer = torch.optim.Adam(net.parameters())
x, y = torch.ones(4, 3, 8, 8), torch.zeros(4, dtype=torch.long)
def step():
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
step()
if sys.argv[1] == "torch":
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    print(json.dumps({each.key: each.count for each in profile.key_averages()}))
else:
    import pasta
    pasta.start()
    step()
    pasta.stop()
    step()
"""


def test_operators_match_torchs_profiler(pasta_preload, tmp_path: Path) -> None:
    program = tmp_path / "counted.py"
    program.write_text(COUNTED)
    expected = Counter(json.loads(native(sys.executable, program, "torch").stdout))
    done = pasta_preload(
        sys.executable, program, "pasta", options=(*TORCH, "--profile-from-start=off")
    )
    found = Counter(row["name"] for row in events(done.run, "operator_begin"))
    ranges = Counter(row["name"] for row in events(done.run, "range_push"))
    assert {name: count for name, count in found.items() if count != expected[name]} == {}
    missed = {name for name in expected if not found[name] and not ranges[name]}
    assert missed <= {"cudaDeviceSynchronize", "[memory]", "ProfilerStep*"}


MEMORY = """
import torch
held = [torch.empty(1 << 20, dtype=torch.uint8) for _ in range(5)]
del held[1], held[1]
held.append(torch.zeros(3, 1 << 20, dtype=torch.uint8)[1:].t())
del held
"""


def test_peak_and_frees_of_host_memory(pasta_preload, tmp_path: Path) -> None:
    program = tmp_path / "memory.py"
    program.write_text(MEMORY)
    done = pasta_preload(sys.executable, program, options=TORCH)
    rows = [row for row in table(done.run, "tensors", "peak") if row["bytes"] >= 1 << 20]
    assert sorted((row["shape"], row["bytes"]) for row in rows) == [
        *[("1048576", 1 << 20)] * 3, ("3,1048576", 3 << 20),
    ]  # fmt: skip
    assert {row["line"] for row in rows} == {"memory.py:3 <listcomp>", "memory.py:5 <module>"} or {
        row["line"] for row in rows
    } == {"memory.py:3 <module>", "memory.py:5 <module>"}
    (five,) = (row for row in table(done.run, "tensors", "patterns") if row["shape"] == "1048576")
    assert (five["allocations"], five["bytes"]) == (5, 5 << 20)


DYING_MODULES = """
import torch
from torch import nn
class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.first, self.second = inner(), nn.Flatten()
    def forward(self, x):
        def closure():
            return self.second(self.first(x)).neg()
        return list(y.abs() for y in [closure()])[0]
seen = set()
for number in range(40):
    net = Outer((nn.Sigmoid, nn.Tanh)[number % 2])
    seen.add(id(net.first))
    net(torch.ones(2, 3))
print(len(seen) < 40)
"""


def test_destroyed_modules_free_their_slots(pasta_preload, tmp_path: Path) -> None:
    program = tmp_path / "dying.py"
    program.write_text(DYING_MODULES)
    done = pasta_preload(sys.executable, program, options=TORCH)
    assert done.stdout == "True\n"  # some reuse the addresses of others
    begins = [row for row in events(done.run, "operator_begin") if row["depth"] == 1]
    wanted = {"aten::sigmoid", "aten::tanh", "aten::neg", "aten::abs"}
    calls = Counter((row["name"], row["module"]) for row in begins if row["name"] in wanted)
    assert calls == {
        ("aten::sigmoid", "Outer.first (Sigmoid)"): 20, ("aten::tanh", "Outer.first (Tanh)"): 20,
        ("aten::neg", "Outer"): 40, ("aten::abs", "Outer"): 40,
    }  # fmt: skip
    frames = {
        (row["stack"], row["depth"]): row["function"] for row in events(done.run, "python_frame")
    }
    stacks = {row["stack"] for row in begins if row["name"] == "aten::abs"}
    assert {frames[stack, 0] for stack in stacks} == {"<genexpr>"}


DISTRIBUTED = """
import os, sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
net = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    net(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
total = torch.stack([each.detach().double().sum() for each in net.parameters()]).sum()
with open(sys.argv[1] + str(dist.get_rank()), "w") as file:  # one stdout would be mixed
    file.write(float(total).hex())
dist.barrier()  # a process group may abort a rank whose peer has already ended
dist.destroy_process_group()
os._exit(0)  # PyTorch 2.13 can abort while Python finalizes, without PASTA, too
"""


def test_two_processes_of_distributed_data_parallel(pasta_preload, tmp_path: Path) -> None:
    program = tmp_path / "ddp.py"
    program.write_text(DISTRIBUTED)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    run = (*torchrun, "--nproc-per-node=2", program)
    native(*run, tmp_path / "alone")
    done = pasta_preload(*run, tmp_path / "profiled", options=TORCH)
    assert done.exit_status == 0, done.stderr[:6000]
    for rank in "01":
        texts = [(tmp_path / f"{name}{rank}").read_text() for name in ("alone", "profiled")]
        assert texts[0] == texts[1]
    trained = [
        each
        for each in done.runs
        if any("AddmmBackward0" in row["operator"] for row in table(each, "operators", "operators"))
    ]
    assert len(trained) == 2
    for each in trained:
        modules = {row["module"] for row in table(each, "operators", "modules")}
        assert "DistributedDataParallel.module (Linear)" in modules


def test_data_loader_workers_leave_no_runs(pasta_preload) -> None:
    done = pasta_preload(sys.executable, GPT, *SMALL, "--workers=2", options=TORCH)
    assert len(done.runs) == 1
