"""ResNet-18 training steps on fixed data: losses that must not change under a profiler.

Prints one loss per step as a hexadecimal float; with --times the median step time on stderr.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts

import torch
from torch import nn


class Block(nn.Module):
    """Two 3x3 convolutions and their shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output, of shape (batch, outputs, height / stride, width / stride)."""
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


def local_resnet18() -> nn.Module:
    """ResNet-18 without torchvision."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def resnet18() -> nn.Module:
    """torchvision's ResNet-18 if it is installed, otherwise the local one."""
    try:
        from torchvision.models import resnet18 as model
    except ImportError:
        return local_resnet18()
    return model()


def main() -> None:
    """Train and print the losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=0, help="steps before the timed ones")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=224, help="pixels per side")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--times", action="store_true", help="median step time on stderr")
    parser.add_argument("--mean", action="store_true", help="with --times: the mean instead")
    parser.add_argument("--mark", action="store_true", help='an NVTX range "step" around each')
    options = parser.parse_args()

    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    device = torch.device(options.device)
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    model = resnet18().to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(options.batch, 3, options.size, options.size, device=device)
    labels = torch.randint(0, 1000, (options.batch,), device=device)

    losses, times = [], []
    for step in range(options.warmup + options.steps):
        synchronize()
        begin = time.perf_counter()
        if options.mark:
            torch.cuda.nvtx.range_push("step")
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if options.mark:
            torch.cuda.nvtx.range_pop()
        synchronize()
        if step >= options.warmup:
            times.append(time.perf_counter() - begin)
        losses.append(loss.item())
    for value in losses:
        print(value.hex())
    if options.times:
        middle, name = (statistics.mean, "mean") if options.mean else (statistics.median, "median")
        print(f"{name}_step_ms={middle(times) * 1e3:.4f}", file=sys.stderr)


if __name__ == "__main__":
    main()
