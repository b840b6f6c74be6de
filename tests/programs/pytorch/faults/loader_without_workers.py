"""A DataLoader without workers: each item is made while the step waits."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.ones(64), index % 10


net = nn.Linear(64, 10)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in DataLoader(Images(), batch_size=8):  # FAULT: num_workers=0
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
