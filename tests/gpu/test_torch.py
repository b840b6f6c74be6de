"""PyTorch on a GPU: every launch has an operator, and the peak is torch's own."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pasta import abi
from tests.support.places import ROOT

from .conftest import Ran, Run

pytestmark = pytest.mark.torch

EXAMPLES = ROOT / "examples"
GPT = (str(EXAMPLES / "torch" / "gpt_train.py"), "--steps", "3", "--batch", "2", "--length", "128",
       "--layers", "3", "--peak")  # fmt: skip
RESNET = (str(EXAMPLES / "cuda" / "resnet18_train.py"), "--steps", "3", "--batch", "8",
          "--size", "64")  # fmt: skip


def rows(run: Ran, tool: str, table: str) -> list[dict[str, object]]:
    path = run.directory / "results" / tool / f"{table}.parquet"
    found: list[dict[str, object]] = pq.read_table(path).to_pylist()
    return found


def same(alone: Ran, run: Ran) -> None:
    assert (run.status, run.stdout) == (0, alone.stdout), run.stderr
    assert len(run.stdout.split()) == 3


@pytest.mark.parametrize(
    "command",
    [RESNET, GPT, (*GPT, "--amp"), (*GPT, "--checkpoint"), (*GPT, "--compile")],
    ids=["resnet18", "gpt", "amp", "checkpoint", "compile"],
)
def test_losses_do_not_change_and_launches_have_operators(
    native: Run, profiled: Run, python: str, command: tuple[str, ...]
) -> None:
    alone = native(python, *command)
    run = profiled(python, *command, options=("-c", "torch"))
    same(alone, run)
    table = rows(run, "operators", "operators")
    launches = sum(int(row["launches"]) for row in table)
    of_none = sum(int(row["launches"]) for row in table if row["operator"] == "(outside operators)")
    recorded = run.table("kernel_launch", ["ordinal"])
    assert launches == recorded.num_rows > 100
    assert of_none <= 0.005 * launches
    backward = [row for row in table if row["phase"] == "backward"]
    assert sum(int(row["launches"]) for row in backward) > 0.2 * launches
    modules = rows(run, "operators", "modules")
    placed = sum(int(row["launches"]) for row in modules if row["module"] != "(no module)")
    assert placed > 0.3 * launches


def test_peak_matches_torch(native: Run, profiled: Run, python: str) -> None:
    run = profiled(python, *GPT, options=("-c", "torch"))
    (peak_bytes,) = re.findall(r"peak_bytes=(\d+)", run.stderr)
    peak = [row for row in rows(run, "tensors", "peak") if row["device"] == 0]
    assert sum(int(row["bytes"]) for row in peak) == int(peak_bytes)
    categories = {
        row["category"]: row for row in rows(run, "tensors", "categories") if row["device"] == 0
    }
    assert {"parameter", "gradient", "optimizer state", "activation"} <= set(categories)
    known = [row for row in peak if row["operator"]]
    assert sum(int(row["bytes"]) for row in known) >= 0.995 * int(peak_bytes)
    # GPT-2's width and vocabulary, three layers: embeddings, blocks, norm and head, of four bytes
    width, vocabulary, length, layers = 768, 50_304, 128, 3
    block = 12 * width * width + 13 * width
    parameters = 2 * vocabulary * width + length * width + layers * block + 2 * width
    stored = sum(int(row["storage"]) for row in peak if row["category"] == "parameter")
    assert stored == 4 * parameters
    state = sum(int(row["storage"]) for row in peak if row["category"] == "optimizer state")
    assert state >= 8 * parameters


SAME_PLACES = """
import torch

N = 1 << 22
x = torch.full((N,), 3.0, device="cuda")
total = 0.0
for step in range(4):
    y = torch.mul(x, 2.0)  # at the same place each time
    del y
