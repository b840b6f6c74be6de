"""A program run under pasta-preload, and its results.

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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.support.places import ROOT

INSTALLED = bool(os.environ.get("PASTA_TEST_INSTALLED"))
#: Seconds, below pytest's own limit: the first process of a file may compile, on a loaded machine.
TIMEOUT = 100
#: Options that start Python in the target immediately instead of after a delay.
EMBED_NOW = ("--set", "python.embed-delay=0")


def cli(name: str) -> list[str]:
    """The command line of `pasta` or `pasta-preload`."""
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
        """embedded, collector, or afterwards: short programs are analysed after they have
        exited."""
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
        """PASTA's lines except reports, run directories and progress on slow machines: messages for
        the user."""
        reports = "\n".join(run.report for run in self.runs).splitlines()
        known = {line.rstrip() for line in reports}
        return [
            line
            for line in self.lines
            if line not in known
            and not re.match(r"process \d+: |preparing: |writing the run", line)
        ]

    @property
    def runs(self) -> list[RunDirectory]:
        """Run directories in the default location, ordered by pid."""
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
    """Starts commands under pasta-preload, in a separate directory per test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.launchers: list[int] = []
        self.may_leave_sessions = False
        self._former = frozenset(_sessions("*"))

    def popen(
        self, *command: str | Path, options: tuple[str, ...] = (), **how: Any
    ) -> subprocess.Popen[str]:
        """Starts a command without waiting for it."""
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
        """Runs a command and waits for it."""
        if input:
            how["stdin"] = subprocess.PIPE
        process = self.popen(*command, options=options, **how)
        return self.finish(process, input or None)

    def finish(self, process: subprocess.Popen[str], input: str | None = None) -> Done:
        """Waits for a command that `popen` started."""
        try:
            stdout, stderr = process.communicate(input, timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            self.kill_collectors()
            raise
        return Done(process.returncode, stdout, stderr, self.directory, process.pid)

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
        """Ends processes that would outlive a killed launcher, and removes its sessions."""
        for session in self.sessions():
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    if os.fsencode(session) in entry.read_bytes():
                        os.kill(int(entry.parent.name), signal.SIGKILL)
                except OSError:
                    pass
            shutil.rmtree(session, ignore_errors=True)

    def sessions(self) -> list[Path]:
        """Session directories in shared memory that these launchers made and that still exist.

        Not those of former processes with the same pids: tests that were killed leave sessions.
        """
        found = [path for pid in self.launchers for path in _sessions(pid)]
        return [path for path in found if path not in self._former]

    def explained(self) -> str:
        """What is in these sessions, and which processes have to do with them."""
        text = ""
        for session in self.sessions():
            files = sorted(str(path.relative_to(session)) for path in session.rglob("*"))
            log = session / "log.txt"
            text += f"\n{session}: {', '.join(files)}\n"
            text += log.read_text(errors="replace") if log.exists() else ""
            for entry in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    about = (entry / "cmdline").read_bytes() + (entry / "maps").read_bytes()
                    if os.fsencode(session) in about:
                        text += f"process {entry.name}: {(entry / 'wchan').read_text()}, "
                        text += (entry / "cmdline").read_text(errors="replace").replace("\0", " ")
                        text += "\n"
        return text


def _sessions(pid: int | str) -> list[Path]:
    places = [Path("/dev/shm"), Path(os.environ.get("TMPDIR", "/tmp"))]
    return [path for place in places for path in place.glob(f"pasta-{os.getuid()}-{pid}-*")]


def wait_until(
    condition: Callable[[], object],
    what: str,
    seconds: float = 30,
    explain: Callable[[], str] = str,
) -> None:
    """Fails unless the condition becomes true in time; `explain` adds to the message."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"no answer within {seconds} s: {what}{explain()}"
        time.sleep(0.02)


def signal_name(status: int) -> str:
    """Name of the signal in a Popen return code."""
    assert status < 0, f"exited with {status}"
    return signal.Signals(-status).name
