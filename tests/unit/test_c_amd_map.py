"""The AMD source's map, which launches read while modules change it: programs/test_amd_map.c."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.c_builds import Build
from tests.support.places import PROGRAMS, ROOT
from tests.support.session import compile_c


@pytest.fixture(scope="module")
def program(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [ROOT / "shim" / "backends" / "amd" / "map.c", PROGRAMS / "test_amd_map.c"]
    output = tmp_path_factory.mktemp(build.name) / "test_amd_map"
    return compile_c(output, sources, *build.flags)


@pytest.mark.parametrize("case", ["model", "beside"])
def test_map(build: Build, program: Path, case: str) -> None:
    done = build.run(program, case, 1)
    assert (done.returncode, done.stderr) == (0, "")
