"""`pasta attach` to real programs: they run on as without it, and end as without it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.debuggers import DEBUGGERS, debugger  # noqa: F401
from tests.support.preload import TIMEOUT, RunDirectory, base_environment, cli, wait_until
from tests.support.pythons import other_pythons

needs_debugger = pytest.mark.usefixtures("debugger")
pytestmark = pytest.mark.slow

STEPS = """
import os, sys, threading, time
try:
    import pasta
except ImportError:
    pasta = None
before = set(globals())
print("ready", flush=True)
steps = 0
while not os.path.exists("stop"):
    steps += 1
    if pasta:
        with pasta.range("step"):
            pasta.mark("inside")
            time.sleep(0.002)
    elif len(sys.argv) > 1:
        time.sleep(0.01)
names = set(globals()) - before - {"before", "steps"}
print("end", threading.active_count(), names, flush=True)
sys.exit(7)
"""


class Running:
    """A program that runs until `end`."""

    def __init__(self, directory: Path, code: str, python: str, *arguments: str) -> None:
        self.directory = directory
        script = directory / "program.py"
        script.write_text(code)
        environment = base_environment()
        if python != sys.executable:
            environment.pop("PYTHONPATH")
        self.process = subprocess.Popen(
            [python, script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=environment, cwd=directory,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    @property
    def pid(self) -> int:
        return self.process.pid

    def attach(self, *options: str, code: str = "") -> subprocess.Popen[str]:
        """Starts pasta attach; `code` runs before."""
        command = cli("pasta")
        if code:
            command[-1] = command[-1].replace("from pasta_entry", f"\n{code}\nfrom pasta_entry")
        return subprocess.Popen(
            [*command, "attach", str(self.pid), *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=base_environment(),
            cwd=self.directory,
        )  # fmt: skip

    def profile(self, *options: str, code: str = "") -> tuple[int, str, str]:
        """Runs pasta attach to its end: its exit status, stdout and stderr."""
        process = self.attach(*options, code=code)
        output, errors = process.communicate(timeout=TIMEOUT)
        return process.returncode, output, errors

    def end(self) -> tuple[int, str, str]:
        """Lets the program end: its exit status, and the rest of stdout and stderr."""
        (self.directory / "stop").touch()
        output, errors = self.process.communicate(timeout=TIMEOUT)
        return self.process.returncode, output, errors


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts a program; afterwards nothing of PASTA may be left."""
    running: list[Running] = []

    def begin(code: str = STEPS, *arguments: str, python: str = sys.executable) -> Running:
        running.append(Running(tmp_path, code, python, *arguments))
        return running[-1]

    yield begin
    for each in running:
        each.process.kill()
        each.process.wait()
        wait_until(lambda each=each: not sessions_of(each.pid), "the session is removed")
    assert not list(tmp_path.glob("**/.pasta-*")), "half-written runs are left"


def sessions_of(pid: int) -> list[Path]:
    return list(Path("/dev/shm").glob(f"pasta-*/rings/{pid}-0"))


def begun(process: subprocess.Popen[str]) -> None:
    """Waits until the profile has begun."""
    assert process.stderr is not None
    line = process.stderr.readline()
    while "Ctrl-C ends the profile, not" not in line:
        assert line, process.communicate()
        line = process.stderr.readline()


TRACE = ("-t", "event_trace", "-o", "run")
UNCHANGED = (7, "end 1 set()\n", "")
#: Uses one debugger only.
WITH = """
from pasta.runtime import debugger
debugger._DEBUGGERS = [each for each in debugger._DEBUGGERS if each.name == {name!r}]
"""
#: The program's handler of SIGUSR1 does what sys.remote_exec has it do.
REMOTE = """
import pathlib, signal
signal.signal(signal.SIGUSR1, lambda *_: exec(pathlib.Path("remote").read_text(), {}))
"""
AS_REMOTE = """
from pasta.runtime import program
examine = program.examine
program.examine = lambda pid: examine(pid)._replace(minor=314, interpreter={python!r})
"""
INTERPRETER = """#!/bin/sh
# -S -c CODE PID FILE
cp "$5" {directory}/remote && kill -USR1 "$4"
"""


