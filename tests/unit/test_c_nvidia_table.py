"""The table in which patches look addresses up: programs/test_nvidia_table.c, case by case."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.c_builds import Build
from tests.support.places import PROGRAMS, ROOT
from tests.support.session import compile_c

CASES = (
    "lookups",
    "adjacent",
    "many",
    "storage",
    "short_storage",
    "tiny_storage",
    "no_storage",
    "reused",
)


@pytest.fixture(scope="module")
def program(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [
        ROOT / "shim" / "backends" / "nvidia" / "object_table.c",
        PROGRAMS / "test_nvidia_table.c",
    ]
    output = tmp_path_factory.mktemp(build.name) / "test_nvidia_table"
    return compile_c(output, sources, *build.flags)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_table(build: Build, program: Path, case: str, seed: int) -> None:
    done = build.run(program, case, seed)
    assert (done.returncode, done.stderr) == (0, "")
