"""The live view of a running program: its collector counts events, the launcher shows them.

On a terminal the view takes the last lines, below a scrolling region for the program's output;
otherwise a line is printed periodically.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from pasta import abi, private
from pasta.lazy import np
from pasta.processors.allocator_states import AllocatorStates
from pasta.processors.codes import Codes, distinct, grown
from pasta.processors.correlate import LaunchWindow
from pasta.processors.demangle import demangle
from pasta.report.layout import shortened
from pasta.table import counted, formatted, plain, visible

if TYPE_CHECKING:
    from pasta.processors.batch import Batch
    from pasta.processors.strings import Strings

_WRITE_SECONDS = 0.5
_SHOW_SECONDS = 0.5
_LINE_SECONDS = 10.0
#: Kernels in the view, and its lines on a terminal.
_TOP = 5
_LINES = 3 + _TOP
#: Columns of a kernel name in the collector's document.
_MAX_NAME = 200


class LiveCounts:
    """Counts the events of one process as they arrive."""

    def __init__(self, strings: Strings) -> None:
        self._strings = strings
        self._codes = Codes()
        self._launches = np.zeros(64, np.int64)  # by code of the kernel's name
        self._times = np.zeros(64, np.int64)  # ns
        self._window = LaunchWindow()
        self._sizes: dict[int, int] = {}  # of live memory, by address
        self._memory = self._peak = 0
        self._states = AllocatorStates()
        self._allocated: dict[int, int] = {}  # by frameworks, by device
        self._events = 0
        self._written = 0.0

    def add(self, batch: Batch) -> None:
        """Counts the events of a batch."""
        self._events += len(batch)
        launches = batch["kernel_launch"]
        codes = self._codes.encode(launches["name"])
        self._launches = grown(self._launches, len(self._codes))
        self._times = grown(self._times, len(self._codes))
        self._launches += np.bincount(codes, minlength=len(self._launches))
        self._window.put(launches["ordinal"], codes.astype(np.int32) + 1)
        done = batch["kernel_complete"]
        of = self._window.get(done["ordinal"]) - 1
        good = (of >= 0) & (done["end"] >= done["start"]) & (done["end"] != 2**64 - 1)
        took = (done["end"] - done["start"])[good].astype(np.int64)
        np.add.at(self._times, of[good], took)
        self._follow_memory(batch)

    def _follow_memory(self, batch: Batch) -> None:
        for record in batch.merged("memory_alloc", "memory_free"):
            address, bytes = int(record["address"]), int(record["bytes"])
            self._memory -= self._sizes.pop(address, 0)
            if record["kind"] == abi.KINDS["memory_alloc"] and bytes != 2**64 - 1:
                self._sizes[address] = bytes
                self._memory += bytes
                self._peak = max(self._peak, self._memory)
        states = self._states.feed(batch)
        for device in distinct(states["device"]):
            self._allocated[device] = int(states["allocated"][states["device"] == device][-1])

    def write(self, path: Path, *, now: bool = False) -> None:
        """Writes the counts for the view, at most every 0.5 s unless `now`. Raises OSError."""
        if not now and time.monotonic() - self._written < _WRITE_SECONDS:
            return
        count = len(self._codes)
        order = np.lexsort((-self._launches[:count], -self._times[:count]))[:_TOP].tolist()
        document = {
            "events": self._events,
            "launches": int(self._launches.sum()),
            "time": int(self._times.sum()),
            "memory": self._memory,
            "peak": self._peak,
            "allocated": sum(self._allocated.values()),
            "kernels": [
                [
                    shortened(demangle(self._strings[self._codes.ids[code]]), _MAX_NAME),
                    int(self._launches[code]), int(self._times[code]),
                ]
                for code in order
            ],
        }  # fmt: skip
        private.write_atomically(path, json.dumps(document).encode())
        self._written = time.monotonic()


@dataclass
class Progress:
    """Counts of all processes of a session at one moment."""

    seconds: float
    processes: int = 0
    published: int = 0  # slots of rings, 64 bytes each
    dropped: int = 0
    events: int = 0
    launches: int = 0
    time: int = 0
    memory: int = 0
    peak: int = 0
    allocated: int = 0
    kernels: dict[str, list[int]] = field(default_factory=dict)  # launches, device ns

    def add(self, ring: Any, path: Path) -> None:
        """Adds a process: its ring, and the counts that its collector wrote to `path`."""
        self.processes += 1
        self.published += int(ring.tail)
        self.dropped += sum(ring.dropped().values())
        try:
            document = json.loads(path.read_text())
        except (OSError, ValueError):
            return  # not written yet
        for name in ("events", "launches", "time", "memory", "peak", "allocated"):
            setattr(self, name, getattr(self, name) + document[name])
        for name, launches, nanoseconds in document["kernels"]:
            found = self.kernels.setdefault(name, [0, 0])
            found[0] += launches
            found[1] += nanoseconds

    def top(self) -> list[tuple[str, int, int]]:
        """Kernels with their launches and device time (ns), the longest first."""
        order = sorted(self.kernels.items(), key=lambda each: (-each[1][1], -each[1][0]))
        return [(name, launches, time) for name, (launches, time) in order[:_TOP]]

    def parts(self, before: Progress | None) -> tuple[str, str]:
        """Text about events and launches, and about memory; the event rate is since `before`."""
        seconds = self.seconds - (before.seconds if before else 0)
        rate = (self.events - (before.events if before else 0)) / max(seconds, 1e-3)
        ran = [f"{self.seconds:.0f} s", f"{counted(self.events, 'event')} ({rate:,.0f}/s)"]
        if self.processes > 1:
            ran.insert(1, counted(self.processes, "process"))
        if self.dropped:
            ran.append(f"{self.dropped:,} LOST")
        ran.append(counted(self.launches, "launch"))
        if self.time:
            ran.append(f"{formatted(self.time, 'ns')} of device time")
        memory = f"{formatted(self.memory, 'bytes')} live, peak {formatted(self.peak, 'bytes')}"
        if self.allocated:
            memory += f", {formatted(self.allocated, 'bytes')} allocated by frameworks"
        return ", ".join(ran), memory

    def lines(self, before: Progress | None, width: int) -> list[str]:
        """The lines of the view, each at most `width` columns."""
        found = ["─" * width, *self.parts(before)]
        for name, launches, took in self.top():
            share = f"{formatted(took, 'ns'):>12} {took / max(self.time, 1):6.1%}" if took else ""
            numbers = f"  {launches:>12,} {share:20} "
            found.append(f"{numbers}{shortened(visible(name), max(width - len(numbers), 0))}")
        return [shortened(plain(line), width) for line in found]


class LiveView:
    """Shows progress: in the last lines of a terminal, otherwise as periodic lines."""

    def __init__(self, say: Callable[[str], None], output: TextIO | None = None) -> None:
        self._say = say
        self._output = output or sys.stderr
        self._begun = self._shown = time.monotonic()
        self._before: Progress | None = None
        self._size: os.terminal_size | None = None
        self._terminal = self._output.isatty()

    def show(self, rings: Iterable[tuple[Any, Path]]) -> None:
        """Draws the view unless the last update was recent."""
        now = time.monotonic()
        if now - self._shown < (_SHOW_SECONDS if self._terminal else _LINE_SECONDS):
            return
        self._shown = now
        progress = Progress(now - self._begun)
        for ring, path in rings:
            progress.add(ring, path)
        if not progress.processes:
            return
        if self._terminal:
            self._draw(progress)
        else:
            self._say("; ".join(progress.parts(self._before)))
        self._before = progress

    def _draw(self, progress: Progress) -> None:
        try:
            size = os.get_terminal_size(self._output.fileno())
        except OSError:  # the terminal was closed
            self._terminal = False
            return
        if size.lines < 2 * _LINES:
            return
        parts = []
        if size != self._size:
            # scroll to make room, then set the program's scrolling region above the view
            parts.append("\n" * _LINES + f"\x1b7\x1b[1;{size.lines - _LINES}r\x1b8\x1b[{_LINES}A")
            self._size = size
        parts.append("\x1b7")
        lines = progress.lines(self._before, size.columns)
        for number in range(_LINES):
            text = lines[number] if number < len(lines) else ""
            parts.append(f"\x1b[{size.lines - _LINES + 1 + number};1H\x1b[2K{text}")
        parts.append("\x1b8")
        self._write("".join(parts))

    def close(self) -> None:
        """Clears the view and resets the terminal's scrolling region."""
        if self._size is not None:
            first = self._size.lines - _LINES + 1
            self._write(f"\x1b7\x1b[r\x1b[{first};1H\x1b[J\x1b8")
            self._size = None

    def _write(self, text: str) -> None:
        try:
            self._output.write(text)
            self._output.flush()
        except OSError:
            self._terminal = False  # the output was closed
