"""A graph network of two layers, trained on one graph that is kept in the host's memory.

python graph.py [--changed]      changed: features and edges are moved to the device once
"""

from __future__ import annotations

import torch
from measured import measured, parsed
from torch import nn

NODES, EDGES, FEATURES, HIDDEN = 200_000, 2_000_000, 128, 64


def passed(features: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Sums of the features of neighbours, of shape (nodes, features)."""
    return torch.zeros_like(features).index_add_(0, targets, features[sources])


def main() -> None:
    """Train."""
    options = parsed(__doc__, steps=30)
    torch.manual_seed(0)
    graph = (torch.randn(NODES, FEATURES), torch.randint(0, NODES, (2, EDGES)))
    if options.changed:
        graph = (graph[0].to(options.device), graph[1].to(options.device))
    first = nn.Linear(FEATURES, HIDDEN).to(options.device)
    second = nn.Linear(HIDDEN, 1).to(options.device)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=1e-3)

    def step() -> torch.Tensor:
        features, edges = (each.to(options.device) for each in graph)
        optimizer.zero_grad(set_to_none=True)
        hidden = passed(torch.relu(first(features)), *edges)
        loss = (passed(second(hidden), *edges).squeeze() - features[:, 0]).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    measured(step, options)


if __name__ == "__main__":
    main()
