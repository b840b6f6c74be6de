"""Training steps of a small network on several processes: data, tensor or pipeline parallel.

    torchrun --nproc-per-node 2 examples/torch/parallel_train.py --parallel data
    torchrun --nproc-per-node 2 examples/torch/parallel_train.py --parallel tensor --late 1
    torchrun --nproc-per-node 2 examples/torch/parallel_train.py --parallel pipeline

Uses NCCL where each process has a GPU, otherwise gloo on the CPU. The last rank prints a loss per
step. `--late RANK` makes a rank sleep before its step, for which the others then wait.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

STEPS, MICRO_BATCHES = 20, 4


class Copy(torch.autograd.Function):
    """A copy for each rank; the gradients of all ranks are added."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """`x` itself."""
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """The sum over ranks."""
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class Sum(torch.autograd.Function):
    """The sum over ranks; its gradient is that of each rank."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """The sum over ranks."""
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient itself."""
        return gradient


class Block(nn.Module):
    """Two layers, whose hidden units may be divided between ranks."""

    def __init__(self, width: int, ranks: int = 1) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width // ranks)
        self.down = nn.Linear(4 * width // ranks, width, bias=False)
        self.divided = ranks > 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output, of the shape of `x`, (batch, width)."""
        part = nn.functional.gelu(self.up(Copy.apply(x) if self.divided else x))
        return x + (Sum.apply(self.down(part)) if self.divided else self.down(part))


def blocks(count: int, width: int, ranks: int = 1) -> nn.Sequential:
    """Blocks, each with this rank's part of the hidden units."""
    return nn.Sequential(*(Block(width, ranks) for _ in range(count)))


def steps(model: nn.Module, options: argparse.Namespace, data: torch.Tensor) -> Iterator[float]:
    """Losses of steps on fixed data, (batch, width), which the model should reproduce."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(options.steps):
        be_late(options)
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(data), data)
        loss.backward()
        optimizer.step()
        yield loss.item()


def pipeline_steps(
    model: nn.Module, options: argparse.Namespace, data: torch.Tensor
) -> Iterator[float]:
    """Losses of steps of a stage: micro-batches come from the rank before and go to the next."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(options.steps):
        be_late(options)
        optimizer.zero_grad(set_to_none=True)
        passed, total = [], 0.0
        for batch in data.chunk(MICRO_BATCHES):
            given = batch if rank == 0 else torch.empty_like(batch)
            if rank > 0:
                dist.recv(given, rank - 1)
                given.requires_grad_()
            output = model(given)
            if rank < last:
                dist.send(output.detach(), rank + 1)
            passed.append((given, output, batch))
        for given, output, batch in passed:
            if rank == last:
                loss = nn.functional.mse_loss(output, batch) / MICRO_BATCHES
                total += loss.item()
                loss.backward()
            else:
                gradient = torch.empty_like(output)
                dist.recv(gradient, rank + 1)
                output.backward(gradient)
            if rank > 0:
                dist.send(given.grad, rank - 1)
        optimizer.step()
        yield total


def be_late(options: argparse.Namespace) -> None:
    """Sleeps in the rank that is to be late."""
    if dist.get_rank() == options.late:
        time.sleep(0.005)


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parallel", choices=("data", "tensor", "pipeline"), default="data")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--late", type=int, default=-1, metavar="RANK")
    options = parser.parse_args()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    on_gpus = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    device = torch.device("cuda", local) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7 + (rank if options.parallel == "data" else 0))
    data = torch.randn(32, options.width, device=device)
    torch.manual_seed(7 + rank)
    if options.parallel == "data":
        model: nn.Module = blocks(options.layers, options.width).to(device)
        model = nn.parallel.DistributedDataParallel(model)
        losses = steps(model, options, data)
    elif options.parallel == "tensor":
        model = blocks(options.layers, options.width, ranks).to(device)
        losses = steps(model, options, data)
    else:
        model = blocks(options.layers // ranks, options.width).to(device)
        losses = pipeline_steps(model, options, data)
    for loss in losses:
        if rank == ranks - 1:
            print(f"{loss:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
