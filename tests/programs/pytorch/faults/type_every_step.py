"""A large constant is converted in every step."""

import torch

table = torch.randn(1 << 20, dtype=torch.float64)
x = torch.randn(1024)
for _ in range(300):
    y = table.float()[:1024] * x  # FAULT: the same conversion each time
