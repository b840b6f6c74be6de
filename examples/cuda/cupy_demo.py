"""CuPy: a custom kernel, launched a known number of times, and a library call."""

from __future__ import annotations

import argparse

import cupy as cp

LAUNCHES = 5
kernel = cp.RawKernel(
    r"""
    extern "C" __global__ void cupy_scale(float *x, float factor, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] *= factor;
    }
    """,
    "cupy_scale",
)


def main() -> None:
    """Launch the kernel and multiply two matrices."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--expect", action="store_true")
    options = parser.parse_args()
    n = 1 << 16
    x = cp.ones(n, dtype=cp.float32)
    for _ in range(LAUNCHES):
        kernel(((n + 255) // 256,), (256,), (x, cp.float32(2), cp.int32(n)))
    product = cp.ones((64, 64), dtype=cp.float32) @ cp.ones((64, 64), dtype=cp.float32)
    print(f"cupy_demo: {float(x.sum()):.0f} {float(product[0, 0]):.0f}")
    if options.expect:
        print(f"kernel_launch:cupy_scale={LAUNCHES}")


if __name__ == "__main__":
    main()
