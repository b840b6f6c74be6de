"""Programs that the benchmarks of this folder run, and how one process is measured."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOOLS = HERE / "tools.py"
RESNET = HERE.parents[1] / "examples" / "cuda" / "resnet18_train.py"
STEPS = HERE / "steps.py"
TIMEOUT = 300


@dataclass(frozen=True)
class Workload:
    """A command that prints lines NAME_ms=NUMBER on stderr, and the NAME to read."""

    command: list[str]
    figure: str


def workloads(directory: Path) -> dict[str, Workload]:
    """What is measured, by name; `directory` is for compiled programs."""
    nvcc = shutil.which("nvcc") or str(
        Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc")
    )
    vadd = directory / "vadd"
    subprocess.run([nvcc, "-O2", "-arch=native", "-o", vadd, HERE / "vadd.cu"], check=True)
    few = ("--times", "--steps", "6", "--warmup", "2")
    marked = ("--times", "--steps", "200", "--warmup", "2", "--mean", "--mark")

    def python(program: Path, *arguments: str | Path, figure: str = "median_step") -> Workload:
        return Workload([sys.executable, str(program), *map(str, arguments)], figure)

    image = python(STEPS, "inference", "--steps", "40")
    return {
        "vadd": Workload([str(vadd)], "vadd"),
        "vadd, 4096 objects": Workload([str(vadd), "4096"], "vadd"),
        "vadd, 2^20 floats": Workload([str(vadd), "0", "20"], "vadd"),
        "gemm 1024": python(HERE / "gemm.py", "1024", "9", figure="gemm"),
        "resnet18": python(RESNET, *few),
        "resnet18, 4096 objects": python(HERE / "with_objects.py", "4096", RESNET, *few),
        "resnet18, 200 steps": python(RESNET, *marked, figure="mean_step"),
        "inference": image,
        "resnet18, one image": image,  # in other ways
        "inference, graph": python(STEPS, "inference-graph", "--steps", "40"),
    }


def sampling_client(directory: Path) -> dict[str, str]:
    """Variables that load a client of CUPTI, compiled into a directory, which takes PC samples."""
    sys.path.append(str(HERE.parent))
    from gpu_overhead import SAMPLING, client

    return {**client(directory), **SAMPLING}


def profiled(options: tuple[str, ...], directory: Path) -> list[str]:
    """The command that profiles the command behind it."""
    preload = Path(sys.executable).parent / "pasta-preload"
    found = str(preload) if preload.exists() else shutil.which("pasta-preload")
    if not found:
        sys.exit("bench/gpu: pasta-preload was not found: install PASTA first")
    return [found, "-q", *options, "-f", "-o", str(directory / "run"), "--"]


def ran(
    command: list[str], directory: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command whose temporary files are in `directory`, with additional variables."""
    return subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT,
        env={**os.environ, "TMPDIR": str(directory), **(environment or {})},
    )  # fmt: skip


def switched_ratios(
    name: str, command: list[str], directory: Path, environment: dict[str, str] | None = None
) -> dict[str, float]:
    """Ratios of what steps.py switches, in one process, as it prints them: `paired`, `mean`,
    `late` and `total`. Exits with its messages if it fails."""
    done = ran(command, directory, environment)
    found = re.findall(r"^(\w+) on / off = ([\d.]+)$", done.stderr, re.MULTILINE)
    if done.returncode or not found:
        sys.exit(f"bench/gpu: {name} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return {key: float(value) for key, value in found}


def figures_of(
    name: str, command: list[str], directory: Path, environment: dict[str, str] | None = None
) -> dict[str, float]:
    """The times in ms that a process prints, by name. Exits with its messages if it fails."""
    done = ran(command, directory, environment)
    found = re.findall(r"^(\w+)_ms=([\d.]+)$", done.stderr, re.MULTILINE)
    if done.returncode or not found:
        sys.exit(f"bench/gpu: {name} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return {key: float(value) for key, value in found}
