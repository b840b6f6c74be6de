"""A matrix is laid out again in every step."""

import torch

matrix = torch.randn(1024, 1024)
x = torch.randn(1024)
for _ in range(60):
    y = matrix.t().contiguous() @ x  # FAULT: the same copy each time
