"""Managed memory on a real GPU: faults and migrations by CUPTI, the advice, and its plan. The
managed working set always fits into the free device memory: examples/cuda/managed.cu checks it.
"""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from .conftest import Build, Ran, Run

FAULTS = ("--set", "nvidia.source=cupti", "--set", "nvidia.uvm=true", "-t", "uvm_advisor")
FLOATS = 1 << 22
BYTES = 4 * FLOATS
ARGUMENTS = ("--n", str(FLOATS), "--iterations", "3")
CORRECT = f"managed: 3 iterations over {FLOATS} elements, correct\n"


def rows(run: Ran, table: str, *columns: str) -> list[tuple[Any, ...]]:
    read = pq.read_table(run.directory / "results" / "uvm_advisor" / f"{table}.parquet")
    return list(zip(*(read[name].to_pylist() for name in columns), strict=True))


def first_iteration(run: Ran) -> float:
    """Milliseconds of the device in the first iteration, by the program's own events."""
    found = re.search(r"iteration 0: ([\d.]+) ms", run.stderr)
    assert found, run.stderr
    return float(found[1])


@pytest.mark.parametrize("cudart", ["shared", "static"])
def test_faults_and_migrations(example: Build, profiled: Run, cudart: str) -> None:
    run = profiled(example("managed", cudart), *ARGUMENTS, options=FAULTS)
    assert (run.status, run.stdout) == (0, CORRECT), run.stderr
    objects = rows(run, "objects", "object_bytes", "faults", "to_device", "to_host")
    assert len(objects) == 3
    for size, faults, to_device, to_host in objects:
        assert size == BYTES and faults > 0, run.stderr
        # whole blocks may move; nothing is evicted
        assert to_host <= 4 * BYTES and to_device <= 4 * BYTES
    moved = sum(row[2] + row[3] for row in objects)
    (simulated,) = (
        bytes
        for plan, factor, bytes in rows(run, "simulation", "plan", "factor", "moved")
        if (plan, factor) == ("no plan", 1.0)
    )
    assert abs(simulated - moved) <= 0.1 * moved


def test_the_plan_makes_the_first_pass_faster(
    example: Build, profiled: Run, native: Run, tmp_path: Path
) -> None:
    """A plan from accesses alone."""
    program = example("managed", "static")
    run = profiled(program, *ARGUMENTS, options=("-t", "uvm_advisor"))
    plan = tmp_path / "plan.toml"
    plan.write_bytes((run.directory / "results" / "uvm_advisor" / "plan.toml").read_bytes())
    options = ("--backend", "none", "-t", "kernel_freq", "--apply-uvm-plan", str(plan))
    alone, planned = [], []
    for _ in range(5):
        alone.append(first_iteration(native(program, *ARGUMENTS)))
        done = profiled(program, *ARGUMENTS, options=options)
        assert done.stdout == CORRECT and "matched nothing" not in done.stderr, done.stderr
        planned.append(first_iteration(done))
    assert statistics.median(alone) >= 1.3 * statistics.median(planned), (alone, planned)


def test_accesses_of_managed_memory(example: Build, profiled: Run) -> None:
    """By probes, under the Sanitizer, which reports neither faults nor migrations."""
    run = profiled(example("managed"), *ARGUMENTS, options=("-t", "uvm_advisor"))
    assert run.stdout == CORRECT, run.stderr
    found = sorted(rows(run, "objects", "reads", "writes"))
    assert found == sorted([(3 * FLOATS, 0), (3 * FLOATS, 0), (3 * FLOATS, 6 * FLOATS)])


def test_two_passes(example: Build, profiled: Run) -> None:
    """Faults by CUPTI and accesses by the Sanitizer, in one result."""
    options = ("--passes", "auto", "-t", "uvm_advisor")
    run = profiled(example("managed"), *ARGUMENTS, options=options)
    assert (run.status, run.stdout) == (0, 2 * CORRECT), run.stderr
    objects = rows(run, "objects", "reads", "writes", "faults", "to_device")
    assert sorted(row[:2] for row in objects) == sorted(
        [(3 * FLOATS, 0), (3 * FLOATS, 0), (3 * FLOATS, 6 * FLOATS)]
    )
    assert all(faults > 0 for *_, faults, _ in objects), run.stderr
    assert sum(to_device for *_, to_device in objects) > 0
    assert "without partner" not in run.stderr and "is not joined" not in run.stderr
    plan = (run.directory / "results" / "uvm_advisor" / "plan.toml").read_text()
    assert "[[entry]]" in plan


@pytest.mark.torch
def test_torch_with_managed_tensors(
    native: Run, profiled: Run, python: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "torch.manual_seed(0)\n"
        "x = torch.arange(1 << 20, dtype=torch.float32, device='cuda')\n"
        "y = torch.nn.functional.relu(x - 1000) * 2\n"
        "print(y.sum().item())\n"
    )
    alone = native(python, program)
    options = (*FAULTS, "-c", "torch", "--set", "torch.managed=true")
    run = profiled(python, program, options=options)
    assert (run.status, run.stdout) == (0, alone.stdout), run.stderr
    memory = run.table("memory_alloc", ["memory", "bytes"]).to_pylist()
    assert any(row["memory"] == "managed" and row["bytes"] == 32 << 20 for row in memory)
    levels = {level for (level,) in rows(run, "advice", "level")}
    assert levels <= {"object-level", "tensor-level"}
