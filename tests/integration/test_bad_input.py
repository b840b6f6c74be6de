"""Invalid input is rejected before the program starts, with cause, location and remedy; a program
that cannot be profiled runs as without PASTA, and one line says why."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.preload import base_environment

LAUNCH = "int main(void) { launch(3); return 0; }"
HELLO = '#include <stdio.h>\nint main(void) { puts("hello"); return 7; }\n'

REFUSED = {
    "tool": (["-t", "kernel_frek"], r"there is no tool 'kernel_frek': did you mean kernel_freq?"),
    "tool file": (["-t", "./none.py"], "tool file "),
    "preset": (["-c", "kernel_frek"], "unknown preset 'kernel_frek': did you mean kernel_freq?"),
    "TOML file": (["-c", "./none.toml"], "./none.toml: no such configuration file"),
    "key": (
        ["--set", "ring.maximum=1"],
        "--set ring.maximum=1: unknown key 'ring.maximum': did you mean ring.max?",
    ),
    "no value": (["--set", "ring.max"], "--set 'ring.max': not of the form key=value"),
    "value": (
        ["--set", "ring.max=big"],
        '--set ring.max=big: ring.max = \'big\' is not a size such as 4096, "4KiB" or "256MiB"',
    ),
    "tool option": (
        ["--set", "kernel_freq.tip=5"],
        "--set kernel_freq.tip=5: tool kernel_freq has no option 'tip': did you mean top?",
    ),
    "tool option's value": (
        ["--set", "kernel_freq.top=many"],
        "--set kernel_freq.top=many: tool kernel_freq: top = 'many' is not accepted: "
        "use an integer, at least 1",
    ),
    "regex": (
        ["-k", "gemm("],
        "-k: filter.kernel = 'gemm(' is not a regular expression "
        "(missing ), unterminated subpattern at position 4)",
    ),
    "count": (
        ["--launch-count", "-3"],
        "--launch-count: filter.launch-count = '-3' is not a whole number, 0 or more",
    ),
    "placeholder": (
        ["-o", "run-%z"],
        "run.out = 'run-%z': unknown placeholder %z: known placeholders: %n %p %h %r %t %q{ENV} %%",
    ),
    "place": (["-o", "/dev/null/run"], "/dev/null/run: /dev/null is not a directory"),
    "session directory": (
        ["--set", "ring.directory=/proc/none"],
        "cannot create the session directory /proc/none/",
    ),
    "tool path": (["--tool-path", "/none", "-t", "mine"], "tool path /none is not a directory"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(pasta_preload, what: str) -> None:
    arguments, line = REFUSED[what]
    done = pasta_preload("echo", "never", options=tuple(arguments))
    assert (done.exit_status, done.stdout) == (2, "")
    assert done.lines[0].startswith(line)
    assert len(done.lines) == 1
    assert done.target_stderr == ""
    assert list(done.directory.iterdir()) == []


def test_unknown_option(pasta_preload) -> None:
    done = pasta_preload.bare("--kernel-regexp", "x", "echo", "never")
    assert (done.exit_status, done.stdout) == (2, "")
    assert "--kernel-regexp" in done.stderr


def test_no_program(pasta_preload) -> None:
    for arguments in ([], ["-q"], ["--"]):
        done = pasta_preload.bare(*arguments)
        assert done.exit_status == 2
        assert done.stderr.startswith("pasta: no program given: pasta-preload [options]")


@pytest.mark.main
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("tools = [", "not valid TOML"),
        ('tools = "kernel_freq"', 'tools is not a list of strings such as ["kernel_freq"]'),
        ("[filter]\nkernl = 'x'", "unknown key 'filter.kernl': did you mean filter.kernel"),
        ("[ring]\nmax = true", "ring.max = True is not a size"),
        ("[run]\nevents = false\n[tool.kernel_freq]\nnone = 1", "none"),
        ("\udcff", "cannot be read"),
    ],
)
def test_bad_toml(pasta_preload, text: str, line: str) -> None:
    path = pasta_preload.directory / "mine.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    done = pasta_preload("echo", "never", options=("-c", "mine.toml"))
    assert (done.exit_status, done.stdout) == (2, "")
    (found,) = done.lines
    assert line in found
    assert "mine.toml" in found or "kernel_freq" in found


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("def", ":1: SyntaxError"),
        ("import nowhere_to_be_found", ":1: ModuleNotFoundError: No module named"),
        ("import sys\nsys.exit(5)", ":2: SystemExit: 5"),
        ("x = 1", "defines no tool"),
    ],
)
def test_bad_tool_file(pasta_preload, source: str, line: str) -> None:
    (pasta_preload.directory / "mine.py").write_text(source + "\n")
    done = pasta_preload("echo", "never", options=("-t", "./mine.py"))
    assert (done.exit_status, done.stdout) == (2, "")
    assert "mine.py" in done.lines[0]
    assert line in done.lines[0]
    assert len(done.lines) == 1


# ---- programs that cannot be started


@pytest.mark.main
def test_missing_program(pasta_preload) -> None:
    for name in ("no-such-program", "./no-such-program", "/no/such/program"):
        done = pasta_preload(name)
        assert (done.exit_status, done.stdout) == (127, "")
        assert done.stderr == f"pasta: {name}: no such program\n"


def test_not_executable(pasta_preload) -> None:
    (pasta_preload.directory / "script").write_text("#!/bin/sh\n")
    done = pasta_preload("./script")
    assert (done.exit_status, done.stdout) == (126, "")
    assert done.stderr == "pasta: ./script: not executable: chmod +x ./script\n"


def test_directory(pasta_preload) -> None:
    done = pasta_preload(".")
    assert (done.exit_status, done.stderr) == (126, "pasta: .: is a directory\n")


@pytest.mark.parametrize(
    ("content", "status", "reason"),
    [
        (b"\x7fELF\x02\x01\x01" + bytes(100), 126, "Exec format error"),
        (b"\x7fELF\x02\x01\x01\0 cut short", 126, "Exec format error"),
        (b"#!/no/such/interpreter\n", 127, "No such file or directory"),
    ],
)
def test_damaged_program(pasta_preload, content: bytes, status: int, reason: str) -> None:
    program = pasta_preload.directory / "damaged"
    program.write_bytes(content)
    program.chmod(0o755)
    done = pasta_preload("./damaged")
    assert (done.exit_status, done.stdout) == (status, "")
    assert done.lines[-1] == f"./damaged: cannot be run ({reason})"
    assert done.target_stderr == ""


def test_script_without_interpreter_line(pasta_preload) -> None:
    """A script that a shell or env would run with sh."""
    script = pasta_preload.directory / "script"
    script.write_text('echo "$0" "$@"\nexit 7\n')
    script.chmod(0o755)
    done = pasta_preload("./script", "a b")
    assert (done.exit_status, done.stdout, done.stderr) == (7, "./script a b\n", "")


# ---- programs that cannot be profiled


def compiled(directory: Path, *options: str, compiler: str = "cc", source: str = HELLO) -> Path:
    (directory / "hello.c").write_text(source)
    command = [compiler, directory / "hello.c", "-o", directory / "hello", *options]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip(f"{compiler} {' '.join(options)} does not work here")
    return directory / "hello"


@pytest.mark.main
@pytest.mark.parametrize("options", [("-static",), ("-static-pie",)])
def test_static(pasta_preload, tmp_path: Path, options: tuple[str, ...]) -> None:
    program = compiled(tmp_path, *options)
    done = pasta_preload(program)
    assert (done.exit_status, done.stdout) == (7, "hello\n")
    assert done.stderr == (
        f"pasta: {program} is statically linked, so nothing can be preloaded into it: "
        "it runs unprofiled\n"
    )


def test_32_bit(pasta_preload, tmp_path: Path) -> None:
    """The loader's own error about a library of the wrong class does not appear."""
    program = compiled(tmp_path, "-m32")
    done = pasta_preload(program)
    assert (done.exit_status, done.stdout) == (7, "hello\n")
    assert done.stderr == (
        f"pasta: {program} is a 32-bit program, and PASTA's library is 64-bit: it runs unprofiled\n"
    )


