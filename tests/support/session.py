"""A session created without the launcher, and the records in its rings."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.publish import RING
from pasta import abi
from pasta._native import DIRECTORY, ffi, lib
from tests.support.places import OBJECTS, PROGRAMS, ROOT

SHIM = ROOT / "shim"
LIBPASTA = DIRECTORY / "libpasta.so"
#: Files of libpasta, except event sources and Python.
RING_SOURCES = (
    *(ROOT / "shim" / "core" / f"{name}.c" for name in RING),
    ROOT / "shim" / "python" / "reader.c",
    PROGRAMS / "ring_stubs.c",
)
#: These files and the access trace.
TRACE_SOURCES = (
    *RING_SOURCES,
    ROOT / "shim" / "core" / "trace.c",
    ROOT / "shim" / "python" / "trace_reader.c",
)


def compile_c(output: Path, sources: Sequence[Path], *options: str, language: str = "c11") -> Path:
    """Compiles and links a test program; warnings are errors. PASTA's own files are compiled once
    in a test run for the same flags."""
    flags = (
        f"-std={language}",
        *("-g", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{ROOT / 'shim' / 'include'}"),
    )
    linked = ("-l", "-L", "-Wl,", "-shared", "-rdynamic", "-static")
    compiling = (*flags, *(each for each in options if not each.startswith(linked)))
    parts = [
        _object(each, compiling) if OBJECTS in os.environ and each.is_relative_to(SHIM) else each
        for each in sources
    ]
    _compile(*flags, *options, *parts, "-o", output, "-ldl")
    return output


def _object(source: Path, flags: Sequence[str]) -> Path:
    key = hashlib.sha256(repr((os.environ.get("CC"), source, flags)).encode()).hexdigest()
    found = Path(os.environ[OBJECTS]) / f"{key}.o"
    if not found.exists():
        made = found.with_suffix(f".{os.getpid()}.o")  # the other workers may make it, too
        _compile(*flags, "-c", source, "-o", made)
        made.rename(found)
    return found


def _compile(*arguments: str | Path) -> None:
    command = [*os.environ.get("CC", "cc").split(), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True)
class Session:
    """The launcher's directory of a run, with the table of processes and the rings."""

    directory: Path

    @classmethod
    def create(cls, directory: Path) -> Session:
        (directory / "rings").mkdir(parents=True)
        (directory / "processes").write_bytes(bytes(512 << 10))
        return cls(directory)

    def configuration(self, **config: object) -> str:
        """The value of PASTA_SHIM."""
        values = {"schema": 1, "session": self.directory, "children": 1, "root": 0, **config}
        return "\n".join(f"{key}={value}" for key, value in values.items())

    def environment(self, **config: object) -> dict[str, str]:
        """This process's environment with the preload and the configuration."""
        return {
            **os.environ,
            "LD_PRELOAD": str(LIBPASTA),
            "PASTA_SHIM": self.configuration(**config),
            "NVTX_INJECTION64_PATH": str(LIBPASTA),
        }

    def processes(self) -> list[int]:
        """Pids of the processes that loaded the library, in order; one entry per exec."""
        table = np.fromfile(self.directory / "processes", np.uint64)
        return [int(entry & np.uint64(0xFFFFFFFF)) for entry in table[1 : 1 + int(table[0])]]

    def rings(self) -> list[Path]:
        return sorted((self.directory / "rings").iterdir())

    def records(self) -> list[dict[str, Any]]:
        """All records of the only ring."""
        (ring,) = self.rings()
        return records(ring)


def records(path: Path) -> list[dict[str, Any]]:
    """Records of a ring without producers, in order; string ids are resolved to texts."""
    error = ffi.new("int *")
    ring = lib.pasta_map(os.fsencode(path), error)
    assert ring != ffi.NULL, f"{path}: error {error[0]}"
    try:
        stretch = ffi.new("pasta_stretch *")
        stretch.ring, stretch.segment_slots = ring, ring.segment_slots
        stretch.end, stretch.final = lib.pasta_tail(ring), 1
        found = [
            (int(record["index"]), kind, record)
            for kind, table in decode(stretch).items()
            for record in table
        ]
        return [_plain(ring, kind, record) for _, kind, record in sorted(found, key=_position)]
    finally:
        lib.pasta_unmap(ring)


def decode(stretch: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Scans and gathers a stretch into one array for each kind."""
    lib.pasta_scan(stretch)
    outputs, tables = ffi.new(f"void *[{lib.PASTA_KINDS}]"), {}
    for kind, number in abi.KINDS.items():
        if stretch.counts[number] and kind not in abi.UNRECORDED:
            tables[kind] = np.zeros(stretch.counts[number], abi.dtype(kind))
            outputs[number] = ffi.from_buffer(tables[kind])
    lib.pasta_gather(stretch, getattr(stretch, "from"), outputs)
    return tables


def _position(item: tuple[int, str, Any]) -> int:
    return item[0]


def _plain(ring: Any, kind: str, record: Any) -> dict[str, Any]:
    names = record.dtype.names
    plain = {name: record[name].tolist() for name in names}
    for name in abi.string_fields(kind):
        plain[name] = _text(ring, plain[name])
    return {"event": kind, **plain}


def _text(ring: Any, identifier: int) -> str | None:
    length = ffi.new("uint32_t *")
    text = lib.pasta_string_text(ring, identifier, length)
    return ffi.buffer(text, length[0])[:].decode() if text else None
