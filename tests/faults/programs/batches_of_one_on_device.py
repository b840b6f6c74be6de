"""Inference on one sample at a time, on a device that is idle between."""

import torch
from torch import nn

import pasta.frameworks.torch.refacc  # noqa: F401  the device "refacc"

net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8)).to("refacc")
samples = torch.randn(400, 16).to("refacc")
with torch.no_grad():
    for index in range(len(samples)):
        net(samples[index : index + 1])  # FAULT: 400 batches of one
