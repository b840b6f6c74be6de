"""The device is waited for in every step, outside of operators."""

import torch
import torch_refacc
from torch import nn

net = nn.Sequential(*(nn.Linear(32, 32) for _ in range(12))).to("refacc")
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x = torch.randn(32, 32).to("refacc")
for _ in range(25):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    torch_refacc.synchronize()  # FAULT: left over from measuring
    optimizer.step()
