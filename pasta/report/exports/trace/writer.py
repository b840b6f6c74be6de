"""Writes a run's batches as a trace for Perfetto (ui.perfetto.dev), chrome://tracing, TensorBoard
and HolisticTraceAnalysis."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from pasta.frameworks import conventions
from pasta.processors.stacks import Stacks
from pasta.report.exports.trace.copies import Copies
from pasta.report.exports.trace.format import Draw, Draws, TraceFormat
from pasta.report.exports.trace.launches import Launches
from pasta.report.exports.trace.memory import Memory
from pasta.report.exports.trace.operators import Operators
from pasta.report.exports.trace.ranges import Ranges
from pasta.report.exports.trace.telemetry import Telemetry
from pasta.report.exports.trace.work import Work

if TYPE_CHECKING:
    from pasta.processors.batch import Batch
    from pasta.processors.context import Process
    from pasta.processors.strings import Strings
    from pasta.report.exports.trace.head import TraceHead

#: Not drawn: kinds that describe other events, or are shown in tables.
_NOT_DRAWN = frozenset(
    {
        "python_frame", "python_sample", "pad", "pc_sample", "counter", "probe_data", "graph_node",
        "graph_instantiate",
    }
)  # fmt: skip


class Output(Protocol):
    """A binary file, compressed or not."""

    def write(self, data: bytes, /) -> object:
        """Writes all of `data`."""


def write_trace(
    file: Output, process: Process, strings: Strings, batches: Iterable[Batch], head: TraceHead
) -> None:
    """Writes a trace of all events in bounded memory; `head` must have been fed the batches."""
    file.write(b"{" + json.dumps(head.fields(process))[1:-1].encode() + b',\n"traceEvents":[\n')
    separator = b""
    for lines in _Trace(process, strings, head).lines(batches):
        if lines:
            file.write(separator + ",\n".join(lines).encode("utf-8"))
            separator = b",\n"
    file.write(b"\n]}\n")


class _Trace:
    """Converts batches to lines, one per event of the format."""

    def __init__(self, process: Process, strings: Strings, head: TraceHead) -> None:
        self.out = TraceFormat(process, strings)
        self.stacks = Stacks(conventions())
        self.ranges, self.memory, work = Ranges(self.out), Memory(self.out), Work(self.out)
        launches, operators = Launches(self.out, head.clocked), Operators(self.out, self.stacks)
        self.copies = Copies(self.out, head.copies_clocked)
        self.draws: Draws = {}
        samples = Telemetry(self.out)
        for each in (launches, self.copies, self.ranges, operators, self.memory, work, samples):
            self.draws |= each.draws
        self.others: tuple[Draw, tuple[str, ...]] = (work.other, ("kind",))

    def lines(self, batches: Iterable[Batch]) -> Iterator[list[str]]:
        """Lines of each batch, then those that end open slices."""
        self.out.start()
        for batch in batches:
            self._batch(batch)
            yield self.out.taken()
        self.copies.close()
        self.out.close()
        self.ranges.close()
        yield self.out.taken()

    def _batch(self, batch: Batch) -> None:
        self.stacks.feed(batch)
        calls: list[tuple[int, Draw, tuple[Any, ...]]] = []
        for kind, records in batch:
            if kind in _NOT_DRAWN or not len(records):
                continue
            draw, fields = self.draws.get(kind, self.others)
            common = ("time", "thread", "device", "stream")
            columns = [records[name].tolist() for name in (*common, *fields)]
            indices = records["index"].tolist()
            calls += [
                (index, draw, row)
                for index, row in zip(indices, zip(*columns, strict=True), strict=True)
            ]
        calls += self.memory.changes(batch)
        calls.sort(key=lambda call: call[0])
        for _, draw, row in calls:
            self.out.last = max(self.out.last, row[0])
            draw(*row)
