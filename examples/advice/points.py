"""Two layers that take the maximum over each point's neighbours, as for point clouds; features are
stored channel by channel.

python points.py [--changed]      changed: features are stored point by point
"""

from __future__ import annotations

import torch
from measured import measured, parsed
from torch import nn

POINTS, NEIGHBOURS, CHANNELS = 100_000, 16, 128


class Layer(nn.Module):
    """A product with weights, and its maximum over neighbours; `points_first`: of the features."""

    def __init__(self, channels: int, points_first: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CHANNELS, channels) / channels**0.5)
        self.points_first = points_first

    def forward(self, features: torch.Tensor, neighbours: torch.Tensor) -> torch.Tensor:
        """Features of all points."""
        if self.points_first:
            hidden = torch.relu(features @ self.weight.T)  # (points, channels)
            near = hidden.index_select(0, neighbours.flatten())
            return near.view(*neighbours.shape, CHANNELS).amax(1)
        hidden = torch.relu(self.weight @ features)  # (channels, points)
        near = hidden.index_select(1, neighbours.flatten())
        return near.view(CHANNELS, *neighbours.shape).amax(2)


def main() -> None:
    """Train."""
    options = parsed(__doc__, steps=20)
    torch.manual_seed(0)
    points = torch.randn(POINTS, 3, device=options.device)
    neighbours = torch.randint(0, POINTS, (POINTS, NEIGHBOURS), device=options.device)
    first, second = (Layer(each, options.changed).to(options.device) for each in (3, CHANNELS))
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=1e-3)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        features = points if options.changed else points.T
        loss = second(first(features, neighbours), neighbours).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    measured(step, options)


if __name__ == "__main__":
    main()
