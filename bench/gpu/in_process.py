"""What recording through CUPTI costs, against a bare client of CUPTI, switched inside one process.

    python bench/gpu/in_process.py [--rounds 2] [--model NAME ...] [--json FILE]

In every process the client or PASTA is on for eight steps, and everything that it enabled is off
for the next eight, so both are compared with the same program alone: the ratio of the ratios is
what PASTA adds to CUPTI. Figures are medians over the processes of each kind.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from workloads import STEPS, profiled, switched_ratios

sys.path.append(str(STEPS.parents[1]))
from cupti_switch import switch_library
from gpu_overhead import CUPTI_MOST, NATIVE_MOST, STEADY, client

MODELS = ("resnet18", "eager", "compiled", "graph", "generate")
#: Steps of a process where not 160.
MORE = {"generate": 320}


def measured(model: str, way: str, directory: Path, environment: dict[str, str]) -> float:
    """Time of steps with the client over that without, in one process."""
    steps = ("--steps", str(MORE.get(model, 160)), "--warmup", "16")
    command = [sys.executable, str(STEPS), model, *steps, "--switch", "cupti"]
    if way == "pasta":
        options = ("--set", "nvidia.source=cupti", "-t", "kernel_freq", *STEADY)
        command = [*profiled(options, directory), *command]
    return switched_ratios(f"{model}, {way}", command, directory, environment)["paired"]


def main() -> None:
    """Measure the models in turns and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2, help="processes of each kind")
    parser.add_argument("--model", choices=MODELS, action="append", help="only these")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()
    from pasta.backends.nvidia.libraries import find_cupti

    real = find_cupti()
    if real is None:
        sys.exit("in_process: no CUPTI: pip install 'nvidia-cuda-cupti>=13'")
    ratios: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        library = switch_library(directory, Path(real))
        bare = {**client(directory), "CUPTI_CLIENT_LIB": str(library), "LD_PRELOAD": str(library)}
        environments = {"client": bare, "pasta": {"LD_PRELOAD": str(library)}}
        for model in options.model or MODELS:
            for _ in range(options.rounds):
                for way, environment in environments.items():
                    ratio = measured(model, way, directory, environment)
                    ratios.setdefault(model, {}).setdefault(way, []).append(ratio)
                    print(f"{model}, {way}: {ratio:.4f}", file=sys.stderr, flush=True)
    if options.json:
        options.json.write_text(json.dumps(ratios, indent=1) + "\n")
    print(f"{'to the program alone':22}{'client':>9}{'PASTA':>9}{'PASTA / client':>16}")
    for model, ways in ratios.items():
        theirs, ours = (statistics.median(ways[way]) for way in ("client", "pasta"))
        missed = ours > CUPTI_MOST * theirs or (model == "eager" and ours > NATIVE_MOST)
        print(f"{model:22}{theirs:9.3f}{ours:9.3f}{ours / theirs:16.3f}{'  MISSED' * missed}")


if __name__ == "__main__":
    main()
