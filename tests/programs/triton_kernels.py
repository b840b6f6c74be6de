"""Triton kernels of gpu_libraries.py: a row-wise softmax and a matrix product."""

import triton
import triton.language as tl


@triton.jit
def softmax(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * n + tl.arange(0, BLOCK)
    value = tl.load(x + at)
    value = tl.exp(value - tl.max(value, 0))
    tl.store(out + at, value / tl.sum(value, 0))


@triton.jit
def matmul(x, w, out, n, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, n, BLOCK):
        inner = k + tl.arange(0, BLOCK)
        a = tl.load(x + rows[:, None] * n + inner[None, :])
        b = tl.load(w + inner[:, None] * n + columns[None, :])
        total += tl.dot(a, b)
    tl.store(out + rows[:, None] * n + columns[None, :], total)
