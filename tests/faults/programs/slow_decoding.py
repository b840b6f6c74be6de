"""Each sample is decoded in Python, byte by byte."""

import torch
from torch import nn


def decode(seed):
    value, pixels = seed, []
    for _ in range(3000):  # FAULT: the whole loop runs in the interpreter
        value = (value * 1103515245 + 12345) % 2147483648
        pixels.append(value / 2147483648)
    return pixels


net = nn.Linear(3000, 10)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(12):
    x = torch.tensor([decode(16 * step + i) for i in range(16)])
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
