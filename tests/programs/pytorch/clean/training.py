"""Training on data in memory; the loss is read at the end."""

import torch
from torch import nn

net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
data, labels = torch.randn(40, 256, 256), torch.randint(0, 10, (40, 256))
total = torch.zeros(())
for x, y in zip(data, labels, strict=True):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    total += loss.detach()
print(f"{total.item() > 0}")
