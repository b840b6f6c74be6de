"""A batch is worked on row by row, on a device that is idle between."""

import torch
import torch_refacc  # noqa: F401  the device "refacc"

x = torch.randn(1500, 16).to("refacc")
scale = torch.randn(16).to("refacc")
for _ in range(5):
    rows = []
    for row in x:
        rows.append(row * scale)  # FAULT: x * scale does all rows at once
