"""Batches of ever other sizes: the caching allocator reserves memory for each of them."""

import torch
import torch_refacc  # noqa: F401  the device "refacc"

for number in range(40):
    batch = torch.empty(40 + number, 1 << 16, device="refacc")  # FAULT
    batch[:1, :32].fill_(number)
