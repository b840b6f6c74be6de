"""The version that hooks ask for."""

__version__ = "0.11.2"
__version_info__ = (0, 11, 2)
