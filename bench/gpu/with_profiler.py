"""Runs a Python program under torch.profiler: python with_profiler.py PROGRAM [ARGUMENTS]."""

from __future__ import annotations

import runpy
import sys

from torch.profiler import ProfilerActivity, profile


def main() -> None:
    """Run the program with CPU and CUDA activities recorded; nothing is written."""
    del sys.argv[0]
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]):
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
