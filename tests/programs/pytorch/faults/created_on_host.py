"""Noise is drawn on the host and sent to the device, in many small parts."""

import torch
import torch_refacc  # noqa: F401  the device "refacc"

x = torch.zeros(256).to("refacc")
for _ in range(1500):
    x += torch.ones(256).to("refacc")  # FAULT: torch.ones(256, device="refacc")
