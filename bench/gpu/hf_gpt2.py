"""A GPT-2 of Hugging Face with random weights: training steps (eager, compiled, as a CUDA graph) or
generated tokens. Prints the last loss or token, and the median time of a step on stderr.

    python bench/gpu/hf_gpt2.py eager|compiled|graph|generate [--steps 60] [--warmup 10] [--switch]

A step of `generate` is a token of one sequence, with the keys and values of those before it. With
--switch, under pasta-preload, profiling is stopped for every other eight steps, and the medians of
both kinds are printed: processes of programs that the host bounds differ by 15 to 60 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import pasta

BATCH, LENGTH = 4, 512
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

    if mode != "graph":
        return step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay() -> torch.Tensor:
        graph.replay()
        return loss

    return replay


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
    parser.add_argument("mode", choices=("eager", "compiled", "graph", "generate"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--times", action="store_true", help="always given")
    parser.add_argument("--switch", action="store_true")
    parser.add_argument("--each", metavar="FILE", help="write the ms of each step, a line each")
    options = parser.parse_args()
    torch.manual_seed(0)
    step = generated() if options.mode == "generate" else trained(options.mode)
    times = []
    for number in range(options.warmup + options.steps):
        if options.switch and number % BLOCK == 0:
            torch.cuda.synchronize()
            (pasta.stop if number // BLOCK % 2 else pasta.start)()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        result = step()
        torch.cuda.synchronize()
        if number >= options.warmup:
            times.append((number, 1e3 * (time.perf_counter() - begin)))
    print(f"{options.mode}: {float(result):.1f}")
    if options.switch:
        # the first step after a switch is neither
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


def quartiles(values: list[float]) -> str:
    """`median (first to third quartile)`."""
    first, median, third = statistics.quantiles(values, n=4)
    return f"{median:.3f} ({first:.3f} to {third:.3f})"


if __name__ == "__main__":
    main()
