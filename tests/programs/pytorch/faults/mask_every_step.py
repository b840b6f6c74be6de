"""A mask selects rows on the device: the host waits for their number."""

import torch
import torch_refacc  # noqa: F401  the device "refacc"
from torch import nn

net = nn.Sequential(*(nn.Linear(16, 16) for _ in range(12))).to("refacc")
x = torch.randn(16, 16).to("refacc")
with torch.no_grad():
    for _ in range(60):
        y = net(x)
        if y.sum() > 1e9:  # FAULT: a tensor decides what the host does
            break
