"""The run as a trace in the format of torch.profiler: for Perfetto (ui.perfetto.dev),
chrome://tracing, TensorBoard's PyTorch plug-in and HolisticTraceAnalysis."""

from __future__ import annotations

import gzip
from contextlib import nullcontext
from typing import TYPE_CHECKING, BinaryIO

from pasta.lazy import np
from pasta.report.exports.trace.head import TraceHead
from pasta.table import Table, absent_where, counted, shares
from pasta.tool import Result, Tool, option

if TYPE_CHECKING:
    from pasta.processors.batch import Batch

#: Kinds with device times.
_TIMED = frozenset({"kernel_complete", "copy_complete"})


class EventTrace(Tool):
    """Every event in order as a trace for Perfetto and tools of torch.profiler's traces."""

    title = "Trace of all events"

    needs = ("recording",)
    uses = (
        "kernel_complete", "copy_complete", "registers", "shared_static", "shared_dynamic",
        "copy_addresses", "wait_times",
    )  # fmt: skip

    compress = option(True, help="write trace.json.gz instead of trace.json")
    operators = option(True, help="follow PyTorch: record operators and their tensors")

    @property
    def asks_for_tensors(self) -> bool:
        """The option `operators`."""
        return self.operators

    def start(self) -> None:
        """Initialize the trace's metadata and the counts by kind."""
        self.head = TraceHead(self.operators)
        self.counts: dict[str, int] = {}
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self.times: dict[str, int] = {}  # on devices

    def on_batch(self, batch: Batch) -> None:
        """Count events and their first and last times by kind; collect the trace's metadata."""
        for kind, records in batch:
            if len(records):
                first, last = int(records["time"].min()), int(records["time"].max())
                self.counts[kind] = self.counts.get(kind, 0) + len(records)
                self.first[kind] = min(first, self.first.get(kind, first))
                self.last[kind] = max(last, self.last.get(kind, last))
            if kind in _TIMED and len(records):
                start, end = records["start"], records["end"]
                good = (end >= start) & (end != np.iinfo(np.uint64).max)
                time = int((end[good] - start[good]).sum())
                self.times[kind] = self.times.get(kind, 0) + time
        self.head.feed(batch, self.context.strings)

    def result(self) -> Result:
        """A table of event kinds; the report writes the trace itself."""
        total = sum(self.counts.values())
        times = [self.times.get(kind, 0) for kind in self.counts]
        order = dict(zip(self.counts, times, strict=True))
        kinds = sorted(self.counts, key=lambda kind: (-order[kind], -self.counts[kind], kind))
        device_time = np.asarray([order[kind] for kind in kinds], np.int64)
        counts = np.asarray([self.counts[kind] for kind in kinds], np.int64)
        start = self.context.process.start_time
        name = "trace.json.gz" if self.compress else "trace.json"
        table = Table(
            {
                "event": kinds,
                "events": counts,
                "share": shares(counts, total),
                "device_time": absent_where(device_time, device_time == 0),
                "first": np.asarray([self.first[kind] - start for kind in kinds], np.int64),
                "last": np.asarray([self.last[kind] - start for kind in kinds], np.int64),
            },
            units={"share": "share", "first": "ns", "last": "ns", "device_time": "ns"},
            labels={"share": "of events"},
            sums=("events", "device_time"),
            title="Events",
            shown=50,
            hidden=frozenset(() if self.times else ("device_time",)),
        )
        return Result(
            summary=f"{counted(total, 'event')}; open {name} at ui.perfetto.dev",
            tables={"events": table},
            files={name: self.write},
        )

    def write(self, file: BinaryIO) -> None:
        """Writes the trace, in memory that does not grow with the number of events."""
        # here: the launcher, which loads tools for their options, writes none
        from pasta.report.exports.trace.writer import write_trace

        with self._packed(file) if self.compress else nullcontext(file) as target:
            write_trace(
                target,
                self.context.process,
                self.context.strings,
                self.context.recorded(),
                self.head,
                self.context.symbols,
            )

    @staticmethod
    def _packed(file: BinaryIO) -> gzip.GzipFile:
        return gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1, mtime=0)
