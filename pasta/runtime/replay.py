"""Tools on recorded events: what they would have said when the program ran."""

from __future__ import annotations

import gzip
import os
import platform
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pasta
from pasta.capabilities import Capabilities
from pasta.errors import RunError
from pasta.processors.pipeline import Pipeline
from pasta.processors.strings import Strings
from pasta.progress import doing
from pasta.run.accesses import read_accesses, recorded_accesses
from pasta.run.directory import SCHEMA, RunDirectory, staging_beside
from pasta.run.events import counts, parts, read_batches, span
from pasta.run.files import regular_file, unpacked_limit
from pasta.run.inventory import Inventory
from pasta.run.naming import check_place
from pasta.run.results import trace_of
from pasta.runtime.analysis import make_filter, make_pipeline
from pasta.runtime.limits import failures_of, store_results, tool_call
from pasta.tool import Context, Run

if TYPE_CHECKING:
    from pasta.config import Config
    from pasta.processors.batch import Batch

_NEVER = 2**64
_PIECE = 1 << 20  # bytes of a trace that are copied at once


def _ignore(_: str) -> None:
    """What the first reading of the events has told."""


class _Damaged(Exception):
    """Recorded data that no source would have given."""


class Replay:
    """Runs the tools of a configuration on a run's events."""

    def __init__(self, recorded: RunDirectory, config: Config) -> None:
        """Raises RunError where there are no events, or accesses that a tool needs are missing."""
        self.recorded, self.config = recorded, config
        self.manifest = recorded.manifest()
        if not parts(recorded.events):
            raise RunError(
                f"{recorded.path}: no events were recorded",
                remedy="record the run again, with run.events on",
            )
        self._strings = Strings()
        self._warnings: list[str] = []
        self._inventory = Inventory(self._strings)
        context = Context(strings=self._strings, run=self._run())
        context.recorded, context.images = self._selected, self._image
        context.sources = self.manifest.get("sources", {})
        self._pipeline = make_pipeline(config, context, self._limit)
        self._accesses = recorded_accesses(recorded.results)
        probing = [each.name for each in self._pipeline.loaded if each.has_probes]
        if probing and not self._accesses:
            blind = Capabilities(tuple(self.manifest.get("sources", ()))).blind
            if blind:
                raise RunError(
                    f"{recorded.path}: {' and '.join(blind)} cannot give accesses, "
                    f"which {', '.join(probing)} needs",
                    remedy="leave such tools out",
                )
            raise RunError(
                f"{recorded.path}: no accesses were recorded, which {', '.join(probing)} needs",
                remedy="record them with pasta-preload --record-accesses",
            )
        if not probing:
            self._accesses = []

    def _limit(self) -> AbstractContextManager[None]:
        return tool_call(self.config.tool_timeout)

    def _batches(self) -> Iterator[Batch]:
        return read_batches(self.recorded.events, self._strings, told=_ignore)

    def _selected(self) -> Iterator[Batch]:
        """What would have been recorded with this filter."""
        context = Context(strings=self._strings, run=self._pipeline.context.run)
        selecting = Pipeline(make_filter(self.config), [], context)
        return (selecting.feed(batch) for batch in self._batches())

    def _run(self) -> Run:
        if self.manifest:
            start = self.manifest["start"]
            return Run(
                pid=self.manifest["pid"],
                program=self.manifest.get("executable") or "",
                start_realtime=start["realtime_ns"],
                start_time=start["monotonic_ns"],
            )
        return Run(start_time=span(self.recorded.events, _ignore)[0])  # of one that was cut short

    def _image(self, hash: int) -> Path | None:
        found = next(self.recorded.modules.glob(f"{hash:016x}.*"), None)
        return None if found is None else regular_file(found, self.recorded.path)

    def write(self, out: Path, *, force: bool = False) -> RunDirectory:
        """Runs the tools, and writes a run directory with their results. Raises PastaError."""
        check_place(out, force=force)
        staging = RunDirectory.create(staging_beside(out))
        try:
            self._feed()
            messages: list[str] = []
            sources = self.manifest.get("sources", self._inventory.sources)
            store_results(
                staging, self._pipeline, sources, self.config.tool_timeout, messages.append
            )
            if messages:
                (staging.path / "log.txt").write_text(
                    "\n".join(messages), encoding="utf-8", errors="backslashreplace"
                )
            staging.write_manifest(self._manifest())
            from pasta.report.text import write_text_report

            doing("writing the report")
            write_text_report(staging)
            return staging.move_to(out, force=force, suffix=str(os.getpid()))
        except OSError as error:
            raise RunError(f"{out}: {error.strerror or error}") from None
        except (MemoryError, _Damaged) as error:
            why = str(error) or "not enough memory"
            raise RunError(f"{self.recorded.path}: cannot be replayed ({why})") from None
        finally:
            shutil.rmtree(staging.path, ignore_errors=True)  # unless it has its place

    def _feed(self) -> None:
        """Events and accesses in the order in which they came."""
        chunks = read_accesses(self._accesses, self._warnings.append)
        position, words = next(chunks, (_NEVER, None))
        wanted = self._pipeline.kinds
        kinds = None if wanted is None else wanted | Inventory.KINDS
        recorded = counts(self.recorded.events, _ignore)
        total = sum(recorded[kind] for kind in recorded if kinds is None or kind in kinds)
        read = 0
        for batch in read_batches(
            self.recorded.events, self._strings, kinds=kinds, told=self._warnings.append
        ):
            read += len(batch)
            doing("reading events", f"{read:,} of {total:,}")
            self._inventory.learn(batch)
            self._pipeline.feed(batch)
            while position < batch.end:
                self._feed_accesses(words)
                position, words = next(chunks, (_NEVER, None))
        while words is not None:
            self._feed_accesses(words)
            _, words = next(chunks, (_NEVER, None))

    def _feed_accesses(self, words: Any) -> None:
        try:
            self._pipeline.feed_accesses(words)
        except (ValueError, IndexError) as error:
            raise _Damaged(f"its accesses: {error}") from None

    def _manifest(self) -> dict[str, Any]:
        """The recorded run's, with what was made of it now."""
        inventory, selection = self._inventory, self._pipeline.selection
        run = self._pipeline.context.run
        process = inventory.process
        unfinished = {
            "schema": SCHEMA,
            "command": process.get("command", ["an unfinished run"]),
            "executable": process.get("executable"),
            "host": platform.node(),
            "pid": process.get("pid", 0),
            "parent": process.get("parent", 0),
            "environment": process.get("environment", {}),
            "start": {"realtime_ns": run.start_realtime, "monotonic_ns": run.start_time},
            "observed_ns": span(self.recorded.events, _ignore)[1] - run.start_time,
            "ended": {"text": "cut short"},
            "sources": inventory.sources,
            "devices": {str(device): name for device, name in sorted(inventory.devices.items())},
        }
        return {
            **(self.manifest or unfinished),
            "replay": {
                "of": str(self.recorded.path.absolute()),
                "realtime_ns": time.time_ns(),
                "pasta": pasta.__version__,
            },
            "config": asdict(self.config),
            "tools": self._pipeline.names,
            "failures": failures_of(self._pipeline),
            "launches": {"seen": selection.seen, "selected": selection.selected},
            "events": counts(self.recorded.events, _ignore),
            "recorded": {},
            "warnings": [*self.manifest.get("warnings", []), *self._warnings],
        }


