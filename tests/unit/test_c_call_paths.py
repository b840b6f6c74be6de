"""Walks over stacks in C: tests/programs/test_unwind.c, plain and under the sanitizers; and the
layouts of CPython's frames."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.c_builds import Build
from tests.support.places import PROGRAMS, ROOT
from tests.support.session import compile_c

SOURCES = [
    *(
        ROOT / "shim" / "core" / f"{name}.c"
        for name in ("cfi", "objects", "python_frames", "python_objects")
    ),
    PROGRAMS / "test_unwind.c",
]
#: Methods, and a flag of code that they must be able to walk over.
AUTO, FRAME_POINTERS = ("0", "-fomit-frame-pointer"), ("1", "-fno-omit-frame-pointer")
CASES = ("walks", "deep", "small_stack", "coroutine", "signals", "generated", "corrupt", "threads")


@pytest.fixture(scope="module", params=(AUTO, FRAME_POINTERS), ids=("auto", "frame_pointers"))
def walker(
    request: pytest.FixtureRequest, build: Build, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    method, flag = request.param
    output = tmp_path_factory.mktemp(build.name) / "test_unwind"
    return compile_c(output, SOURCES, *build.flags, flag), method


@pytest.mark.parametrize("case", [*CASES, "packs", "objects", "forks"])
def test_walks(build: Build, walker: tuple[Path, str], case: str) -> None:
    program, method = walker
    done = build.run(program, case, method)
    assert done.returncode == 0, done.stderr


def test_layouts_of_python(tmp_path: Path) -> None:
    headers = sysconfig.get_paths()["include"]
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return  # frames of this version are not read
    program = compile_c(
        tmp_path / "layouts", [PROGRAMS / "python_layouts.c"],
        f"-I{headers}", f"-I{headers}/internal", "-Wno-error", "-w", language="gnu11",
    )  # fmt: skip
    assert subprocess.run([program]).returncode == 0
