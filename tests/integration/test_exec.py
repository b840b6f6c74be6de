"""Programs started by a profiled program keep the preload, whatever environment they get."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from pasta.paths import NATIVE
from tests.support.places import PROGRAMS
from tests.support.session import LIBPASTA, Session, compile_c

WAYS = [
    "execve", "execvpe", "execle", "fexecve", "execveat", "posix_spawn", "posix_spawnp", "vfork",
    "execv", "execvp", "execl", "execlp", "small_stack",
]  # fmt: skip
ADDED = ("CUDA_INJECTION64_PATH", "REFACC_INJECTION_PATH", "NVTX_INJECTION64_PATH")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("exec") / "program", [PROGRAMS / "exec_program.c"])


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session.create(tmp_path / "session")


@dataclass(frozen=True)
class Started:
    """Environment and output of a started program."""

    loaded: bool
    environment: list[str]


def preload_environment(session: Session, **config: object) -> dict[str, str]:
    return {**session.environment(**config), **dict.fromkeys(ADDED, str(LIBPASTA))}


def start(command: list[str | Path], environment: dict[str, str]) -> Started:
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b""), done
    first, rest = done.stdout.split(b"\n", 1)
    return Started(first == b"loaded", rest.decode().split("\0")[:-1])


def additions(session: Session, **config: object) -> list[str]:
    shim = f"PASTA_SHIM={session.configuration(**config)}"
    order = ("CUDA_INJECTION64_PATH", "REFACC_INJECTION_PATH", "NVTX_INJECTION64_PATH")
    return [shim, *(f"{name}={LIBPASTA}" for name in order)]


@pytest.mark.parametrize("way", WAYS)
def test_exec_with_an_explicit_environment(session: Session, program: Path, way: str) -> None:
    """Variables are added after the program's own, which are unchanged."""
    given = ["A=1", "EMPTY=", "LD_PRELOADED=no", "A=2", "odd"]
    started = start([program, way, *given], preload_environment(session))
    assert started.loaded
    assert started.environment == [*given, f"LD_PRELOAD={LIBPASTA}", *additions(session)]
    assert len(session.processes()) == 2
    assert session.rings() == []


@pytest.mark.parametrize("way", [*WAYS, "null"])
def test_exec_without_environment(session: Session, program: Path, way: str) -> None:
    started = start([program, way], preload_environment(session))
    assert started.environment == [f"LD_PRELOAD={LIBPASTA}", *additions(session)]


@pytest.mark.parametrize("way", ["execve", "posix_spawn"])
def test_exec_with_a_complete_environment(session: Session, program: Path, way: str) -> None:
    given = [*reversed(additions(session)), f"LD_PRELOAD={LIBPASTA}", "Z=1"]
    assert start([program, way, *given], preload_environment(session)).environment == given


@pytest.mark.parametrize("way", ["execve", "posix_spawn"])
@pytest.mark.parametrize(
    ("tools", "ours"),
    [
        ("/opt/p/libpasta_amd.so", ["/opt/p/libpasta_amd.so"]),
        ("/a.so:/opt/p/libpasta_amd.so:/b.so", ["/opt/p/libpasta_amd.so"]),
        ("/a.so", []),
        ("/a.so:/opt/p/libpasta_amd.so.old:", []),
    ],
)
def test_only_pastas_amd_tool_is_added(
    session: Session, program: Path, way: str, tools: str, ours: list[str]
) -> None:
    """Other tools that the user listed are not added if the target removed the variable."""
    variable = "ROCP_TOOL_LIBRARIES"
    environment = {**preload_environment(session), variable: tools}
    added = [*additions(session), *(f"{variable}={tool}" for tool in ours)]
    started = start([program, way, "A=1"], environment)
    assert started.environment == ["A=1", f"LD_PRELOAD={LIBPASTA}", *added]
    own = [f"{variable}=/mine.so", f"LD_PRELOAD={LIBPASTA}", *additions(session)]
    assert start([program, way, *own], environment).environment == own


