"""The programs need PyTorch; all run in one process, once for all tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

TORCH = importlib.util.find_spec("torch") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.torch)
            item.add_marker(pytest.mark.xdist_group("faults"))
            if not TORCH:
                item.add_marker(pytest.mark.skip(reason="PyTorch is not installed"))
