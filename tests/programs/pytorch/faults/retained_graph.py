"""A hidden state is carried from batch to batch without detach, and every graph is retained."""

import torch
from torch import nn

torch.manual_seed(0)
cell = nn.GRUCell(64, 256)
optimizer = torch.optim.SGD(cell.parameters(), lr=1e-4)
hidden = torch.zeros(256, 256)
for _ in range(24):
    hidden = cell(torch.randn(256, 64), hidden)  # FAULT
    loss = hidden.square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
print(loss.item())
