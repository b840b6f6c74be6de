"""What the integration tests share: a program under pasta-preload, and what became of it.

    def test_target_keeps_its_exit_status(pasta_preload, compile_c):
        done = pasta_preload(compile_c("int main(void) { return 7; }"))
        assert done.exit_status == 7

The in-tree package is tested; with PASTA_TEST_INSTALLED set, the `pasta-preload` and `pasta` on
PATH, which must belong to the Python that runs the tests.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures"
INSTALLED = bool(os.environ.get("PASTA_TEST_INSTALLED"))
TIMEOUT = 45
#: Python starts in the target at once, not only in one that runs for a while.
EMBED_NOW = ("--set", "python.embed-delay=0")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started by a shell's `&`
    signal.signal(signal.SIGINT, signal.default_int_handler)  # so programs begin with the default


def cli(name: str) -> list[str]:
    """How `pasta` or `pasta-preload` is started."""
    if INSTALLED:
        script = shutil.which(name)
        assert script, f"{name} is not on PATH, though PASTA_TEST_INSTALLED is set"
        return [script]
    entry = name.replace("-", "_")
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
    code += f"from pasta_entry import {entry}; {entry}()"
    return [sys.executable, "-I", "-c", code]


def base_environment() -> dict[str, str]:
    """This process's environment, with the checkout on the path of Python programs."""
    environment = dict(os.environ)
    environment.pop("COLUMNS", None)  # of the tests' own output
    if not INSTALLED:
        others = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{ROOT}:{others}" if others else str(ROOT)
    return environment


@dataclass(frozen=True)
class RunDirectory:
    """A run directory as a user finds it."""

    path: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        manifest: dict[str, Any] = json.loads((self.path / "run.json").read_text())
        return manifest

    @property
    def ended(self) -> str:
        return str(self.manifest["ended"]["text"])

    @property
    def consumer(self) -> str:
        """embedded, collector, or afterwards: short programs are analysed when they have ended."""
        return str(self.manifest["consumer"])

    @property
    def report(self) -> str:
        return (self.path / "report.txt").read_text()

    @property
    def log(self) -> str:
        return (self.path / "log.txt").read_text()

    def count(self, kind: str) -> int:
        """Records of a kind in the Parquet files, which must be as many as the tools saw."""
        parts = (self.path / "events").glob(f"{kind}-*.parquet")
        rows = sum(pq.ParquetFile(part).metadata.num_rows for part in parts)
        assert rows == self.manifest["recorded"].get(kind, 0)
        return int(rows)

    @property
    def launches(self) -> int:
        """Kernel launches: recorded, counted by the manifest and by kernel_freq, all equal."""
        rows = self.count("kernel_launch")
        assert self.manifest["events"].get("kernel_launch", 0) == rows
        table = self.path / "results" / "kernel_freq" / "kernels.parquet"
        if table.exists():
            assert sum(pq.read_table(table)["launches"].to_pylist()) == rows
        return rows


@dataclass(frozen=True)
class Done:
    """A finished command: what it printed, and the runs in its directory."""

    exit_status: int  # -N: ended by signal N
    stdout: str
    stderr: str
    directory: Path
    pid: int
    seconds: float

    @property
    def lines(self) -> list[str]:
        """PASTA's lines on stderr, without `pasta: `."""
        return re.findall(r"^pasta: ?(.*)$", self.stderr, re.MULTILINE)

    @property
    def target_stderr(self) -> str:
        """stderr without PASTA's lines."""
        return re.sub(r"^pasta:.*\n", "", self.stderr, flags=re.MULTILINE)

    @property
    def notes(self) -> list[str]:
        """PASTA's lines without reports, run directories and, on a slow machine, progress: what a
        user should know."""
        reports = "\n".join(run.report for run in self.runs).splitlines()
        known = {line.rstrip() for line in reports}
        return [
            line
            for line in self.lines
            if line not in known and not re.match(r"process \d+: |writing the run", line)
        ]

    @property
    def runs(self) -> list[RunDirectory]:
        """Run directories in the place they are written to by default, in order of pid."""
        found = (self.directory / "pasta-out").glob("[!.]*/run.json")
        return sorted((RunDirectory(path.parent) for path in found), key=_pid)

    @property
    def run(self) -> RunDirectory:
        """The only run directory."""
        runs = self.runs
        assert len(runs) == 1, (runs, self.stderr)
        return runs[0]


def _pid(run: RunDirectory) -> int:
    return int(run.manifest["pid"])


