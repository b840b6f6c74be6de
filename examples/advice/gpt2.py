"""GPT-2 of Hugging Face, trained on short sequences: the host cannot launch fast enough.

python gpt2.py [--changed]      changed: a step is captured once, and launched as a CUDA graph
"""

from __future__ import annotations

import torch
from measured import captured, measured, parsed
from transformers import GPT2Config, GPT2LMHeadModel

BATCH, LENGTH = 2, 64


def main() -> None:
    """Train."""
    options = parsed(__doc__, steps=100)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).to(options.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=True)
    tokens = torch.randint(0, 50_000, (BATCH, LENGTH), device=options.device)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    measured(captured(step) if options.changed else step, options)


if __name__ == "__main__":
    main()
