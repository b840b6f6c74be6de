"""ResNet-18 trained on images that a data set decodes and augments in Python.

python resnet18.py [--changed]      changed: workers prepare the batches, in pinned memory
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "cuda"))
from measured import measured, parsed
from resnet18_train import resnet18

BATCH, SIZE = 32, 224


class Images(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Random images: cropped, flipped and normalised."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        random = np.random.default_rng(at)
        raw = random.integers(0, 256, (256, 256, 3), np.uint8)
        top, left = random.integers(0, 256 - SIZE, 2)
        image = raw[top : top + SIZE, left : left + SIZE][:, :: 1 if at % 2 else -1] / 255.0
        image = (image - image.mean((0, 1))) / image.std((0, 1))
        return torch.from_numpy(image.transpose(2, 0, 1).astype(np.float32)), at % 1000


def main() -> None:
    """Train."""
    options = parsed(__doc__, steps=30)
    torch.manual_seed(0)
    more = {"num_workers": 8, "pin_memory": True, "persistent_workers": True}
    loader = iter(torch.utils.data.DataLoader(Images(), BATCH, **(more if options.changed else {})))
    model = resnet18().to(options.device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> torch.Tensor:
        images, labels = (each.to(options.device, non_blocking=True) for each in next(loader))
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    measured(step, options)


if __name__ == "__main__":
    main()
