"""The reference accelerator by itself: programs/test_refacc.c, plain and under the sanitizers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.places import PROGRAMS, ROOT

CC = os.environ.get("CC", "cc")
FLAGS = ("-std=c11", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{ROOT}/shim/refacc")


@pytest.mark.parametrize(
    "sanitize",
    [
        pytest.param(("-O2",), id="plain"),
        pytest.param(
            ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
            id="address",
            marks=pytest.mark.sanitizers,
        ),
        pytest.param(("-O1", "-fsanitize=thread"), id="thread", marks=pytest.mark.sanitizers),
    ],
)
@pytest.mark.parametrize("threads", ["4", pytest.param("1", marks=pytest.mark.slow)])
def test_refacc(tmp_path: Path, sanitize: tuple[str, ...], threads: str) -> None:
    test, tool, program = (
        PROGRAMS / "test_refacc.c",
        tmp_path / "tool.so",
        tmp_path / "test",
    )
    flags = [*FLAGS, *sanitize]
    subprocess.run([CC, *flags, "-fPIC", "-shared", "-DRA_TEST_TOOL", test, "-o", tool], check=True)
    sources = sorted((ROOT / "shim/refacc").glob("*.c"))
    subprocess.run([CC, *flags, test, *sources, "-o", program, "-lm", "-ldl"], check=True)
    environment = {**os.environ, "REFACC_THREADS": threads, "TSAN_OPTIONS": "die_after_fork=0"}
    done = subprocess.run(
        [program, tool], env=environment, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
