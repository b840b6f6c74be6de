"""Access records of kernels on their way to the trace ring, with threads for warps."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.c.session import ROOT, C, Session, compile_c
from tests.unit.test_c_sanitizers import BUILDS, Build, works
from tests.unit.test_c_trace import TRACE_SOURCES

SMALL = {"trace_chunk_bytes": 4096, "trace_chunks": 4}


@dataclass(frozen=True)
class Case:
    """A case of test_nvidia_trace.c: its configuration, and what it says on stderr."""

    name: str
    config: dict[str, int] = field(default_factory=dict)
    says: str = ""

    def __str__(self) -> str:
        return "-".join([self.name, *(str(value) for value in self.config.values())])


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


@pytest.fixture(
    scope="module",
    params=[pytest.param(b, id=b.name, marks=pytest.mark.sanitizers) for b in BUILDS],
)
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Build:
    chosen: Build = request.param
    if not works(chosen.flags, tmp_path_factory.mktemp("works")):
        pytest.skip(f"the compiler lacks {chosen.flags[-1]}")
    return chosen


@pytest.fixture(scope="module")
def program(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [*TRACE_SOURCES, ROOT / "shim" / "sources" / "nvidia_trace.c"]
    output = tmp_path_factory.mktemp(build.name) / "test_nvidia_trace"
    return compile_c(output, [*sources, C / "test_nvidia_trace.c"], *build.flags)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nvidia_trace(build: Build, program: Path, tmp_path: Path, case: Case) -> None:
    session = Session.create(tmp_path / "session")
    done = subprocess.run(
        [program, case.name, str(build.events // 5)],
        env={
            **os.environ,
            **build.options,
            "PASTA_SHIM": session.configuration(ring_max=2 << 20, **case.config),
        },
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, case.says)
