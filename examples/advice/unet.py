"""A diffusion model that removes noise from an image in steps; each step asks whether it diverges.

python unet.py [--changed]      changed: the device decides, so that a step can be a CUDA graph
"""

from __future__ import annotations

import itertools

import torch
from measured import captured, measured, parsed
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
    in_turn = itertools.cycle(shares)
    known = shares.to(options.device)
    image = torch.randn(1, 3, SIZE, SIZE, device=options.device)
    turn = torch.zeros(1, dtype=torch.long, device=options.device)

    def denoised(share: torch.Tensor) -> torch.Tensor:
        noise = model(torch.cat([image, share.expand(1, 1, SIZE, SIZE)], 1))
        return image - 0.1 * share * noise

    def step() -> torch.Tensor:
        x = denoised(next(in_turn).to(options.device))
        if x.abs().max().item() > 3:
            x = x.clamp(-3, 3)
        return image.copy_(x).sum()

    def step_of_device() -> torch.Tensor:
        x = denoised(known.gather(0, turn)).clamp(-3, 3)
        turn.add_(1).remainder_(NOISE)
        return image.copy_(x).sum()

    measured(captured(step_of_device) if options.changed else step, options)


if __name__ == "__main__":
    main()
