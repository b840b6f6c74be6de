"""A regularisation term's history is kept with its graph, while the model trains."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 512))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
history = []
for _ in range(50):
    batch = torch.randn(128, 256)
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(model(batch).abs().mean())  # FAULT
print(len(history))
