"""Ways to compile C tests, plain and under sanitizers, and how their cases are run."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.session import Session, compile_c


@dataclass(frozen=True)
class Build:
    """A build configuration; `options` make the sanitizer abort at its first report. `events`: the
    number above which a test is marked slow.
    """

    name: str
    flags: tuple[str, ...]
    options: dict[str, str] = field(default_factory=dict)
    events: int = 100_000

    @property
    def marks(self) -> tuple[pytest.MarkDecorator, ...]:
        """Markers of tests with this build."""
        return () if self.name == "plain" else (pytest.mark.sanitizers,)

    def works(self, directory: Path) -> bool:
        """Whether this machine can build and run such a program."""
        source = directory / "empty.c"
        source.write_text("int main(void) { return 0; }\n")
        try:
            program = compile_c(directory / "empty", [source], *self.flags)
        except AssertionError:
            return False
        return subprocess.run([program]).returncode == 0

    def run(
        self, program: Path, *arguments: object, timeout: float = 100, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program of this build with additional environment variables."""
        return subprocess.run(
            [program, *map(str, arguments)],
            env={**os.environ, **self.options, **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
        )


BUILDS = (
    Build("plain", ("-O2",)),
    Build(
        "address",
        ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
        {"ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1"},
        events=20_000,
    ),
    Build(
        "thread",
        ("-O1", "-fsanitize=thread"),
        # a fork copies TSan's list of threads, which do not live in the child
        {"TSAN_OPTIONS": "halt_on_error=1:die_after_fork=0:report_thread_leaks=0"},
        events=20_000,
    ),
)


@dataclass(frozen=True)
class Case:
    """A case of a test program, its configuration, and the prefix of its only line on stderr."""

    name: str
    config: dict[str, object] = field(default_factory=dict)
    says: str = ""
    #: Why TSan cannot run it; "" if it can.
    not_under_tsan: str = ""

    def __str__(self) -> str:
        return "-".join([self.name, *(str(value) for value in self.config.values())])

    def check(self, build: Build, program: Path, directory: Path, *arguments: object) -> None:
        """Runs `program` for this case, in a new session in `directory`."""
        session = Session.create(directory / "session")
        configuration = session.configuration(ring_max=2 << 20, **self.config)
        done = build.run(program, self.name, *arguments, PASTA_SHIM=configuration)
        assert done.returncode == 0, done.stderr
        assert done.stderr.startswith(self.says)
        assert done.stderr.count("\n") == bool(self.says), done.stderr