def test_musl(pasta_preload, tmp_path: Path) -> None:
    if not shutil.which("musl-gcc"):
        pytest.skip("no musl-gcc (apt-get install musl-tools)")
    program = compiled(tmp_path, compiler="musl-gcc")
    done = pasta_preload(program)
    assert (done.exit_status, done.stdout) == (7, "hello\n")
    assert done.stderr == (
        f"pasta: {program} is built for musl, and PASTA's library is for glibc: "
        "it runs unprofiled\n"
    )


def test_sanitizer_runtime_must_come_first(pasta_preload, tmp_path: Path) -> None:
    program = compiled(tmp_path, "-fsanitize=address")
    done = pasta_preload(program)
    assert (done.exit_status, done.stdout) == (7, "hello\n")
    (line,) = done.lines
    assert f"{program} is built with AddressSanitizer, whose libasan.so" in line
    assert "its accelerators are profiled" in line


def test_memory_sanitizer_finds_no_fault_in_setenv(pasta_preload, tmp_path: Path) -> None:
    """Its runtime checks what the library compares, and does not see what the library stores."""
    source = "#include <stdlib.h>\nint main(void) {\n"
    source += 'for (int i = 0; i < 2; i++) setenv("A", "value", 1);\n'
    source += 'return system("test $A = value") ? 1 : 7; }'
    options = ("-fsanitize=memory", "-g")
    done = pasta_preload(compiled(tmp_path, *options, compiler="clang", source=source))
    assert (done.exit_status, done.target_stderr) == (7, "")


