"""Batches of a good size, without gradients."""

import torch
from torch import nn

net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 64)).eval()
samples = torch.randn(64 * 256, 256)
answers = torch.empty(len(samples), 64)
with torch.inference_mode():
    for first in range(0, len(samples), 512):
        answers[first : first + 512] = net(samples[first : first + 512])
