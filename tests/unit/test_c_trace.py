"""The access trace and the golden kernels, plain and under the sanitizers: case by case."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.c.session import RING_SOURCES, ROOT, C, Session, compile_c
from tests.unit.test_c_sanitizers import BUILDS, Build, works

TRACE_SOURCES = (
    *RING_SOURCES,
    ROOT / "shim" / "core" / "trace.c",
    ROOT / "shim" / "python" / "trace_reader.c",
)
SMALL = {"trace_chunk_bytes": 4096, "trace_chunks": 4}


@dataclass(frozen=True)
class Case:
    """A case of test_trace.c: its configuration, and how its only line of stderr begins."""

    name: str
    config: dict[str, int] = field(default_factory=dict)
    says: str = ""
    #: Another process frees the places, which TSan cannot see.
    two_processes: bool = False

    def __str__(self) -> str:
        return "-".join([self.name, *(str(value) for value in self.config.values())])


CASES = (
    Case("one"),
    Case("one", SMALL),
    Case("many"),
    Case("many", SMALL),
    Case("many", {"trace_chunk_bytes": 65536, "trace_chunks": 8}),
    Case("seal", SMALL),
    Case("seal", {"trace_chunk_bytes": 4096, "trace_chunks": 64}),
    Case("threads", SMALL),
    Case("steps", SMALL),
    Case("numbers", SMALL),
    Case("killed", {"trace_chunk_bytes": 4096, "trace_chunks": 32}, two_processes=True),
    Case("fork", SMALL),
    Case("dead_consumer", {**SMALL, "trace_patience_ms": 200}),
    Case("no_room", says="pasta: no access trace "),
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
def trace_test(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp(build.name) / "test_trace"
    return compile_c(output, [*TRACE_SOURCES, C / "test_trace.c"], *build.flags)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_trace(build: Build, trace_test: Path, tmp_path: Path, case: Case) -> None:
    if case.two_processes and build.name == "thread":
        pytest.skip("TSan sees one process only")
    session = Session.create(tmp_path / "session")
    done = subprocess.run(
        [trace_test, case.name, str(build.events)],
        env={
            **os.environ,
            **build.options,
            "PASTA_SHIM": session.configuration(ring_max=2 << 20, **case.config),
        },
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(case.says)
    assert done.stderr.count("\n") == bool(case.says)


@pytest.mark.parametrize("config", [{}, {"probe_kinds": "1,6,99"}], ids=["all", "some"])
def test_encoder(build: Build, tmp_path: Path, config: dict[str, str]) -> None:
    """Records of accesses give back the addresses, in the shortest form."""
    sources = [*TRACE_SOURCES, ROOT / "shim" / "core" / "images.c", C / "test_encoder.c"]
    program = compile_c(tmp_path / "test_encoder", sources, *build.flags)
    session = Session.create(tmp_path / "session")
    done = subprocess.run(
        [program],
        env={**os.environ, **build.options, "PASTA_SHIM": session.configuration(**config)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("threads", ["1", "4"])
def test_golden_kernels(build: Build, tmp_path: Path, threads: str) -> None:
    """Each has the accesses that arithmetic says."""
    sources = sorted((ROOT / "shim" / "refacc").glob("*.c"))
    program = compile_c(
        tmp_path / "test_accesses",
        [C / "test_accesses.c", *sources],
        f"-I{ROOT}/shim/refacc",
        *("-Wl,--no-as-needed", "-lm"),
        *build.flags,
    )
    for arguments in ([], ["large"]):
        done = subprocess.run(
            [program, *arguments],
            env={**os.environ, **build.options, "REFACC_THREADS": threads},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert (done.returncode, done.stderr) == (0, "")
