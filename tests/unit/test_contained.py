"""Process state that a tool's call must not change."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest

from pasta.contained import contained


def test_error_modes_of_numpy_are_restored() -> None:
    before = np.geterr()
    with contained():
        np.seterr(all="ignore")
    assert np.geterr() == before


def test_concurrent_import_of_numpy_is_not_disturbed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "numpy", ModuleType("numpy"))
    with contained():
        pass
