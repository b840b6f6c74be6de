"""Trains a small network on PASTA's reference accelerator; prints the loss of each step.

With --table, torch's own profiler prints one more step: device time by operator.
"""

from __future__ import annotations

import argparse
import sys

try:
    import torch
    from torch import nn
except ImportError:
    sys.exit("this example needs PyTorch: pip install torch")


def main() -> None:
    """Train and print the losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="refacc", help="refacc or cpu")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.device == "refacc":
        import torch_refacc  # noqa: F401  registers the device

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, given.width), nn.ReLU(), nn.Linear(given.width, 10))
    net.to(given.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(given.batch, 32).to(given.device)
    y = torch.randint(0, 10, (given.batch,)).to(given.device)

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    for number in range(given.steps):
        print(f"step {number}: loss {step():.4f}")
    if given.table:
        with torch.autograd.profiler.profile(use_device="refacc", record_shapes=True) as profile:
            step()
        print(profile.key_averages().table(sort_by="self_device_time_total", row_limit=10))


if __name__ == "__main__":
    main()
