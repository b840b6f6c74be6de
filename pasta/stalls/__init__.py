"""Stalls of warps charged to tensors: samples, the loads that they waited for, and the tensors that
these loads read (docs/tools/tensor_stalls.md)."""
