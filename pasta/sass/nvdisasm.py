"""Texts of instructions from nvdisasm.

nvdisasm receives distinct instructions of any functions as raw code, not modules: code is
repetitive, and nvdisasm takes 12 µs per instruction. Code is complete without its module, except
names of symbols, which the module's relocations have.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pasta.errors import MissingDependency
from pasta.interruption import LOOK_SECONDS, is_interrupted
from pasta.lazy import np
from pasta.sass.toolkit import SassError, find_nvdisasm

if TYPE_CHECKING:
    from numpy.typing import NDArray

WHEEL: Final = "nvidia-cuda-nvdisasm"
#: Instructions of a process: starting one takes as long as 20,000 instructions.
_CHUNK: Final = 1 << 17
_SMALLEST_CHUNK: Final = 1 << 14
#: Where the code is said to lie: no other number in a listing is near it.
_BASE: Final = 0x180000000000
_ABSOLUTE = re.compile(r"0x(1[78][0-9a-f]{10})(?![0-9a-f])")
_LINE = re.compile(r"^\s*/\*[0-9a-f]+\*/ *([^\n]*)$", re.MULTILINE)
_ILLEGAL = re.compile(r"at address 0x([0-9a-f]+)")
#: Architectures from this one on have variants; the one ending in "a" has all instructions.
_FIRST_WITH_VARIANTS: Final = 90


def required_nvdisasm() -> Path:
    """nvdisasm. Raises MissingDependency."""
    program = find_nvdisasm()
    if program is None:
        raise MissingDependency("nvdisasm was not found", remedy=f"pip install {WHEEL}")
    return program


def version(program: Path) -> str:
    """Version of an nvdisasm, such as 13.5.37; empty if it cannot be run."""
    try:
        return _version(program, program.stat().st_mtime_ns)
    except OSError:
        return ""


@lru_cache(maxsize=16)
def _version(program: Path, _: int) -> str:
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired:
        return ""
    found = re.search(r"V(\d[\d.]*)", done.stdout)
    return found[1] if found else ""


def list_instructions(
    architecture: int, words: NDArray[np.uint64], end: float
) -> Iterator[list[str]]:
    """Texts of instructions, (n, 2) low and high halves, in parts in their order.

    Parts are computed in parallel. A target in the code is relative to its instruction, `.+0x20`;
    the text of an invalid instruction is empty. Raises MissingDependency; SassError if nvdisasm
    does not know the architecture, or is not ready by `end` (time.monotonic).
    """
    program = required_nvdisasm()
    workers = len(os.sched_getaffinity(0))
    size = min(max(len(words) // workers + 1, _SMALLEST_CHUNK), _CHUNK)
    parts = [words[at : at + size] for at in range(0, len(words), size)]
    with ThreadPoolExecutor(workers, "pasta-nvdisasm") as pool:
        pending = [pool.submit(_list_part, program, architecture, part, end) for part in parts]
        try:
            for each in pending:
                yield each.result()
        finally:
            for each in pending:
                each.cancel()


def _list_part(
    program: Path, architecture: int, words: NDArray[np.uint64], end: float
) -> list[str]:
    """Instructions that nvdisasm rejects are left out; it names all of them at once."""
    kept = np.arange(len(words))
    texts = [""] * len(words)
    for _ in range(3):
        if not len(kept):
            break
        done = _run(program, architecture, words[kept], end)
        if not done.returncode:
            listed = _LINE.findall(done.stdout)
            if len(listed) != len(kept):
                break
            for at, (index, text) in enumerate(zip(kept.tolist(), listed, strict=True)):
                texts[index] = _relative(text.rstrip(" ;"), _BASE + 16 * at)
            return texts
        illegal = [(int(at, 16) - _BASE) // 16 for at in _ILLEGAL.findall(done.stderr)]
        kept_before = len(kept)
        kept = np.delete(kept, [at for at in illegal if 0 <= at < kept_before])
        if len(kept) == kept_before:
            lines = done.stderr.strip().splitlines()
            raise SassError(
                f"nvdisasm cannot read code for sm_{architecture}:"
                f" {lines[0] if lines else done.returncode}",
                remedy=f"pip install -U {WHEEL}",
            )
    if len(kept):
        raise SassError(f"nvdisasm does not list code for sm_{architecture} as expected")
    return texts


def _relative(text: str, address: int) -> str:
    if "0x1" not in text:
        return text

    def replace(found: re.Match[str]) -> str:
        delta = int(found[1], 16) - address
        return f".{'-' if delta < 0 else '+'}{abs(delta):#x}"

    return _ABSOLUTE.sub(replace, text)


def _run(
    program: Path, architecture: int, words: NDArray[np.uint64], end: float
) -> subprocess.CompletedProcess[str]:
    variant = "a" if architecture >= _FIRST_WITH_VARIANTS else ""
    with tempfile.TemporaryDirectory(prefix="pasta-") as scratch:
        code = Path(scratch, "code")
        code.write_bytes(words.tobytes())
        command = [
            str(program),
            "-b",
            f"SM{architecture}{variant}",
            "-raw",
            "-ndf",
            "-base",
            hex(_BASE),
        ]
        try:
            return _finished([*command, str(code)], end)
        except OSError as error:
            raise MissingDependency(
                f"{program} cannot be executed ({error.strerror})",
                remedy=f"pip install {WHEEL}, or name nvdisasm in PASTA_NVDISASM",
            ) from error


def _finished(command: list[str], end: float) -> subprocess.CompletedProcess[str]:
    """A program that has ended; it is killed at `end`, or if the user interrupts PASTA. Raises
    SassError, OSError."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            while not is_interrupted():
                left = max(end - time.monotonic(), 0.001)
                try:
                    output, errors = process.communicate(timeout=min(left, LOOK_SECONDS))
                    return subprocess.CompletedProcess(command, process.returncode, output, errors)
                except subprocess.TimeoutExpired:
                    if time.monotonic() >= end:
                        raise SassError("nvdisasm took too long for the code of a module") from None
            raise SassError("nvdisasm was interrupted by a signal")
        finally:
            process.kill()


__all__ = ["WHEEL", "find_nvdisasm", "list_instructions", "required_nvdisasm", "version"]