for step in range(4):
    z = torch.add(x[: N // 2], 1.0)  # in the first half of that place, and
    w = torch.add(x[N // 2 :], 1.0)  # in the second
    total += float(z[0]) + float(w[0])
    del z, w
print(total, 1, 1)
"""
EVERY_ACCESS = 4 * (1 << 22)  # bytes of x


@pytest.mark.parametrize("segments", ["", "expandable_segments:True"])
def test_accesses_by_tensor_with_reused_addresses(
    native: Run, profiled: Run, python: str, tmp_path: Path, segments: str
) -> None:
    program = tmp_path / "places.py"
    program.write_text(SAME_PLACES)
    environment = {"PYTORCH_CUDA_ALLOC_CONF": segments}
    alone = native(python, str(program), **environment)
    tools = ("-t", "access_count", "-t", "working_set", "-t", "hotness")
    run = profiled(python, str(program), options=tools, **environment)
    same(alone, run)
    found: dict[object, tuple[int, int]] = {}
    for row in rows(run, "access_count", "tensors"):  # of two lines, the additions
        tensors, bytes = found.get((row["operator"], row["shape"]), (0, 0))
        found[row["operator"], row["shape"]] = tensors + row["tensors"], bytes + row["bytes"]
    n = 1 << 22
    assert found["aten::mul", str(n)] == (4, 4 * EVERY_ACCESS)
    assert found["aten::add", str(n // 2)][0] == 8
    # `float` reads an element of each
    assert 0 <= found["aten::add", str(n // 2)][1] - 4 * EVERY_ACCESS < 100
    assert (1, (1 + 4 + 4) * EVERY_ACCESS) in found.values()
    unknown = sum(row["unknown"] for row in rows(run, "access_count", "kernels"))
    assert unknown == 0
    operators: dict[object, int] = {}
    for row in rows(run, "access_count", "operators"):
        operators[row["operator"]] = operators.get(row["operator"], 0) + int(row["bytes"])
    assert operators["aten::mul"] == operators["aten::add"] == 8 * EVERY_ACCESS
    assert operators["aten::fill_"] == EVERY_ACCESS
    sets = {row["operator"]: row for row in rows(run, "working_set", "operators")}
    assert sets["aten::mul"]["max"] == 2 * EVERY_ACCESS
    touched = {row["operator"]: row for row in rows(run, "working_set", "tensors")}
    assert touched["aten::mul"]["total"] == 4 * EVERY_ACCESS
    # counted over the run: of a place that several tensors held, the accesses are the segment's
    hot = rows(run, "hotness", "objects")
    assert sum(int(row["accesses"]) for row in hot) >= 17 * EVERY_ACCESS // 16
    assert max(hot, key=lambda row: int(row["accesses"]))["memory"] in ("tensor", "device")


def test_transformer_accesses_are_attributed_to_tensors(
    native: Run, profiled: Run, python: str
) -> None:
    small = (*GPT[:1], "--steps", "3", "--batch", "2", "--length", "64", "--layers", "2",
             "--width", "256", "--vocabulary", "2000")  # fmt: skip
    alone = native(python, *small)
    run = profiled(python, *small, options=("-t", "access_count", "-t", "coalescing"))
    same(alone, run)
    found = rows(run, "access_count", "tensors")
    every = sum(int(row["bytes"]) for row in rows(run, "access_count", "objects"))
    assert sum(int(row["bytes"]) for row in found) >= 0.99 * every
    categories = {row["category"] for row in found}
    assert {"parameter", "gradient", "optimizer state", "activation"} <= categories
    states = [row for row in found if row["category"] == "optimizer state"]
    parameters = [row for row in found if row["category"] == "parameter"]
    assert states and parameters
    assert all(row["operators"] for row in rows(run, "coalescing", "instructions"))


GRAPHS = """
import torch

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
model = model.cuda()
x = torch.ones(64, 256, device="cuda")
warm = torch.cuda.Stream()
with torch.cuda.stream(warm):
    model(x)
torch.cuda.synchronize()
graphs, outputs = [], []
for scale in (1.0, 2.0):  # handles of the first one's nodes are given again
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            other = torch.exp(x)
        y = model(x)
        if scale > 1:
            y = y.tanh()
        torch.cuda.current_stream().wait_stream(side)
        outputs.append(y + other[:, :8])
    graphs.append(graph)
for graph in (*graphs, graphs[0]):
    graph.replay()
torch.cuda.synchronize()
print(*(float(each.sum()) for each in outputs), 1)
"""


@pytest.mark.parametrize("source", ["sanitizer", "cupti"])
def test_graph_launches_have_the_capturing_operators(
    native: Run, profiled: Run, python: str, tmp_path: Path, source: str
) -> None:
    program = tmp_path / "graphs.py"
    program.write_text(GRAPHS)
    alone = native(python, str(program))
    options = ("-c", "torch", "--set", f"nvidia.source={source}")
    run = profiled(python, str(program), options=options)
    same(alone, run)
    launches = run.table("kernel_launch")
    replayed = sum(node is not None for node in launches["graph_node"].to_pylist())
    operators = {row["operator"]: row for row in rows(run, "operators", "operators")}
    assert not operators.get("(outside operators)", {}).get("launches")
    # 3 replays, one of them with tanh; exp only ever runs in graphs
    assert operators["aten::exp"]["launches"] == 3
    assert operators["aten::tanh"]["launches"] == 1
    assert replayed >= 3 * 5 + 1
    assert "aten::exp" not in {
        row["operator"] for row in rows(run, "operators", "operators") if row["calls"] > 2
    }
    modules = {str(row["module"]): row for row in rows(run, "operators", "modules")}
    linear = next(row for name, row in modules.items() if "(Linear)" in name)
    assert int(linear["launches"]) >= 4


DISTRIBUTED = """
import os, sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
torch.manual_seed(rank)
net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
net = DistributedDataParallel(net.cuda(), device_ids=[rank])
optimizer = torch.optim.Adam(net.parameters())
for _ in range(5):
    optimizer.zero_grad()
    net(torch.randn(64, 512, device="cuda")).square().mean().backward()
    optimizer.step()
total = torch.stack([each.detach().double().sum() for each in net.parameters()]).sum()
with open(sys.argv[1] + str(rank), "w") as file:  # one stdout would be mixed
    file.write(float(total).hex())
dist.destroy_process_group()
os._exit(0)  # PyTorch 2.13 can abort while Python finalizes, where its threads still drop graphs
"""


@pytest.mark.parametrize("options", [("-c", "torch"), ("-t", "access_count")], ids=" ".join)
def test_two_processes_with_nccl(
    native: Run, profiled: Run, python: str, tmp_path: Path, options: tuple[str, ...]
) -> None:
    if len(subprocess.check_output(["nvidia-smi", "-L"]).splitlines()) < 2:
        pytest.skip("one device: NCCL is tested with two")
    program = tmp_path / "ddp.py"
    program.write_text(DISTRIBUTED)
    command = (
        python,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(program),
    )
    alone = native(*command, str(tmp_path / "alone"))
    run = profiled(*command, str(tmp_path / "profiled"), options=options)
    assert (alone.status, run.status) == (0, 0), run.stderr
    for rank in "01":
        texts = [(tmp_path / f"{name}{rank}").read_text() for name in ("alone", "profiled")]
        assert texts[0] == texts[1]
    found = [path.parent for path in tmp_path.glob("run*/rank-*/results")]
    tool, table = ("operators", "operators") if options[0] == "-c" else ("access_count", "kernels")
    ranks = [path for path in found if (path / "results" / tool / f"{table}.parquet").exists()]
    reduced = 0
    for path in ranks:
        names = pq.read_table(path / "results" / tool / f"{table}.parquet").to_pylist()
        if options[0] == "-c":
            reduced += any("AddmmBackward0" in str(row["operator"]) for row in names)
        else:
            reduced += any("ncclDevKernel" in str(row["kernel"]) for row in names)
    assert reduced == 2, run.stderr


PAUSING = """
import torch

x = torch.ones(1 << 20, device="cuda")
for step in range(3000):
    y = x + 1
    y += x
    z = (y * x).relu()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    w = z.sigmoid()
for step in range(100):
    graph.replay()
print(float(w[0]) > 0, 1, 1)
"""


def test_operators_pause_in_samples(
    native: Run, profiled: Run, python: str, tmp_path: Path
) -> None:
    """Estimates by operator assume the proportions of followed launches; captured nodes have
    operators."""
    program = tmp_path / "pausing.py"
    program.write_text(PAUSING)
    alone = native(python, str(program))
    run = profiled(python, str(program), options=("-t", "access_count", "--sample"))
    same(alone, run)
    flags = run.table("kernel_launch", ["flags"])["flags"].to_pylist()
    # after 4,097 launches without probes, of which the last are within 4,096
    assert 3000 < sum(each & abi.FLAG_PAUSED != 0 for each in flags) < 9000
    found = {row["operator"]: row["estimate"] for row in rows(run, "access_count", "operators")}
    size = 4 << 20
    expected = {"aten::add": 2, "aten::add_": 3, "aten::mul": 3, "aten::clamp_min": 2}  # of relu
    for operator, times in expected.items():
        assert found[operator] == pytest.approx(3000 * times * size, rel=0.01)
    assert found["aten::sigmoid"] == pytest.approx(100 * 2 * size)


RESTING = """
import torch

x = torch.ones(1 << 20, device="cuda")
for step in range(3000):
    y = x + 1
    y += x
kept = [torch.empty(5000 + 300_000 * number, device="cuda") for number in range(8)]
del kept[3]
for step in range(1000):
    y = x + 1
    y += x
for step in range(200):
    for each in kept:
        each.sin_()
print(float(y[0]) == 3, 1, 1)
"""


def test_tensors_of_a_rest_have_records_when_a_launch_is_probed_again(
    native: Run, profiled: Run, python: str, tmp_path: Path
) -> None:
    """Tensors that live only between two probed launches have none, the others are found."""
    program = tmp_path / "resting.py"
    program.write_text(RESTING)
    alone = native(python, str(program))
    options = ("-t", "access_count", "--sample", "--set", "probes.spot-check=0")
    run = profiled(python, str(program), options=options)
    same(alone, run)
    assert run.table("kernel_launch", ["ordinal"]).num_rows > 9000
    allocated = run.table("tensor_alloc", ["bytes"])["bytes"].to_pylist()
    assert allocated.count(4 << 20) < 3000  # of 4,000 that were handed out
    found = {
        (row["object_bytes"] // 4 - 5000) // 300_000: row["estimate"]  # the size is rounded up
        for row in rows(run, "access_count", "objects")
        if "sin" in row["kernel"]
    }
    assert sorted(found) == [0, 1, 2, 4, 5, 6, 7]
    for number, bytes in found.items():
        assert bytes == pytest.approx(200 * 2 * 4 * (5000 + 300_000 * number), rel=0.01)
