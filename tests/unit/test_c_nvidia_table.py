"""The table in which patches look addresses up: tests/c/test_nvidia_table.c, case by case."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.c.session import ROOT, C, compile_c
from tests.unit.test_c_sanitizers import BUILDS, Build, works

CASES = (
    "lookups",
    "adjacent",
    "many",
    "storage",
    "short_storage",
    "tiny_storage",
    "no_storage",
)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(b, id=b.name, marks=pytest.mark.sanitizers)
        for b in BUILDS
        if b.name != "thread"
    ],
)
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Build:
    chosen: Build = request.param
    if not works(chosen.flags, tmp_path_factory.mktemp("works")):
        pytest.skip(f"the compiler lacks {chosen.flags[-1]}")
    return chosen


@pytest.fixture(scope="module")
def program(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [ROOT / "shim" / "sources" / "nvidia_table.c", C / "test_nvidia_table.c"]
    output = tmp_path_factory.mktemp(build.name) / "test_nvidia_table"
    return compile_c(output, sources, *build.flags)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_table(build: Build, program: Path, case: str, seed: int) -> None:
    done = subprocess.run(
        [program, case, str(seed)],
        env={**os.environ, **build.options},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
