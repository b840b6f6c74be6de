"""Evaluation without gradients; what is correct is counted in a tensor."""

import torch
from torch import nn

net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 900, 10)).eval()
images, labels = torch.randn(20, 16, 3, 32, 32), torch.randint(0, 10, (20, 16))
correct = torch.zeros((), dtype=torch.long)
with torch.no_grad():
    for x, y in zip(images, labels, strict=True):
        correct += (net(x).argmax(1) == y).sum()
print(int(correct) >= 0)
