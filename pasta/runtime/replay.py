"""Runs tools on recorded events, with the results that they would have had in the program."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta.errors import RunError
from pasta.processors.strings import Strings
from pasta.progress import report_progress
from pasta.run.accesses import read_accesses, recorded_accesses
from pasta.run.directory import SCHEMA, RunDirectory, staging_beside
from pasta.run.events import counts, parts, read_batches, span
from pasta.run.files import regular_file
from pasta.run.inventory import Inventory, process_of
from pasta.run.naming import check_place
from pasta.runtime.assembly import make_filter, make_pipeline
from pasta.runtime.limits import failures_of, store_results, tool_call
from pasta.runtime.omissions import none_selected, not_kept
from pasta.runtime.pipeline import Pipeline
from pasta.sources import Capabilities
from pasta.tool import Context
from pasta.version import VERSION

if TYPE_CHECKING:
    from pasta.config import Config
    from pasta.processors.batch import Batch
    from pasta.tool import Tool

_NEVER = 2**64


def _ignore(_: str) -> None:
    """Drops a warning that the first pass has reported."""


class _Damaged(Exception):
    """Recorded data that no source could have produced."""


class Replay:
    """Runs the tools of a configuration on a run's events."""

    def __init__(self, recorded: RunDirectory, config: Config) -> None:
        """Raises RunError without events, or without accesses that a tool needs."""
        self.recorded, self.config = recorded, config
        self.manifest = recorded.manifest()
        if not parts(recorded.events):
            passes = [each["directory"] for each in self.manifest.get("passes", {}).values()]
            raise RunError(
                f"{recorded.path}: no events were recorded",
                remedy=f"they are in the runs that it joins: {', '.join(passes)}"
                if passes
                else "record the run again with run.events on",
            )
        self._strings = Strings()
        self._warnings: list[str] = []
        self._inventory = Inventory(self._strings)
        context = Context(strings=self._strings, process=process_of(recorded))
        context.recorded, context.images = self._selected, self._image
        context.symbols = recorded.symbols()
        context.sources = self.manifest.get("sources", {})
        context.roofs = self.manifest.get("roofs", {})
        self._pipeline = make_pipeline(config, context, self._limit)
        self._accesses = recorded_accesses(recorded.results)
        probing = [each for each in self._pipeline.loaded if each.has_probes]
        needing = [each.name for each in probing if not each.tool.optional_accesses]
        if needing and not self._accesses:
            blind = Capabilities(tuple(self.manifest.get("sources", ()))).blind
            if blind:
                raise RunError(
                    f"{recorded.path}: {' and '.join(blind)} does not provide accesses, which "
                    f"{', '.join(needing)} needs",
                    remedy="leave out such tools",
                )
            raise RunError(
                f"{recorded.path}: no accesses were recorded, which {', '.join(needing)} needs",
                remedy="record them with pasta-preload --record-accesses",
            )
        if not probing:
            self._accesses = []

    def _limit(self) -> AbstractContextManager[None]:
        return tool_call(self.config.tool_timeout)

    def _batches(self) -> Iterator[Batch]:
        return read_batches(self.recorded.events, self._strings, on_warning=_ignore)

    def _selected(self) -> Iterator[Batch]:
        """The events that this filter would have recorded."""
        context = Context(strings=self._strings, process=self._pipeline.context.process)
        selecting = Pipeline(make_filter(self.config), [], context)
        return (selecting.feed(batch) for batch in self._batches())

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
            texts = store_results(
                staging, self._pipeline, sources, self.config.tool_timeout, messages.append
            )
            if messages:
                (staging.path / "log.txt").write_text(
                    "\n".join(messages), encoding="utf-8", errors="backslashreplace"
                )
            staging.write_manifest(self._manifest())
            from pasta.report.text import write_text_report

            report_progress("writing the report")
            write_text_report(staging, texts)
            return staging.move_to(out, force=force, suffix=str(os.getpid()))
        except OSError as error:
            raise RunError(f"{out}: {error.strerror or error}") from None
        except (MemoryError, _Damaged) as error:
            why = str(error) or "not enough memory"
            raise RunError(f"{self.recorded.path}: cannot be replayed ({why})") from None
        finally:
            shutil.rmtree(staging.path, ignore_errors=True)  # absent if it was renamed

    def fed(self) -> Tool:
        """The only tool of the configuration, after all events, without its result. Raises
        RunError if it failed."""
        self._feed()
        for failure in self._pipeline.failures.values():
            raise RunError(
                f"{self.recorded.path}: {failure.tool} failed in {failure.where} ({failure.reason})"
            )
        (tool,) = self._pipeline.tools
        return tool

    def _feed(self) -> None:
        """Feeds events and accesses in their recorded order."""
        chunks = read_accesses(self._accesses, self._warnings.append)
        position, words = next(chunks, (_NEVER, None))
        wanted = self._pipeline.kinds
        kinds = None if wanted is None else wanted | Inventory.KINDS
        recorded = counts(self.recorded.events, _ignore)
        self._pipeline.compile(recorded)
        total = sum(recorded[kind] for kind in recorded if kinds is None or kind in kinds)
        read = 0
        for batch in read_batches(
            self.recorded.events, self._strings, kinds=kinds, on_warning=self._warnings.append
        ):
            read += len(batch)
            report_progress("reading events", f"{read:,} of {total:,}")
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
        """The recorded run's manifest, updated for the replay."""
        inventory, selection = self._inventory, self._pipeline.selection
        run = self._pipeline.context.process
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
            "link_bandwidth": {
                str(device): each for device, each in sorted(inventory.link_bandwidth.items())
            },
        }
        return {
            **(self.manifest or unfinished),
            "replay": {
                "of": str(self.recorded.path.absolute()),
                "realtime_ns": time.time_ns(),
                "pasta": VERSION,
            },
            "config": self.config.document(),
            "tools": self._pipeline.names,
            "failures": failures_of(self._pipeline),
            "launches": {"seen": selection.seen, "selected": selection.selected},
            "events": counts(self.recorded.events, _ignore),
            "recorded": {},
            "warnings": [*self._notes(), *self._warnings, *none_selected(self._pipeline)],
        }

    def _notes(self) -> Iterator[str]:
        """The recorded run's notes, as they apply to the replay."""
        events = sum(self.manifest.get("left_out", {}).values())
        rotate = bool(self.manifest.get("config", {}).get("rotate"))
        recorded = [*not_kept(events, rotate=rotate)]
        yield from (each for each in self.manifest.get("warnings", []) if each not in recorded)
        yield from not_kept(events, rotate=rotate, replayed=True)
