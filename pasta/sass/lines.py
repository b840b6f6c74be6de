"""Source lines of instructions, from the line table that -lineinfo and -G produce.

Format: DWARF 2 to 4, "Line Number Information", with an extended operation of NVIDIA's compiler:
code inlined at a call (0x90: the row of the call in its sequence, from 1, and the callee's name).
Compared with nvdisasm -gi.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pasta.sass.cubin import Cubin

_SECTION: Final = ".debug_line"
_STRINGS: Final = ".debug_str"
_TEXT: Final = ".text."
_INLINED: Final = 0x90
_MAX_INLINING: Final = 64


class Place(NamedTuple):
    """A source line. `caller`: the line of the call that this code was inlined at."""

    file: str
    line: int
    caller: Place | None = None


@dataclass(frozen=True)
class Lines:
    """Source lines of a code section, by byte offset."""

    offsets: list[int] = field(default_factory=list)
    places: list[Place | None] = field(default_factory=list)

    def at(self, offset: int) -> Place | None:
        """The source line of an instruction; None if not in the table."""
        index = bisect_right(self.offsets, offset) - 1
        return self.places[index] if index >= 0 else None


def read_lines(cubin: Cubin) -> Mapping[str, Lines]:
    """Source lines of all functions of a module by mangled name; empty without a line table, or
    with one that cannot be read."""
    table = cubin.contents(_SECTION)
    if not table:
        return {}
    index = cubin.by_name[_SECTION]
    sections = {}  # offset in the table: code section, offset in it
    for relocation in cubin.relocations(index):
        if relocation.symbol < len(cubin.symbols):
            symbol = cubin.symbols[relocation.symbol]
            if symbol.section < len(cubin.sections):
                name = cubin.sections[symbol.section].name
                sections[relocation.offset] = (name, symbol.value + relocation.addend)
    found: dict[str, list[tuple[int, Place | None]]] = {}
    try:
        for unit in _units(table):
            _Program(table, unit, sections).run(found)
    except (struct.error, IndexError, ValueError, OverflowError):
        pass  # the lines read so far
    return {name: _ordered(rows) for name, rows in found.items()}


def _ordered(rows: list[tuple[int, Place | None]]) -> Lines:
    last = dict(sorted(rows, key=lambda row: row[0]))
    return Lines(list(last), list(last.values()))


def _units(table: bytes) -> Iterator[slice]:
    at = 0
    while at + 4 <= len(table):
        (length,) = struct.unpack_from("<I", table, at)
        if not length:
            return
        yield slice(at, min(at + 4 + length, len(table)))
        at += 4 + length


class _Row(NamedTuple):
    file: int
    line: int
    context: int  # row of the call, from 1; 0: not inlined


class _Program:
    """A line program: its header, then operations that add rows."""

    def __init__(self, table: bytes, unit: slice, sections: Mapping[int, tuple[str, int]]) -> None:
        self.table = table
        self.end = unit.stop
        self.sections = sections
        at = unit.start
        version, header = struct.unpack_from("<HI", table, at + 4)
        if not 2 <= version <= 4:
            raise ValueError(f"line table of version {version}")
        self.start = at + 10 + header
        at += 10
        self.line = 1
        self.step = table[at]
        at += 2 if version >= 4 else 1
        self.line_base, self.line_range, self.first_special = struct.unpack_from(
            "<bBB", table, at + 1
        )
        if not self.line_range or not self.first_special:
            raise ValueError("a damaged line table")
        at += 4
        self.operands = table[at : at + self.first_special - 1]
        self.at = at + self.first_special - 1
        directories = [""]
        while text := self._string():
            directories.append(text)
        self.files: list[str] = []
        while text := self._string():
            directory = self._unsigned()
            self._unsigned()
            self._unsigned()
            place = directories[directory] if directory < len(directories) else ""
            self.files.append(f"{place}/{text}" if place and text[0] != "/" else text)

    def run(self, found: dict[str, list[tuple[int, Place | None]]]) -> None:
        """Add the rows (offset and place) to the rows of their functions."""
        self.at = self.start
        self._reset()
        while self.at < self.end:
            operation = self.table[self.at]
            self.at += 1
            if operation >= self.first_special:
                operation -= self.first_special
                self.address += operation // self.line_range * self.step
                self.line += self.line_base + operation % self.line_range
                self._add(found)
            elif operation == 0:
                self._extended(found)
            elif operation == 1:  # copy
                self._add(found)
            elif operation == 2:  # advance_pc
                self.address += self._unsigned() * self.step
            elif operation == 3:  # advance_line
                self.line += self._signed()
            elif operation == 4:  # set_file
                self.file = self._unsigned()
            elif operation == 8:  # const_add_pc
                self.address += (255 - self.first_special) // self.line_range * self.step
            elif operation == 9:  # fixed_advance_pc
                (advance,) = struct.unpack_from("<H", self.table, self.at)
                self.address += advance
                self.at += 2
            else:
                for _ in range(self.operands[operation - 1]):
                    self._unsigned()

    def _reset(self) -> None:
        self.address, self.file, self.line, self.context = 0, 1, 1, 0
        self.section = ""
        self.rows: list[_Row] = []  # of the sequence: contexts count them

    def _add(self, found: dict[str, list[tuple[int, Place | None]]]) -> None:
        self.rows.append(_Row(self.file, self.line, self.context))
        if self.section.startswith(_TEXT):
            place = self._place(self.rows[-1], 0)
            found.setdefault(self.section[len(_TEXT) :], []).append((self.address, place))

    def _place(self, row: _Row, depth: int) -> Place | None:
        if not 0 < row.file <= len(self.files) or row.line <= 0:
            return None
        caller = None
        if 0 < row.context <= len(self.rows) and depth < _MAX_INLINING:
            caller = self._place(self.rows[row.context - 1], depth + 1)
        return Place(self.files[row.file - 1], row.line, caller)

    def _extended(self, found: dict[str, list[tuple[int, Place | None]]]) -> None:
        size = self._unsigned()
        end = self.at + size
        if not size or end > self.end:
            raise ValueError("a damaged line table")
        operation = self.table[self.at]
        self.at += 1
        if operation == 1:  # end_sequence
            if self.section.startswith(_TEXT):
                found.setdefault(self.section[len(_TEXT) :], []).append((self.address, None))
            self._reset()
        elif operation == 2:  # set_address
            base, offset = self.sections.get(self.at, ("", 0))
            (value,) = struct.unpack_from("<Q", self.table, self.at)
            self.section, self.address = base, offset or value
        elif operation == _INLINED:
            self.context = self._unsigned()
        self.at = end

    def _string(self) -> str:
        end = self.table.index(b"\0", self.at, self.end)
        text = self.table[self.at : end].decode("utf-8", "replace")
        self.at = end + 1
        return text

    def _unsigned(self) -> int:
        value, shift = 0, 0
        while True:
            byte: int = self.table[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 70:
                raise ValueError("a damaged number")

    def _signed(self) -> int:
        start = self.at
        value = self._unsigned()
        bits = 7 * (self.at - start)
        return value - (1 << bits) if value >> (bits - 1) & 1 else value
