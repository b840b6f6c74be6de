"""Trains the network of out_of_memory.py: validation keeps numbers, not graphs."""

import torch
from torch import nn

WIDTH, BATCH, STEPS = 256, 512, 12


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    known = torch.randn(2 * BATCH, WIDTH)
    history = []
    for _ in range(STEPS):
        x = torch.randn(BATCH, WIDTH)
        optimizer.zero_grad()
        (model(x) - x).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            validation = (model(known) - known).square().mean()
        history.append(validation.item())
    print(f"first {history[0]:.4f}, last {history[-1]:.4f}")


if __name__ == "__main__":
    main()
