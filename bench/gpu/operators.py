"""What following PyTorch costs on a GPU: steps of GPT-2, recording switched inside one process.

    python bench/gpu/operators.py [--rounds 3] [--json FILE] [--only TEXT]

Figures are medians over processes, which are interleaved; each one switches every eight steps. The
first way is torch.profiler, for comparison.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from workloads import STEPS, profiled, switched_ratio

TORCH = ("-c", "torch", "--set", "python.embed-delay=0ms")
BARE = ("--set", "torch.stacks=no", "--set", "torch.modules=no")
WAYS: dict[str, tuple[str, ...] | None] = {
    "torch.profiler, CPU and CUDA": None,
    "-c torch": TORCH,
    "-c torch --collector": ("-c", "torch", "--collector"),
    "-c torch, nvidia.source=sanitizer": (*TORCH, "--set", "nvidia.source=sanitizer"),
    "-c torch, without stacks and modules": (*TORCH, *BARE),
    "-t operators": ("-t", "operators"),
    "-t operators, without stacks and modules": ("-t", "operators", *BARE),
    "-t kernel_freq": ("-t", "kernel_freq"),
}
MOST = {"-c torch": 1.10, "-c torch, nvidia.source=sanitizer": 1.10}


def ratio(way: str, directory: Path) -> float:
    """Time of a step with recording over that without, in one process."""
    options = WAYS[way]
    switch = "pasta" if options else "profiler"
    command = [sys.executable, str(STEPS), "eager", "--steps", "160", "--switch", switch]
    if options:
        command = [*profiled(options, directory), *command]
    return switched_ratio(way, command, directory)


def main() -> None:
    """Measure all ways in turns and print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="processes for each figure")
    parser.add_argument("--json", type=Path, help="write all ratios there")
    parser.add_argument("--only", default="", help="ways whose name contains this")
    given = parser.parse_args()
    ratios: dict[str, list[float]] = {way: [] for way in WAYS if given.only in way}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(given.rounds):
            for way, found in ratios.items():
                found.append(ratio(way, Path(directory)))
                print(f"{way}: {found[-1]:.4f}", file=sys.stderr, flush=True)
    if given.json:
        given.json.write_text(json.dumps(ratios, indent=1) + "\n")
    print(f"{'GPT-2, eager':44}{'on / off':>9}{'lowest to highest':>20}{'most':>6}")
    for way, found in ratios.items():
        middle, most = statistics.median(found), MOST.get(way)
        spread = f"{min(found):.3f} to {max(found):.3f}"
        verdict = f"{most:6.2f}{'  missed' * (middle > most)}" if most else ""
        print(f"{way:44}{middle:9.3f}{spread:>20}{verdict}")


if __name__ == "__main__":
    main()
