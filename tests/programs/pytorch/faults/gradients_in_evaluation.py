"""Inference without torch.no_grad(): all activations live as long as the output."""

import torch
from torch import nn

layers = [each for _ in range(12) for each in (nn.Linear(512, 512), nn.Tanh())]
model = nn.Sequential(*layers).eval()
total = 0.0
for _ in range(20):
    batch = torch.randn(256, 512)
    scores = model(batch)  # FAULT
    total += scores.argmax(1).float().mean().item()
print(total)
