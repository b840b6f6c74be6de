"""The C core, plain and under ASan with UBSan and TSan: programs/test_ring.c, case by case."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.c_builds import Build
from tests.support.places import PROGRAMS, ROOT
from tests.support.session import RING_SOURCES, Session, compile_c

MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    """A case of test_ring.c: its ring's size, and its output on stderr."""

    name: str
    ring_max: int = 256 * MIB
    says: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}-{self.ring_max // MIB}MiB"


SMALL_LIMIT = (
    "pasta: the limit on file sizes (ulimit -f) is too small for the event ring: "
    "this process is not profiled\n"
)
FULL = (
    "pasta: the event ring cannot grow beyond 1024 KiB: {} is full; make room there or lower "
    "ring.max\n"
)
CASES = (
    Case("order"),
    Case("wrap", 2 * MIB),
    Case("wrap", 4 * MIB),
    Case("many"),
    Case("many", 2 * MIB),
    Case("many", 8 * MIB),
    Case("map_wraps", 4 * MIB),
    Case("commit_wraps", 4 * MIB),
    Case("cap", 2 * MIB),
    Case("cap", 7 * MIB),
    Case("stop"),
    Case("switches"),
    Case("starts"),
    Case("torn"),
    Case("stale", 2 * MIB),
    Case("killed"),
    Case("strings"),
    Case("arena_full"),
    Case("fork"),
    Case("tap"),
    Case("clone"),
    Case("fork_handlers", environment={"TEST_FIRST_HANDLER": "1"}),
    Case("fork_threads"),
    Case("file_limit"),
    Case("file_limit_small", says=SMALL_LIMIT),
    Case("interrupted", 8 * MIB),
    Case("old_kernel", 8 * MIB),
    Case("ahead"),
    Case("ahead_many"),
    Case("full_many", says=FULL),
    Case("restricted"),
    Case("keys", environment={"TEST_KEYS": "1"}),
)


@pytest.fixture(scope="module")
def ring_test(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp(build.name) / "test_ring"
    return compile_c(output, [*RING_SOURCES, PROGRAMS / "test_ring.c"], *build.flags)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session.create(tmp_path / "session")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_ring(build: Build, ring_test: Path, session: Session, case: Case) -> None:
    configuration = session.configuration(ring_max=case.ring_max)
    done = build.run(
        ring_test, case.name, build.events, PASTA_SHIM=configuration, **case.environment
    )
    assert (done.returncode, done.stderr) == (0, case.says.format(session.directory))


def test_full_file_system(build: Build, ring_test: Path, tmp_path: Path) -> None:
    """The ring keeps its size, reports it once, and drops events: no SIGBUS."""
    directory = tmp_path / "small"
    directory.mkdir()
    inside = (
        f"mount -t tmpfs -o size=6m tmpfs {directory} || exit 77; "
        f"mkdir {directory}/rings; truncate -s 512K {directory}/processes; "
        f"exec {ring_test} full"
    )
    done = subprocess.run(
        ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else []), "sh", "-c", inside],
        env={
            **os.environ,
            **build.options,
            "PASTA_SHIM": Session(directory).configuration(),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode in (1, 77):  # of unshare, of mount; the test ends with 0 or a signal
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("pasta: the event ring cannot grow beyond ")
    assert line.endswith(f"{directory} is full; make room there or lower ring.max")


@pytest.mark.slow
def test_annotations(build: Build, session: Session, tmp_path: Path) -> None:
    sources = [*RING_SOURCES, ROOT / "shim" / "annotations" / "annotate.c"]
    for name in ("nvtx_program", "annotated"):
        program = compile_c(
            tmp_path / name, [*sources, PROGRAMS / f"{name}.c"], "-rdynamic", *build.flags
        )
        done = build.run(program, PASTA_SHIM=session.configuration(), NVTX_INJECTION64_PATH="")
        assert (done.returncode, done.stderr) == (0, "")
    assert len(session.rings()) == 3  # one is of nvtx_program's child


@pytest.mark.slow
@pytest.mark.parametrize("way", ["execve", "execle", "posix_spawn", "vfork"])
def test_exec(build: Build, session: Session, tmp_path: Path, way: str) -> None:
    program = compile_c(
        tmp_path / "program",
        [*RING_SOURCES, PROGRAMS / "exec_program.c"],
        "-rdynamic",
        *build.flags,
    )
    kept = [f"{name}={value}" for name, value in build.options.items()]
    done = build.run(program, way, "A=1", *kept, PASTA_SHIM=session.configuration())
    assert (done.returncode, done.stderr) == (0, "")
    shown = done.stdout.split("\n", 1)[1].split("\0")
    assert shown == ["A=1", *kept, f"PASTA_SHIM={session.configuration()}", ""]