@pytest.mark.main
def test_sys_remote_exec(start, tmp_path: Path) -> None:
    """Of Python 3.14, played by an interpreter that has the program execute the file."""
    python = tmp_path / "python3.314"
    python.write_text(INTERPRETER.format(directory=tmp_path))
    python.chmod(0o755)
    program = start(REMOTE + STEPS)
    code = AS_REMOTE.format(python=str(python))
    status, output, errors = program.profile(*TRACE, "--duration", "300ms", code=code)
    assert status == 0, errors
    assert "detached, the program continued" in output and "results: run" in output
    assert program.end() == UNCHANGED


@needs_debugger
@pytest.mark.parametrize("name", DEBUGGERS)
def test_annotations(start, tmp_path: Path, name: str) -> None:
    program = start()
    code = WITH.format(name=name)
    status, output, errors = program.profile(*TRACE, "--duration", "500ms", code=code)
    assert status == 0, errors
    manifest = RunDirectory(tmp_path / "run").manifest
    counts = manifest["events"]
    assert counts["mark"] > 10 and abs(counts["range_push"] - counts["range_pop"]) <= 1
    assert manifest["ended"]["how"] == "detached"
    assert manifest["launched"] == [sys.executable, str(tmp_path / "program.py")]
    earlier, gpus = manifest["warnings"]
    assert earlier.startswith("attached to the running program: earlier work, and memory")
    assert gpus.endswith("memory are not followed: start the program with pasta-preload")
    assert f"pasta: {earlier}\npasta: {gpus}\n" in errors and f"note: {gpus}" in output
    assert program.end() == UNCHANGED


@needs_debugger
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, "detach"])
def test_end_by_the_user(start, tmp_path: Path, pasta, ending: signal.Signals | str) -> None:
    """The program continues, and can be profiled again."""
    program = start()
    for name in ("first", "second"):
        process = program.attach("-t", "event_trace", "-o", name)
        begun(process)
        if isinstance(ending, signal.Signals):
            process.send_signal(ending)
        else:
            assert pasta("attach", "--detach", str(program.pid)).returncode == 0
            assert (tmp_path / name / "run.json").exists()
        assert process.communicate(timeout=TIMEOUT)[0].endswith(f"results: {name}\n")
        assert process.returncode == 0
        assert RunDirectory(tmp_path / name).ended == "detached, the program continued"
    assert program.end() == UNCHANGED


@needs_debugger
def test_program_ends_meanwhile(start, tmp_path: Path) -> None:
    program = start()
    process = program.attach(*TRACE)
    begun(process)
    assert program.end() == UNCHANGED
    assert process.wait(TIMEOUT) == 0
    assert RunDirectory(tmp_path / "run").ended == "ended"


@needs_debugger
def test_program_is_killed_meanwhile(start, tmp_path: Path) -> None:
    program = start()
    process = program.attach(*TRACE)
    begun(process)
    time.sleep(0.2)
    program.process.kill()
    program.process.wait()
    assert process.wait(TIMEOUT) == 0
    run = RunDirectory(tmp_path / "run")
    assert run.ended == "ended" and run.manifest["events"]["mark"] > 10


@needs_debugger
def test_attach_is_killed(start, tmp_path: Path) -> None:
    """The program's side ends the profile, so that another one can begin."""
    program = start()
    process = program.attach(*TRACE)
    begun(process)
    process.kill()
    process.communicate()
    shutil.rmtree(next(tmp_path.glob(".pasta-*")))
    try:
        status, _, errors = program.profile(*TRACE, "--duration", "300ms")
        assert status == 0, errors
        assert program.end() == UNCHANGED
    finally:  # without its owner nobody else removes the session
        for ring in sessions_of(program.pid):
            shutil.rmtree(ring.parent.parent)


BLOCKS = """
import os, time
import pasta
print("ready", flush=True)
while not os.path.exists("stop"):
    time.sleep(0.01)
    if os.path.exists("block"):
        os.unlink("block")
        try:
            with pasta.profile("event_trace") as run:
                pasta.mark("x")
            print("profiled", run.event_counts().get("mark"), flush=True)
        except Exception as error:
            print(error, flush=True)
"""


