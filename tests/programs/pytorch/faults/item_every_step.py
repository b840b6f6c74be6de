"""The loss is read in every step: the host waits, then the device does."""

import torch
import torch_refacc  # noqa: F401  the device "refacc"
from torch import nn

net = nn.Sequential(*(nn.Linear(32, 32) for _ in range(12))).to("refacc")
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x = torch.randn(32, 32).to("refacc")
total = 0.0
for _ in range(25):
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    total += loss.item()  # FAULT: waits for the whole step
