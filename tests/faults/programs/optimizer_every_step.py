"""A new network and optimizer in every step."""

import torch
from torch import nn

x = torch.randn(16, 256)
for _ in range(30):
    net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))  # FAULT: built again
    optimizer = torch.optim.Adam(net.parameters())
    net(x).square().mean().backward()
    optimizer.step()
