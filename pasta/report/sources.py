"""Lines of the program's source, with what tools measured of each, and their instructions.

A run is untrusted input and names files of this machine, so only files that look like source, lie
on the machine of the run and are older than its end are read, and of these only lines around
measured ones.
"""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta.names import title_of
from pasta.table import Table, Unit, plain

if TYPE_CHECKING:
    from pasta.run.results import StoredResult

#: Suffixes of files that are read.
SUFFIXES = frozenset(
    {".py", ".pyx", ".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hh", ".hip", ".hpp"}
)
_MAX_BYTES = 2 << 20
_MAX_FILES = 30
#: Files up to this many lines are shown whole; of longer ones, this many lines around each measured
#: one.
_WHOLE, _AROUND = 300, 6
_MAX_LINES = 4000  # of a file
_MAX_LENGTH = 400  # characters of a line
_MAX_MEASURES = 12
_MAX_INSTRUCTIONS = 100  # of a line
#: A line as tools name it: `train.py:31 step`.
_LINE = re.compile(r"(?P<file>[^\s:]+):(?P<line>\d{1,7})(?: |$)")


@dataclass(frozen=True)
class Measure:
    """What a tool adds up by line: a column of one of its tables."""

    tool: str
    table: str
    label: str
    unit: Unit | None

    def __str__(self) -> str:
        """The table and the column."""
        return f"{self.table}: {self.label}"


@dataclass(frozen=True, order=True)
class Instruction:
    """An instruction of a kernel, by its offset in bytes."""

    kernel: str
    offset: int
    text: str


@dataclass
class Source:
    """Lines of a file by number, each measure's sums by line, and instructions by line."""

    path: str
    text: dict[int, str] = field(default_factory=dict)
    sums: dict[Measure, dict[int, float]] = field(default_factory=dict)
    code: dict[int, set[Instruction]] = field(default_factory=dict)

    @property
    def measured(self) -> set[int]:
        """Numbers of the lines that have measurements."""
        return {line for sums in self.sums.values() for line in sums}

    def instructions(self, line: int) -> tuple[list[Instruction], int]:
        """The first instructions of a line, by kernel and offset, and how many more it has."""
        found = sorted(self.code.get(line, ()))
        return found[:_MAX_INSTRUCTIONS], max(0, len(found) - _MAX_INSTRUCTIONS)


def read_sources(
    manifest: Mapping[str, Any], results: Sequence[StoredResult]
) -> tuple[list[Source], list[str]]:
    """The measured files with most of the first measure first, and notes on files that are not
    shown. Raises RunError for a damaged table."""
    sources: dict[str, Source] = {}
    for result in results:
        for name, table in result.tables.items():
            _collect(sources, result.title, table.title or title_of(name), table)
    found, changed = [], []
    if manifest.get("host") != socket.gethostname():
        return [], []
    start = manifest.get("start", {}).get("realtime_ns", 0)
    end = start + manifest.get("observed_ns", 0)
    ordered = sorted(sources.values(), key=lambda each: -len(each.measured))
    for source in ordered[:_MAX_FILES]:
        newer = _read(source, end)
        if newer:
            changed.append(source.path)
        elif source.text:
            found.append(source)
    notes = [f"changed since the run and not shown: {', '.join(changed)}"] if changed else []
    return found, notes


def _collect(sources: dict[str, Source], tool: str, title: str, table: Table) -> None:
    """Adds the sums of a table that has lines."""
    prefix = next((each for each in ("", "object_") if f"{each}line" in table.columns), None)
    if prefix is None or not len(table):
        return
    lines = table.values(f"{prefix}line")
    files = table.values(f"{prefix}file") if f"{prefix}file" in table.columns else lines
    sums = table.sums or ()
    columns = [
        (Measure(tool, title, table.heading(name), table.units.get(name)), table.values(name))
        for name in sums
        if name in table.columns and name not in table.hidden
    ]
    has_code = {"kernel", "offset", "instruction"} <= table.columns.keys()
    code = [table.values(name) for name in ("kernel", "offset", "instruction") if has_code]
    for row, (line, file) in enumerate(zip(lines, files, strict=True)):
        found = _LINE.match(line) if isinstance(line, str) else None
        path = found["file"] if found and file is line else file
        if not found or not isinstance(path, str) or not path.startswith("/"):
            continue
        source = sources.setdefault(path, Source(path))
        number = int(found["line"])
        if has_code and isinstance(code[2][row], str) and isinstance(code[1][row], int):
            kernel, offset, text = (values[row] for values in code)
            source.code.setdefault(number, set()).add(Instruction(str(kernel), offset, text))
        for measure, values in columns:
            value = values[row]
            if isinstance(value, (int, float)) and value > 0 and value == value:
                own = source.sums.setdefault(measure, {})
                own[number] = own.get(number, 0) + value


def _read(source: Source, end: int) -> bool:
    """Reads the lines to show; whether the file changed after `end` (ns), and is not read."""
    path = Path(source.path)
    if path.suffix not in SUFFIXES:
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode) or about.st_size > _MAX_BYTES:
                return False
            if end and about.st_mtime_ns > end:
                return True
            text = file.read(_MAX_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return False  # removed since, or not ours to read: the tables still name it
    lines = text.splitlines()
    for number in sorted(_shown(source.measured, len(lines))):
        source.text[number] = plain(lines[number - 1].expandtabs(4), _MAX_LENGTH)
    return False


def _shown(measured: set[int], count: int) -> Iterator[int]:
    if count <= _WHOLE:
        return iter(range(1, count + 1))
    near = {
        number
        for line in sorted(measured)[: _MAX_LINES // (2 * _AROUND + 1)]
        for number in range(max(1, line - _AROUND), min(count, line + _AROUND) + 1)
    }
    return iter(near)


def measures(sources: Sequence[Source]) -> list[Measure]:
    """Measures of all sources: times, then bytes, then counts, in the order of the tools."""
    found = dict.fromkeys(measure for source in sources for measure in source.sums)
    order = {"ns": 0, "bytes": 1}
    return sorted(found, key=lambda each: order.get(each.unit or "", 2))[:_MAX_MEASURES]
