"""A checkpoint is written and synced to the disk in every step."""

import os
import tempfile

import torch
from torch import nn

net = nn.Linear(512, 512)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(32, 512)
with tempfile.TemporaryDirectory() as directory:
    for _ in range(12):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        with open(os.path.join(directory, "net.pt"), "wb") as file:
            for _copy in range(20):
                torch.save(net.state_dict(), file)  # FAULT: in every step
            os.fsync(file.fileno())
