"""Tensors whose records are put off: tests/programs/test_tensors.c, plain and under the
sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.c_builds import Build, Case
from tests.support.places import PROGRAMS
from tests.support.session import RING_SOURCES, compile_c

PUT_OFF = {"tensors_put_off": 1}
CASES = (Case("random", PUT_OFF), Case("full", PUT_OFF), Case("off"), Case("threads", PUT_OFF))


@pytest.fixture(scope="module")
def program(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp(build.name) / "test_tensors"
    sources = [source for source in RING_SOURCES if source.name != "tensors.c"]  # by the test
    return compile_c(output, [*sources, PROGRAMS / "test_tensors.c"], *build.flags)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_tensors(build: Build, program: Path, tmp_path: Path, case: Case) -> None:
    case.check(build, program, tmp_path)