def test_another_session_keeps_its_settings(session: Session, program: Path) -> None:
    given = ["PASTA_SHIM=session=/another", "LD_PRELOAD=/another.so"]
    done = subprocess.run(
        [program, "execve", *given], env=preload_environment(session), capture_output=True
    )
    assert done.stdout.rstrip(b"\0").endswith("\0".join(given).encode())


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same program, with a runtime that must be the first loaded library."""
    directory = tmp_path_factory.mktemp("refusing")
    try:
        return compile_c(directory / "program", [PROGRAMS / "exec_program.c"], "-fsanitize=address")
    except AssertionError:
        pytest.skip("no AddressSanitizer")


@pytest.mark.parametrize("way", WAYS)
def test_incompatible_programs_start_without_the_library(
    session: Session, program: Path, refusing: Path, way: str
) -> None:
    given = ["A=1", f"LD_PRELOAD={LIBPASTA}", "Z=1", "ASAN_OPTIONS=detect_leaks=0"]
    environment = {**preload_environment(session), "TEST_PROGRAM": str(refusing)}
    started = start([program, way, *given], environment)
    assert started == Started(False, ["A=1", *given[2:], *additions(session)])
    start([program, way, *given], environment)
    assert (session.directory / "log.txt").read_text().count("starts without PASTA") == 1


@pytest.mark.parametrize("name", ["libasan.so.8", "libclang_rt.asan-x86_64.so"])
def test_a_preloaded_sanitizer_stays_first(
    session: Session, program: Path, tmp_path: Path, name: str
) -> None:
    runtime = tmp_path / name
    runtime.symlink_to(NATIVE / "librefacc.so")
    given = [f"LD_PRELOAD={runtime}"]
    started = start([program, "execve", *given], preload_environment(session))
    assert started == Started(False, [*given, *additions(session)])


def test_ldd_does_not_list_the_library(session: Session, program: Path) -> None:
    command = [program, "execve", "LD_TRACE_LOADED_OBJECTS=1", f"LD_PRELOAD={LIBPASTA}"]
    done = subprocess.run(command, env=preload_environment(session), capture_output=True)
    assert b"libc.so" in done.stdout
    assert b"libpasta" not in done.stdout


def test_a_library_that_cannot_be_opened_is_not_preloaded(
    session: Session, program: Path, tmp_path: Path
) -> None:
    """As in another root directory, or as another user: the loader would complain."""
    copy = Path(shutil.copy(LIBPASTA, tmp_path))
    environment = {**preload_environment(session), "LD_PRELOAD": str(copy)}
    started = start(["sh", "-c", f"rm {copy}; exec {program} show"], environment)
    assert not started.loaded
    assert not [entry for entry in started.environment if entry.startswith("LD_PRELOAD")]


def test_python_with_a_debug_allocator(session: Session) -> None:
    """It frees our audit hook, which was added before its debug hooks."""
    followed = {"frameworks": "none", "framework.none.import": "none", "framework.none.hooks": "/"}
    command = [sys.executable, "-X", "dev", "-c", "print(1)"]
    done = subprocess.run(command, env=session.environment(**followed), capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"1\n", b"")


@pytest.mark.parametrize("way", ["execvp", "posix_spawnp"])
def test_script_found_in_path(
    session: Session, program: Path, refusing: Path, tmp_path: Path, way: str
) -> None:
    script = tmp_path / "bin" / "script"
    script.parent.mkdir()
    script.write_text(f"#! {refusing} show\n")
    script.chmod(0o755)
    places = f"/none::{script.parent}:/bin"
    environment = {**preload_environment(session), "TEST_PROGRAM": "script", "PATH": places}
    started = start([program, way, f"PATH={places}"], environment)
    assert started == Started(False, [f"PATH={places}", *additions(session)])


def test_other_preloads_are_kept(session: Session, program: Path) -> None:
    other = "libm.so.6"
    given = [f"LD_PRELOAD={other}", "Z=1"]
    started = start([program, "execve", *given], preload_environment(session))
    assert started.environment[:2] == [f"LD_PRELOAD={LIBPASTA}:{other}", "Z=1"]
    listed = [f"LD_PRELOAD={other} {LIBPASTA}", "Z=1"]
    started = start([program, "execve", *listed], preload_environment(session))
    assert started.environment[:2] == listed
    empty = start([program, "execve", "LD_PRELOAD="], preload_environment(session))
    assert empty.environment[0] == f"LD_PRELOAD={LIBPASTA}"


def test_values_of_the_program_are_kept(session: Session, program: Path) -> None:
    given = ["NVTX_INJECTION64_PATH=/mine.so", "PASTA_SHIM=schema=0"]
    started = start([program, "execve", *given], preload_environment(session))
    assert started.environment[:2] == given
    assert len([e for e in started.environment if e.startswith("NVTX_INJ")]) == 1
    assert len([e for e in started.environment if e.startswith("PASTA_SHIM")]) == 1


def test_program_can_be_excluded(session: Session, program: Path) -> None:
    started = start([program, "execve", "PASTA_SHIM=", "A=1"], preload_environment(session))
    assert started == Started(False, ["PASTA_SHIM=", "A=1"])


def test_inert_without_a_session(program: Path) -> None:
    environment = {**os.environ, "LD_PRELOAD": str(LIBPASTA)}
    assert start([program, "execve", "A=1"], environment) == Started(False, ["A=1"])


def test_environment_too_large_for_the_stack(session: Session, program: Path) -> None:
    """Passed unchanged, instead of overflowing the stack of a small thread."""
    given = [f"N{number}=" for number in range(5000)]
    started = start([program, "execve", *given], preload_environment(session))
    assert started == Started(False, given)


def test_without_children(session: Session, program: Path) -> None:
    """--no-children: only the root's own exec, which keeps the pid, is followed."""
    environment = preload_environment(session, children=0)
    inner = f'PASTA_SHIM=$(printf "%s\\nroot=%s" "$SHIM" $$) exec "{program}" execve A=1'
    environment["SHIM"] = environment.pop("PASTA_SHIM").replace("root=0", "first=1")
    root = start(["sh", "-c", inner], environment)
    assert root.loaded
    assert root.environment[0] == "A=1"
    assert len(session.processes()) == 2
    other = start([program, "execve", "A=1"], preload_environment(session, children=0, root=1))
    assert other == Started(False, ["A=1"])