@pytest.mark.parametrize("option", ["-m32", "-fsanitize=address", "musl"])
def test_children_that_cannot_be_preloaded(pasta_preload, tmp_path: Path, option: str) -> None:
    """They start as without PASTA: no loader message, the same status."""
    if option == "musl" and not shutil.which("musl-gcc"):
        pytest.skip("no musl-gcc (apt-get install musl-tools)")
    compiler = "musl-gcc" if option == "musl" else "cc"
    program = compiled(tmp_path, *([] if option == "musl" else [option]), compiler=compiler)
    done = pasta_preload("sh", "-c", f"{program}; {program}; exit $?")
    assert (done.exit_status, done.stdout, done.stderr) == (7, "hello\n" * 2, "")


def test_32_bit_header(pasta_preload) -> None:
    """Explained from the header alone, even if the kernel cannot run it."""
    program = pasta_preload.directory / "old"
    program.write_bytes(b"\x7fELF\x01\x01\x01" + bytes(100))
    program.chmod(0o755)
    done = pasta_preload("./old")
    assert done.exit_status == 126
    assert done.lines == [
        "old is a 32-bit program, and PASTA's library is 64-bit: it runs unprofiled",
        "./old: cannot be run (Exec format error)",
    ]


def test_set_user_id(pasta_preload, tmp_path: Path) -> None:
    """Owned by another user: the loader ignores LD_PRELOAD."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a program of another user's")
    program = compiled(tmp_path)
    os.chown(program, 65534, 65534)
    program.chmod(0o4755)
    done = pasta_preload(program)
    assert (done.exit_status, done.stdout) == (7, "hello\n")
    assert done.stderr == (
        f"pasta: {program} is set-user-ID, so the loader ignores preloaded libraries: "
        "it runs unprofiled\n"
    )


def test_script_of_a_static_interpreter(pasta_preload, tmp_path: Path) -> None:
    program = compiled(tmp_path, "-static")
    script = tmp_path / "script"
    script.write_text(f"#!{program}\n")
    script.chmod(0o755)
    done = pasta_preload(script)
    assert (done.exit_status, done.stdout) == (7, "hello\n")
    assert done.lines == [
        f"{program} is statically linked, so nothing can be preloaded into it: it runs unprofiled"
    ]


@pytest.mark.main
def test_no_accelerator_library(pasta_preload, compile_c) -> None:
    """A program that looks for CUDA on a machine without it finds none; PASTA prints nothing."""
    program = compile_c(
        """#include <dlfcn.h>
        int main(void) { return dlopen("libcuda.so.1", RTLD_NOW) ? 1 : 7; }""",
        "-ldl",
    )
    alone = subprocess.run([program]).returncode
    done = pasta_preload(program)
    assert (done.exit_status, done.stderr, done.runs) == (alone, "", [])


# ---- the place of the run


def test_existing_directory(pasta_preload, compile_c) -> None:
    program = compile_c(LAUNCH)
    place = pasta_preload.directory / "pasta-out" / "run"
    place.mkdir(parents=True)
    (place / "precious").write_text("keep me")
    done = pasta_preload(program, options=("-o", "pasta-out/run"))
    assert done.exit_status == 2
    assert done.stderr == "pasta: pasta-out/run exists: replace it with -f, or use -o DIR-%p\n"
    done = pasta_preload(program, options=("-f", "-o", "pasta-out/run"))
    assert done.exit_status == 2
    assert done.stderr == "pasta: pasta-out/run is not a run directory, so -f does not replace it\n"
    assert (place / "precious").read_text() == "keep me"
    (place / "precious").unlink()
    done = pasta_preload(program, options=("-o", "pasta-out/run"))  # an empty one can be used
    assert done.exit_status == 0
    assert done.run.launches == 3


def test_overwrite(pasta_preload, compile_c) -> None:
    options = ("-f", "-o", "pasta-out/run")
    program = compile_c("int main(int n, char **a) { launch(n > 1 ? atoi(a[1]) : 0); return 0; }")
    for count in (3, 5):
        done = pasta_preload(program, str(count), options=options)
        assert (done.exit_status, done.run.launches) == (0, count)


def test_output_directory_created_meanwhile(pasta_preload, compile_c) -> None:
    """The run is not lost, and a directory created meanwhile is not replaced."""
    program = compile_c(
        """int main(void) {
            launch(3);
            return mkdir("pasta-out", 0777) || mkdir("pasta-out/run", 0777)
                || mkdir("pasta-out/run/precious", 0777);
        }"""
    )
    done = pasta_preload(program, options=("-o", "pasta-out/run"))
    assert done.exit_status == 0
    assert done.run.path.name.startswith("run-")
    assert done.run.launches == 3
    assert (done.directory / "pasta-out" / "run" / "precious").is_dir()


def as_nobody() -> tuple[str, ...]:
    if os.geteuid() != 0:
        return ()
    if not shutil.which("setpriv"):
        pytest.skip("tests run as root, and setpriv was not found")
    return ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def test_no_permission_to_write(pasta_preload) -> None:
    before = as_nobody()
    can_run = subprocess.run(
        [*before, sys.executable, "-c", ""], cwd="/", env=base_environment(), capture_output=True
    )
    if can_run.returncode:
        pytest.skip("tests run as root, and another user cannot run this Python")
    directory = pasta_preload.directory
    directory.chmod(0o555)
    for parent in directory.parents:
        if parent.stat().st_uid == os.geteuid() and parent.name.startswith(
            ("pytest", "test", "popen")
        ):
            parent.chmod(parent.stat().st_mode | stat.S_IXGRP | stat.S_IXOTH)
    done = pasta_preload("echo", "never", before=before)
    assert (done.exit_status, done.stdout) == (2, "")
    assert done.stderr == (
        f"pasta: pasta-out/%n-%p: no permission to write in {directory}: "
        "use another directory with -o DIR\n"
    )


def test_verbs_report_errors(pasta, tmp_path: Path) -> None:
    for arguments, line in (
        (["report", tmp_path / "none"], f"pasta: {tmp_path / 'none'}: no such run directory\n"),
        (["report", tmp_path], f"pasta: {tmp_path}: not a run directory (no run.json)\n"),
        (["demo", "none"], "pasta: unknown demo 'none': known names: accesses, convolution, "),
    ):
        done = pasta(*arguments)
        assert done.returncode == 2
        assert done.stderr.startswith(line)
        assert done.stdout == ""
    wrong = pasta("reprot", tmp_path)
    assert wrong.returncode == 2
    assert "report" in wrong.stderr


@pytest.mark.main
def test_damaged_run(pasta, pasta_preload, compile_c) -> None:
    run = pasta_preload(compile_c(LAUNCH)).run
    (run.path / "run.json").write_text("{")
    done = pasta("report", run.path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"pasta: {run.path / 'run.json'}: not valid JSON (")
    (run.path / "run.json").write_text('{"schema": 999}')
    done = pasta("report", run.path)
    assert done.returncode == 2
    assert done.stderr.endswith("pip install --upgrade pasta-profiler\n")


def test_stderr_is_closed(pasta_preload, compile_c) -> None:
    """Messages are lost; the program and its run are unaffected."""
    program = compile_c(LAUNCH)
    done = pasta_preload(program, before=("sh", "-c", 'exec "$@" 2>&-', "sh"))
    assert done.exit_status == 0
    assert done.run.launches == 3


def test_stderr_without_reader(pasta_preload, compile_c) -> None:
    program = compile_c(LAUNCH)
    process = pasta_preload.popen(program)
    process.stderr.close()
    process.stderr = None
    done = pasta_preload.finish(process)
    assert done.exit_status in (0, -signal.SIGPIPE)
    assert done.run.launches == 3
