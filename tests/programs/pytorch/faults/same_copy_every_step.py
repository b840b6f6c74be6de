"""Data that never changes is sent to the device in every step."""

import torch
import torch_refacc  # noqa: F401  the device "refacc"

table = torch.randn(1 << 18, pin_memory=False)
for _ in range(60):
    y = table.to("refacc")[:8] + 1  # FAULT: the same table each time
