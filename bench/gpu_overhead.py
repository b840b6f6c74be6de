"""Overhead of PASTA on a GPU: training steps of ResNet-18 and of models of GPT-2's size.

    python bench/gpu_overhead.py [--rounds 7] [--model resnet18] [--way native] [--json FILE]

Ways, interleaved process by process so that clocks and heat affect them equally:
    native  nothing preloaded
    empty   subscribed to the Sanitizer API, callbacks return immediately: the vendor's cost
    pasta   kernel_freq over every event
    torch   operators and tensors: PyTorch followed, with Python lines and modules
    client  a C client of CUPTI that enables what PASTA enables, and throws it away
    cupti   kernel_freq over every event of CUPTI, with device times
    sampler the client, which also takes PC samples continuously, every 32768 cycles
    samples pc_samples and kernel_freq: the same samples
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
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
HUGGING_FACE = Path(__file__).resolve().parent / "gpu" / "steps.py"
# Python from the first launch on: the steady state of a long run
STEADY = ("--set", "python.embed-delay=0ms")
WAYS: dict[str, tuple[str, ...] | None] = {
    "native": None,
    "empty": ("--set", "nvidia.empty=true"),
    "pasta": ("-t", "kernel_freq", *STEADY),
    "torch": ("-t", "operators", "-t", "tensors", *STEADY),
    "client": None,
    "cupti": ("--set", "nvidia.source=cupti", "-t", "kernel_freq", *STEADY),
    "sampler": None,
    "samples": ("-t", "pc_samples,kernel_freq", *STEADY),
}
TORCH_MOST = 1.15  # of the empty subscription
CUPTI_MOST = 1.05  # of the client
NATIVE_MOST = 1.08  # the same, of native
SAMPLES_MOST = 1.05  # of the client that samples
SAMPLING = {"CUPTI_CLIENT_SAMPLING": "15"}  # log2 of cycles
CLIENT = Path(__file__).resolve().parent / "c" / "cupti_client.c"


@dataclass(frozen=True)
class Model:
    """A training script and its arguments; `warmup` steps are not measured."""

    script: Path
    steps: int
    warmup: int
    arguments: tuple[str, ...]

    @property
    def program(self) -> list[str]:
        """The command that measures the model."""
        steps = ("--times", "--steps", str(self.steps), "--warmup", str(self.warmup))
        return [sys.executable, str(self.script), *steps, *self.arguments]


MODELS = {
    "resnet18": Model(EXAMPLES / "cuda" / "resnet18_train.py", 200, 60, ("--batch", "32")),
    "gpt2": Model(EXAMPLES / "torch" / "gpt_train.py", 40, 10, ("--batch", "4")),
    # of Hugging Face; only if they are named
    "hf-eager": Model(HUGGING_FACE, 60, 10, ("eager",)),
    "hf-compiled": Model(HUGGING_FACE, 60, 10, ("compiled",)),
    "hf-graph": Model(HUGGING_FACE, 60, 10, ("graph",)),
    "hf-generate": Model(HUGGING_FACE, 200, 20, ("generate",)),
}
USUAL = ("resnet18", "gpt2")


def preload() -> str:
    """Path of pasta-preload; exits if it is not installed."""
    beside = Path(sys.executable).parent / "pasta-preload"
    found = str(beside) if beside.exists() else shutil.which("pasta-preload")
    if not found:
        sys.exit("gpu_overhead: pasta-preload was not found: install PASTA first")
    return found


def command_of(way: str, program: list[str], run: Path) -> list[str]:
    """The command of a program, run in one of `WAYS`."""
    options = WAYS[way]
    if options is None:
        return program
    return [preload(), "-q", *options, "-f", "-o", str(run), "--", *program]


def client(directory: Path) -> dict[str, str]:
    """Variables by which the driver loads the client, compiled into a directory."""
    from pasta.backends.nvidia.libraries import find_cupti

    library = directory / "libcupti_client.so"
    compiler = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-fvisibility=hidden"]
    subprocess.run([*compiler, CLIENT, "-o", library, "-ldl", "-lpthread"], check=True)
    return {
        "CUDA_INJECTION64_PATH": str(library),
        "CUPTI_CLIENT_LIB": str(find_cupti() or "libcupti.so.13"),
    }


def step_ms(
    way: str, program: list[str], run: Path, environment: dict[str, str]
) -> tuple[float, str]:
    """Median step of one process in ms, and the losses that it printed."""
    done = subprocess.run(
        command_of(way, program, run),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    found = re.search(r"^median_step_ms=([\d.]+)$", done.stderr, re.MULTILINE)
    if done.returncode or not found:
        sys.exit(f"gpu_overhead: {way} failed ({done.returncode}):\n{done.stdout}{done.stderr}")
    return float(found.group(1)), done.stdout


def launches_per_step(run: Path, steps: int) -> float:
    """Kernel launches that a run recorded, by step."""
    import pyarrow.parquet as pq

    parts = (run / "events").glob("kernel_launch-[0-9]*.parquet")
    return sum(pq.ParquetFile(part).metadata.num_rows for part in parts) / steps


def measure(name: str, rounds: int, ways: list[str]) -> dict[str, object]:
    """Steps of one model, `rounds` processes for each way; times in milliseconds."""
    model = MODELS[name]
    times: dict[str, list[float]] = {way: [] for way in ways}
    losses: set[str] = set()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        bare = client(directory) if {"client", "sampler"} & set(ways) else {}
        environments = {"client": bare, "sampler": {**bare, **SAMPLING}}
        for number in range(rounds):
            turn = number % len(ways)
            for way in ways[turn:] + ways[:turn]:
                milliseconds, printed = step_ms(
                    way, model.program, directory / way, environments.get(way, {})
                )
                times[way].append(milliseconds)
                losses.add(printed)
                print(f"{name} {number}: {way:7} {milliseconds:9.3f} ms", file=sys.stderr)
        recorded = next((way for way in ("pasta", "cupti") if way in ways), None)
        steps = model.steps + model.warmup
        launches = launches_per_step(directory / recorded, steps) if recorded else 0

    medians = {way: statistics.median(values) for way, values in times.items()}
    bases = [base for base in ("native", "empty", "client") if base in ways]
    print(f"{name}: {launches:.0f} launches a step, {rounds} processes each")
    print(f"{'':8}{'median ms':>12}{'range ms':>22}" + "".join(f"{base:>8}" for base in bases))
    for way, median in medians.items():
        span = f"{min(times[way]):.3f} to {max(times[way]):.3f}"
        ratios = "".join(f"{median / medians[base]:8.3f}" for base in bases)
        print(f"{way:8}{median:12.3f}{span:>22}{ratios}")
    print(f"same losses: {len(losses) == 1}")
    for way, base, most in (
        ("torch", "empty", TORCH_MOST),
        ("cupti", "client", CUPTI_MOST),
        ("cupti", "native", NATIVE_MOST),
        ("samples", "sampler", SAMPLES_MOST),
    ):
        if way in ways and base in ways:
            verdict = "met" if medians[way] <= most * medians[base] else "MISSED"
            print(f"{way} to {base} at most {most}: {verdict}")
    result: dict[str, object] = {
        "model": name,
        "rounds": rounds,
        "launches_per_step": launches,
        "same_losses": len(losses) == 1,
        "median_ms": medians,
        "range_ms": {way: [min(values), max(values)] for way, values in times.items()},
    }
    if "empty" in ways:
        result["over_empty"] = {way: value / medians["empty"] for way, value in medians.items()}
    if {"pasta", "empty"} <= set(ways) and launches:
        result["pasta_ns_per_launch"] = (medians["pasta"] - medians["empty"]) * 1e6 / launches
    return result


def main() -> None:
    """Measure the models; exits with an error if losses differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="processes per way")
    parser.add_argument("--model", choices=MODELS, action="append", help="measure only these")
    parser.add_argument("--way", choices=WAYS, action="append", help="measure only these")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    ways = options.way or list(WAYS)
    models = [measure(name, options.rounds, ways) for name in options.model or USUAL]
    if options.json:
        result = {"cpus": os.cpu_count(), "models": models}
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if not all(model["same_losses"] for model in models):
        sys.exit("gpu_overhead: the losses differ between the ways")


if __name__ == "__main__":
    main()