def write_trace(recorded: RunDirectory, file: BinaryIO, compressed: bool) -> None:
    """Writes the trace of the tool event_trace: the recorded one, or one of the run's events.

    Raises RunError where there is neither.
    """
    found = trace_of(recorded.results)
    if found:
        _copy_trace(found, file, compressed)
        return
    from pasta.config import Config

    with tempfile.TemporaryDirectory(prefix="pasta-") as scratch:
        config = Config(tools=["event_trace"], tool_options={"event_trace": {"compress": False}})
        done = Replay(recorded, config).write(Path(scratch) / "run")
        for failure in done.manifest()["failures"].values():
            raise RunError(f"{recorded.path}: no trace can be made ({failure['reason']})")
        _copy_trace(done.results / "event_trace" / "trace.json", file, compressed)


def _copy_trace(source: Path, file: BinaryIO, compressed: bool) -> None:
    """Copies a trace, packing or unpacking it where the target is not as the source is."""
    try:
        _copy(source, file, compressed)
    except (gzip.BadGzipFile, EOFError, zlib.error, ValueError) as error:
        raise RunError(f"{source}: damaged trace ({error})") from None


def _copy(source: Path, file: BinaryIO, compressed: bool) -> None:
    with ExitStack() as stack:
        content: Any = stack.enter_context(source.open("rb"))
        target: Any = file
        if source.suffix == ".gz" and not compressed:
            content = stack.enter_context(gzip.GzipFile(fileobj=content, mode="rb"))
        elif source.suffix != ".gz" and compressed:
            target = stack.enter_context(gzip.GzipFile(fileobj=file, mode="wb", mtime=0))
        left = unpacked_limit(source)
        while piece := content.read(_PIECE):
            left -= len(piece)
            if left < 0:
                raise ValueError("it unpacks to much more than its size")
            target.write(piece)
