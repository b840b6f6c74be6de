"""Access records of kernels on their way to the trace ring, with threads for warps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.c.builds import Build, Case
from tests.c.session import ROOT, C, compile_c
from tests.unit.test_c_trace import TRACE_SOURCES

SMALL = {"trace_chunk_bytes": 4096, "trace_chunks": 4}


CASES = (
    Case("flows"),
    Case("flows", SMALL),
    Case("flushes"),
    Case("flushes", SMALL),
    Case("idle"),
    Case("slow", {"trace_chunk_bytes": 65536, "trace_chunks": 8}),
    Case("dead_consumer", {**SMALL, "trace_patience_ms": 200}),
    Case("closed", {"trace_patience_ms": 60000}),
    Case(
        "forgotten",
        says="pasta: 800 accesses of context 0 are lost: "
        "more than 1048576 launches came after theirs\n",
    ),
)


@pytest.fixture(scope="module")
def program(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [*TRACE_SOURCES, ROOT / "shim" / "sources" / "nvidia_trace.c"]
    output = tmp_path_factory.mktemp(build.name) / "test_nvidia_trace"
    return compile_c(output, [*sources, C / "test_nvidia_trace.c"], *build.flags)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nvidia_trace(build: Build, program: Path, tmp_path: Path, case: Case) -> None:
    case.check(build, program, tmp_path, build.events // 5)
