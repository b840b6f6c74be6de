"""Each sample is decoded in Python, number by number."""

import torch
from torch import nn


def decode(seed):
    return [sum((seed * i + j) % 257 for j in range(100)) / 25700 for i in range(300)]  # FAULT


net = nn.Linear(300, 10)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(12):
    x = torch.tensor([decode(16 * step + i) for i in range(16)])
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
