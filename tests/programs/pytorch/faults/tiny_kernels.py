"""A batch is worked on row by row: thousands of operators on 16 numbers each."""

import torch

x = torch.randn(400, 16)
scale = torch.randn(16)
for _ in range(120):
    rows = []
    for row in x:
        rows.append(row * scale)  # FAULT: x * scale does all rows at once
    y = torch.stack(rows)
