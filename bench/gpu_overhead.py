"""What PASTA costs on a GPU: one ResNet-18 training step natively and profiled.

    python bench/gpu_overhead.py [--rounds 5] [--json FILE]

Three ways, interleaved process by process so that clocks and heat treat them alike:
    native  nothing preloaded
    empty   subscribed to the Sanitizer API, callbacks return at once: the vendor's own cost
    pasta   kernel_freq over every event
Each process reports the median of its steps; the table shows the median and range over processes.
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
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "cuda" / "resnet18_train.py"
WAYS: dict[str, tuple[str, ...] | None] = {
    "native": None,
    "empty": ("--set", "nvidia.empty=true"),
    # Python from the first launch on: the steady state of a long run
    "pasta": ("-t", "kernel_freq", "--set", "python.embed-delay=0ms"),
}


def preload() -> str:
    beside = Path(sys.executable).parent / "pasta-preload"
    found = str(beside) if beside.exists() else shutil.which("pasta-preload")
    if not found:
        sys.exit("gpu_overhead: pasta-preload was not found: install PASTA first")
    return found


def command_of(way: str, program: list[str], directory: Path) -> list[str]:
    options = WAYS[way]
    if options is None:
        return program
    return [preload(), "-q", *options, "-f", "-o", str(directory / "run"), "--", *program]


def step_ms(way: str, program: list[str], directory: Path) -> tuple[float, str]:
    """Median step of one process and the losses that it printed."""
    done = subprocess.run(
        command_of(way, program, directory), capture_output=True, text=True, timeout=300
    )
    found = re.search(r"^median_step_ms=([\d.]+)$", done.stderr, re.MULTILINE)
    if done.returncode or not found:
        sys.exit(f"gpu_overhead: {way} failed ({done.returncode}):\n{done.stdout}{done.stderr}")
    return float(found.group(1)), done.stdout


def launches_per_step(directory: Path, steps: int) -> float:
    import pyarrow.parquet as pq

    parts = (directory / "run" / "events").glob("kernel_launch-[0-9]*.parquet")
    return sum(pq.ParquetFile(part).metadata.num_rows for part in parts) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="processes per way")
    parser.add_argument("--steps", type=int, default=300, help="timed steps per process")
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    program = [sys.executable, str(EXAMPLE), "--times"]
    for name in ("steps", "warmup", "batch", "size"):
        program += [f"--{name}", str(getattr(options, name))]

    times: dict[str, list[float]] = {way: [] for way in WAYS}
    losses: set[str] = set()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        for number in range(options.rounds):
            for way in list(WAYS)[number % 3 :] + list(WAYS)[: number % 3]:
                milliseconds, printed = step_ms(way, program, directory)
                times[way].append(milliseconds)
                losses.add(printed)
                print(f"round {number}: {way:6} {milliseconds:9.3f} ms", file=sys.stderr)
        launches = launches_per_step(directory, options.steps + options.warmup)

    medians = {way: statistics.median(values) for way, values in times.items()}
    result = {
        "step": f"resnet18, batch {options.batch}, {options.size}x{options.size}",
        "rounds": options.rounds,
        "steps": options.steps,
        "launches_per_step": launches,
        "same_losses": len(losses) == 1,
        "median_ms": medians,
        "range_ms": {way: [min(values), max(values)] for way, values in times.items()},
        "ratio_to_native": {way: value / medians["native"] for way, value in medians.items()},
        "pasta_over_empty": medians["pasta"] / medians["empty"],
        "pasta_ns_per_launch": (medians["pasta"] - medians["empty"]) * 1e6 / launches
        if launches
        else None,
        "cpus": os.cpu_count(),
    }
    print(f"{result['step']}, {launches:.0f} launches a step, {options.rounds} processes each")
    print(f"{'':8}{'median ms':>12}{'range ms':>22}{'ratio':>8}")
    for way, median in medians.items():
        low, high = min(times[way]), max(times[way])
        span = f"{low:.3f} to {high:.3f}"
        print(f"{way:8}{median:12.3f}{span:>22}{median / medians['native']:8.3f}")
    print(f"pasta / empty {result['pasta_over_empty']:.3f}, same losses: {result['same_losses']}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if len(losses) != 1:
        sys.exit("gpu_overhead: the losses differ between the ways")


if __name__ == "__main__":
    main()
