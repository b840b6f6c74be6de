"""The collector: follows one event ring, feeds the tools and records the events.

However the target ends, its events are in the ring and in spilled segments; the state of an
embedded consumer has the results computed so far.
"""

from __future__ import annotations

import pickle
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pasta import private
from pasta.errors import RunError
from pasta.probes.windows import StepRanges
from pasta.processors.strings import Strings
from pasta.progress import report_progress
from pasta.run.directory import RunDirectory
from pasta.run.events import Recorder, read_batches
from pasta.run.inventory import Inventory
from pasta.runtime.assembly import make_context, make_filter, make_usable_pipeline
from pasta.runtime.code_ahead import CodeAhead
from pasta.runtime.limits import tool_call
from pasta.runtime.live import LiveCounts
from pasta.runtime.pipeline import EXPECTED, Pipeline
from pasta.runtime.probe_plan import reach_host
from pasta.runtime.processes import ProcessIdentity, ProcessTable
from pasta.runtime.ring import Ring
from pasta.runtime.run_writer import RunWriter, add_warning, kept_image
from pasta.runtime.session import Ended, Session, beside, marked_ended, read_ended
from pasta.runtime.spill import Spill
from pasta.runtime.staging import SPILL, STAGED, staging_directory
from pasta.runtime.trace import TraceReader, beating

if TYPE_CHECKING:
    from pasta.config import Config
    from pasta.processors.batch import Batch

_INTERVAL_SECONDS = 0.02
#: The longest time that events wait: fewer and larger batches cost less.
_LONGEST_WAIT_SECONDS = 0.25
#: Segments that may stay in the ring before they are flushed to Parquet and released.
_MAX_HELD = 64


