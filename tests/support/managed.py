"""Synthetic programs with managed memory, with counts known from arithmetic."""

from __future__ import annotations

import io
from typing import Any

from pasta import abi
from pasta.plugins import find_tools
from pasta.processors.managed_plan import Entry, parsed
from pasta.run.results import StoredResult
from pasta.testing import Events
from pasta.tool import Result

(TOOL,) = find_tools("uvm_advisor")
PAGE, BLOCK = 1 << 16, 2 << 20
A, B = 1 << 40, (1 << 40) + BLOCK
READ, WRITE = 1, 2
#: Pages of a block that fault in a scan, and how many pages each brings.
SCAN = {0: 1, 1: 1, 2: 2, 4: 4, 8: 8, 16: 16}
FAULT_NS, PAGE_NS = 1000, 100


class Program(Events):
    """A program with managed memory on one device, whose faults take 1 us and pages 100 ns.

    `base`: address of the page 0; `faulting`: whether faults and migrations are recorded, and
    device times; `probed`: whether accesses are.
    """

    def __init__(self, base: int = A, *, faulting: bool = True, probed: bool = True) -> None:
        super().__init__()
        self.base, self.faulting, self.probed = base, faulting, probed
        self.now = 10_000_000

    def managed(self, page: int, bytes: int) -> None:
        """A managed allocation that begins at a page."""
        self.alloc(self.base + page * PAGE, bytes, "managed")

    def fault(self, page: int, access: int, *, host: bool = False) -> None:
        if not self.faulting:
            return
        self.add(
            "uvm_fault", device=0, address=self.base + page * PAGE, bytes=PAGE, start=self.now,
            end=self.now + FAULT_NS, cause=1 if host else 2, count=1, vendor_flags=access,
            source=-1 if host else 0, time=self.now,
        )  # fmt: skip
        self.now += FAULT_NS

    def move(self, page: int, count: int, *, to_host: bool = False, reason: int = 2) -> None:
        if not self.faulting:
            return
        end = self.now + count * PAGE_NS
        self.add(
            "uvm_migration", device=0, address=self.base + page * PAGE, bytes=count * PAGE,
            start=self.now, end=end, cause=3, vendor_flags=reason, source=0 if to_host else -1,
            destination=-1 if to_host else 0, time=self.now,
        )  # fmt: skip
        self.now = end

    def scan(self, first: int, access: int, *, host: bool = False, moves: bool = True) -> None:
        """Faults of a scan over the block that begins at a page."""
        for page, count in SCAN.items():
            self.fault(first + page, access, host=host)
            if moves:
                self.move(first + page, count, to_host=host)

    def kernel(
        self, name: str, read: Any, write: Any = (), flags: int = abi.FLAG_PROBED, **faults: Any
    ) -> None:
        """A launch that accesses pages, and faults on them as `faults` say before it ends."""
        self.now += 1000
        if not self.probed:
            flags &= ~abi.FLAG_PROBED
        ordinal = self.launch(name, grid=(4, 1, 1), time=self.now, flags=flags)
        start = self.now + 10
        self.now = start + 10
        for page in read if self.probed else ():
            self.access("global", [self.base + page * PAGE], launch=ordinal)
        for page in write if self.probed else ():
            self.access("global", [self.base + page * PAGE + 8], write=True, launch=ordinal)
        for first in faults.get("scans", ()):
            self.scan(first, WRITE if write else READ)
        for first in faults.get("populates", ()):
            self.scan(first, WRITE, moves=False)
        if self.faulting:
            self.complete(ordinal, start, self.now + 5, time=self.now + 6)
        self.now += 100


def rows(result: Result | StoredResult, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in columns) for row in result.tables[table].rows()]


def plan(result: Result) -> list[Entry]:
    file = io.BytesIO()
    write = result.files["plan.toml"]
    assert callable(write)
    write(file)
    return parsed(file.getvalue().decode())


def exchange(**how: Any) -> Program:
    """The host writes A and reads B; two launches of `step` read A and write B."""
    events = Program(**how)
    events.managed(0, BLOCK)
    events.managed(32, BLOCK)
    a, b = range(32), range(32, 64)
    events.kernel("step", a, b, scans=(0,), populates=(32,))
    events.scan(32, READ, host=True)
    events.scan(0, WRITE, host=True)
    events.kernel("step", a, b, scans=(0, 32))
    events.kernel("other", ())
    return events


def training(**how: Any) -> Program:
    """In a managed segment of 16 MiB: eight tensors of a block each, and kernels that each use
    two of them, in a cycle."""
    events = Program(**how)
    events.managed(0, 8 * BLOCK)
    for number in range(8):
        events.operator("aten::empty", stack=0)
        events.tensor_alloc(events.base + number * BLOCK, BLOCK, "managed")
        events.tensor(number + 1, events.base + number * BLOCK, BLOCK, "524288")
        events.operator_end(outputs=[number + 1])
    for step in range(2):
        for number in range(0, 8, 2):
            events.operator("aten::add", inputs=[number + 1])
            first = 32 * number
            scans = {"populates": (first, first + 32)} if not step else {}
            events.kernel(
                f"add{number}", range(first, first + 32), range(first + 32, first + 64), **scans
            )
            events.operator_end(outputs=[number + 2])
    return events