@needs_debugger
def test_blocks_of_the_program(start, tmp_path: Path) -> None:
    program = start(BLOCKS)

    def block() -> str:
        (tmp_path / "block").touch()
        return str(program.process.stdout.readline())

    for name in ("first", "second"):
        assert block() == "profiled 1\n"
        process = program.attach("-t", "event_trace", "-o", name)
        begun(process)
        end = f"pasta attach --detach {program.pid}"
        assert block() == f"pasta attach is profiling this process: {end}\n"
        status, _, errors = program.profile("-t", "event_trace", "-o", "another")
        assert status == 2 and "profiling a block itself, or another pasta attach is" in errors
        process.send_signal(signal.SIGINT)
        assert f"results: {name}" in process.communicate(timeout=TIMEOUT)[0]
    assert block() == "profiled 1\n"
    assert program.end() == (0, "", "")


LAUNCHES = """
import os, time
print(os.getpid(), flush=True)
launch(3)
while not os.path.exists("stop"):
    launch(1)
    time.sleep(0.01)
"""


@needs_debugger
def test_program_under_pasta_preload(python_program, tmp_path: Path) -> None:
    """Its launches are seen while attached."""
    off = ("--profile-from-start=off", "-q", "-o", "whole")
    with subprocess.Popen(
        [*cli("pasta-preload"), *off, "--", sys.executable, python_program(LAUNCHES)],
        stdout=subprocess.PIPE, text=True, env=base_environment(), cwd=tmp_path,
    ) as launcher:  # fmt: skip
        assert launcher.stdout is not None
        attach = [*cli("pasta"), "attach", launcher.stdout.readline().strip(), "-o", "run"]
        try:
            done = subprocess.run(
                [*attach, "--duration", "500ms"], capture_output=True, text=True, timeout=TIMEOUT,
                env=base_environment(), cwd=tmp_path,
            )  # fmt: skip
        finally:
            (tmp_path / "stop").touch()
        assert launcher.wait(TIMEOUT) == 0
    assert done.returncode == 0, done.stderr
    run, whole = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "whole")
    assert run.launches == whole.launches > 3
    assert len(run.manifest["warnings"]) == 1
    assert run.manifest["tools"] == ["kernel_freq"]


@needs_debugger
def test_interrupt_while_waiting(start) -> None:
    """For a main thread in a call of C: nothing happens when it returns."""
    program = start('import sys\nprint("ready", flush=True)\nsys.stdin.readline()\nx = 1 + 1\n')
    process = program.attach(*TRACE)
    assert "waiting until the main thread of process" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    assert program.process.communicate("\n", timeout=TIMEOUT) == ("", "")
    assert program.process.returncode == 0


@needs_debugger
@pytest.mark.parametrize("busy", [True, False])
def test_other_pythons_without_pasta(start, busy: bool) -> None:
    pythons = other_pythons()[-2:]
    if not pythons:
        pytest.skip("no python3.N of another version on PATH, nor of pyenv")
    python = pythons[0 if busy else -1]
    program = start(STEPS, *([] if busy else ["sleep"]), python=python)
    status, output, errors = program.profile(*TRACE, "--duration", "300ms")
    assert status == 0, errors
    assert "profiling_start" in output
    assert program.end() == UNCHANGED


REFUSED = {
    "operators": "tool operators needs PyTorch or JAX, which process {pid} has not imported: attach"
    " once it has, or leave out the tool",
    "kernel_freq": "tool kernel_freq needs GPU events: start the program with pasta-preload",
    "hotness": "tool hotness has probes, which are compiled before the program starts",
    "": "process {pid} has not imported PyTorch or JAX, so only its annotations can be followed:"
    " use -t event_trace; for GPU events, start the program with pasta-preload",
}


@needs_debugger
def test_refused_tools(start) -> None:
    program = start()
    for tool, message in REFUSED.items():
        status, output, errors = program.profile("-o", "run", *(["-t", tool] if tool else []))
        assert (status, output) == (2, "")
        assert errors.startswith(f"pasta: {message.format(pid=program.pid)}"), errors
    assert program.end() == UNCHANGED


def test_other_processes(pasta, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "100"]) as sleeping:
        done = pasta("attach", str(sleeping.pid))
        sleeping.kill()
    assert f"process {sleeping.pid} (sleep) does not run CPython: start the program" in done.stderr
    assert "there is no process" in pasta("attach", "999999999").stderr
    assert f"no pasta attach is profiling process {os.getpid()}" in pasta(
        "attach", "--detach", str(os.getpid())
    ).stderr  # fmt: skip
    done = pasta("attach", str(os.getpid()), "--set", "ring.max=1GiB")
    assert "pasta attach: ring.max applies to the whole program, not to a block" in done.stderr
