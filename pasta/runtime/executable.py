"""What can be known of a program before it runs: can it be started, can it be preloaded?"""

from __future__ import annotations

import os
import shutil
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from pasta.errors import PastaError

_PT_INTERP = 3
_ELF_HEADER = 64


class CannotRun(PastaError):
    """The program cannot be started. `status` is what a shell exits with then."""

    def __init__(self, message: str, status: int, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.status = status


@dataclass(frozen=True)
class Executable:
    """A program that can be started; `obstacle` says why PASTA cannot see into it, if so."""

    path: str
    obstacle: str | None = None


def find_executable(program: str) -> Executable:
    """Finds a program as a shell does. Raises CannotRun with status 127 or 126."""
    path = shutil.which(program)
    if path is None:
        if os.path.isdir(program):
            raise CannotRun(f"{program}: is a directory", 126)
        if "/" in program and os.path.exists(program):
            raise CannotRun(f"{program}: not executable", 126, remedy=f"chmod +x {program}")
        raise CannotRun(f"{program}: no such program", 127)
    return Executable(path, _obstacle(Path(path)))


def _obstacle(path: Path, depth: int = 0) -> str | None:
    try:
        with path.open("rb") as file:
            head = file.read(4096)
        mode = path.stat().st_mode
    except OSError:  # executable but not readable: exec decides
        return None
    if head[:2] == b"#!" and depth < 4:
        interpreter = head[2:].split(b"\n", 1)[0].split()
        return _obstacle(Path(os.fsdecode(interpreter[0])), depth + 1) if interpreter else None
    if head[:4] != b"\x7fELF" or len(head) < _ELF_HEADER:  # exec decides
        return None
    if head[4] != 2:
        return f"{path} is a 32-bit program, and PASTA's library is 64-bit"
    if mode & (stat.S_ISUID | stat.S_ISGID) and os.geteuid() != path.stat().st_uid:
        return f"{path} is set-user-ID, so the loader ignores preloaded libraries"
    if not _has_interpreter(path, head):
        return f"{path} is statically linked, so nothing can be preloaded into it"
    return None


def _has_interpreter(path: Path, head: bytes) -> bool:
    (offset,) = struct.unpack_from("<Q", head, 32)
    size, count = struct.unpack_from("<HH", head, 54)
    with path.open("rb") as file:
        file.seek(offset)
        table = file.read(size * count)
    kinds = [struct.unpack_from("<I", table, at)[0] for at in range(0, len(table) - 3, size or 1)]
    return _PT_INTERP in kinds


def is_text(path: str) -> bool:
    """Whether a file looks like a script rather than a binary."""
    with open(path, "rb") as file:
        return b"\0" not in file.read(512)
