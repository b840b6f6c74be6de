"""Weights are serialised for a log in every step."""

import io
import json

import torch
from torch import nn

net = nn.Linear(256, 256)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
log = io.StringIO()
x = torch.randn(32, 256)
for _ in range(10):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
    weights = net.weight.detach().flatten()
    json.dump(weights.tolist(), log)  # FAULT: 65,536 numbers as text, every step
    log.seek(0)
