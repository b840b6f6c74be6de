"""The access trace and the golden kernels, plain and under the sanitizers: case by case."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.c_builds import Build, Case
from tests.support.places import PROGRAMS, ROOT
from tests.support.session import TRACE_SOURCES, Session, compile_c

SMALL = {"trace_chunk_bytes": 4096, "trace_chunks": 4}


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
    Case(
        "killed",
        {"trace_chunk_bytes": 4096, "trace_chunks": 32},
        not_under_tsan="another process frees the places",
    ),
    Case("fork", SMALL),
    Case("dead_consumer", {**SMALL, "trace_patience_ms": 200, "trace_start_ms": 400}),
    Case("lost", SMALL),
    Case("no_room", says="pasta: accesses are not recorded: cannot create the access trace "),
)


@pytest.fixture(scope="module")
def trace_test(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp(build.name) / "test_trace"
    return compile_c(output, [*TRACE_SOURCES, PROGRAMS / "test_trace.c"], *build.flags)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_trace(build: Build, trace_test: Path, tmp_path: Path, case: Case) -> None:
    if build.name == "thread" and case.not_under_tsan:
        pytest.skip(f"TSan: {case.not_under_tsan}")
    case.check(build, trace_test, tmp_path, build.events)


@pytest.mark.slow
@pytest.mark.parametrize("config", [{}, {"probe_kinds": "1,6,99"}], ids=["all", "some"])
def test_encoder(build: Build, tmp_path: Path, config: dict[str, str]) -> None:
    """Access records decode to the addresses, and use the shortest encoding."""
    sources = [*TRACE_SOURCES, PROGRAMS / "test_encoder.c"]
    program = compile_c(tmp_path / "test_encoder", sources, *build.flags)
    session = Session.create(tmp_path / "session")
    done = build.run(program, PASTA_SHIM=session.configuration(**config))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_golden_kernels(build: Build, tmp_path: Path) -> None:
    """Each has the accesses known from arithmetic, with one worker and with four."""
    sources = sorted((ROOT / "shim" / "refacc").glob("*.c"))
    program = compile_c(
        tmp_path / "test_accesses",
        [PROGRAMS / "test_accesses.c", *sources],
        f"-I{ROOT}/shim/refacc",
        *("-Wl,--no-as-needed", "-lm"),
        *build.flags,
    )
    runs: list[tuple[str, ...]] = [("4",), ("1",), ("4", "large"), ("1", "large")]
    for threads, *arguments in runs[:1] if build.name == "thread" else runs:  # large: more counts
        done = build.run(program, *arguments, REFACC_THREADS=threads)
        assert (done.returncode, done.stderr) == (0, "")
