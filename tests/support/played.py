"""A program run with the preloaded library, and the records in its ring."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pasta import abi
from pasta._native import DIRECTORY, ffi, lib

#: Path of another build of the library, such as one with a sanitizer.
LIBRARY = Path(os.environ.get("PASTA_TEST_LIBRARY", DIRECTORY / "libpasta.so"))
ABSENT64 = np.uint64(2**64 - 1)
ABSENT32 = np.uint32(2**32 - 1)
ABSENT16 = np.uint16(2**16 - 1)

SANITIZERS = ("ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS")
FLAGS = {
    "graph": abi.FLAG_GRAPH,
    "async": abi.FLAG_ASYNC,
    "internal": abi.FLAG_INTERNAL,
    "probed": abi.FLAG_PROBED,
}

Table = np.ndarray[Any, Any]


@dataclass
class Played:
    """Output of one run of the program, and its ring."""

    status: int
    stdout: str
    stderr: str
    log: str
    tables: dict[str, Table] = field(default_factory=dict)
    strings: dict[int, str] = field(default_factory=dict)

    def __getitem__(self, kind: str) -> Table:
        return self.tables.get(kind, np.empty(0, abi.dtype(kind)))

    def names(self, kind: str, column: str = "name") -> list[str]:
        return [self.strings[int(number)] for number in self[kind][column]]

    def plain(self, kind: str, row: np.void) -> dict[str, Any]:
        """A record's fields as Python values: names of enum values, None if absent."""
        return {column: self._value(kind, column, row[column]) for column in row.dtype.names}

    def rows(self, kind: str, *columns: str, flag: str = "") -> list[tuple[Any, ...]]:
        """Columns of a kind's records; with `flag`, only of those that have it ("!async": not)."""
        plain = [self.plain(kind, row) for row in self[kind]]
        if flag:
            wanted, name = not flag.startswith("!"), flag.lstrip("!")
            plain = [row for row in plain if (name in row["flags"].split()) == wanted]
        return [tuple(row[column] for column in columns) for row in plain]

    def _value(self, kind: str, column: str, value: Any) -> Any:
        if column == "flags":
            return " ".join(name for name, bit in FLAGS.items() if value & bit)
        if value.shape:
            numbers = tuple(self._value(kind, column, number) for number in value)
            return None if numbers == (None,) * len(numbers) else numbers
        number = int(value)
        if column in abi.string_fields(kind):
            return self.strings.get(number)
        if number == abi.absent(column, value.dtype):
            return None
        return abi.enum_fields(kind).get(column, {}).get(number, number)

    def in_order(self) -> list[tuple[str, np.void]]:
        """Kind and record of all records, in publishing order."""
        rows = [(kind, row) for kind, table in self.tables.items() for row in table]
        return sorted(rows, key=lambda row: int(row[1]["index"]))


def read_ring(path: Path, played: Played) -> None:
    """Adds the records of a ring without producers; none may be lost."""
    error = ffi.new("int *")
    ring = lib.pasta_map(os.fsencode(path), error)
    assert ring != ffi.NULL, f"{path}: error {error[0]}"
    stretch = ffi.new("pasta_stretch *")
    stretch.ring, stretch.segment_slots = ring, ring.segment_slots
    stretch.end, stretch.final = lib.pasta_tail(ring), 1
    lib.pasta_scan(stretch)
    assert stretch.torn == 0
    assert sum(ring.dropped) == 0
    outputs, buffers = ffi.new(f"void *[{lib.PASTA_KINDS}]"), {}
    for kind, number in abi.KINDS.items():
        if stretch.counts[number] and kind not in abi.UNRECORDED:
            table = np.zeros(stretch.counts[number], abi.dtype(kind))
            buffers[kind] = ffi.from_buffer(table)
            outputs[number] = buffers[kind]
            played.tables[kind] = table
    lib.pasta_gather(stretch, 0, outputs)
    length = ffi.new("uint32_t *")
    numbers = {
        int(number)
        for kind, table in played.tables.items()
        for column in abi.string_fields(kind)
        for number in table[column]
    }
    for number in numbers - {0, int(ABSENT32)}:
        text = lib.pasta_string_text(ring, number, length)
        assert text != ffi.NULL
        played.strings[number] = ffi.buffer(text, length[0])[:].decode()
    lib.pasta_unmap(ring)


def play(
    command: Sequence[str | Path],
    session: Path,
    settings: str = "",
    ring_max: int = 1 << 28,
    read: bool = True,
    **environment: str,
) -> Played:
    """Runs a program in a session created without the launcher.

    Its environment is the variables given here, PATH, PASTA_SHIM and sanitizers'; `settings` are
    lines that the launcher would have added. With `read`, its only ring is read.
    """
    (session / "rings").mkdir(exist_ok=True)
    configuration = f"session={session}\nschema={abi.SCHEMA}\ncollector=1\nring_max={ring_max}\n"
    kept = {name: os.environ[name] for name in ("PATH", *SANITIZERS) if name in os.environ}
    done = subprocess.run(
        list(map(str, command)),
        env={**kept, "PASTA_SHIM": configuration + settings, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    log = session / "log.txt"
    text = log.read_text() if log.exists() else ""
    played = Played(done.returncode, done.stdout, done.stderr, text)
    rings = list((session / "rings").iterdir())
    if rings and read:
        (ring,) = rings
        read_ring(ring, played)
    return played
