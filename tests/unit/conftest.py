"""How the C tests are compiled."""

from __future__ import annotations

import pytest

from tests.c.builds import BUILDS, Build


@pytest.fixture(
    scope="module",
    params=[pytest.param(b, id=b.name, marks=pytest.mark.sanitizers) for b in BUILDS],
)
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A way to compile C tests that works on this machine."""
    chosen: Build = request.param
    if not chosen.works(tmp_path_factory.mktemp("works")):
        pytest.skip(f"the compiler lacks {chosen.flags[-1]}")
    return chosen
