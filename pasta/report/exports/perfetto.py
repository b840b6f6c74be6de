"""The trace for ui.perfetto.dev: from the tool event_trace, or generated from the run's events."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from pasta.errors import PastaError, RunError
from pasta.processors.strings import Strings
from pasta.progress import report_progress
from pasta.report.exports.base import FileExport, Request
from pasta.run.directory import RunDirectory

if TYPE_CHECKING:
    from pasta.processors.batch import Batch

_PIECE = 1 << 20  # bytes of a trace copied at once


class Perfetto(FileExport):
    """A trace for ui.perfetto.dev."""

    name = "perfetto"
    help = "write the trace for ui.perfetto.dev, compressed where FILE ends with .gz"

    def writer(self, request: Request) -> Callable[[BinaryIO], object]:
        """Returns a function that writes the trace. Raises RunError."""
        from pasta.run.results import trace_of

        compressed = request.target.endswith(".gz")
        found = trace_of(request.run.results)
        if found:
            return partial(_copy, found, compressed)
        return partial(_make, request.run.recorded(), compressed)


def _make(run: RunDirectory, compressed: bool, file: BinaryIO) -> None:
    """Writes a trace of recorded events. Raises RunError without events."""
    from pasta.report.exports.trace.head import TraceHead
    from pasta.report.exports.trace.writer import write_trace
    from pasta.run.events import parts
    from pasta.run.inventory import process_of

    if not parts(run.events):
        raise RunError(
            f"{run.path}: no events were recorded",
            remedy="record the run again with run.events on",
        )
    strings, head = Strings(), TraceHead()
    try:
        for batch in _batches(run, strings):
            head.feed(batch, strings)
        with _packed(file) if compressed else nullcontext(file) as target:
            write_trace(
                target, process_of(run), strings, _batches(run, strings), head, run.symbols()
            )
    except (PastaError, OSError):
        raise
    except Exception as error:  # records of an untrusted run may be inconsistent
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise RunError(f"{run.path}: cannot be converted to a trace ({why})") from error


def _batches(run: RunDirectory, strings: Strings) -> Iterator[Batch]:
    """All events, without files that cannot be read."""
    from pasta.run.events import read_batches

    report_progress("reading events")
    return read_batches(run.events, strings, on_warning=lambda line: None)


def _copy(source: Path, compressed: bool, file: BinaryIO) -> None:
    """Copies a trace, compressing or decompressing it if the target differs from the source."""
    from pasta.run.files import unpacked_limit

    packed = source.suffix == ".gz"
    reader: Any = gzip.open if packed and not compressed else Path.open
    with (
        reader(source, "rb") as content,
        _packed(file) if compressed and not packed else nullcontext(file) as target,
    ):
        left = unpacked_limit(source)
        try:
            while piece := content.read(_PIECE):
                left -= len(piece)
                if left < 0:
                    raise ValueError("its decompressed size exceeds the limit")
                target.write(piece)
        except (gzip.BadGzipFile, EOFError, zlib.error, ValueError) as error:
            raise RunError(f"{source}: damaged trace ({error})") from None


def _packed(file: BinaryIO) -> gzip.GzipFile:
    return gzip.GzipFile(fileobj=file, mode="wb", mtime=0)


EXPORT = Perfetto()
