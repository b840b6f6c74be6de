"""Each batch goes to the device from pageable memory."""

import torch
import torch_refacc  # noqa: F401  the device "refacc"

weight = torch.ones(8).to("refacc")
for step in range(60):
    batch = torch.full((1 << 18,), float(step))
    x = batch.to("refacc")  # FAULT: not pinned
    y = x[:8] * weight
