"""What following PyTorch and sampling cost on a GPU: steps of GPT-2 and ResNet-18, in processes in
which recording is switched on and off.

    python bench/gpu/switched.py torch|sample|budget [--rounds 3] [--json FILE] [--only TEXT]

Figures are medians over processes, which are interleaved; each one switches every eight steps. The
first ways of `torch` are torch.profiler, and what PyTorch itself takes to call a callback. `sample`
and `budget` record from the first step on, and `mean` includes what probes cost in the first steps,
except in the very first one, which takes 0.8 s without probes too. `sample` records 1,000 steps. A
budget is a share of the time of all steps, on and off.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from workloads import STEPS, profiled, switched_ratios

TORCH = ("-c", "torch", "--set", "python.embed-delay=0ms")
BARE = ("--set", "torch.stacks=no", "--set", "torch.modules=no")
SAMPLE = ("-t", "access_count", "--sample")
FIGURES = {
    "paired": "on / off",
    "mean": "mean",
    "late": "mean after 100 steps",
    "total": "on and off / off",
}


@dataclass(frozen=True)
class Way:
    """A configuration of PASTA, or another thing that steps.py switches; `most`: targets by its
    figures."""

    name: str
    options: tuple[str, ...]
    most: dict[str, float]
    switch: str = "pasta"
    model: str = "eager"
    steps: tuple[str, ...] = ("--steps", "160")


def _sample(model: str) -> Way:
    """Against an empty subscription: callbacks do nothing while recording is off."""
    steps = ("--steps", "2000", "--warmup", "0")
    most = {"paired": 1.02, "mean": 1.15, "late": 1.02}
    options = (*SAMPLE, "--set", "nvidia.empty_while_off=true")
    return Way(f"{model}, --sample", options, most, model=model, steps=steps)


def _budget(model: str, steps: int) -> Way:
    return Way(
        f"{model}, --overhead-budget 10%",
        ("-t", "access_count", "--overhead-budget", "10%"),
        {"total": 1.12},
        model=model,
        steps=("--steps", str(steps), "--warmup", "0"),
    )


WAYS = {
    "torch": [
        Way("torch.profiler, CPU and CUDA", (), {}, "profiler"),
        Way("PyTorch's callback, empty", (), {}, "callback"),
        Way("PyTorch's callback with tensors, empty", (), {}, "tensors"),
        Way("-c torch", TORCH, {"paired": 1.10}),
        Way("-c torch --window 'seconds 0.5/5'", (*TORCH, "--window", "seconds 0.5/5"),
            {"mean": 1.10}, steps=("--steps", "480")),
        Way("-c torch --collector", ("-c", "torch", "--collector"), {}),
        Way("-c torch, nvidia.source=sanitizer", (*TORCH, "--set", "nvidia.source=sanitizer"),
            {"paired": 1.10}),
        Way("-c torch, without stacks and modules", (*TORCH, *BARE), {}),
        Way("-t operators", ("-t", "operators"), {}),
        Way("-t operators, without stacks and modules", ("-t", "operators", *BARE), {}),
        Way("-t kernel_freq", ("-t", "kernel_freq"), {}),
    ],
    "sample": [_sample("resnet18"), _sample("eager")],
    "budget": [_budget("resnet18", 1600), _budget("eager", 480)],
}  # fmt: skip


def measured(way: Way, directory: Path) -> dict[str, float]:
    """Time of a step with recording over that without, in one process, by figure."""
    command = [sys.executable, str(STEPS), way.model, *way.steps, "--switch", way.switch]
    if way.options:
        command = [*profiled(way.options, directory), *command]
    return switched_ratios(way.name, command, directory)


def main() -> None:
    """Measure all ways in turns and print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("ways", choices=WAYS)
    parser.add_argument("--rounds", type=int, default=3, help="processes for each figure")
    parser.add_argument("--json", type=Path, help="write all ratios there")
    parser.add_argument("--only", default="", help="ways whose name contains this")
    given = parser.parse_args()
    ways = [way for way in WAYS[given.ways] if given.only in way.name]
    ratios: dict[str, list[dict[str, float]]] = {way.name: [] for way in ways}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(given.rounds):
            for way in ways:
                found = measured(way, Path(directory))
                ratios[way.name].append(found)
                print(f"{way.name}: {found}", file=sys.stderr, flush=True)
    if given.json:
        given.json.write_text(json.dumps(ratios, indent=1) + "\n")
    print(f"{'':44}{'':18}{'ratio':>7}{'lowest to highest':>20}{'most':>6}")
    for way in ways:
        for figure, title in FIGURES.items():
            found = [each[figure] for each in ratios[way.name]]
            middle, most = statistics.median(found), way.most.get(figure)
            if most is None and figure != "paired":
                continue
            spread = f"{min(found):.3f} to {max(found):.3f}"
            verdict = f"{most:6.2f}{'  missed' * (middle > most)}" if most else ""
            print(f"{way.name:44}{title:18}{middle:7.3f}{spread:>20}{verdict}")


if __name__ == "__main__":
    main()
