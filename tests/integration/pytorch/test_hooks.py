"""The hooks in a program: how they are installed, and that their failures do not affect it."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.preload import RunDirectory
from tests.support.pytorch import TORCH, events, native, table

SHORT = """
import torch
print(float((torch.ones(3) * 2).sum()))
"""


@pytest.fixture
def program(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "program.py"
        path.write_text(text)
        return path

    return write


def test_hooks_are_invisible_to_the_program(pasta_preload, program) -> None:
    """Finders, module attributes, environment, threads and modules are unchanged."""
    path = program("""
import sys, os, threading
before = list(map(repr, sys.meta_path))
import torch
print(before == list(map(repr, sys.meta_path)), type(torch.__spec__.loader).__name__,
      type(torch.__loader__).__name__, threading.active_count(),
      sorted(name for name in sys.modules if "pasta" in name),
      torch.nn.modules.module._has_any_global_hook())
""")
    alone, done = native(sys.executable, path), pasta_preload(sys.executable, path, options=TORCH)
    assert (done.stdout, done.target_stderr) == (alone.stdout, alone.stderr)


@pytest.mark.parametrize("flags", ["-I", "-E", "-S -E", "-X importtime", "-W error", "-O", "-u"])
def test_with_interpreter_flags(pasta_preload, program, flags: str) -> None:
    setup = "import sys; sys.path += %r\n" % [each for each in sys.path if "site-packages" in each]
    path = program(setup + SHORT)
    done = pasta_preload(sys.executable, *flags.split(), path, options=TORCH)
    assert (done.exit_status, done.stdout) == (0, "6.0\n"), done.stderr
    assert {"aten::mul", "aten::sum"} <= {
        row["operator"] for row in table(done.run, "operators", "operators")
    }


def test_a_program_without_torch_leaves_no_run(pasta_preload) -> None:
    done = pasta_preload(sys.executable, "-c", "import json; print(1)", options=TORCH)
    assert (done.exit_status, done.stdout, done.runs) == (0, "1\n", [])


def test_tools_without_needs_install_no_hooks(pasta_preload, program) -> None:
    done = pasta_preload(sys.executable, program(SHORT), options=("-t", "kernel_freq"))
    assert (done.stdout, done.runs) == ("6.0\n", [])
    done = pasta_preload(
        sys.executable, program(SHORT), options=(*TORCH, "--set", "torch.follow=no")
    )
    assert (done.stdout, done.runs) == ("6.0\n", [])


HELD = """
import torch

torch.nn.Linear(64, 64)
held = torch.nn.BatchNorm1d(32).double()
print(sum(each.numel() for each in held.parameters()))
"""


def test_parameters_are_known_before_modules_run(pasta_preload, program) -> None:
    done = pasta_preload(sys.executable, program(HELD), options=("-t", "tensors"))
    assert (done.exit_status, done.stdout) == (0, "64\n")
    rows = table(done.run, "tensors", "categories")
    allocated = {row["category"]: row["allocated"] for row in rows}
    of_norm = 2 * 32 * (4 + 8)  # twice two vectors, as float and as double
    assert allocated["parameter"] == 65 * 64 * 4 + of_norm
    assert allocated["buffer"] >= of_norm
    assert set(allocated) == {"parameter", "buffer"}


UNTOLD = """
import threading, torch, pasta
from torch.autograd.profiler import record_function

net = torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(net.parameters())
for _ in range(3):
    with record_function("step"):
        optimizer.zero_grad()
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
thread = threading.Thread(target=lambda: torch.ones(3).exp())
thread.start()
thread.join()
pasta.stop()
torch.ones(3).sin()
pasta.start()
print(torch.ones(3).cos().numel())
"""


def test_operators_have_names_without_a_compiler(pasta_preload, program, tmp_path: Path) -> None:
    path = program(UNTOLD)
    full = pasta_preload(sys.executable, path, options=TORCH)
    with_it = full.run
    done = pasta_preload(
        sys.executable, path, options=TORCH,
        environment={"XDG_CACHE_HOME": str(tmp_path / "empty"), "CXX": "/nonexistent/c++"},
    )  # fmt: skip
    assert (done.exit_status, done.stdout, full.stdout) == (0, "3\n", "3\n")
    (line,) = (line for line in done.lines if "names of torch" in line)
    assert line == (
        "only the names of torch operators are recorded: no C++ compiler was found"
        " (install g++, or name one in CXX)"
    )

    (without,) = (each for each in done.runs if each.path != with_it.path)

    def calls(run: RunDirectory) -> Counter[str]:
        rows = table(run, "operators", "operators")
        return sum((Counter({row["operator"]: row["calls"]}) for row in rows), Counter())

    found, expected = calls(without), calls(with_it)
    # `torch.empty`, the test operator, is not among them
    assert found == expected
    assert found["aten::sin"] == 0 < found["aten::cos"]
    depths = {row["depth"] for row in events(without, "operator_begin")}
    assert depths == {row["depth"] for row in events(with_it, "operator_begin")}
    names = [row["name"] for row in events(without, "range_push")]
    assert names == [row["name"] for row in events(with_it, "range_push")]
    assert names.count("step") == 3
    categories = {row["category"]: row for row in table(without, "tensors", "categories")}
    assert categories["optimizer state"]["tensors"] >= 4
    assert categories["parameter"]["tensors"] == 2


def test_failing_compiler(pasta_preload, program, tmp_path: Path) -> None:
    done = pasta_preload(
        sys.executable, program(SHORT), options=TORCH,
        environment={"XDG_CACHE_HOME": str(tmp_path / "empty"), "CXX": "/bin/false"},
    )  # fmt: skip
    assert (done.exit_status, done.stdout) == (0, "6.0\n")
    (line,) = (line for line in done.lines if "only the names of torch operators" in line)
    assert "the C++ compiler failed (see " in line
    log = Path(line.partition("(see ")[2].rstrip(")"))
    assert "hooks.cpp" in log.read_text()


def test_unwritable_cache(pasta_preload, program, tmp_path: Path) -> None:
    done = pasta_preload(
        sys.executable, program(SHORT), options=TORCH,
        environment={"XDG_CACHE_HOME": "/proc/nowhere"},
    )  # fmt: skip
    assert (done.exit_status, done.stdout) == (0, "6.0\n")
    (line,) = (line for line in done.lines if "only the names of torch operators" in line)
    assert "/proc/nowhere/pasta/torch" in line and "is not writable" in line


def test_allocations_alone_compile_nothing(pasta_preload, program, tmp_path: Path) -> None:
    cache = tmp_path / "empty"
    failing = """
try:
    torch.empty(1 << 50)
except RuntimeError:
    torch.ones(3)  # by then the thread is known not to have the memory
"""
    done = pasta_preload(
        sys.executable, program(SHORT + failing), options=("-t", "memory_timeline"),
        environment={"XDG_CACHE_HOME": str(cache), "CXX": "/nonexistent/c++"},
    )  # fmt: skip
    assert (done.stdout, done.notes) == ("6.0\n", [])
    assert not (cache / "pasta" / "torch").exists()
    assert done.run.count("tensor_alloc") >= 3
    (mark,) = events(done.run, "mark")
    assert (mark["name"], mark["device"]) == (f"out of memory: {4 << 50} bytes", None)


REPORTS = """
import ctypes, torch
report = ctypes.CDLL(None)._ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE
def allocate(address, bytes, allocated, reserved):
    CUDA, index = 1, 2
    report(ctypes.c_void_p(address), ctypes.c_int64(bytes), ctypes.c_size_t(allocated),
           ctypes.c_size_t(reserved), ctypes.c_uint16(CUDA | index << 8))
allocated = 0
for i in range(600):
    allocated += 512
    allocate(4096 + 512 * i, 512, allocated, 1 << 20)
