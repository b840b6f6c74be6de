"""What can be known of a program before it runs."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from pasta.runtime.executable import CannotRun, find_executable


def program(path: Path, content: bytes, mode: int = 0o755) -> str:
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def elf(bits: int = 64, interpreter: bool = True) -> bytes:
    """The start of an ELF file with one program header."""
    head = b"\x7fELF" + bytes([2 if bits == 64 else 1, 1, 1]) + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return head + struct.pack("<IIQQQQQQ", 3 if interpreter else 1, 4, 0, 0, 0, 0, 0, 0)


def test_missing_is_127_and_what_cannot_run_is_126(tmp_path: Path) -> None:
    for given, status, message in (
        ("no-such-program-here", 127, "no such program"),
        (str(tmp_path / "none"), 127, "no such program"),
        (str(tmp_path), 126, "is a directory"),
        (program(tmp_path / "plain", b"x", 0o644), 126, "not executable: chmod +x"),
    ):
        with pytest.raises(CannotRun, match=message.replace("+", r"\+")) as error:
            find_executable(given)
        assert error.value.status == status


@pytest.mark.parametrize(
    ("content", "obstacle"),
    [
        (elf(), None),
        (elf(interpreter=False), "statically linked"),
        (elf(bits=32), "32-bit"),
        (b"#!/bin/sh\necho\n", None),
        (b"not an ELF file", None),
        (b"#!\n", None),
        (b"", None),
    ],
)
def test_what_cannot_be_preloaded_is_explained(
    tmp_path: Path, content: bytes, obstacle: str | None
) -> None:
    found = find_executable(program(tmp_path / "program", content))
    assert (found.obstacle or "").find(obstacle or "") >= 0
    assert (found.obstacle is None) == (obstacle is None)


def test_a_script_is_judged_by_its_interpreter(tmp_path: Path) -> None:
    static = program(tmp_path / "static", elf(interpreter=False))
    script = program(tmp_path / "script", f"#!{static} -x\n".encode())
    assert "statically linked" in (find_executable(script).obstacle or "")


def test_set_user_id_is_explained(tmp_path: Path) -> None:
    path = program(tmp_path / "suid", elf())
    os.chown(path, 12345, -1) if os.geteuid() == 0 else pytest.skip("needs root")
    os.chmod(path, 0o4755)
    assert "set-user-ID" in (find_executable(path).obstacle or "")
