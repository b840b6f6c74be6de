"""Inference on one sample at a time."""

import torch
from torch import nn

net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
samples = torch.randn(1500, 64)
with torch.no_grad():
    for index in range(len(samples)):
        net(samples[index : index + 1])  # FAULT: 1,500 batches of one
