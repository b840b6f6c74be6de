"""Shared by the benchmarks: figures with their targets, programs to measure, interleaved pairs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.publish import RING, ROOT

NATIVE = ROOT / "pasta" / "_native"
_ENTRY = "import sys; sys.path.insert(0, {root!r}); from pasta_entry import {name}; {name}()"


@dataclass(frozen=True)
class Figure:
    """A measured number; `most` or `least` is its target, both None if it has none.

    `error`: standard error of several measurements; otherwise 0.
    """

    name: str
    value: float
    unit: str
    most: float | None = None
    least: float | None = None
    error: float = 0

    @property
    def measured(self) -> str:
        """The value with its standard error and unit."""
        error = f" ± {self.error:.2g}" if self.error else ""
        return f"{self.value:.4g}{error} {self.unit}"

    @property
    def target(self) -> str:
        """The bound with its unit; empty without one."""
        if self.most is not None:
            return f"≤ {self.most:g} {self.unit}"
        return f"≥ {self.least:g} {self.unit}" if self.least is not None else ""

    @property
    def verdict(self) -> str:
        """Whether the value meets the target; empty without one."""
        if self.most is not None and self.error > self.most:
            return "too noisy"
        if self.most is not None and self.value > self.most >= self.value - self.error:
            return "unclear"
        if self.most is not None:
            return "met" if self.value <= self.most else "MISSED"
        if self.least is not None:
            return "met" if self.value >= self.least else "MISSED"
        return ""


def environment(**more: str) -> dict[str, str]:
    """This process's environment, in which the checkout's PASTA can be imported and its bytecode is
    kept, as that of an installed one."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": ":".join(filter(None, paths)), **more}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env


def command(name: str) -> list[str]:
    """The command `pasta` or `pasta-preload`, run by the interpreter of this process."""
    entry = _ENTRY.format(root=str(ROOT), name=name.replace("-", "_"))
    return [sys.executable, "-I", "-c", entry]


def preload_command() -> list[str]:
    """The command pasta-preload, run by the interpreter of this process."""
    return command("pasta-preload")


def compile_program(
    directory: Path, name: str, *more: str, ring: bool = False, output: str = ""
) -> Path:
    """bench/c/NAME.c, compiled with `more` options, linked to libpasta's ring or to the reference
    accelerator."""
    program = directory / (output or name)
    compiler = shlex.split(os.environ.get("CC", "cc"))
    options = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", *more]
    shim = ROOT / "shim"
    if ring:
        sources = [
            *(shim / "core" / f"{part}.c" for part in RING),
            shim / "python" / "reader.c",
            ROOT / "tests" / "programs" / "ring_stubs.c",
        ]
        options += [f"-I{shim / 'include'}", *map(str, sources)]
        libraries = ["-ldl"]
    else:
        options += [f"-I{shim / 'refacc'}"]
        libraries = [f"-L{NATIVE}", "-lrefacc", "-lm", f"-Wl,-rpath,{NATIVE}"]
    source = str(ROOT / "bench" / "c" / f"{name}.c")
    subprocess.run([*compiler, *options, source, "-o", str(program), *libraries], check=True)
    return program


@contextmanager
def ring_session(ring_max: int) -> Iterator[tuple[Path, dict[str, str]]]:
    """A session without a launcher, in shared memory, and the environment of its programs."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as name:
        session = Path(name)
        (session / "rings").mkdir()
        (session / "processes").write_bytes(bytes(512 << 10))
        shim = f"schema=1\nsession={session}\nchildren=1\nroot=0\nring_max={ring_max}"
        yield session, environment(PASTA_SHIM=shim)


def run(command: Sequence[str | Path], env: Mapping[str, str], timeout: float = 300) -> str:
    """Standard output of a program that must succeed."""
    done = subprocess.run(
        [str(part) for part in command],
        env=dict(env),
        timeout=timeout,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{shlex.join(map(str, command))}: {done.returncode}\n{done.stderr}")
    return done.stdout


def values(text: str) -> dict[str, float]:
    """Values by name, from output with lines of a name and a number."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: float(pair[1]) for pair in pairs if len(pair) == 2}


def seconds_of(command: Sequence[str | Path], env: Mapping[str, str]) -> float:
    """Wall-clock seconds of a program that must succeed."""
    start = time.perf_counter()
    run(command, env)
    return time.perf_counter() - start


def interleaved(
    first: Callable[[], float], second: Callable[[], float], pairs: int
) -> tuple[list[float], list[float]]:
    """Measure both in turn, so that heat, clocks and other load affect them equally."""
    measured: tuple[list[float], list[float]] = ([], [])
    for _ in range(pairs):
        measured[0].append(first())
        measured[1].append(second())
    return measured
