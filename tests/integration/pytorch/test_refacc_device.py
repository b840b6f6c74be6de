"""The reference accelerator as a torch device, alone and under pasta-preload."""

from __future__ import annotations

import fcntl
import gc
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pasta import abi
from tests.support.places import ROOT
from tests.support.preload import base_environment
from tests.support.pytorch import TORCH, events, native, table

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional

#: The extension may have to be built first.
pytestmark = pytest.mark.timeout(300)

EXAMPLES = ROOT / "examples" / "torch"
MLP = EXAMPLES / "refacc_mlp.py"


@pytest.fixture(scope="session")
def refacc(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The device's module; one of several workers builds it."""
    with open(tmp_path_factory.getbasetemp().parent / "refacc.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sys.path.append(str(EXAMPLES))
        import torch_refacc as module
    return module


@pytest.fixture(autouse=True)
def _built(refacc: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    others = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{EXAMPLES}:{others}" if others else str(EXAMPLES))
    yield
    refacc.synchronize()  # a faulting kernel would be detected here


def run(program: str, *arguments: str | Path, environment: Any = None) -> Any:
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True,
        timeout=60, env={**base_environment(), **(environment or {})},
    )  # fmt: skip


def assert_same(compute: Callable[..., Any], *given: Any, tolerance: float = 1e-5) -> None:
    """Results of `compute`, and gradients of the inputs, equal those of the CPU."""

    def on(device: str) -> list[Any]:
        inputs = [
            each.detach().to(device).requires_grad_(each.requires_grad)
            if isinstance(each, torch.Tensor) else each
            for each in given
        ]  # fmt: skip
        output = compute(*inputs)
        weights = torch.linspace(-1, 1, max(1, output.numel())).reshape(output.shape).to(device)
        wanted = [each for each in inputs if getattr(each, "requires_grad", False)]
        gradients = torch.autograd.grad((output * weights).sum(), wanted) if wanted else ()
        assert {each.device.type for each in (output, *gradients)} == {device}
        return [output.detach().cpu(), *(each.cpu() for each in gradients)]

    torch.testing.assert_close(on("refacc"), on("cpu"), rtol=tolerance, atol=tolerance)


def random(*size: int, seed: int = 0, grad: bool = True) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*size, generator=generator).requires_grad_(grad)


# ---- operators -------------------------------------------------------------------------------

#: Computations by name: elements, broadcasts, views, sums, products, losses.
OPERATORS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "exp": (torch.exp, (random(4, 5),)),
    "log": (lambda x: (x.abs() + 1).log(), (random(4, 5),)),
    "sqrt, rsqrt": (lambda x: (x * x + 1).sqrt() + (x * x + 1).rsqrt(), (random(4, 5),)),
    "sigmoid, tanh": (lambda x: x.sigmoid() + x.tanh(), (random(4, 5),)),
    "relu": (functional.relu, (random(4, 5),)),
    "relu of NaN": (lambda x: functional.relu(x / 0).isnan().float(), (torch.zeros(3),)),
    "power": (lambda x: x**3 + x**2, (random(4, 5),)),
    "add": (lambda a, b: torch.add(a, b, alpha=0.3), (random(4, 5), random(4, 1, seed=1))),
    "subtract": (lambda a, b: 3 - torch.sub(a, b, alpha=2), (random(4, 5), random(5, seed=1))),
    "multiply": (lambda a, b: 2 * a * b, (random(2, 3, 4), random(3, 1, seed=1))),
    "divide": (lambda a, b: a / (b * b + 1) / 3, (random(4, 5), random(4, 5, seed=1))),
    "scalar tensor": (lambda x: x * torch.tensor(2.0, dtype=torch.float64), (random(4, 5),)),
    "transposed": (lambda x: (x.t() + 1).contiguous(), (random(4, 5),)),
    "six dimensions": (
        lambda x: x.permute(5, 3, 1, 0, 2, 4).contiguous() * x.permute(5, 3, 1, 0, 2, 4).flip(0),
        (random(2, 3, 2, 3, 2, 3),),
    ),
    "strided": (lambda x: x[:, ::2][1:].clone(), (random(4, 9),)),
    "sum": (lambda x: x.sum(), (random(300, 71),)),
    "sum of rows": (lambda x: x.sum((0, 2), keepdim=True), (random(3, 40, 5),)),
    "sum of a view": (lambda x: x.permute(2, 0, 1).sum(1), (random(3, 4, 5),)),
    "sum of nothing": (lambda x: x[:0].sum(0), (random(3, 4),)),
    "mean": (lambda x: x.mean(-1) + x.mean(), (random(3, 4),)),
    "mm": (torch.mm, (random(33, 17), random(17, 20, seed=1))),
    "mm of views": (lambda a, b: a.t() @ b.t(), (random(17, 33), random(20, 17, seed=1))),
    "mm of depth 0": (torch.mm, (random(3, 0), random(0, 4))),
    "addmm": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2),
        (random(20), random(33, 17, seed=1), random(17, 20, seed=2)),
    ),
    "baddbmm": (
        torch.baddbmm, (random(3, 5, 7), random(3, 5, 6, seed=1), random(3, 6, 7, seed=2)),
    ),
    "mv": (torch.mv, (random(4, 5), random(5, seed=1))),
    "softmax": (lambda x: functional.softmax(x, 1), (random(3, 40, 5),)),
    "log_softmax": (lambda x: functional.log_softmax(x, -1), (random(3, 4, 50),)),
    "cross entropy": (
        lambda x: functional.cross_entropy(x, torch.arange(300).to(x.device) % 10),
        (random(300, 10),),
    ),
    "weighted, some ignored": (
        lambda x, w: functional.nll_loss(
            x, torch.tensor([1, 0, -100, 3]).to(x.device), w, reduction="sum"
        ),
        (random(4, 5), torch.rand(5)),
    ),
    "loss of each": (
        lambda x: functional.nll_loss(x, torch.tensor([1, 0]).to(x.device), reduction="none"),
        (random(2, 5),),
    ),
    "mse": (functional.mse_loss, (random(4, 5), random(4, 5, seed=1))),
    "mse of each": (
        lambda a, b: functional.mse_loss(a, b, reduction="none"),
        (random(4, 5), random(4, 5, seed=1)),
    ),
    "lerp, addcmul, addcdiv": (
        lambda a, b: torch.lerp(a, b, 0.8).addcmul(a, b, value=0.5).addcdiv(a, b * b + 1),
        (random(4, 5), random(4, 5, seed=1)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_with_kernels(name: str) -> None:
    compute, given = OPERATORS[name]
    assert_same(compute, *given)


CONVOLUTIONS = [
    {}, {"stride": 2}, {"padding": (1, 2), "stride": (2, 1)}, {"dilation": 2, "padding": 2},
    {"groups": 2},
]  # fmt: skip


@pytest.mark.parametrize("how", CONVOLUTIONS, ids=str)
def test_convolutions(how: dict[str, Any]) -> None:
    groups = how.get("groups", 1)
    image, bias = random(2, 4, 9, 8), random(6, seed=2)
    weight, transposed = random(6, 4 // groups, 3, 3, seed=1), random(4, 6 // groups, 3, 3, seed=1)
    assert_same(lambda *x: functional.conv2d(*x, **how), image, weight, bias, tolerance=1e-4)
    assert_same(
        lambda *x: functional.conv_transpose2d(*x, **how), image, transposed, bias, tolerance=1e-4
    )


#: Operators without kernels, or of other types: computed on the CPU.
FALLBACKS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "cumsum": (lambda x: x.cumsum(0), (random(4, 5),)),
    "layer norm": (lambda x: functional.layer_norm(x, (5,)), (random(4, 5),)),
    "batch norm": (
        lambda x: functional.batch_norm(x, None, None, training=True), (random(4, 3, 5, 5),),
    ),
    "max pooling": (lambda x: functional.max_pool2d(x, 2), (random(2, 3, 6, 6),)),
    "embedding": (
        lambda w: functional.embedding(torch.tensor([[1, 2], [0, 6]]).to(w.device), w),
        (random(7, 3),),
    ),
    "cat, where": (lambda x: torch.cat([x, torch.where(x > 0, x, -x)], 1), (random(4, 5),)),
    "double": (lambda x: (x.double() @ x.double().t()).float(), (random(4, 5),)),
    "integers": (
        lambda x: (x * 9).long() % 4 + torch.arange(5).to(x.device), (random(4, 5, grad=False),),
    ),
    "conjugate": (
        lambda x: torch.view_as_real(torch.complex(x, x * 2).conj() + 0),
        (random(4, 5, grad=False),),
    ),
    "conv3d": (functional.conv3d, (random(2, 3, 4, 5, 6), random(4, 3, 2, 2, 2, seed=1))),
    "dropout": (
        lambda x: (torch.manual_seed(3), functional.dropout(x, 0.5))[1], (random(4, 5),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FALLBACKS)
def test_operators_with_cpu_fallback(name: str) -> None:
    compute, given = FALLBACKS[name]
    assert_same(compute, *given, tolerance=1e-4)


TYPES = ["float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool", "complex64",
         "complex128"]  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_copies_and_fills_of_every_dtype(name: str) -> None:
    dtype = getattr(torch, name)
    values = (random(4, 6, grad=False) * 3).to(dtype)
    there = values.to("refacc")
    assert torch.equal(there.cpu(), values)
    assert torch.equal(there.t()[::2, 1:].clone().cpu(), values.t()[::2, 1:])
    there[:, 1::2] = values[:, ::2].to("refacc")
    there[1].fill_(1)
    values[:, 1::2] = values[:, ::2].clone()
    values[1] = 1
    assert torch.equal(there.cpu(), values)
    assert not there.zero_().cpu().any()


#: Invalid operands.
WRONG: dict[str, Callable[[Any], Any]] = {
    "shapes of mm": lambda ones: ones(2, 3) @ ones(4, 3),
    "dimensions of mm": lambda ones: torch.mm(ones(2, 3, 1), ones(4, 3)),
    "batches": lambda ones: torch.bmm(ones(2, 3, 4), ones(3, 4, 3)),
    "addend": lambda ones: torch.addmm(ones(5), ones(2, 3), ones(3, 4)),
    "addend in place": lambda ones: ones(1, 4).addmm_(ones(2, 3), ones(3, 4)),
    "vector": lambda ones: torch.mv(ones(2, 3), ones(2)),
    "broadcast": lambda ones: ones(3) + ones(4),
    "broadcast in place": lambda ones: ones(3).add_(ones(2, 3)),
    "type in place": lambda ones: ones(3).long().add_(ones(3)),
    "alpha": lambda ones: torch.add(ones(3), ones(3), alpha=True),
    "targets": lambda ones: functional.nll_loss(ones(3, 2), ones(2).long()),
    "weights": lambda ones: functional.nll_loss(ones(3, 2), ones(3).long(), ones(3)),
    "dimension": lambda ones: functional.softmax(ones(3, 2), 5),
    "dimension twice": lambda ones: ones(3, 2).sum((0, 0)),
    "mean of integers": lambda ones: ones(3).long().mean(),
    "type of the result": lambda ones: torch.mm(ones(2, 2), ones(2, 2), out=ones(2, 2).double()),
    "channels": lambda ones: functional.conv2d(ones(1, 2, 3, 3), ones(1, 3, 3, 3)),
    "overlap": lambda ones: ones(1).expand(3).add_(1),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_match_the_cpu(name: str) -> None:
    said = []
    for device in ("cpu", "refacc"):
        with pytest.raises(Exception) as error:
            WRONG[name](lambda *size, device=device: torch.ones(*size, device=device))
        said.append((error.type, str(error.value)))
    assert said[0] == said[1]


# ---- training --------------------------------------------------------------------------------


def trained(device: str, optimizer: str) -> tuple[list[float], list[Any]]:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(144, 32), nn.ReLU(),
        nn.Linear(32, 5),
    ).to(device)  # fmt: skip
    steps = {"lr": 0.05, "momentum": 0.9} if optimizer == "SGD" else {"lr": 0.01}
    optimize = getattr(torch.optim, optimizer)(net.parameters(), **steps)
    x, y = random(20, 2, 6, 6, grad=False).to(device), (torch.arange(20) % 5).to(device)
    losses = []
    for _ in range(4):
        optimize.zero_grad()
        loss = functional.cross_entropy(net(x), y)
        loss.backward()
        optimize.step()
        losses.append(loss.item())
    return losses, [each.detach().cpu() for each in net.parameters()]


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_training_matches_the_cpu(optimizer: str) -> None:
    losses, parameters = trained("refacc", optimizer)
    expected_losses, expected = trained("cpu", optimizer)
    assert losses[-1] < losses[0]
    torch.testing.assert_close(losses, expected_losses, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(parameters, expected, rtol=1e-3, atol=1e-4)


def test_backward_on_several_threads() -> None:
    failed: list[BaseException] = []

    def compute(seed: int) -> None:
        try:
            assert_same(lambda x: (x @ x.t()).relu().sum(), random(20, 30, seed=seed))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=compute, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


# ---- memory ----------------------------------------------------------------------------------


def test_memory_is_freed_and_reused(refacc: Any) -> None:
    gc.collect()
    before = refacc.memory_allocated()
    held = [torch.empty(1000, device="refacc") for _ in range(8)]
    assert refacc.memory_allocated() - before == 8 * 4096
    segments = refacc.memory_stats()["segments"]
    places = {each.data_ptr() for each in held}
    assert len(places) == 8
    del held
    assert refacc.memory_allocated() == before
    again = torch.empty(1000, device="refacc")
    assert again.data_ptr() in places
    assert refacc.memory_stats()["segments"] == segments
    del again
    refacc.empty_cache()
    assert refacc.memory_reserved() >= refacc.memory_allocated() == before


def test_freed_blocks_are_merged(refacc: Any) -> None:
    """Blocks of all sizes, freed in any order, keep their contents and leave no memory behind."""
    gc.collect()
    before = refacc.memory_allocated()
    held = {}
    for step in range(200):
        number = step * 37 % 50
        if number in held:
            assert (held.pop(number).cpu() == number).all()
        held[number] = torch.full(((7 * step) % 40 * 100 + 1,), number, device="refacc")
    del held[number]
    for number in sorted(held, key=lambda each: each * 13 % 50):
        assert (held.pop(number).cpu() == number).all()
    assert refacc.memory_allocated() == before
    refacc.empty_cache()
    assert before or refacc.memory_reserved() == 0


def test_memory_used_by_another_stream_is_not_reused(refacc: Any) -> None:
    other = refacc.Stream()
    matrix = random(200, 200, grad=False).to("refacc")
    refacc.synchronize()
    with refacc.stream(other):
        product = matrix @ matrix
    place = matrix.data_ptr()
    matrix.record_stream(other)
    expected = matrix.cpu() @ matrix.cpu()
    del matrix
    after = torch.zeros(200, 200, device="refacc")
    assert after.data_ptr() != place or other.query()
    other.synchronize()
    torch.testing.assert_close(product.cpu(), expected, rtol=1e-4, atol=1e-3)


OUT_OF_MEMORY = """
import torch, torch_refacc as refacc
held = torch.empty(3 << 20, dtype=torch.uint8, device="refacc")
cached = torch.empty(3 << 20, dtype=torch.uint8, device="refacc")
del cached
torch.empty(12 << 20, dtype=torch.uint8, device="refacc").fill_(1)  # what is cached is given back
try:
    torch.empty(32 << 20, dtype=torch.uint8, device="refacc")
except torch.OutOfMemoryError as error:
    print(error)
print(int(held.fill_(7).cpu().sum()) == 7 * held.numel(), refacc.memory_stats()["out_of_memory"])
"""


def test_out_of_memory() -> None:
    done = run(OUT_OF_MEMORY, environment={"REFACC_MEMORY": "24"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "refacc:0 is out of memory: 32.00 MiB were asked for, tensors have 3.00 MiB of 24.00 MiB"
        " (REFACC_MEMORY sets it)",
        "True 1",
    ]


# ---- streams, devices, processes ---------------------------------------------------------------


def test_streams_and_events(refacc: Any) -> None:
    stream = refacc.Stream()
    start, end = (refacc.Event(enable_timing=True) for _ in range(2))
    matrix = random(150, 150, grad=False).to("refacc")
    refacc.synchronize()
    with refacc.stream(stream):
        assert refacc.current_stream() == stream != refacc.default_stream()
        start.record(stream)
        product = matrix @ matrix
        end.record(stream)
    assert refacc.current_stream() == refacc.default_stream()
    refacc.default_stream().wait_event(end)
    torch.testing.assert_close(product.cpu(), matrix.cpu() @ matrix.cpu(), rtol=1e-4, atol=1e-3)
    stream.synchronize()
    assert end.query() and stream.query()
    assert start.elapsed_time(end) > 0.05  # ms


def test_pinned_memory_and_saved_tensors() -> None:
    pinned = torch.arange(5.0).pin_memory()
    assert pinned.is_pinned() and not torch.ones(5).is_pinned()
    there = pinned.to("refacc", non_blocking=True)
    file = io.BytesIO()
    torch.save(there, file)
    for place, device in ((None, "refacc"), ("cpu", "cpu")):
        file.seek(0)
        read = torch.load(file, map_location=place)
        assert read.device.type == device
        assert torch.equal(read.cpu(), pinned)


DEVICES = """
import torch, torch_refacc as refacc
x = torch.arange(12., device="refacc:1").view(3, 4)
with refacc.device(1):
    y = torch.ones(4, 2, device="refacc")
print(refacc.device_count(), refacc.current_device(), y.device, (x @ y).sum().item(),
      x.t().to("refacc:0").sum().item())
w = torch.ones(4, 2, device="refacc:1", requires_grad=True)
(x @ w).sum().backward()
print(w.grad.device, w.grad.sum().item())
try:
    torch.empty(1, device="refacc:2")
except RuntimeError as error:
    print(error)
"""


def test_two_devices() -> None:
    done = run(DEVICES, environment={"REFACC_DEVICES": "2"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "2 0 refacc:1 132.0 66.0", "refacc:1 132.0",
        "there is no device refacc:2 (REFACC_DEVICES gives 2)",
    ]  # fmt: skip


FORK = """
import os, sys, torch, torch_refacc as refacc
early = os.fork()  # before the first use, a child may have its own
if not early:
    sys.exit(int(torch.ones(3, device="refacc").sum().item()))
x = torch.ones(3, device="refacc")
late = os.fork()
if not late:
    try:
        x + 1
    except RuntimeError as error:
        print(error)
    del x
    torch.manual_seed(0)
    print(refacc._is_in_bad_fork(), float((torch.ones(2) * 2).sum()), flush=True)
    os._exit(0)
ended = [os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in (early, late)]
print(*ended, x.sum().item())
"""


def test_forked_children() -> None:
    done = run(FORK)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "refacc was used before this process was forked and cannot be used in it: start processes"
        " with the method 'spawn'",
        "True 4.0",
        "3 0 3.0",
    ]


def test_target_out_of_range_fails_the_launch() -> None:
    done = run("""
import torch, torch_refacc as refacc
targets = torch.tensor([0, 3], device="refacc")
torch.nn.functional.nll_loss(torch.ones(2, 3, device="refacc"), targets)
try:
    refacc.synchronize()
except RuntimeError as error:
    print(error)
""")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("refacc: ra_device_synchronize: a kernel accessed memory")


def test_unusable_environments_are_reported(tmp_path: Path) -> None:
    without = run("import sys; sys.modules['torch'] = None; import torch_refacc")
    assert "ImportError: torch_refacc needs PyTorch" in without.stderr
    environment = {"XDG_CACHE_HOME": str(tmp_path), "CXX": "/nonexistent/c++"}
    without = run("import torch_refacc", environment=environment)
    assert without.stderr.splitlines()[-1] == (
        "ImportError: refacc, as a torch device, cannot be built: no C++ compiler was found"
        " (install g++, or name one in CXX)"
    )
    taken = run("""
import torch
torch.utils.rename_privateuse1_backend("other")
import torch_refacc
""")
    assert "ImportError: torch has room for one device of an extension" in taken.stderr


# ---- torch's profiler --------------------------------------------------------------------------

PROFILED = """
import json, sys, torch
import torch_refacc
torch.manual_seed(0)
x, w = (torch.randn(320, 320).to("refacc") for _ in range(2))
w.requires_grad_()
with torch.autograd.profiler.profile(use_device="refacc", record_shapes=True) as profile:
    with torch.autograd.profiler.record_function("forward"):
        loss = (x @ w).relu().mean()
    loss.backward()
keys = profile.key_averages()
profile.export_chrome_trace(sys.argv[1])
print(json.dumps({each.key: [each.count, each.self_device_time_total, each.device_time_total]
                  for each in keys}))
shapes = [each.input_shapes for each in profile.key_averages(group_by_input_shape=True)
          if each.key == "aten::mm"]
assert shapes == [[[320, 320], [320, 320]]], shapes
print(keys.table(sort_by="self_device_time_total"), file=sys.stderr)
"""


def test_operator_device_time_matches_kernels(pasta_preload, tmp_path: Path) -> None:
    """torch's profiler measures between events in the stream, PASTA each kernel, in one run."""
    trace = tmp_path / "trace.json"
    program = tmp_path / "profiled.py"
    program.write_text(PROFILED)
    done = pasta_preload(sys.executable, program, trace, options=TORCH)
    assert done.exit_status == 0, done.stderr
    times = json.loads(done.stdout)
    complete = events(done.run, "kernel_complete")
    kernels = sum(row["end"] - row["start"] for row in complete) / 1e3
    total = sum(own for _, own, _ in times.values())
    assert kernels <= 1.02 * total
    assert total <= 1.5 * kernels  # the stream was rarely idle
    assert times["aten::mm"][0] == 2
    assert times["aten::mm"][1] > 0.8 * total  # that takes most of the time
    assert times["forward"][2] >= times["aten::relu"][2] > 0
    assert times["forward"][1] < 0.2 * times["forward"][2]
    assert "Self REFACC" in done.stderr and "REFACC total" in done.stderr
    traced = json.loads(trace.read_text())["traceEvents"]
    assert {"aten::mm", "aten::relu", "forward"} <= {each.get("name") for each in traced}


# ---- under PASTA -------------------------------------------------------------------------------


def test_launches_have_operators_and_peak_has_tensors(pasta_preload) -> None:
    arguments = (MLP, "--steps=2", "--batch=32")
    alone = native(sys.executable, *arguments)
    done = pasta_preload(sys.executable, *arguments, options=TORCH)
    assert (done.exit_status, done.stdout, done.target_stderr) == (0, alone.stdout, alone.stderr)

    operators = table(done.run, "operators", "operators")
    launches = len(events(done.run, "kernel_launch"))
    assert sum(row["launches"] for row in operators) == launches > 30
    assert "100.00% of them by operators" in done.run.report
    addmm = [row for row in operators if row["operator"] == "aten::addmm"]
    assert sum(row["launches"] for row in addmm) == 4  # two layers, two steps
    assert all(row["device_time"] > 0 for row in addmm)

    peak = [row for row in table(done.run, "tensors", "peak") if row["device"] == 0]
    assert {"parameter", "activation", "optimizer state"} <= {row["category"] for row in peak}
    parameters = sorted(row["shape"] for row in peak if row["category"] == "parameter")
    assert parameters == ["10", "10,64", "64", "64,32"]


def test_launches_of_two_passes_are_joined_by_operator(pasta_preload) -> None:
    """Bytes of one pass and times of the other belong to the same operators, on all threads."""
    tools = ("-t", "kernel_freq", "-t", "access_count")
    options = ("-c", "torch", "--passes", "auto", *tools, "-o", "run")
    done = pasta_preload(sys.executable, MLP, options=options)
    assert done.exit_status == 0, done.stderr
    joined = done.directory / "run" / "results" / "joined"
    found = {
        name: pq.read_table(joined / f"{name}.parquet").to_pylist()
        for name in ("kernels", "operators", "unmatched")
    }
    launches = sum(row["joined"] for row in found["kernels"])
    assert launches > 50 and found["unmatched"] == []
    assert sum(row["joined"] for row in found["operators"]) == launches
    notes = json.loads((joined / "result.json").read_text())["notes"]
    assert not any("joined only by kernel, grid and block" in note for note in notes)
    (relu,) = (row for row in found["operators"] if row["operator"] == "aten::relu")
    # 64 rows of 64 floats are read and written
    assert (relu["read_bytes"], relu["write_bytes"]) == (64 * 64 * 4, 64 * 64 * 4)
    assert relu["line"].startswith("refacc_mlp.py:")


def test_launches_in_a_module_are_selected_and_probed(pasta_preload) -> None:
    """Those of its forward operators and of their gradients: what libpasta probes contains what the
    filter keeps."""
    options = ("-t", "access_count", "--module", "ReLU", "--exclude", "nothing")
    done = pasta_preload(sys.executable, MLP, options=options)
    assert done.exit_status == 0, done.stderr
    launches = events(done.run, "kernel_launch")
    assert len(launches) == 2 * 3  # steps
    assert all(row["flags"] & abi.FLAG_PROBED for row in launches)
    assert done.run.manifest["launches"]["seen"] > 50
    begun = {row["name"] for row in events(done.run, "operator_begin")}
    assert {"aten::relu", "aten::mm"} <= begun  # operators are kept


PAUSING = """
import sys
import torch, torch_refacc
import pasta
from torch.profiler import record_function
x = torch.randn(16, 16).to("refacc")
for step in range(3000):
    with record_function("step"):
        y = x + 1
        y += x
        z = (y * x).relu()
    if step == 2500:
        z.sigmoid()
with pasta.profile("operators") as run:
    for _ in range(10):
        x + 1
calls = {row["operator"]: row["calls"] for row in run.arrow("operators", "operators").to_pylist()}
print(calls["aten::add"])
"""


@pytest.mark.parametrize("setting", [None, "torch.pause=false"])
def test_operators_pause_while_no_launch_is_to_be_probed(
    pasta_preload, tmp_path: Path, setting: str | None
) -> None:
    """Estimates assume the proportions of followed launches; ranges and blocks are complete."""
    program = tmp_path / "pausing.py"
    program.write_text(PAUSING)
    options = ["-t", "access_count", "--sample", *(["--set", setting] if setting else [])]
    done = pasta_preload(sys.executable, program, options=tuple(options))
    assert (done.exit_status, done.stdout) == (0, "10\n"), done.stderr
    launches = events(done.run, "kernel_launch")
    paused = [row for row in launches if row["flags"] & abi.FLAG_PAUSED]
    begun = len(events(done.run, "operator_begin"))
    assert len([row for row in events(done.run, "range_push") if row["name"] == "step"]) == 3000
    rows = table(done.run, "access_count", "operators")
    found = {row["operator"]: row["estimate"] for row in rows}
    summary = json.loads((done.run.path / "results" / "access_count" / "result.json").read_text())
    told = "operators were paused in" in summary["summary"]
    if setting:
        assert not paused and not told and begun > 18_000
        found["(no operator)"] = found.pop("aten::sigmoid")
    else:
        # up to sigmoid; after 4,097 launches without probes, of which the last are within 4,096
        assert 1500 < len(paused) < 7000 and told and begun < 16_000
    probed = table(done.run, "access_count", "probed")
    assert abs(sum(row["launches"] for row in probed) - len(launches)) <= len(probed)
    assert all(row["probed"] for row in probed)
    size = 16 * 16 * 4
    expected = {
        "aten::add": 3010 * 2 * size, "aten::add_": 3000 * 3 * size, "aten::mul": 3000 * 3 * size,
        "aten::relu": 3000 * 2 * size, "(no operator)": 2 * size,
    }  # fmt: skip
    assert sum(found.values()) == pytest.approx(sum(expected.values()), rel=0.001)
    assert found == pytest.approx(expected, rel=0.01)