allocate(4096, -512, allocated - 512, 1 << 20)
allocate(1 << 20, 2048, allocated + 1536, 2 << 20)  # reserves
allocate(2 << 20, 512, allocated + 4096, 2 << 20)  # the report before was lost
print(allocated + 4096)
"""


def test_totals_of_an_allocator_are_recorded_where_they_do_not_follow(
    pasta_preload, program
) -> None:
    done = pasta_preload(sys.executable, program(REPORTS), options=("-t", "memory_timeline"))
    assert (done.stdout, done.notes) == (f"{600 * 512 + 4096}\n", [])
    # the first one, every 257th, where more is reserved, and after the lost report
    states = [(row["allocated"], row["reserved"]) for row in events(done.run, "allocator_state")]
    assert states == [
        *((number * 512, 1 << 20) for number in (1, 258, 515)),
        (600 * 512 + 1536, 2 << 20),
        (600 * 512 + 4096, 2 << 20),
    ]
    assert done.run.count("tensor_alloc") >= 602
    (row,) = table(done.run, "memory_timeline", "allocator")
    assert (row["peak_allocated"], row["largest_gap"]) == (600 * 512 + 4096, (2 << 20) - 308_736)


def test_modules_created_and_destroyed(pasta_preload, program) -> None:
    path = program("""
import torch
for number in range(3000):
    torch.nn.Linear(2, 2)(torch.ones(1, 2))
""")
    done = pasta_preload(sys.executable, path, options=("-c", "operators"))
    (linear,) = (
        row for row in table(done.run, "operators", "modules") if row["module"] == "Linear"
    )
    assert linear["calls"] == 3000


def test_concurrent_processes_build_once(pasta_preload, program, tmp_path: Path) -> None:
    compiler, log = tmp_path / "c++", tmp_path / "log"
    compiler.write_text(f'#!/bin/sh\necho "$@" >>{log}\nexec c++ "$@"\n')
    compiler.chmod(0o755)
    path = program("""
import os, subprocess, sys
if len(sys.argv) > 1:
    import torch
    os.write(1, b"%d\\n" % torch.ones(2).sum())  # at once: others write, too
else:
    children = [subprocess.Popen([sys.executable, __file__, "child"]) for _ in range(3)]
    sys.exit(sum(child.wait() for child in children))
""")
    done = pasta_preload(
        sys.executable, path, options=TORCH,
        environment={"XDG_CACHE_HOME": str(tmp_path / "empty"), "CXX": str(compiler)},
    )  # fmt: skip
    assert (done.exit_status, done.stdout) == (0, "2\n" * 3)
    assert len(done.runs) == 3
    compiled = re.findall(r"\S+\.cpp", log.read_text())
    assert compiled and len(compiled) == len(set(compiled))


def test_misbehaving_modules(pasta_preload, program) -> None:
    path = program("""
import torch
class Odd(torch.nn.Module):
    def named_modules(self, *arguments, **keywords): raise RuntimeError("mine")
    def parameters(self, *arguments): raise SystemExit(3)
    def forward(self, x): return x * 2
class Deep(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Odd()
    def forward(self, x):
        try:
            return self.inner(x) + None
        except TypeError as error:
            return self.inner(x)
for module in (Odd(), Deep(), Deep()):
    print(float(module(torch.ones(2)).sum()))
try:
    torch.ones(2) @ torch.ones(3)
except RuntimeError as error:
    print(type(error).__name__)
""")
    alone, done = native(sys.executable, path), pasta_preload(sys.executable, path, options=TORCH)
    assert (done.exit_status, done.stdout, done.target_stderr) == (0, alone.stdout, alone.stderr)
    assert not any("not followed" in line for line in done.lines)


def test_misbehaving_optimizers(pasta_preload, program) -> None:
    path = program("""
import torch
class Mine(torch.optim.Optimizer):
    def __init__(self, parameters): super().__init__(parameters, {})
    def step(self): self.param_groups = None
weight = torch.ones(2, requires_grad=True)
Mine([weight]).step()
print("stepped")
""")
    done = pasta_preload(sys.executable, path, options=TORCH)
    assert (done.exit_status, done.stdout) == (0, "stepped\n")
    assert any("an optimizer is not followed" in line for line in done.lines)


def test_tensors_without_memory(pasta_preload, program) -> None:
    path = program("""
import torch
from torch._subclasses import FakeTensorMode
sparse = torch.eye(3).to_sparse()
print((sparse @ torch.ones(3, 1)).sum().item())
nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
print((nested * 2).numel())
print((torch.ones(3, device="meta") + 1).device)
with FakeTensorMode():
    print((torch.ones(3) + 1).shape)
class Mine(torch.Tensor): pass
print(float((torch.ones(3).as_subclass(Mine) + 1).sum()))
print(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8).dequantize().sum().item())
""")
    alone, done = native(sys.executable, path), pasta_preload(sys.executable, path, options=TORCH)
    assert (done.exit_status, done.stdout) == (0, alone.stdout), done.stderr


def test_memory_that_is_used_again_with_another_size(pasta_preload, program) -> None:
    path = program("""
