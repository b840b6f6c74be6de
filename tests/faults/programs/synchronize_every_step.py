"""The device is waited for in every step, outside of operators."""

import torch
from torch import nn

import pasta.frameworks.torch.refacc

net = nn.Sequential(*(nn.Linear(32, 32) for _ in range(12))).to("refacc")
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x = torch.randn(32, 32).to("refacc")
for _ in range(25):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    pasta.frameworks.torch.refacc.synchronize()  # FAULT: left over from measuring
    optimizer.step()
