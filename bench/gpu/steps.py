"""Steps of a model: a GPT-2 of Hugging Face with random weights, trained (eager, compiled, as a
CUDA graph) or generating tokens; ResNet-18, trained, or classifying one small image, eager or as a
CUDA graph. Prints the last loss, token or score, and times of a step on stderr.

    python bench/gpu/steps.py MODE [--steps 60] [--warmup 10]
                                   [--switch pasta|cupti|profiler|callback|tensors]

A step of `generate` is a token of one sequence, with the keys and values of those before it. With
--switch every other eight steps run without, and the medians of both kinds are printed: processes
of programs that the host bounds differ by 15 to 60 %. `pasta` stops PASTA's profiling for them;
`cupti` everything that a client of CUPTI has enabled (see in_process.py); `profiler` stops
torch.profiler; `callback` removes a callback of PyTorch's operators that records nothing, `tensors`
one that also gets their inputs and outputs. The ratio `paired` is the median over pairs of adjacent
blocks after the first tenth; `mean` is that of the mean times, `late` the same after 100 steps on
and 100 off, or the first half of the steps, `total` that of the mean time of all steps to those
off. In `paired` and `late` the first step after a switch does not count, during which callbacks
are still being switched.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import pasta

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "cuda"))
sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "advice"))
sys.path.append(str(Path(__file__).resolve().parents[1]))
import resnet18_train as models
from host_bound import empty_callback
from measured import captured

BATCH, LENGTH = 4, 512
BLOCK = 8  # steps between switches
EARLY = 200  # steps, on and off, after which those count as late
Step = Callable[[], torch.Tensor]


def gpt2() -> nn.Module:
    """GPT-2 with random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config()).cuda()


def trained(mode: str) -> Step:
    """A training step of GPT-2, whose result is the loss."""
    model = gpt2().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=mode == "graph")
    tokens = torch.randint(0, 50_000, (BATCH, LENGTH), device="cuda")
    forward = torch.compile(model) if mode == "compiled" else model

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return loss

    return captured(step) if mode == "graph" else step


def resnet18() -> Step:
    """A training step of ResNet-18, whose result is the loss."""
    model = models.resnet18().cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(32, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 1000, (32,), device="cuda")

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


def inference() -> Step:
    """ResNet-18 on one image of 64 x 64 pixels: launches of a few microseconds."""
    model = models.resnet18().cuda().eval()
    image = torch.randn(1, 3, 64, 64, device="cuda")

    @torch.inference_mode()
    def step() -> torch.Tensor:
        return model(image).amax()

    return step


def generated() -> Step:
    """A step that generates one token."""
    model = gpt2().eval().half()
    state = [torch.randint(0, 50_000, (1, 32), device="cuda"), None]

    @torch.inference_mode()
    def step() -> torch.Tensor:
        done = model(state[0], past_key_values=state[1], use_cache=True)
        state[:] = done.logits[:, -1:].argmax(-1), done.past_key_values
        return state[0]

    return step


MODES: dict[str, Callable[[], Step]] = {
    "eager": lambda: trained("eager"),
    "compiled": lambda: trained("compiled"),
    "graph": lambda: trained("graph"),
    "generate": generated,
    "resnet18": resnet18,
    "inference": inference,
    "inference-graph": lambda: captured(inference()),
}


def pasta_switch(on: bool) -> None:
    """Stop or start PASTA's profiling."""
    (pasta.start if on else pasta.stop)()


def cupti_switch(on: bool) -> None:
    """Disable or enable what the client of CUPTI has enabled."""
    if not ctypes.CDLL("libcupti.so.13").cupti_switch(int(on)):
        sys.exit("steps: nothing is switched: no client of CUPTI has enabled anything")


def profiler_switch(on: bool) -> None:
    """Stop or start torch.profiler. What it recorded is dropped."""
    if on:
        running.append(profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]))
        running[0].start()
    elif running:
        running.pop().stop()


@cache
def built_callback() -> Callable[[bool, bool], int]:
    """The function that adds and removes an empty callback; its library stays loaded."""
    with tempfile.TemporaryDirectory() as directory:
        return empty_callback(directory)


def callback_switch(on: bool, tensors: bool) -> None:
    """Remove or add an empty callback for operators, without or with their tensors."""
    built_callback()(on, tensors)


running: list[profile] = []
SWITCHES: dict[str, Callable[[bool], None]] = {
    "pasta": pasta_switch,
    "cupti": cupti_switch,
    "profiler": profiler_switch,
    "callback": partial(callback_switch, tensors=False),
    "tensors": partial(callback_switch, tensors=True),
}


def quartiles(values: list[float]) -> str:
    """`median (first to third quartile)`."""
    first, median, third = statistics.quantiles(values, n=4)
    return f"{median:.3f} ({first:.3f} to {third:.3f})"


def paired_ratio(times: list[tuple[int, float]]) -> float:
    """Median over pairs of adjacent blocks of steps, on and off, of the ratio of their medians: the
    host's speed drifts by 20 % in seconds. `times`: number and ms of each step."""
    blocks: dict[int, list[float]] = {}
    for at, ms in times:
        if at % BLOCK:  # the first step after a switch counts for neither
            blocks.setdefault(at // BLOCK, []).append(ms)
    medians = {number: statistics.median(each) for number, each in blocks.items()}
    ratios = [
        medians[number + number % 2] / medians[number + 1 - number % 2]
        for number in range(min(medians), max(medians))
        if number in medians and number + 1 in medians
    ]
    return statistics.median(ratios)


def main() -> None:
    """Run the steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--times", action="store_true", help="times are always printed")
    parser.add_argument("--switch", choices=SWITCHES)
    parser.add_argument("--each", metavar="FILE", help="write the ms of each step, a line each")
    options = parser.parse_args()
    torch.manual_seed(0)
    step = MODES[options.mode]()
    times = []
    for number in range(options.warmup + options.steps):
        if options.switch and number % BLOCK == 0:
            torch.cuda.synchronize()
            SWITCHES[options.switch](number // BLOCK % 2 == 0)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        result = step()
        torch.cuda.synchronize()
        if number >= options.warmup:
            times.append((number, 1e3 * (time.perf_counter() - begin)))
    profiler_switch(False)  # a program that ends with it crashes
    print(f"{options.mode}: {float(result):.1f}")
    if options.switch:
        times = times[not options.warmup :]  # the first step of all is slow by itself
        later = times[len(times) // 10 :]
        late = [each for each in times[min(EARLY, len(times) // 2) :] if each[0] % BLOCK]
        on, off, on_late, off_late = (
            [ms for at, ms in some if at // BLOCK % 2 == n]
            for some in (times, late)
            for n in (0, 1)
        )
        print(f"on {quartiles(on)} ms, off {quartiles(off)} ms", file=sys.stderr)
        ratios = {
            "paired": paired_ratio(later),
            "mean": statistics.mean(on) / statistics.mean(off),
            "late": statistics.mean(on_late) / statistics.mean(off_late),
            "total": statistics.mean(on + off) / statistics.mean(off),
        }
        for name, ratio in ratios.items():
            print(f"{name} on / off = {ratio:.4f}", file=sys.stderr)
    if options.each:
        with open(options.each, "w") as file:
            file.writelines(f"{ms:.3f}\n" for _, ms in times)
    taken = [ms for _, ms in times]
    print(f"median_step_ms={statistics.median(taken):.6f}", file=sys.stderr)
    print(f"mean_step_ms={statistics.mean(taken):.6f}", file=sys.stderr)


if __name__ == "__main__":
    main()
