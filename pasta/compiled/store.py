"""Machine code in the user's cache, by a hash of all that it depends on.

An entry is a mark, a hash of the rest, the offset of the function, and the code, which can be
placed at any address. An entry that is damaged or that another user could have written is as good
as none.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from pasta import paths, private
from pasta.errors import RunError

_MARK = b"pasta code 1\n"
_DIGEST = hashlib.sha256().digest_size
_HEADER = len(_MARK) + _DIGEST + 8
#: Flags of /proc/cpuinfo that each level of x86-64 adds to the previous one; best level first.
_LEVELS = (
    (
        "x86-64-v3",
        frozenset(["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"]),
    ),
    ("x86-64-v2", frozenset(["cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"])),
)


def has_linker() -> bool:
    """Whether machine code for this processor can be stored (`linking`)."""
    return platform.machine() == "x86_64"


def load(content: bytes) -> int:
    """Address of the function of an entry, in memory that stays until the process ends.

    Raises OSError if the system refuses executable memory.
    """
    code = content[_HEADER:]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    )  # fmt: skip
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    writable, private_memory = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANON
    start = libc.mmap(None, len(code), writable, private_memory, -1, 0)
    if start != ctypes.c_void_p(-1).value:
        ctypes.memmove(start, code, len(code))
        if libc.mprotect(start, len(code), mmap.PROT_READ | mmap.PROT_EXEC) == 0:
            return int(start) + int.from_bytes(content[_HEADER - 8 : _HEADER], "little")
    raise OSError(ctypes.get_errno(), "no memory for compiled code")


def content_of(code: bytes, offset: int) -> bytes:
    """An entry with the function at an offset of the code."""
    rest = offset.to_bytes(8, "little") + code
    return _MARK + hashlib.sha256(rest).digest() + rest


def find(key: str) -> bytes | None:
    """The entry of a key; None if there is none, or none to be trusted."""
    try:
        content = private.read(paths.cache("code", key))
    except (OSError, RunError):
        return None
    rest = content[len(_MARK) + _DIGEST :]
    whole = len(content) > _HEADER and content == _MARK + hashlib.sha256(rest).digest() + rest
    return content if whole else None


def put(key: str, content: bytes) -> None:
    """Store an entry, if the cache can be written."""
    with suppress(OSError, RunError):
        path = paths.cache("code", key)
        private.make_if_possible(path.parent)
        temporary = path.with_name(f"{key}.{os.getpid()}")
        with open(private.create(temporary), "wb") as file:
            file.write(content)
        temporary.replace(path)


def is_writable() -> bool:
    """Whether entries can be stored."""
    with suppress(OSError, RunError):
        directory = paths.cache("code")
        private.make_if_possible(directory)
        return os.access(directory, os.W_OK)
    return False


@contextmanager
def locked(key: str) -> Iterator[None]:
    """Lock a key against other processes, if the cache can be written."""
    try:
        path = paths.cache("code", f"{key}.lock")
        private.make_if_possible(path.parent)
        descriptor = private.create(path, 0)
    except (OSError, RunError):
        yield
        return
    try:
        private.lock(descriptor, wait=True)
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


def key_of(digest: bytes) -> str:
    """Key of the code made from a source with this digest by this installation on this CPU."""
    return hashlib.sha256(b"\0".join((digest, level().encode(), _compilers()))).hexdigest()[:40]


@cache
def _compilers() -> bytes:
    """Versions of everything that turns a source into code."""
    versions = (paths.installed("numba"), paths.installed("llvmlite"), sys.version)
    own = [
        Path(__file__).with_name(name).read_bytes()
        for name in ("lowering.py", "image.py", "linking.py")
    ]
    return hashlib.sha256(b"\0".join([*(each.encode() for each in versions), *own])).digest()


@cache
def level() -> str:
    """LLVM's name of the level of x86-64 that this CPU has."""
    try:
        with open("/proc/cpuinfo", "rb") as file:
            first = file.read(8192).split(b"\n\n")[0].decode("ascii", "replace")
    except OSError:
        first = ""
    return level_with(next((line for line in first.splitlines() if line.startswith("flags")), ""))


def level_with(flags: str) -> str:
    """LLVM's name of the level of x86-64 with these flags of /proc/cpuinfo."""
    there = set(flags.split())
    wanted = frozenset().union(*(needs for _, needs in _LEVELS))
    for name, needs in _LEVELS:
        if wanted <= there:
            return name
        wanted -= needs
    return "x86-64"
