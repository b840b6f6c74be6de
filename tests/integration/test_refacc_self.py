"""The reference accelerator by itself: programs/test_refacc.c, plain and under the sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.c_builds import BUILDS, Build
from tests.support.places import PROGRAMS, ROOT
from tests.support.session import compile_c


@pytest.mark.parametrize(
    "build", [pytest.param(each, id=each.name, marks=each.marks) for each in BUILDS]
)
def test_refacc(tmp_path: Path, build: Build) -> None:
    """With four threads and with one."""
    test, headers = PROGRAMS / "test_refacc.c", f"-I{ROOT}/shim/refacc"
    tool = compile_c(
        tmp_path / "tool.so", [test], headers, *build.flags, "-fPIC", "-shared", "-DRA_TEST_TOOL"
    )
    sources = sorted((ROOT / "shim" / "refacc").glob("*.c"))
    program = compile_c(
        tmp_path / "test",
        [test, *sources],
        headers,
        *("-Wl,--no-as-needed", "-lm"),
        *build.flags,
    )
    for threads in ("4", "1"):
        done = build.run(program, tool, REFACC_THREADS=threads, timeout=300)
        assert (done.returncode, done.stderr) == (0, "")
