"""Programs that the benchmarks of this folder run, and how one process is measured."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOOLS = HERE / "tools.py"
RESNET = HERE.parents[1] / "examples" / "cuda" / "resnet18_train.py"
TIMEOUT = 300


def workloads(directory: Path) -> dict[str, list[str]]:
    """Commands by name; each prints NAME_ms=NUMBER on stderr."""
    nvcc = shutil.which("nvcc") or str(
        Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc")
    )
    vadd = directory / "vadd"
    subprocess.run([nvcc, "-O2", "-arch=native", "-o", vadd, HERE / "vadd.cu"], check=True)
    train = [sys.executable, str(RESNET), "--times"]
    return {
        "vadd": [str(vadd)],
        "vadd, 4096 objects": [str(vadd), "4096"],
        "vadd, 2^20 floats": [str(vadd), "0", "20"],
        "gemm 1024": [sys.executable, str(HERE / "gemm.py"), "1024", "9"],
        "resnet18": [*train, "--steps", "6", "--warmup", "2"],
        "resnet18, 4096 objects": [
            sys.executable,
            str(HERE / "with_objects.py"),
            "4096",
            *train[1:],
            "--steps",
            "6",
            "--warmup",
            "2",
        ],
        "resnet18, 200 steps": [*train, "--steps", "200", "--warmup", "2", "--mean", "--mark"],
        "resnet18, 1000 steps": [*train, "--steps", "1000", "--mean"],
        "resnet18, last 900": [*train, "--steps", "900", "--warmup", "100", "--mean"],
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


def figure_of(
    name: str, command: list[str], directory: Path, environment: dict[str, str] | None = None
) -> float:
    """The ms that a process prints. Exits with its messages if it fails."""
    done = ran(command, directory, environment)
    figure = re.search(r"_ms=([\d.]+)", done.stderr + done.stdout)
    if done.returncode or not figure:
        sys.exit(f"bench/gpu: {name} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return float(figure[1])
