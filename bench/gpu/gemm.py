"""Products of square matrices of float32, by cuBLAS: prints the median time of one.

python gemm.py N COUNT
"""

from __future__ import annotations

import statistics
import sys
import time

import torch


def main() -> None:
    """Multiply and print gemm_ms on stderr."""
    size, count = map(int, sys.argv[1:])
    torch.backends.cuda.matmul.allow_tf32 = False
    a, b = (torch.rand(size, size, device="cuda") for _ in range(2))
    times = []
    for _ in range(count + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        torch.mm(a, b)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    print(f"gemm_ms={1e3 * statistics.median(times[1:]):.4f}", file=sys.stderr)


if __name__ == "__main__":
    main()
