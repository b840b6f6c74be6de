"""Inference on one sample at a time."""

import torch
from torch import nn

net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
samples = torch.randn(6000, 64)
with torch.no_grad():
    for index in range(len(samples)):
        net(samples[index : index + 1])  # FAULT: 6,000 batches of one
