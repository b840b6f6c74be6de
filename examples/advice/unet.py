"""A diffusion model that removes noise from an image in steps; each step asks whether it diverges.

python unet.py [--changed]      changed: the device clamps the values, the host asks nothing
"""

from __future__ import annotations

import torch
from measured import measured, parsed
from torch import nn

NOISE, WIDTH, SIZE = 50, 64, 64


class Block(nn.Module):
    """Two convolutions with normalisation, and a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, 1, 1), nn.GroupNorm(8, outputs), nn.SiLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1), nn.GroupNorm(8, outputs), nn.SiLU(),
        )  # fmt: skip
        self.shortcut = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of shape (batch, outputs, height, width)."""
        return self.layers(x) + self.shortcut(x)  # type: ignore[no-any-return]


class UNet(nn.Module):
    """Three levels down and up, with connections between equal sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, WIDTH, 3, 1, 1)  # the image, and how much noise it has
        self.down = nn.ModuleList([Block(WIDTH << at, WIDTH << at + 1) for at in range(3)])
        self.up = nn.ModuleList(
            [Block((WIDTH << at + 1) + (WIDTH << at), WIDTH << at) for at in reversed(range(3))]
        )
        self.last = nn.Conv2d(WIDTH, 3, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The noise in x, of shape (batch, 3, height, width)."""
        x, seen = self.first(x), []
        for block in self.down:
            seen.append(x)
            x = nn.functional.avg_pool2d(block(x), 2)
        for block in self.up:
            x = block(torch.cat([nn.functional.interpolate(x, scale_factor=2), seen.pop()], 1))
        return self.last(x)  # type: ignore[no-any-return]


@torch.inference_mode()
def main() -> None:
    """Remove noise."""
    options = parsed(__doc__, steps=200)
    torch.manual_seed(0)
    model = UNet().to(options.device).eval()
    shares = torch.linspace(1, 0.02, NOISE)
    known = shares.to(options.device)
    state = [torch.randn(1, 3, SIZE, SIZE, device=options.device), 0]

    def step() -> torch.Tensor:
        x, at = state
        share = known[at] if options.changed else shares[at].to(options.device)
        noise = model(torch.cat([x, share.expand(1, 1, SIZE, SIZE)], 1))
        x = x - 0.1 * share * noise
        if options.changed or x.abs().max().item() > 3:
            x = x.clamp(-3, 3)
        state[:] = x, (at + 1) % NOISE
        return x.sum()

    measured(step, options)


if __name__ == "__main__":
    main()
