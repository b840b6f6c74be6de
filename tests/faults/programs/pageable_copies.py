"""Each batch goes to the device from pageable memory."""

import torch

import pasta.frameworks.torch.refacc  # noqa: F401  the device "refacc"

batches = [torch.randn(1 << 18) for _ in range(4)]
weight = torch.ones(8).to("refacc")
for step in range(60):
    x = batches[step % 4].to("refacc")  # FAULT: not pinned
    y = x[:8] * weight
