"""Stalls charged to tensors on a real GPU: kernels that wait in one way each, and training."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from pasta.run.directory import RunDirectory
from pasta.run.results import read_results
from tests.support.places import DATA, PROGRAMS

from .conftest import CUDA, Ran, Run

PROGRAM = PROGRAMS / "nvidia" / "launch_stalls.py"
#: The beginning of the loads that a kernel waits for, and their numbers among those; all if none
#: are given.
EXPECTED: dict[str, tuple[str, tuple[int, ...]]] = {
    "pointer_chase": ("LDG", ()),
    "dependent_loads": ("LDG", ()),
    "two_loads_one_use": ("LDG", (0, 1)),
    "load_to_address": ("LDG", (0,)),
    "shared_then_global": ("LDG", (0,)),
    "predicated": ("LDG", (0,)),
    "loop_carried": ("LDG", ()),
    "pipelined": ("LDG", ()),
    "atomics": ("ATOMG", (0,)),
    "divergent": ("LDG", ()),
    "copy_async": ("LDGSTS", (0,)),
    "tensor_copy": ("UTMALDG", (0,)),
}
SAMPLING = ("-c", "tensor_stalls", "--set", "nvidia.pc_sampling=1024cycles")


pytestmark = pytest.mark.counters  # one process can sample at a time


def tables(run: Ran) -> Any:
    results = read_results(RunDirectory.open(run.directory).results)
    found = next((each for each in results if each.name == "tensor_stalls"), None)
    assert found, run.stderr
    assert "unattributed" in found.tables, (found.summary, run.stderr)
    return found.tables


def adds_up(found: Any) -> None:
    rest = sum(row["samples"] for row in found["unattributed"].rows())
    total = sum(row["samples"] for row in found["reasons"].rows())
    assert sum(row["stalls"] for row in found["tensors"].rows()) + rest == total
    assert sum(row["stalls"] for row in found["tensor_stall_cost"].rows()) + rest == total


@pytest.fixture(scope="module")
def cubin(tmp_path_factory: pytest.TempPathFactory) -> str:
    nvcc = CUDA / "bin" / "nvcc"
    compiler = str(nvcc) if nvcc.exists() else shutil.which("nvcc")
    if not compiler:
        pytest.skip("nvcc was not found: install a CUDA toolkit, or set CUDA_HOME")
    output = tmp_path_factory.mktemp("stalls") / "stalls.cubin"
    source = DATA / "sass" / "stalls.cu"
    command = [compiler, "-arch=native", "-cubin", "-lineinfo", "-o", str(output), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(output)


def test_expected_loads_are_blamed(cubin: str, python: str, profiled: Run) -> None:
    run = profiled(python, str(PROGRAM), cubin, options=SAMPLING)
    assert (run.status, run.stdout) == (0, "done\ndone\n"), run.stderr
    found = tables(run)
    adds_up(found)
    code: dict[str, list[dict[str, Any]]] = {}
    for row in found["sass"].rows():
        code.setdefault(row["kernel"], []).append(row)
    assert set(code) <= set(EXPECTED)
    for kernel, rows in code.items():
        beginning, chosen = EXPECTED[kernel]
        loads = [row for row in rows if beginning in (row["instruction"] or "").split(" ")[0:2][-1]
                 or (row["instruction"] or "").startswith(beginning)]  # fmt: skip
        wanted = [loads[at] for at in chosen] if chosen else loads
        waiting = sum(_long(row["reasons"]) for row in rows)
        assert waiting, kernel
        assert sum(row["waited_for"] for row in wanted) >= 0.9 * waiting, kernel


def _long(reasons: str | None) -> int:
    """Samples of the long scoreboard in a text such as `long_scoreboard 1,200, wait 3`."""
    for part in (reasons or "").split(", "):
        name, _, count = part.rpartition(" ")
        if name == "long_scoreboard":
            return int(count.replace(",", ""))
    return 0


@pytest.mark.parametrize("model", ["cuda/resnet18_train.py", "torch/gpt_train.py"])
def test_launches_of_training_join_and_the_order_is_stable(
    model: str, python: str, profiled: Run
) -> None:
    pytest.importorskip("torch")
    program = Path(__file__).resolve().parents[2] / "examples" / model
    runs: list[Counter[tuple[Any, ...]]] = []
    for _ in range(2):
        run = profiled(python, str(program), "--steps", "10", options=("-c", "tensor_stalls"))
        assert run.status == 0, run.stderr
        found = tables(run)
        adds_up(found)
        why: Counter[str] = Counter()
        for row in found["unattributed"].rows():
            why[row["why"]] += row["samples"]
        charged = sum(row["stalls"] for row in found["tensors"].rows())
        assert why["its launch has no partner with accesses"] <= 0.02 * (charged + why.total())
        names = ("category", "name", "shape", "operator", "module", "line")
        runs.append(Counter())
        for row in found["tensors"].rows():
            runs[-1][tuple(row[name] for name in names)] += row["stalls"]
    first, second = runs
    for (one, more), (other, less) in combinations(first.most_common(10), 2):
        if less < 0.95 * more:  # of equal layers any may be first
            assert second[one] > second[other], "\n".join(
                f"{stalls} {second[tensor]} {tensor}" for tensor, stalls in first.most_common(12)
            )


def test_serialized_samples_are_charged_in_their_launch(
    cubin: str, python: str, profiled: Run
) -> None:
    options = (*SAMPLING, "--set", "nvidia.pc_sampling_mode=serialized", "--launch-count", "5")
    run = profiled(python, str(PROGRAM), cubin, "5", options=options)
    assert run.status == 0, run.stderr
    found = tables(run)
    adds_up(found)
    assert {row["launch"] for row in found["tensor_stall_cost"].rows()} <= set(range(5))
