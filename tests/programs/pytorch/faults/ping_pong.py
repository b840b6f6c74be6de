"""A tensor goes to the host and back in every step."""

import torch
import torch_refacc  # noqa: F401  the device "refacc"

x = torch.randn(1 << 17).to("refacc")
for _ in range(60):
    host = x.cpu().clamp_(-1, 1)  # FAULT: clamp is there on the device, too
    x = host.to("refacc")
