"""JAX on a GPU: every launch has an operator, and counts are those of jax.profiler."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.places import ROOT

from .conftest import Ran, Run

STEPS = 6
TRAIN = (str(ROOT / "examples" / "jax" / "mlp_train.py"), "--steps", str(STEPS), "--width", "256")
#: Nothing runs to choose algorithms; each kernel is launched by itself.
SMALL = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.05"}  # beside other tests
SINGLE = {"XLA_FLAGS": "--xla_gpu_autotune_level=0 --xla_gpu_enable_command_buffer=", **SMALL}
#: As many as possible are launched by CUDA graphs.
GRAPHS = {"XLA_FLAGS": "--xla_gpu_autotune_level=0 --xla_gpu_graph_min_graph_size=1", **SMALL}
QUIET = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
#: Prints whether an array is ready as soon as its address is known.
ADDRESS = """
import jax, jax.numpy as jnp
f = jax.jit(lambda x: jax.lax.fori_loop(0, 300, lambda i, y: jnp.tanh(y @ x), x))
x = jnp.ones((8192, 8192))
f(x).block_until_ready()
y = f(x)
y.unsafe_buffer_pointer(), y.on_device_size_in_bytes()
print(y.is_ready())
y.block_until_ready()
"""


@pytest.fixture(autouse=True)
def _jax() -> None:
    if not find_spec("jax"):
        pytest.skip("jax is not installed")


def rows(run: Ran, table: str) -> list[dict[str, object]]:
    path = run.directory / "results" / "operators" / f"{table}.parquet"
    found: list[dict[str, object]] = pq.read_table(path).to_pylist()
    return found


def by_instruction(run: Ran) -> Counter[str]:
    """Launches of each HLO instruction."""
    counts: Counter[str] = Counter()
    for row in rows(run, "modules"):
        found = re.search(r"\(([^()]+)\)$", str(row["module"]))
        if found and row["launches"]:
            counts[found[1]] += int(str(row["launches"]))
    return counts


def profiled_by_jax(directory: Path) -> Counter[str]:
    """Kernels of each HLO instruction of jit_train_step in jax.profiler's trace."""
    (path,) = directory.glob("plugins/profile/*/*.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    kernels = [
        each["args"]
        for each in events
        if "correlation_id" in each.get("args", {}) and not each["name"].startswith("Mem")
    ]
    return Counter(
        each["hlo_op"]
        for each in kernels
        if each.get("hlo_module", "").startswith("jit_train_step") and "hlo_op" in each
    )


@pytest.mark.parametrize("source", ["sanitizer", "cupti"])
@pytest.mark.parametrize("flags", [SINGLE, GRAPHS], ids=["single", "graphs"])
def test_launches_have_operators(
    native: Run, profiled: Run, python: str, flags: dict[str, str], source: str
) -> None:
    alone = native(python, *TRAIN, **flags, **QUIET)
    options = ("-t", "operators", "--set", f"nvidia.source={source}")
    run = profiled(python, *TRAIN, options=options, **flags, **QUIET)
    assert (run.status, run.stdout) == (alone.status, alone.stdout) and alone.status == 0
    table = rows(run, "operators")
    launches = sum(int(str(row["launches"])) for row in table)
    assert launches == run.table("kernel_launch", ["ordinal"]).num_rows > 5 * STEPS
    names = {str(row["operator"]) for row in table}
    assert {"jit_train_step", "dot_general"} <= names
    outside = [row for row in table if row["operator"] == "(outside operators)"]
    assert sum(int(str(row["launches"])) for row in outside) == 0
    (step,) = (row for row in table if row["operator"] == "jit_train_step")
    assert step["calls"] == STEPS
    backward = sum(int(str(row["launches"])) for row in table if row["phase"] == "backward")
    assert backward >= 2 * STEPS
    lines = {str(row["line"]) for row in rows(run, "lines") if row["launches"]}
    assert any(line.startswith("mlp_train.py:") and line.endswith(" mlp") for line in lines)
    assert json.loads((run.directory / "run.json").read_text())["sources"]["jax"]


