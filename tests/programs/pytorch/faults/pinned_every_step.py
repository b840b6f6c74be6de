"""Each batch goes through a pinned buffer of its own, and all of these are kept."""

import torch
import torch_refacc  # noqa: F401  the device "refacc"

staged = []
for _ in range(40):
    batch = torch.ones(64, 1024)
    staged.append(batch.pin_memory())  # FAULT
    on_device = staged[-1].to("refacc", non_blocking=True)
torch.refacc.synchronize()
print(len(staged))
