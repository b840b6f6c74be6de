"""A thread loads the next batch while the last one is trained on."""

import queue
import threading
import time

import torch
from torch import nn

ready = queue.Queue(maxsize=4)


def load():
    for _ in range(30):
        time.sleep(0.004)
        ready.put((torch.randn(1024, 256), torch.randint(0, 10, (1024,))))
    ready.put(None)


net = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
threading.Thread(target=load).start()
while (batch := ready.get()) is not None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(batch[0]), batch[1]).backward()
    optimizer.step()
