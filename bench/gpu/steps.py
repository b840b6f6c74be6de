"""Steps of a model: a GPT-2 of Hugging Face with random weights, trained (eager, compiled, as a
CUDA graph) or generating tokens, or ResNet-18. Prints the last loss or token, and the median time
of a step on stderr.

    python bench/gpu/steps.py eager|compiled|graph|generate|resnet18 [--steps 60] [--warmup 10]
                              [--switch pasta|cupti]

A step of `generate` is a token of one sequence, with the keys and values of those before it. With
--switch every other eight steps run without, and the medians of both kinds are printed: processes
of programs that the host bounds differ by 15 to 60 %. `pasta` stops PASTA's profiling for them;
`cupti` everything that a client of CUPTI has enabled (see in_process.py).
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import pasta

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "cuda"))
sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "advice"))
import resnet18_train as models
from measured import captured

BATCH, LENGTH = 4, 512
MODES = ("eager", "compiled", "graph")  # of training GPT-2
BLOCK = 8  # steps between switches


def trained(mode: str) -> Callable[[], object]:
    """A training step, whose result is the loss."""
    model = GPT2LMHeadModel(GPT2Config()).cuda().train()
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


def resnet18() -> Callable[[], object]:
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


def generated() -> Callable[[], object]:
    """A step that generates one token."""
    model = GPT2LMHeadModel(GPT2Config()).cuda().eval().half()
    state = [torch.randint(0, 50_000, (1, 32), device="cuda"), None]

    @torch.inference_mode()
    def step() -> torch.Tensor:
        done = model(state[0], past_key_values=state[1], use_cache=True)
        state[:] = done.logits[:, -1:].argmax(-1), done.past_key_values
        return state[0]

    return step


def main() -> None:
    """Run the steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=(*MODES, "generate", "resnet18"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--times", action="store_true", help="always given")
    parser.add_argument("--switch", choices=("pasta", "cupti"))
    parser.add_argument("--each", metavar="FILE", help="write the ms of each step, a line each")
    options = parser.parse_args()
    torch.manual_seed(0)
    made = {"generate": generated, "resnet18": resnet18}
    step = made[options.mode]() if options.mode in made else trained(options.mode)
    switch = pasta_switch if options.switch == "pasta" else cupti_switch
    times = []
    for number in range(options.warmup + options.steps):
        if options.switch and number % BLOCK == 0:
            torch.cuda.synchronize()
            switch(number // BLOCK % 2 == 0)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        result = step()
        torch.cuda.synchronize()
        if number >= options.warmup:
            times.append((number, 1e3 * (time.perf_counter() - begin)))
    print(f"{options.mode}: {float(result):.1f}")
    if options.switch:
        # the first step after a switch counts for neither
        on, off = (
            [ms for at, ms in times if at // BLOCK % 2 == stopped and at % BLOCK]
            for stopped in (False, True)
        )
        print(f"on {quartiles(on)} ms, off {quartiles(off)} ms", file=sys.stderr)
        print(f"on / off = {statistics.median(on) / statistics.median(off):.4f}", file=sys.stderr)
    if options.each:
        with open(options.each, "w") as file:
            file.writelines(f"{ms:.3f}\n" for _, ms in times)
    print(f"mean_ms {statistics.mean(ms for _, ms in times):.6f}", file=sys.stderr)
    print(f"median_step_ms={statistics.median(ms for _, ms in times):.6f}", file=sys.stderr)


def pasta_switch(on: bool) -> None:
    """Stop or start PASTA's profiling."""
    (pasta.start if on else pasta.stop)()


def cupti_switch(on: bool) -> None:
    """Disable or enable what the client of CUPTI has enabled."""
    if not ctypes.CDLL("libcupti.so.13").cupti_switch(int(on)):
        sys.exit("steps: nothing is switched: no client of CUPTI has enabled anything")


def quartiles(values: list[float]) -> str:
    """`median (first to third quartile)`."""
    first, median, third = statistics.quantiles(values, n=4)
    return f"{median:.3f} ({first:.3f} to {third:.3f})"


if __name__ == "__main__":
    main()
