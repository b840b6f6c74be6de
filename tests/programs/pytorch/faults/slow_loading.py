"""The data takes longer to load than a step takes to compute."""

import time

import torch
from torch import nn


def batches(count):
    for _ in range(count):
        time.sleep(0.03)  # FAULT: reading and decoding, in the training thread
        yield torch.randn(64, 64), torch.randint(0, 10, (64,))


net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in batches(15):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