@pytest.mark.parametrize("flags", [SINGLE, GRAPHS], ids=["single", "graphs"])
def test_counts_are_those_of_jax_profiler(
    native: Run, profiled: Run, python: str, tmp_path: Path, flags: dict[str, str]
) -> None:
    """Of the steps that jax.profiler sees, all but the first; it runs graphs' kernels singly."""
    trace = tmp_path / "trace"
    alone = native(python, *TRAIN, "--trace", str(trace), **flags, **QUIET)
    assert alone.status == 0, alone.stderr
    expected = profiled_by_jax(trace)
    assert sum(expected.values()) >= 5 * (STEPS - 1)
    options = ("-t", "operators", "--operator", "^jit_train_step$")
    found = by_instruction(profiled(python, *TRAIN, options=options, **flags, **QUIET))
    if flags == GRAPHS:  # instructions that share a kernel cannot be told apart in a graph
        found = Counter({"all": sum(found.values())})
        expected = Counter({"all": sum(expected.values())})
    wrong = {
        name: (count, found[name])
        for name, count in expected.items()
        if found[name] * (STEPS - 1) != count * STEPS
    }
    assert wrong == {}


@pytest.mark.parametrize("allocator", ["platform", "cuda_async"])
def test_buffers_are_objects(profiled: Run, python: str, allocator: str) -> None:
    """Each buffer has memory of its own, in newer versions a multiple of 2 MiB: the weights of 1024
    by 1024 of each step are objects of 4 MiB."""
    options = ("-t", "mem_trace", "--set", f"jax.allocator={allocator}")
    program = (*TRAIN[:-1], "1024")
    run = profiled(python, *program, options=options, **SINGLE, **QUIET)
    assert run.status == 0, run.stderr
    allocated = run.table("memory_alloc", ["memory", "bytes"]).to_pylist()
    found = Counter((each["memory"], each["bytes"]) for each in allocated)
    device = Counter[int]()
    for (memory, bytes), count in found.items():
        if memory in ("device", "pool"):
            device[bytes] += count
    assert device[1024 * 1024 * 4] >= STEPS, found
    assert max(device) < 1 << 30, found  # no pool


@pytest.mark.parametrize("source", ["sanitizer", "cupti"])
def test_arrays_are_tensors_in_the_pool(
    native: Run, profiled: Run, python: str, source: str
) -> None:
    """With XLA's own allocator; the weights of each step are read by the next one."""
    alone = native(python, *TRAIN, **SINGLE)
    options = ("-t", "tensors", "--set", "jax.arrays=true", "--set", f"nvidia.source={source}")
    run = profiled(python, *TRAIN, options=options, **SINGLE)
    assert (run.status, run.stdout) == (alone.status, alone.stdout) and alone.status == 0
    path = run.directory / "results" / "tensors" / "patterns.parquet"
    patterns = pq.read_table(path).to_pylist()
    made: Counter[tuple[str, str]] = Counter()
    for row in patterns:
        made[row["shape"], row["dtype"]] += row["allocations"]
    assert made["784,256", "float32"] >= STEPS and made["256,256", "float32"] >= STEPS, patterns
    lines = {str(row["line"]) for row in patterns if row["shape"] == "256,256"}
    assert any(line.startswith("mlp_train.py:") for line in lines), lines
    pools = run.table("memory_alloc", ["address", "bytes"]).to_pylist()
    tensors = run.table("tensor_alloc", ["address", "bytes"]).to_pylist()
    outside = [
        tensor
        for tensor in tensors
        if not any(
            pool["address"] <= tensor["address"]
            and tensor["address"] + tensor["bytes"] <= pool["address"] + pool["bytes"]
            for pool in pools
        )
    ]
    assert not outside, (outside, pools)
    assert run.table("tensor_free", ["address"]).num_rows >= 2 * (STEPS - 1)


def test_the_address_of_an_array_does_not_wait_for_it(native: Run, python: str) -> None:
    """So that listing arrays after an execution does not make the host wait."""
    done = native(python, "-c", ADDRESS, **SINGLE, **QUIET)
    assert (done.status, done.stdout) == (0, "False\n"), done.stderr
