"""Runs a PyTorch program while other allocations are live: with_objects.py COUNT PROGRAM [ARG]...

The driver allocates 64 KiB for each, so that each is an object.
"""

from __future__ import annotations

import ctypes
import runpy
import sys

import torch

EACH = 1 << 16


def main() -> None:
    """Make the allocations and run the program."""
    count = int(sys.argv[1])
    sys.argv = sys.argv[2:]
    torch.cuda.init()
    torch.empty(1, device="cuda")  # makes the context that is used below
    driver = ctypes.CDLL("libcuda.so.1")
    for _ in range(count):
        address = ctypes.c_uint64()
        status = driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(EACH))
        if status:
            sys.exit(f"with_objects: cuMemAlloc failed ({status})")
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
