"""Results are kept until there is one for each label; later steps find theirs there."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 4096)).eval()
prompts = torch.randn(12, 64, 256)
cache: dict[int, torch.Tensor] = {}
total = torch.zeros(())
with torch.inference_mode():
    for step in range(60):
        label = step % len(prompts)
        answer = model(prompts[label])
        cache.setdefault(label, answer)
        total += (cache[label] - answer).abs().sum()
print(total.item() == 0)
