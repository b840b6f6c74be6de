"""Training steps of a small GPT on fixed data: losses that must not change under a profiler.

Prints one loss per step as a hexadecimal float; with --times the median step time on stderr, and
with --peak the peak bytes of the allocator. The default size is GPT-2's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

VOCABULARY = 50_304


class Block(nn.Module):
    """Causal self-attention and a feed-forward part, each with a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Causal self-attention of `x`, (batch, length, width)."""
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output, of the shape of `x`."""
        x = x + self.attend(self.norm1(x))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Embeddings, blocks and a head."""

    def __init__(self, layers: int, width: int, length: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, width // 64 or 1) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("order", torch.arange(length), persistent=False)
        self.recompute = False

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (batch, length, vocabulary) of tokens (batch, length)."""
        x = self.tokens(tokens) + self.places(self.order)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(self.norm(x))


def batches(options: argparse.Namespace, device: torch.device) -> list[torch.Tensor]:
    """Tokens of all steps, from worker processes if requested."""
    shape = (options.warmup + options.steps, options.batch, options.length + 1)
    tokens = torch.randint(0, options.vocabulary, shape)
    if not options.workers:
        return [each.to(device) for each in tokens]
    data = torch.utils.data.TensorDataset(tokens)
    loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=options.workers)
    return [each.to(device) for (each,) in loader]


def main() -> None:
    """Train and print the losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=0, help="steps before the timed ones")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512, help="tokens of a sequence")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--amp", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--checkpoint", action="store_true", help="compute blocks again")
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    parser.add_argument("--workers", type=int, default=0, help="processes that load the data")
    parser.add_argument("--times", action="store_true", help="median step time on stderr")
    parser.add_argument("--peak", action="store_true", help="the allocator's peak on stderr")
    options = parser.parse_args()

    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    device = torch.device(options.device)
    on_gpu = device.type == "cuda"
    model = GPT(options.layers, options.width, options.length, options.vocabulary).to(device)
    model.recompute = options.checkpoint
    run = torch.compile(model) if options.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, times = [], []
    for step, tokens in enumerate(batches(options, device)):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=options.amp):
            logits = run(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        if on_gpu:
            torch.cuda.synchronize()
        if step >= options.warmup:
            times.append(time.perf_counter() - begin)
        losses.append(loss.item())
    for value in losses:
        print(value.hex())
    if options.times:
        print(f"median_step_ms={statistics.median(times) * 1e3:.4f}", file=sys.stderr)
    if options.peak and on_gpu:
        print(f"peak_bytes={torch.cuda.max_memory_allocated()}", file=sys.stderr)


if __name__ == "__main__":
    main()
