"""Every example, natively and profiled: the same behaviour, and all expected records."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from .conftest import Build, Ran, Run

#: Some facts of the following are the Sanitizer's alone; those of CUPTI are in test_cupti.py.
SANITIZER = ("--set", "nvidia.source=sanitizer", "-t", "kernel_freq")
PROGRAMS = ["vadd", "graph", "two_streams", "memory", "annotated", "cudnn_app"]


def assert_same(native: Ran, profiled: Ran) -> None:
    assert (profiled.status, profiled.stdout) == (native.status, native.stdout)
    assert native.status == 0, native.stderr


@pytest.mark.parametrize("cudart", ["shared", "static"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_counts(example: Build, native: Run, profiled: Run, name: str, cudart: str) -> None:
    program = example(name, cudart)
    alone = native(program, "--expect")
    run = profiled(program, "--expect", options=SANITIZER)
    assert_same(alone, run)
    run.counts.check(run.expected)


def test_exit_status_of_a_failing_program(native: Run, profiled: Run, example: Build) -> None:
    script = f"{example('vadd')} --n 1000; exit 42"
    alone, run = native("sh", "-c", script), profiled("sh", "-c", script)
    assert (run.status, run.stdout) == (alone.status, alone.stdout)
    assert run.status == 42


def test_launches_are_complete_and_in_order(example: Build, profiled: Run) -> None:
    run = profiled(example("two_streams"), "--launches", "20000")
    table = run.table("kernel_launch")
    assert table.num_rows == 40000
    assert sorted(table["ordinal"].to_pylist()) == list(range(40000))
    assert len(set(table["thread"].to_pylist())) == len(set(table["stream"].to_pylist())) == 2
    for name in ("left", "right"):
        mine = table.filter([name in text for text in table["name"].to_pylist()])
        assert len(set(mine["stream"].to_pylist())) == 1
        grids = [
            grid
            for _, grid in sorted(
                zip(mine["ordinal"].to_pylist(), mine["grid_x"].to_pylist(), strict=True)
            )
        ]
        assert grids == [i % 64 + 1 for i in range(20000)]
    ends = run.table("kernel_launch_end")
    pairs = dict(zip(table["correlation"].to_pylist(), table["ordinal"].to_pylist(), strict=True))
    assert (
        dict(zip(ends["correlation"].to_pylist(), ends["ordinal"].to_pylist(), strict=True))
        == pairs
    )


def test_device_and_stream_of_a_launch(example: Build, profiled: Run) -> None:
    run = profiled(example("vadd"), options=SANITIZER)
    launch = run.table("kernel_launch").to_pylist()[0]
    (context,) = run.table("context_create").to_pylist()
    assert launch["name"] == "_Z4vaddPKfS0_Pfm"
    assert (launch["device"], launch["context"]) == (context["device"], context["context"])
    assert context["device"] == 0
    assert launch["block_x"] == 256
    assert launch["entry_pc"]
    modules = run.table("module_load").to_pylist()
    assert launch["module"] in {module["handle"] for module in modules}
    assert all(module["bytes"] and module["hash"] for module in modules)


def test_run_records_how_the_process_ended(example: Build, profiled: Run) -> None:
    run = profiled(example("vadd"))
    manifest = json.loads((run.directory / "run.json").read_text())
    assert manifest
    assert (run.directory / "results" / "kernel_freq" / "kernels.parquet").exists()


@pytest.mark.parametrize(("script", "package"), [("cupy_demo.py", "cupy"), ("jax_demo.py", "jax")])
def test_python_programs(
    example: Build, native: Run, profiled: Run, python: str, script: str, package: str
) -> None:
    if not find_spec(package):
        pytest.skip(f"{package} is not installed")
    quiet = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    alone = native(python, example(script), "--expect", **quiet)
    run = profiled(python, example(script), "--expect", **quiet)
    assert_same(alone, run)
    run.counts.check(run.expected)


@pytest.mark.torch
def test_torch_losses_do_not_change(
    example: Build, native: Run, profiled: Run, python: str
) -> None:
    command = (python, example("resnet18_train.py"), "--steps", "3", "--batch", "8", "--size", "64")
    alone, run = native(*command), profiled(*command)
    assert_same(alone, run)
    assert len(run.stdout.split()) == 3
    launches = run.table("kernel_launch", ["name", "ordinal"])
    assert launches.num_rows > 300
    assert sorted(launches["ordinal"].to_pylist()) == list(range(launches.num_rows))


PROFILER = """
import torch
from torch.profiler import ProfilerActivity, profile
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]):
    x = torch.ones(64, device="cuda")
    for _ in range(10):
        x = x + 1
print(int(x.sum()))
"""


@pytest.mark.torch
def test_torch_profiler_keeps_working(profiled: Run, python: str) -> None:
    """Kineto uses CUPTI, which the driver does not allow together with the Sanitizer."""
    run = profiled(python, "-c", PROFILER)
    assert (run.status, run.stdout) == (0, "704\n"), run.stderr
    assert run.counts["kernel_launch"] >= 10
