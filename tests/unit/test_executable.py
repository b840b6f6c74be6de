"""Checks of a program before it runs."""

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


OWN = struct.unpack_from("<H", Path("/proc/self/exe").read_bytes()[:20], 18)[0]
GLIBC = "/lib64/ld-linux-x86-64.so.2"


def elf(
    bits: int = 64, loader: str | None = GLIBC, needed: str = "libc.so.6", machine: int = OWN
) -> bytes:
    """An ELF file with a loader and one needed library: headers, then contents."""
    names, path = b"\0" + needed.encode() + b"\0", (loader or "").encode() + b"\0"
    dynamic = struct.pack("<qQqQqQ", 5, 0x1000 + 512, 1, 1, 0, 0)
    kinds = [(3, 400, len(path)), (1, 0, 1024), (2, 700, len(dynamic))][loader is None :]
    head = b"\x7fELF" + bytes([2 if bits == 64 else 1, 1, 1]) + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 64, 0, 0, 64, 56, len(kinds), 0, 0, 0)
    for kind, offset, size in kinds:
        head += struct.pack("<IIQQQQQQ", kind, 4, offset, 0x1000 + offset, 0, size, size, 0)
    content = bytearray(head.ljust(1024, b"\0"))
    for at, part in ((400, path), (512, names), (700, dynamic)):
        content[at : at + len(part)] = part
    return bytes(content)


def test_exit_status_is_127_if_missing_and_126_if_not_executable(tmp_path: Path) -> None:
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
        (elf(loader=None), "statically linked"),
        (elf(bits=32), "32-bit"),
        (elf(loader="/lib/ld-musl-x86_64.so.1"), "built for musl"),
        (elf(loader="/opt/odd/ld-2.31.so"), None),
        (elf(needed="libasan.so.8"), "AddressSanitizer, whose libasan.so.8"),
        (elf(needed="libtsan.so.2"), "ThreadSanitizer"),
        (elf(needed="libclang_rt.asan-x86_64.so"), "AddressSanitizer, whose libclang_rt.asan"),
        (elf(needed="libclang_rt.ubsan_standalone.so"), None),
        (elf(needed="libasan_not.so"), None),
        (elf(machine=OWN + 1), "another processor"),
        (elf()[:500], None),
        (b"#!/bin/sh\necho\n", None),
        (b"not an ELF file", None),
        (b"#!\n", None),
        (b"", None),
    ],
)
def test_reason_why_preloading_is_impossible(
    tmp_path: Path, content: bytes, obstacle: str | None
) -> None:
    found = find_executable(program(tmp_path / "program", content))
    assert (found.obstacle or "").find(obstacle or "") >= 0
    assert (found.obstacle is None) == (obstacle is None)


def test_scripts_are_checked_by_their_interpreter(tmp_path: Path) -> None:
    static = program(tmp_path / "static", elf(loader=None))
    script = program(tmp_path / "script", f"#!{static} -x\n".encode())
    assert "statically linked" in (find_executable(script).obstacle or "")


def test_set_user_id_is_explained(tmp_path: Path) -> None:
    path = program(tmp_path / "suid", elf())
    os.chown(path, 12345, -1) if os.geteuid() == 0 else pytest.skip("needs root")
    os.chmod(path, 0o4755)
    assert "set-user-ID" in (find_executable(path).obstacle or "")


def test_a_preloaded_sanitizer_is_an_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = program(tmp_path / "program", elf())
    monkeypatch.setenv("LD_PRELOAD", "/a/libjemalloc.so.2 /usr/lib/libtsan.so.2")
    found = find_executable(given)
    assert "/usr/lib/libtsan.so.2 of ThreadSanitizer" in str(found.obstacle)
    assert not found.preloadable
    monkeypatch.setenv("LD_PRELOAD", "/a/libjemalloc.so.2")
    assert find_executable(given).obstacle is None
