"""Access records of kernels on their way to the trace ring, with threads for warps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.c_builds import Build, Case
from tests.support.places import PROGRAMS, ROOT
from tests.support.session import TRACE_SOURCES, compile_c

SMALL = {"trace_chunk_bytes": 4096, "trace_chunks": 4}


CASES = (
    Case("flows"),
    Case("flows", SMALL),
    Case("flushes"),
    Case("flushes", SMALL),
    Case("idle"),
    Case("slow", {"trace_chunk_bytes": 65536, "trace_chunks": 8}),
    Case("dead_consumer", {**SMALL, "trace_patience_ms": 200, "trace_start_ms": 200}),
    Case("closed", {"trace_patience_ms": 60000}),
    Case(
        "forgotten",
        says="pasta: 800 accesses of context 0 are lost: "
        "they arrived more than 1048576 launches late\n",
    ),
)


@pytest.fixture(scope="module")
def program(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [*TRACE_SOURCES, ROOT / "shim" / "backends" / "nvidia" / "trace.c"]
    output = tmp_path_factory.mktemp(build.name) / "test_nvidia_trace"
    return compile_c(output, [*sources, PROGRAMS / "test_nvidia_trace.c"], *build.flags)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nvidia_trace(build: Build, program: Path, tmp_path: Path, case: Case) -> None:
    case.check(build, program, tmp_path, build.events // 5)
