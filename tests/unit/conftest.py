"""Builds of the C tests."""

from __future__ import annotations

import pytest

from tests.support.c_builds import BUILDS, Build


@pytest.fixture(
    scope="module",
    params=[pytest.param(each, id=each.name, marks=each.marks) for each in BUILDS],
)
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A build of C tests that works on this machine."""
    chosen: Build = request.param
    if not chosen.works(tmp_path_factory.mktemp("works")):
        pytest.skip(f"the compiler lacks {chosen.flags[-1]}")
    return chosen
