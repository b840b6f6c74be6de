"""What all Python programs here have: options, and the time and memory of their steps."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

WARM_UP = 3


def parsed(doc: str | None, steps: int) -> argparse.Namespace:
    """The options; `steps`: how many are measured, unless --steps is given."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--changed", action="store_true", help="with the change")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def measured(step: Callable[[], Any], options: argparse.Namespace) -> None:
    """Run the steps; print the last result, and the mean time of a step and the peak of memory on
    stderr."""
    wait = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    for _ in range(WARM_UP):
        step()
    wait()
    begin = time.perf_counter()
    for _ in range(options.steps):
        result = step()
    wait()
    mean = (time.perf_counter() - begin) / options.steps
    peak = torch.cuda.max_memory_allocated() if options.device == "cuda" else 0
    print(f"result {float(result):.3e}")
    print(f"mean_step_ms={1e3 * mean:.4f} peak_mib={peak / 2**20:.0f}", file=sys.stderr)


def captured(step: Callable[[], Any]) -> Callable[[], Any]:
    """The step as a CUDA graph: a function that replays it, and returns what its tensors hold."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()

    def replay() -> Any:
        graph.replay()
        return result

    return replay
