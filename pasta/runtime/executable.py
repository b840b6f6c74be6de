"""Examines a program before it runs: whether it can be started and preloaded."""

from __future__ import annotations

import os
import shutil
import stat
import struct
import sys
from functools import cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

from pasta.errors import PastaError

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB = 1, 5
_ELF_HEADER = 64
#: C libraries by the prefix of their loader's name.
_FOREIGN_LOADERS = {"ld-musl": "musl", "linker": "Android", "ld-uClibc": "uClibc",
                    "ld64-uClibc": "uClibc", "libc.so": "musl"}  # fmt: skip
#: Shared runtimes of gcc's and clang's sanitizers that must be the first library of a process.
_FIRST_LIBRARIES = {
    start: sanitizer
    for name, sanitizer in (
        ("asan", "AddressSanitizer"), ("tsan", "ThreadSanitizer"), ("hwasan", "HWAddressSanitizer"),
    )
    for start in (f"lib{name}.so", f"libclang_rt.{name}")
}  # fmt: skip


#: Consequence if only the accelerator's runtime can load the library.
_ACCELERATOR_ONLY = "its accelerators are profiled, but neither annotations nor child processes are"


class CannotRun(PastaError):
    """The program cannot be started. `status` is a shell's exit status for that."""

    def __init__(self, message: str, status: int, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.status = status


class Executable(NamedTuple):
    """A program that can be started.

    `obstacle`: why it cannot be profiled fully, if so; `consequence`: how much is profiled.
    `preloadable`: False if preloading the library would keep it from starting.
    """

    path: str
    obstacle: str | None = None
    preloadable: bool = True
    consequence: str = "it runs unprofiled"


def find_executable(program: str) -> Executable:
    """Finds a program as a shell does. Raises CannotRun with status 127 or 126."""
    path = shutil.which(program)
    if path is None:
        if os.path.isdir(program):
            raise CannotRun(f"{program}: is a directory", 126)
        if "/" in program and os.path.exists(program):
            raise CannotRun(f"{program}: not executable", 126, remedy=f"chmod +x {program}")
        raise CannotRun(f"{program}: no such program", 127)
    found = _examine(path, Path(path))
    return found if found.obstacle else _beside(found, os.environ.get("LD_PRELOAD", ""))


def _beside(found: Executable, preloaded: str) -> Executable:
    """A program that is started with these other libraries preloaded."""
    for library in preloaded.replace(":", " ").split():
        if sanitizer := _begins(os.path.basename(library), _FIRST_LIBRARIES):
            obstacle = f"LD_PRELOAD has {library} of {sanitizer}, which must come first"
            return Executable(found.path, obstacle, False, _ACCELERATOR_ONLY)
    return found


def _examine(program: str, path: Path, depth: int = 0) -> Executable:
    """Examines `program`: `path` is the program itself or the interpreter of the script."""
    try:
        with path.open("rb") as file:
            head = file.read(4096)
        status = path.stat()
    except OSError:  # executable but not readable: exec decides
        return Executable(program)
    if head[:2] == b"#!" and depth < 4:
        interpreter = head[2:].split(b"\n", 1)[0].split()
        if not interpreter:
            return Executable(program)
        return _examine(program, Path(os.fsdecode(interpreter[0])), depth + 1)
    if head[:4] != b"\x7fELF" or len(head) < _ELF_HEADER:  # exec decides
        return Executable(program)
    if head[4] != 2:
        obstacle = f"{path} is a 32-bit program, and PASTA's library is 64-bit"
        return Executable(program, obstacle, preloadable=False)
    if status.st_mode & (stat.S_ISUID | stat.S_ISGID) and os.geteuid() != status.st_uid:
        obstacle = f"{path} is set-user-ID, so the loader ignores preloaded libraries"
        return Executable(program, obstacle)
    with path.open("rb") as file:
        elf = _Elf(file, head)
        if (machine := elf.machine) != _own_machine():
            obstacle = f"{path} is built for another processor (ELF machine {machine})"
            return Executable(program, obstacle, preloadable=False)
        loader = elf.loader()
        if loader is None:
            obstacle = f"{path} is statically linked, so nothing can be preloaded into it"
            return Executable(program, obstacle)
        libc = _begins(loader.rpartition("/")[2], _FOREIGN_LOADERS)
        if libc:
            obstacle = f"{path} is built for {libc}, and PASTA's library is for glibc"
            return Executable(program, obstacle, preloadable=False)
        for library in elf.needed():
            if sanitizer := _begins(library, _FIRST_LIBRARIES):
                obstacle = f"{path} is built with {sanitizer}, whose {library} must come first"
                return Executable(program, obstacle, False, _ACCELERATOR_ONLY)
    return Executable(program)


def _begins(name: str, known: dict[str, str]) -> str | None:
    return next((known[start] for start in known if name.startswith(start)), None)


@cache
def _own_machine() -> int:
    with open(sys.executable, "rb") as file:
        return int(struct.unpack_from("<H", file.read(_ELF_HEADER), 18)[0])


class _Elf:
    """A 64-bit ELF file; damaged parts read as absent."""

    def __init__(self, file: BinaryIO, head: bytes) -> None:
        self._file = file
        (self.machine,) = struct.unpack_from("<H", head, 18)
        (offset,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        table = self._read(offset, size * count)
        # type, offset, address and size in the file of each program header
        self._segments: list[tuple[int, int, int, int]] = [
            (kind, offset, address, length)
            for at in range(0, len(table) - 55, max(size, 56))
            for kind, _, offset, address, _, length in [struct.unpack_from("<IIQQQQ", table, at)]
        ]

    def _read(self, offset: int, length: int) -> bytes:
        try:
            self._file.seek(offset)
            return self._file.read(min(length, 1 << 16))
        except (OSError, ValueError, OverflowError):
            return b""

    def _text(self, offset: int) -> str:
        return os.fsdecode(self._read(offset, 4096).split(b"\0", 1)[0])

    def loader(self) -> str | None:
        """Path of the program's loader; None: it is statically linked."""
        for kind, offset, _, length in self._segments:
            if kind == _PT_INTERP:
                return os.fsdecode(self._read(offset, length).rstrip(b"\0"))
        return None

    def needed(self) -> list[str]:
        """Libraries that the program is linked to."""
        entries: list[tuple[int, int]] = []
        for kind, offset, _, length in self._segments:
            if kind == _PT_DYNAMIC:
                table = self._read(offset, length)
                entries = list(struct.iter_unpack("<qQ", table[: len(table) // 16 * 16]))
        strings = next((self._offset(value) for tag, value in entries if tag == _DT_STRTAB), None)
        if strings is None:
            return []
        return [self._text(strings + value) for tag, value in entries if tag == _DT_NEEDED]

    def _offset(self, address: int) -> int | None:
        """File offset of the memory at an address."""
        for kind, offset, start, length in self._segments:
            if kind == _PT_LOAD and start <= address < start + length:
                return int(offset + address - start)
        return None


def is_text(path: str) -> bool:
    """Whether a file looks like a script rather than a binary."""
    with open(path, "rb") as file:
        return b"\0" not in file.read(512)
