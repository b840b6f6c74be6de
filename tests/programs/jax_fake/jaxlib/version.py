"""The version that hooks ask for."""

__version__ = "0.11.2"
