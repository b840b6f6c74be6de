"""Times of records, with a simulated counter and clock: programs/test_clock.c."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.support.c_builds import BUILDS, Build
from tests.support.places import PROGRAMS
from tests.support.session import compile_c

CASES = ["steady"]
if platform.machine() == "x86_64":
    CASES += ["slewed", "jumps", "interrupted", "stuck", "restricted"]


@pytest.fixture(scope="module")
def plain() -> Build:
    return next(each for each in BUILDS if each.name == "plain")


@pytest.fixture(scope="module")
def program(plain: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("clock") / "test_clock"
    return compile_c(output, [PROGRAMS / "test_clock.c"], *plain.flags)


@pytest.mark.parametrize("case", CASES)
def test_clock(plain: Build, program: Path, case: str) -> None:
    """Times grow, are close to the clock, and never after it unless the kernel slows it down."""
    done = plain.run(program, case)
    assert (done.returncode, done.stderr) == (0, "")
