"""Frameworks whose operators, tensors and modules are followed."""
