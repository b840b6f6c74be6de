"""setenv and its kin: tests/c/test_environment.c, and what libc itself does in the same cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.c.builds import BUILDS, Build
from tests.c.session import ROOT, C, compile_c

ALONE = ("model", "own_array", "wrong", "bounded")
THREADS = ("threads", "fork")


@pytest.fixture(scope="module")
def program(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [ROOT / "shim" / "core" / "environment.c", C / "test_environment.c"]
    return compile_c(
        tmp_path_factory.mktemp(build.name) / "test_environment", sources, *build.flags
    )


@pytest.mark.parametrize("case", [*ALONE, *THREADS])
def test_environment(build: Build, program: Path, case: str) -> None:
    if case == "fork" and build.name != "plain":
        pytest.skip("the sanitizers' own allocators may be locked in the child")
    done = build.run(program, case, build.events)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("case", ALONE)
def test_libc(tmp_path: Path, case: str) -> None:
    """The model is right: libc's own functions agree with it."""
    (plain,) = (each for each in BUILDS if each.name == "plain")
    done = plain.run(
        compile_c(tmp_path / "test_environment", [C / "test_environment.c"], *plain.flags), case
    )
    assert (done.returncode, done.stderr) == (0, "")
