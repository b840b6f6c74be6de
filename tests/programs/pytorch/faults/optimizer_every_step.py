"""A new network and optimizer in every step."""

import torch
from torch import nn

x = torch.randn(4, 64)
for _ in range(30):
    net = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 64))  # FAULT: built again
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(x).square().mean().backward()
    optimizer.step()