class Collector:
    """Follows a ring to its end and writes the run.

    `config` and `staging` default to those of the session.
    """

    def __init__(
        self,
        session: Session,
        ring: Ring,
        config: Config | None = None,
        staging: Path | None = None,
    ) -> None:
        self.session = session
        self.config = config or session.config
        self.ring = ring
        self.dropped_before: dict[str, int] = {}
        self.strings = Strings(ring.string)
        self.inventory = Inventory(self.strings)
        self.run = RunDirectory.create(staging or staging_directory(session, ring))
        #: Events that a killed collector recorded; the ring has only the later ones.
        self.staged = self.run.path / STAGED
        self._set_aside()
        self.recorder = self._recorder() if self.config.events else None
        self.context = make_context(ring, self.strings, self._recorded)
        self.context.images = partial(kept_image, session)
        self.warnings: list[str] = []
        self._processes = ProcessTable(session.directory / "processes")
        self._launcher = ProcessIdentity(**session.document["launcher"])
        self._progress: Callable[[], None] = lambda: None  # tells producers that this one works
        self._drained = time.monotonic()
        self.spill = Spill(ring, self.run.path / SPILL)
        self.trace: TraceReader | None = None
        self.live = LiveCounts(self.strings) if self.config.live else None
        if not self.config.start:
            self.inventory.stops.since = self.context.process.start_time
        pattern = self.config.probes_step_range or ""
        windows = (self.config.window, self.config.probes_window)
        in_steps = any(each.startswith("steps") for each in windows)
        self.steps = StepRanges(pattern, self.strings) if pattern or in_steps else None

    def _recorder(self) -> Recorder:
        config = self.config
        return Recorder(self.run.events, self.strings, config.max_size, rotate=config.rotate)

    def _set_aside(self) -> None:
        """Moves the events of a killed collector away from those to be recorded."""
        if self.staged.exists():  # the collector that recovered them was killed too
            shutil.rmtree(self.run.events, ignore_errors=True)
        elif any(self.run.events.glob("*.parquet")):
            self.run.events.rename(self.staged)

    def collect(self) -> tuple[Pipeline, Ended]:
        """Consumes all events until the process has ended; the pipeline and the end."""
        if not self.session.probes.exists():  # nor will accesses
            return self._collect()
        with beating(beside(self.ring.path, ".trace")) as self._progress:
            return self._collect()

    def _collect(self) -> tuple[Pipeline, Ended]:
        ended = self._ended()
        position, pipeline = self._begin()
        ahead = CodeAhead()
        while ended is None:
            time.sleep(_INTERVAL_SECONDS)
            ended = self._ended() or self._abandoned()
            self._progress()
            if ended is None and not self._should_drain(position):
                continue
            position = self._drain(pipeline, position, final=False)
            position = self._drain_trace(pipeline, position, final=False)
            self._make_room(position)
            if pipeline.probes is not None:
                ahead.look(pipeline.probes)
        position = self._drain(pipeline, position, final=True)
        self._drain_trace(pipeline, position, final=True)
        self._flush()
        if pipeline.probes is not None:
            ahead.finish(pipeline.probes)
        return pipeline, ended

    def _should_drain(self, position: int) -> bool:
        """Whether there is enough to read, or a producer of accesses may wait for it."""
        now = time.monotonic()
        if (
            self.ring.tail - position < self.ring.segment_slots
            and now < self._drained + _LONGEST_WAIT_SECONDS
            and not beside(self.ring.path, ".trace").exists()
        ):
            return False
        self._drained = now
        return True

    def _ended(self) -> Ended | None:
        return read_ended(self.ring.path) or marked_ended(self.ring)

    def _abandoned(self) -> Ended | None:
        """The end of a process whose launcher was killed and cannot report it."""
        if self._launcher.lives():
            return None
        self._processes.update()
        return None if self._processes.lives(self.ring.pid) else Ended("gone")

    def _begin(self) -> tuple[int, Pipeline]:
        """The position to continue from, and the pipeline."""
        restored = self._restored()
        if restored is not None:
            self._record_only(restored[0])
            return restored
        pipeline = self._pipeline()
        position = 0
        for batch, after in self.spill.batches(0):
            self._feed(pipeline, batch)
            position = after
        if position < self.ring.released:
            self._feed_staged(pipeline)
        return max(position, self.ring.released), pipeline

    def _feed_staged(self, pipeline: Pipeline) -> None:
        """Feeds the events that a killed collector recorded and released from the ring."""
        if not self.staged.exists():
            self.warnings.append(
                "a collector was killed, and events were not recorded (run.events): what it "
                "had read from the ring is missing here"
            )
            return
        self.warnings.append(
            "a collector was killed: what it had read from the ring was restored from the "
            "recorded events, without launches that the filter had dropped"
        )
        for identifier, text in self.ring.strings():  # so that texts keep their ids
            self.strings.add(identifier, text)
        released = self.ring.released
        for batch in read_batches(self.staged, self.strings, on_warning=self.warnings.append):
            if batch.base >= released:
                break  # the ring still has these
            if len(batch["kernel_launch"]):
                pipeline.selection.end_skip()
            self._feed(pipeline, batch.before(released))

    def _pipeline(self, state: bytes | None = None) -> Pipeline:
        pipeline = make_usable_pipeline(self.config, self.context, self._limit, state)
        pipeline.compile(EXPECTED, accesses=reach_host(self.session, pipeline.tools))
        return pipeline

    def _limit(self) -> AbstractContextManager[None]:
        return tool_call(self.config.tool_timeout)

    def _restored(self) -> tuple[int, Pipeline] | None:
        """Position and pipeline of an embedded consumer; None without one, or if the state of a
        tool is missing: then all results are recomputed from the events."""
        path = beside(self.ring.path, ".state")
        if not self.ring.finished or not path.exists():
            return None
        try:
            state = pickle.loads(private.read(path))
            pipeline = self._pipeline(state["pipeline"])
            position = int(state["position"])
        except Exception:
            self.session.log(f"the consumer's state cannot be read:\n{traceback.format_exc()}")
            return None
        lost = [each for each in pipeline.failures.values() if each.where == "unpickling"]
        for failure in lost:
            self.session.log(
                f"state of {failure.tool} cannot be restored; replaying:\n{failure.traceback}"
            )
        return None if lost else (position, pipeline)

    def _record_only(self, until: int) -> None:
        """Records events that an embedded consumer has already fed to the tools."""
        selecting = Pipeline(make_filter(self.config), [], make_context(self.ring, self.strings))
        position = 0
        for batch, after in self.spill.batches(0):
            self._keep(batch, selecting.feed(batch))
            position = after
        start = max(position, self.ring.released)
        for batch, _ in self.ring.batches(start, until, final=True):
            self._keep(batch, selecting.feed(batch))

    def _drain(self, pipeline: Pipeline, position: int, *, final: bool) -> int:
        for batch, after in self.ring.batches(position, final=final):
            self._feed(pipeline, batch)
            self._progress()
            position = after
            report_progress("reading events", f"{position / max(self.ring.tail, 1):.0%}")
            self.ring.set_processed(position)
        return position

    def _make_room(self, position: int) -> None:
        free = self.ring.releasable(position) - self.ring.released
        if free >= min(_MAX_HELD, self.ring.max_segments // 4) * self.ring.segment_slots:
            self._flush()
            self.ring.release(position)

    def _drain_trace(self, pipeline: Pipeline, position: int, *, final: bool) -> int:
        """Runs the probes over the available accesses, after the events before them."""
        if self.trace is None:
            self.trace = self._open_trace(pipeline, final)
        if self.trace is None:
            return position
        probes = pipeline.probes
        complete = probes.launches.all_complete() if probes is not None else 0
        for chunk in self.trace.chunks(final=final):
            if not final:
                position = self._drain(pipeline, position, final=False)
                self._make_room(position)
            self._leave_out_lost(pipeline)
            try:
                pipeline.feed_accesses(chunk)
            except ValueError as error:
                self.warnings.append(f"a chunk of accesses is damaged: {error}")
            self._progress()
        self._leave_out_lost(pipeline)
        if probes is not None and self.trace.exhausted:
            probes.close(complete)
        return position

    def _leave_out_lost(self, pipeline: Pipeline) -> None:
        """Leaves out launches that lost accesses, if possible before their other ones are read."""
        if self.trace is not None and self.trace.dropped and pipeline.probes is not None:
            pipeline.probes.leave_out(self.trace.lost(pipeline.probes.launches.end))

    def _open_trace(self, pipeline: Pipeline, final: bool) -> TraceReader | None:
        path, probes = beside(self.ring.path, ".trace"), pipeline.probes
        if probes is None or not path.exists():
            return None
        try:
            trace = TraceReader(path)
        except RunError as error:  # it may not be initialized yet
            if final:
                self.warnings.append(f"accesses were not read: {error}")
            return None
        return trace

    def _feed(self, pipeline: Pipeline, batch: Batch) -> None:
        if self.live is not None:
            self.live.add(batch)
            self.live.write(beside(self.ring.path, ".live"))
        self._process(pipeline, batch)
        for record in batch["probe_data"]:
            pipeline.feed_device(self._probed(int(record["offset"]), int(record["bytes"])))

    def _process(self, pipeline: Pipeline, batch: Batch) -> None:
        """Feeds the tools and records the selected events; all events if PASTA itself fails."""
        try:
            selected = pipeline.feed(batch)
        except Exception as error:
            if pipeline.working():
                what = "events from here on could not be processed"
                add_warning(self.session, self.warnings, what, error)
            pipeline.fail_all("PASTA's own processing", error)
            selected = batch
        if self.steps is not None:
            self.steps.feed(batch)
        self._keep(batch, selected)

    def _probed(self, offset: int, length: int) -> bytes:
        """The buffer that a probe_data event refers to."""
        with open(private.open_file(beside(self.ring.path, ".probes")), "rb") as file:
            file.seek(offset)
            return file.read(length)

    def _keep(self, batch: Batch, selected: Batch) -> None:
        self.inventory.add(batch)
        if self.recorder:
            self.recorder.add(selected)
            if self.recorder.full:
                self._flush()

    def _flush(self) -> None:
        if not self.recorder:
            return
        try:
            self.recorder.flush()
        except OSError as error:
            self.warnings.append(
                f"events could not be recorded after {sum(self.recorder.counts.values()):,} "
                f"({error.strerror or error}); results are complete"
            )
            self.recorder = None

    def _recorded(self) -> Iterator[Batch]:
        self._flush()
        return read_batches(self.run.events, self.strings)

    def write(self, pipeline: Pipeline, ended: Ended) -> RunDirectory:
        """Writes results, manifest and report. Raises OSError if the disk is full."""
        return RunWriter(
            self.session, self.ring, self.config, self.run, pipeline, self.inventory,
            self.recorder, self.trace, self.steps, self._dropped(), self.warnings,
        ).write(ended)  # fmt: skip

    def _dropped(self) -> dict[str, int]:
        """Events lost because the ring was full while this collector followed it, by kind."""
        counts = {
            kind: count - self.dropped_before.get(kind, 0)
            for kind, count in self.ring.dropped().items()
        }
        return {kind: count for kind, count in counts.items() if count}
