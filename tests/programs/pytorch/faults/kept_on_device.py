"""Features of every batch stay on the device."""

import torch
from torch import nn


def features(model: nn.Module, batches: int) -> list[torch.Tensor]:
    found = []
    with torch.no_grad():
        for _ in range(batches):
            batch = torch.randn(64, 64, device="refacc")
            found.append(model(batch))  # FAULT
    return found


model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 256)).to("refacc")
print(len(features(model, 40)))
