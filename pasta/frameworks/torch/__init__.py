"""PyTorch.  `hooks.py` and `hooks.cpp` run in the profiled program and import nothing of PASTA."""