import torch
memory = bytearray(4096)
for elements in 16, 1024:
    whole = torch.frombuffer(memory, dtype=torch.float32, count=elements)
    whole[:16].sum()
print(whole.data_ptr())
""")
    done = pasta_preload(sys.executable, path, options=TORCH)
    address = int(done.stdout)
    created = [row for row in events(done.run, "tensor_create") if row["storage"] == address]
    assert {row["bytes"] for row in created if row["shape"] == "16"} == {64, 4096}


def test_threads_and_forks(pasta_preload, program) -> None:
    path = program("""
import os, threading, torch
def work():
    for _ in range(50): torch.ones(4) * 2
threads = [threading.Thread(target=work) for _ in range(4)]
[each.start() for each in threads]
[each.join() for each in threads]
child = os.fork()
if not child:
    torch.ones(3) * 3
    os._exit(0)
print(os.waitpid(child, 0)[1])
for _ in range(50): torch.ones(4) * 2
""")
    done = pasta_preload(sys.executable, path, options=TORCH)
    assert (done.exit_status, done.stdout) == (0, "0\n")
    found = [row for row in events(done.run, "operator_begin") if row["name"] == "aten::mul"]
    assert len(found) == 250
    assert len({row["thread"] for row in found}) == 5


def test_together_with_torchs_profiler(pasta_preload, program) -> None:
    path = program("""
import torch
with torch.profiler.profile(profile_memory=True, record_shapes=True, with_stack=True) as profile:
    torch.ones(300, 300) @ torch.ones(300, 300)
found = {each.key: each for each in profile.key_averages()}
print(found["aten::mm"].count, found["aten::mm"].self_cpu_memory_usage)
""")
    alone, done = native(sys.executable, path), pasta_preload(sys.executable, path, options=TORCH)
    assert (done.exit_status, done.stdout) == (0, alone.stdout)
    assert "aten::mm" in {row["operator"] for row in table(done.run, "operators", "operators")}


def test_events_of_killed_programs_are_kept(pasta_preload, program) -> None:
    path = program(SHORT + "import os; os.kill(os.getpid(), 9)\n")
    done = pasta_preload(sys.executable, path, options=TORCH)
    assert done.exit_status == -9
    assert "aten::sum" in {row["operator"] for row in table(done.run, "operators", "operators")}


def test_children_inherit_the_programs_environment(pasta_preload, program) -> None:
    """The compiler runs without the preloaded library."""
    assert "LD_PRELOAD" not in os.environ
    path = program("import torch, os; print(os.environ['LD_PRELOAD'].count('libpasta'))")
    assert pasta_preload(sys.executable, path, options=TORCH).stdout == "1\n"


def test_windows_of_steps_that_are_ranges(pasta_preload, program) -> None:
    """Ranges are followed while no window is open; operators are not."""
    path = program("""
import torch
a = torch.ones(3)
for number in range(9):
    with torch.profiler.record_function(f"step {number}"):
        torch.mul(a, a)
    torch.add(a, a)
""")
    steps = ("--window", "steps 1/4", "--set", "probes.step-range=step [0-9]")
    done = pasta_preload(sys.executable, path, options=("-t", "operators", *steps))
    calls = {row["operator"]: row["calls"] for row in table(done.run, "operators", "operators")}
    # the first range begins step 1: of steps 4 and 8, the ranges 3 and 7 with the operator behind
    assert (calls["aten::mul"], calls["aten::add"]) == (2, 2), done.stderr
