"""Training on a device that always has work; the loss is read at the end."""

import torch
import torch_refacc  # noqa: F401  the device "refacc"
from torch import nn

net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to("refacc")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = torch.randn(64, 64).to("refacc"), torch.randint(0, 10, (64,)).to("refacc")
for _ in range(12):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
print(loss.item() > 0)