class Preload:
    """Starts commands under pasta-preload, each test in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.launchers: list[int] = []
        self.may_leave_sessions = False

    def popen(
        self, *command: str | Path, options: tuple[str, ...] = (), **how: Any
    ) -> subprocess.Popen[str]:
        """Starts a command and does not wait for it."""
        environment = {**base_environment(), **how.pop("environment", {})}
        how = {"stdin": subprocess.DEVNULL, "cwd": self.directory, "text": True, **how}
        process = subprocess.Popen(
            [*how.pop("before", ()), *cli("pasta-preload"), *options, "--", *map(str, command)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how,
        )  # fmt: skip
        self.launchers.append(process.pid)
        return process

    def __call__(
        self, *command: str | Path, options: tuple[str, ...] = (), input: str = "", **how: Any
    ) -> Done:
        """Runs a command to its end."""
        start = time.monotonic()
        if input:
            how["stdin"] = subprocess.PIPE
        process = self.popen(*command, options=options, **how)
        return self.finish(process, input or None, start)

    def finish(
        self, process: subprocess.Popen[str], input: str | None = None, start: float = 0
    ) -> Done:
        """Waits for a command that `popen` started."""
        try:
            stdout, stderr = process.communicate(input, timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            self.kill_collectors()
            raise
        seconds = time.monotonic() - start
        directory = self.directory
        return Done(process.returncode, stdout, stderr, directory, process.pid, seconds)

    def bare(self, *arguments: str, **how: Any) -> Done:
        """Runs pasta-preload with exactly these arguments."""
        how = {"cwd": self.directory, "stdin": subprocess.DEVNULL, **how}
        environment = {**base_environment(), **how.pop("environment", {})}
        process = subprocess.Popen(
            [*how.pop("before", ()), *cli("pasta-preload"), *arguments],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how,
        )  # fmt: skip
        self.launchers.append(process.pid)
        return self.finish(process)

    def kill_collectors(self) -> None:
        """Ends what would outlive a launcher that was killed, and removes its sessions."""
        for session in self.sessions():
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    if os.fsencode(session) in entry.read_bytes():
                        os.kill(int(entry.parent.name), signal.SIGKILL)
                except OSError:
                    pass
            shutil.rmtree(session, ignore_errors=True)

    def sessions(self) -> list[Path]:
        """Session directories in shared memory that these launchers made and that still exist."""
        places = [Path("/dev/shm"), Path(os.environ.get("TMPDIR", "/tmp"))]
        return [
            path
            for place in places
            for pid in self.launchers
            for path in place.glob(f"pasta-{os.getuid()}-{pid}-*")
        ]


@pytest.fixture
def pasta_preload(tmp_path: Path) -> Iterator[Preload]:
    """Runs commands under pasta-preload; afterwards nothing may be left in shared memory, nor a
    half-written run."""
    directory = tmp_path / "work"
    directory.mkdir()
    preload = Preload(directory)
    yield preload
    if preload.may_leave_sessions:
        for path in preload.sessions():
            shutil.rmtree(path, ignore_errors=True)
        return
    wait_until(lambda: not preload.sessions(), "the session directory is removed")
    assert not list(directory.glob("**/.pasta-*")), "half-written runs are left"


@pytest.fixture
def pasta(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a verb of `pasta`."""

    def run(*arguments: str | Path, **how: Any) -> subprocess.CompletedProcess[str]:
        environment = {**base_environment(), **how.pop("environment", {})}
        return subprocess.run(
            [*cli("pasta"), *map(str, arguments)],
            env=environment, capture_output=True, text=True, timeout=TIMEOUT, cwd=tmp_path, **how,
        )  # fmt: skip

    return run


def wait_until(condition: Callable[[], object], what: str, seconds: float = 30) -> None:
    """Fails unless the condition turns true in time."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds} s: {what}"
        time.sleep(0.02)


@pytest.fixture(scope="session")
def native() -> Path:
    """Directory of the native parts of the PASTA under test."""
    found = subprocess.run(
        [sys.executable, "-c", "from pasta import paths; print(paths.NATIVE)"],
        env=base_environment(), cwd="/", capture_output=True, text=True, check=True,
    )  # fmt: skip
    return Path(found.stdout.strip())


@pytest.fixture
def demo(native: Path) -> Callable[[str], Path]:
    """Path of a demonstration program of the reference accelerator."""
    return lambda name: native / "bin" / name


@pytest.fixture(scope="session")
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    return tmp_path_factory.mktemp("programs"), {}


@pytest.fixture
def compile_c(_compiled: tuple[Path, dict[str, Path]], native: Path) -> Callable[..., Path]:
    """Compiles a C program from its text, with fixtures/accelerate.h; linked to the reference
    accelerator where it calls `launch`. One program per text."""
    directory, known = _compiled

    def build(source: str, *options: str, name: str = "") -> Path:
        key = f"{source}{options}{name}"
        if key in known:
            return known[key]
        accelerated = "launch(" in source
        file = directory / f"{name or 'program'}{len(known)}.c"
        output = file.with_suffix("") if not name else directory / str(len(known)) / name
        output.parent.mkdir(exist_ok=True)
        file.write_text(f'#include "accelerate.h"\n{source}\n')
        command = [
            *os.environ.get("CC", "cc").split(), "-std=gnu11", "-g1", "-Wall", "-Wextra", "-Werror",
            "-Wno-unused-function", "-pthread", f"-I{FIXTURES}", f"-I{ROOT / 'shim' / 'include'}",
            f"-I{ROOT / 'shim' / 'refacc'}", file, "-o", output, *options,
        ]  # fmt: skip
        if accelerated:
            command += ["-DACCELERATED", f"-L{native}", "-lrefacc", f"-Wl,-rpath,{native}"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        known[key] = output
        return output

    return build


@pytest.fixture
def python_program(tmp_path: Path, native: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a Python program that may call `launch(count)`; returns its path."""
    monkeypatch.setenv("REFACC_LIBRARY", str(native / "librefacc.so"))

    def write(source: str, name: str = "program.py") -> Path:
        path = tmp_path / name
        helper = f"import sys; sys.path.append({str(FIXTURES)!r})\nfrom accelerate import launch\n"
        path.write_text(helper + source)
        return path

    return write


def signal_name(status: int) -> str:
    """Name of the signal in a Popen return code."""
    assert status < 0, f"exited with {status}"
    return signal.Signals(-status).name
