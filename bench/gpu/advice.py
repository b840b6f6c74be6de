"""Whether advice pays off: real programs before and after the change that a first finding asks for.

    python bench/gpu/advice.py [--rounds 5] [--only NAME] [--json FILE]

Runs every program of examples/advice under PASTA for its first findings, and alone, as it is and
with `--changed`, in turns. Prints a table in Markdown: medians of the mean time of a step, and the
peak of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from workloads import HERE, profiled, ran

PROGRAMS = HERE.parents[1] / "examples" / "advice"
TIMES = ("--set", "nvidia.source=cupti", "-t", "utilization,copies,code_check")
BOTH = ("--passes", "auto", "-t", "utilization,copies,code_check,coalescing", "--sample")


@dataclass(frozen=True)
class Program:
    """A program of examples/advice and the options it is profiled with."""

    file: str
    options: tuple[str, ...]

    def command(self, directory: Path) -> list[str]:
        """The command that runs it; CUDA programs are compiled."""
        if self.file.endswith(".py"):
            return [sys.executable, str(PROGRAMS / self.file)]
        output = directory / Path(self.file).stem
        nvcc = shutil.which("nvcc") or str(
            Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc")
        )
        subprocess.run(
            [
                nvcc, "-std=c++17", "-O2", "-lineinfo", "-arch=native",
                PROGRAMS / self.file, "-o", output,
            ],
            check=True,
        )  # fmt: skip
        return [str(output)]


ALL = (
    Program("resnet18.py", ("-c", "torch", *TIMES)),
    Program("gpt2.py", ("-c", "torch", *TIMES)),
    Program("unet.py", ("-c", "torch", *TIMES)),
    Program("graph.py", ("-c", "torch", *TIMES)),
    Program("points.py", ("-c", "tensor_stalls")),
    Program("stencil.cu", BOTH),
    Program("hash_join.cu", BOTH),
    Program("jax_mlp.py", TIMES),
)


def figures(command: list[str], directory: Path) -> tuple[float, float, str]:
    """Time of a step in ms, memory in MiB, and the result of one process."""
    done = ran(command, directory)
    found = re.search(r"mean_step_ms=([\d.]+) peak_mib=(\d+)", done.stderr)
    if done.returncode or not found:
        sys.exit(f"advice: {command} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return float(found[1]), float(found[2]), done.stdout


def findings(program: Program, command: list[str], directory: Path) -> list[str]:
    """The first three findings of a run under PASTA."""
    from pasta.run.results import ranked, read_results

    done = ran([*profiled(program.options, directory), *command], directory)
    if done.returncode:
        sys.exit(f"advice: {program.file} failed under PASTA:\n{done.stderr[-2000:]}")
    found = ranked(read_results(directory / "run" / "results"))
    return [f"{each.what}: {each.where}" for _, each in found[:3]]


def main() -> None:
    """Measure the programs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="processes of each kind")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--json", type=Path, help="also write all figures there")
    options = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        for program in ALL:
            if options.only not in program.file:
                continue
            command = program.command(directory)
            pairs = [
                (figures(command, directory), figures([*command, "--changed"], directory))
                for _ in range(options.rounds)
            ]
            first = findings(program, command, directory)
            rows[program.file] = {"before": [a for a, _ in pairs], "after": [b for _, b in pairs],
                                  "findings": first}  # fmt: skip
            print(f"{program.file}: {first}", file=sys.stderr, flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print("| program | first findings | before | after | ratio | memory before | after |")
    print("|---|---|---|---|---|---|---|")
    for name, row in rows.items():
        before, after = (
            [statistics.median(each[at] for each in row[when]) for at in (0, 1)]
            for when in ("before", "after")
        )
        print(
            f"| {name} | {'; '.join(row['findings'])} | {before[0]:.2f} ms | {after[0]:.2f} ms |"
            f" {before[0] / after[0]:.2f} | {before[1]:.0f} MiB | {after[1]:.0f} MiB |"
        )


if __name__ == "__main__":
    main()