def test_env_i(session: Session, program: Path) -> None:
    command: list[str | Path] = ["env", "-i", "A=1", program, "show"]
    started = start(command, preload_environment(session))
    assert started.loaded
    assert started.environment == ["A=1", f"LD_PRELOAD={LIBPASTA}", *additions(session)]


def test_shell_wrapper(session: Session, program: Path, tmp_path: Path) -> None:
    script = tmp_path / "wrapper.sh"
    script.write_text('#!/bin/sh\nexec env -i INNER=1 "$@"\n')
    script.chmod(0o755)
    started = start([script, program, "show"], preload_environment(session))
    assert started.loaded
    assert started.environment[0] == "INNER=1"
    assert len(set(session.processes())) == 1  # an exec keeps the pid


def test_forked_children_leave_nothing(session: Session, program: Path) -> None:
    environment = preload_environment(session)
    done = subprocess.run([program, "children"], env=environment, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert session.rings() == []
    assert len(set(session.processes())) == 201


def test_static_program(session: Session, program: Path, tmp_path: Path) -> None:
    """No loader, no preload; its children are not followed, and it runs normally."""
    source = tmp_path / "static.c"
    source.write_text(
        "#include <unistd.h>\n"
        "int main(int n, char **a) { return n > 1 ? execv(a[1], a + 1) : 7; }\n"
    )
    try:
        static = compile_c(tmp_path / "static", [source], "-static")
    except AssertionError:
        pytest.skip("no static libc")
    environment = preload_environment(session)
    assert subprocess.run([static], env=environment, timeout=60).returncode == 7
    assert start([static, program, "show"], environment).loaded  # environment was kept


def test_python_subprocess(session: Session, program: Path) -> None:
    """CPython's own fork and exec, with an environment set by the program."""
    python = shutil.which("python3") or "python3"
    code = (
        "import subprocess, sys; sys.exit(subprocess.call([sys.argv[1], 'show'], env={'A': '1'}))"
    )
    started = start([python, "-c", code, program], preload_environment(session))
    assert started.loaded
    assert started.environment[0] == "A=1"
