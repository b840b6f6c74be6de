"""Draws a run's batches on tracks, and writes them as a trace for Perfetto (ui.perfetto.dev),
chrome://tracing, TensorBoard and HolisticTraceAnalysis."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from pasta.frameworks import conventions
from pasta.processors.stacks import Stacks
from pasta.report.exports.trace.copies import Copies
from pasta.report.exports.trace.format import Draw, Draws, TraceFormat, Tracks
from pasta.report.exports.trace.host_samples import HostSamples
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
    from pasta.processors.symbols import Symbols
    from pasta.report.exports.trace.head import TraceHead

#: Not drawn: kinds that describe other events, or are shown in tables.
_NOT_DRAWN = frozenset(
    {
        "python_frame", "python_sample", "pad", "pc_sample", "counter", "tensor_map",
        "instruction_count",
        "probe_data", "graph_node", "graph_instantiate", "host_frame", "host_stack",
    }
)  # fmt: skip


class Output(Protocol):
    """A binary file, compressed or not."""

    def write(self, data: bytes, /) -> object:
        """Writes all of `data`."""


def write_trace(
    file: Output, process: Process, strings: Strings, batches: Iterable[Batch], head: TraceHead,
    symbols: Symbols | None = None,
) -> None:  # fmt: skip
    """Writes a trace of all events in bounded memory; `head` must have been fed the batches.
    `symbols`: of native code, by default from this machine's files."""
    file.write(b"{" + json.dumps(head.fields(process))[1:-1].encode() + b',\n"traceEvents":[\n')
    separator = b""
    for lines in _lines(TraceFormat(process, strings), batches, head, symbols):
        if lines:
            file.write(separator + ",\n".join(lines).encode("utf-8"))
            separator = b",\n"
    file.write(b"\n]}\n")


def _lines(
    out: TraceFormat, batches: Iterable[Batch], head: TraceHead, symbols: Symbols | None
) -> Iterator[list[str]]:
    """Lines of each batch, then lines that end open slices."""
    drawing = Drawing(out, head, symbols)
    out.start()
    for batch in batches:
        drawing.add(batch)
        yield out.taken()
    drawing.close()
    yield out.taken()


@contextmanager
def _without_collector() -> Iterator[None]:
    """Pauses the collector of cycles: it would scan the batch's events again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Drawing:
    """Draws batches on tracks. `head`: whether kernels and copies have device times."""

    def __init__(self, out: Tracks, head: TraceHead, symbols: Symbols | None = None) -> None:
        self.out = out
        self.stacks = Stacks(conventions(), symbols)
        self.ranges, self.memory, work = Ranges(out), Memory(out), Work(out)
        launches, operators = Launches(out, head.clocked, head.returns), Operators(out, self.stacks)
        self.copies = Copies(out, head.copies_clocked)
        self.draws: Draws = {}
        self.samples, devices = HostSamples(out, self.stacks), Telemetry(out)
        for each in (
            launches, self.copies, self.ranges, operators, self.memory, work, self.samples, devices,
        ):  # fmt: skip
            self.draws |= each.draws
        self.others: tuple[Draw, tuple[str, ...]] = (work.other, ("kind",))

    def close(self) -> None:
        """Draws what waits for its end, after the last batch."""
        self.copies.close()
        self.samples.close()
        self.out.close()
        self.ranges.close()

    def add(self, batch: Batch) -> None:
        """Draws the events of a batch in their order; batches come in the order of the run."""
        with _without_collector():
            self._draw(batch)

    def _draw(self, batch: Batch) -> None:
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
