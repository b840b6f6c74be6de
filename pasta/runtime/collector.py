"""The collector: the process that follows one event ring and writes its run directory.

Started by the launcher, live where the target cannot run Python itself, else once the process
has ended.  Whatever happened to the target, the events are in the ring and in spilled segments;
what an embedded consumer had already computed comes with its state.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import platform
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pasta
from pasta import abi, private
from pasta.errors import PastaError, RunError
from pasta.probes.windows import StepRanges
from pasta.processors.pipeline import Pipeline
from pasta.processors.strings import Strings
from pasta.progress import Written, doing, heard
from pasta.run.directory import MANIFEST, SCHEMA, RunDirectory, is_run, places
from pasta.run.events import Recorder, read_batches
from pasta.run.inventory import Inventory
from pasta.run.naming import joined, place_in_job
from pasta.runtime.analysis import make_context, make_filter, make_usable_pipeline
from pasta.runtime.clock import host_clock
from pasta.runtime.limits import DISK_ERRORS, failures_of, store_results, tool_call
from pasta.runtime.live import LiveCounts
from pasta.runtime.processes import ProcessIdentity, ProcessTable
from pasta.runtime.ring import Ring
from pasta.runtime.session import Ended, Session, beside, marked_ended, read_ended
from pasta.runtime.spill import Spill
from pasta.runtime.staging import SPILL, STAGED, final_place, staging_directory
from pasta.runtime.trace import TraceReader
from pasta.table import counted

if TYPE_CHECKING:
    from pasta.config import Config
    from pasta.processors.batch import Batch

_INTERVAL_SECONDS = 0.02
#: Segments that may wait in the ring before they must go to Parquet.
_HELD = 64
#: Room for "pasta: " before every line of the report on the terminal.
_PREFIX_COLUMNS = 7


class Collector:
    """Follows a ring to its end and writes the run.

    `config` and `staging` are those of the session where they are not given.
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
        #: What a collector recorded that was killed; the ring has only what came after.
        self.staged = self.run.path / STAGED
        self._set_aside()
        self.recorder = self._recorder() if self.config.events else None
        self.context = make_context(ring, self.strings, self._recorded)
        self.context.images = self._image
        self.warnings: list[str] = []
        self._processes = ProcessTable(session.directory / "processes")
        self._launcher = ProcessIdentity(**session.document["launcher"])
        self.spill = Spill(ring, self.run.path / SPILL)
        self.trace: TraceReader | None = None
        self.live = LiveCounts(self.strings) if self.config.live else None
        pattern = self.config.probes_step_range
        self.steps = StepRanges(pattern, self.strings) if pattern else None

    def _recorder(self) -> Recorder:
        config = self.config
        return Recorder(self.run.events, self.strings, config.max_size, rotate=config.rotate)

    def _set_aside(self) -> None:
        """Keeps the events of a collector that was killed apart from those to be recorded."""
        if self.staged.exists():  # so was the one that recovered them
            shutil.rmtree(self.run.events, ignore_errors=True)
        elif any(self.run.events.glob("*.parquet")):
            self.run.events.rename(self.staged)

    def collect(self) -> tuple[Pipeline, Ended]:
        """Consumes everything that was and is published, until the process has ended."""
        ended = self._ended()
        position, pipeline = self._begin()
        while ended is None:
            time.sleep(_INTERVAL_SECONDS)
            ended = self._ended() or self._abandoned()
            position = self._drain(pipeline, position, final=False)
            position = self._drain_trace(pipeline, position, final=False)
            self._make_room(position)
        position = self._drain(pipeline, position, final=True)
        self._drain_trace(pipeline, position, final=True)
        self._flush()
        return pipeline, ended

    def _ended(self) -> Ended | None:
        return read_ended(self.ring.path) or marked_ended(self.ring)

    def _abandoned(self) -> Ended | None:
        """The end of a process whose launcher was killed, so that nobody else would tell of it."""
        if self._launcher.lives():
            return None
        self._processes.update()
        return None if self._processes.lives(self.ring.pid) else Ended("gone")

    def _begin(self) -> tuple[int, Pipeline]:
        """The pipeline to go on with, and from which position."""
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
        """What a killed collector recorded before it gave memory of the ring back."""
        if not self.staged.exists():
            self.warnings.append(
                "a collector was killed, and recorded no events (run.events): what it had taken "
                "from the ring is missing here"
            )
            return
        self.warnings.append(
            "a collector was killed: what it had taken from the ring was read back from the "
            "events that it had recorded, without launches that the filter had dropped"
        )
        for identifier, text in self.ring.strings():  # so that a text has one id
            self.strings.add(identifier, text)
        released = self.ring.released
        for batch in read_batches(self.staged, self.strings, told=self.warnings.append):
            if batch.base >= released:
                break  # the ring still has these
            if len(batch["kernel_launch"]):
                pipeline.selection.go_on()
            self._feed(pipeline, batch.before(released))

    def _pipeline(self, state: bytes | None = None) -> Pipeline:
        return make_usable_pipeline(self.config, self.context, self._limit, state)

    def _limit(self) -> AbstractContextManager[None]:
        return tool_call(self.config.tool_timeout)

    def _restored(self) -> tuple[int, Pipeline] | None:
        """Position and pipeline of an embedded consumer; None where there is none, or not for all
        tools: everything is computed again then, from the events."""
        path = beside(self.ring.path, ".state")
        if not self.ring.finished or not path.exists():
            return None
        try:
            state = pickle.loads(private.read(path))
            pipeline = self._pipeline(state["pipeline"])
            position = int(state["position"])
        except Exception:
            self.session.log(f"what was handed over cannot be read:\n{traceback.format_exc()}")
            return None
        lost = [each for each in pipeline.failures.values() if each.where == "unpickling"]
        for failure in lost:
            self.session.log(
                f"state of {failure.tool} cannot be restored; replaying:\n{failure.traceback}"
            )
        return None if lost else (position, pipeline)

    def _record_only(self, until: int) -> None:
        """Records what an embedded consumer has already given to the tools."""
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
            position = after
            doing("reading events", f"{position / max(self.ring.tail, 1):.0%}")
            self.ring.set_processed(position)
        return position

    def _make_room(self, position: int) -> None:
        free = self.ring.releasable(position) - self.ring.released
        if free >= min(_HELD, self.ring.max_segments // 4) * self.ring.segment_slots:
            self._flush()
            self.ring.release(position)

    def _drain_trace(self, pipeline: Pipeline, position: int, *, final: bool) -> int:
        """Runs the probes over the accesses there are; the events before them go first."""
        if self.trace is None:
            self.trace = self._open_trace(pipeline, final)
        if self.trace is None:
            return position
        probes = pipeline.context._probes
        complete = probes.launches.all_complete() if probes is not None else 0
        for chunk in self.trace.chunks(final=final):
            if not final:
                position = self._drain(pipeline, position, final=False)
                self._make_room(position)
            try:
                pipeline.feed_accesses(chunk)
            except ValueError as error:
                self.warnings.append(f"a chunk of accesses is damaged: {error}")
        if probes is not None and self.trace.exhausted:
            probes.close(complete)
        return position

    def _open_trace(self, pipeline: Pipeline, final: bool) -> TraceReader | None:
        path, probes = beside(self.ring.path, ".trace"), pipeline.context._probes
        if probes is None or not path.exists():
            return None
        try:
            trace = TraceReader(path)
        except RunError as error:  # it may be in the making
            if final:
                self.warnings.append(f"accesses were not read: {error}")
            return None
        doing("compiling probes")
        with trace.beating():
            probes.compile()
        return trace

    def _feed(self, pipeline: Pipeline, batch: Batch) -> None:
        if self.live is not None:
            self.live.add(batch)
            self.live.write(beside(self.ring.path, ".live"))
        self._process(pipeline, batch)
        for record in batch["probe_data"]:
            pipeline.feed_device(self._probed(int(record["offset"]), int(record["bytes"])))

    def _process(self, pipeline: Pipeline, batch: Batch) -> None:
        """Feeds the tools and records what they were fed; all of it where PASTA itself fails."""
        try:
            selected = pipeline.feed(batch)
        except Exception as error:
            if pipeline.working():
                self._warn_of("the events from here on could not be processed", error)
            pipeline.fail_all("PASTA's own processing", error)
            selected = batch
        if self.steps is not None:
            self.steps.feed(batch)
        self._keep(batch, selected)

    def _warn_of(self, what: str, error: Exception) -> None:
        self.session.log(f"{what}:\n{traceback.format_exc()}")
        self.warnings.append(f"{what} ({type(error).__name__}: {error}; traceback in log.txt)")

    def _attempt(
        self, what: str, work: Callable[[], object], fatal: frozenset[int] = frozenset()
    ) -> None:
        """Does a part of the writing without which the rest is still of use.

        Raises OSError for an error number in `fatal`.
        """
        try:
            work()
        except Exception as error:
            if isinstance(error, OSError) and error.errno in fatal:
                raise
            self._warn_of(f"{what} could not be written", error)

    def _probed(self, offset: int, length: int) -> bytes:
        """A buffer that a probe_data event names."""
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

    def write_results(self, pipeline: Pipeline) -> None:
        """Stores the results of all tools."""
        program = self.inventory.process.get("executable", "")
        self.context.run = replace(self.context.run, program=program)
        store_results(
            self.run, pipeline, self.inventory.sources, self.config.tool_timeout, self.session.log
        )

    def manifest(self, pipeline: Pipeline, ended: Ended) -> dict[str, Any]:
        inventory, ring, run = self.inventory, self.ring, self.context.run
        process = inventory.process
        environment = process.get("environment", {})
        job = place_in_job(joined(environment, os.environ))
        return {
            "schema": SCHEMA,
            "pasta": pasta.__version__,
            "command": process.get("command", self.session.document["command"]),
            "launched": self.session.document["command"],
            "executable": process.get("executable"),
            "cwd": self.session.document["cwd"],
            "host": socket.gethostname(),
            "pid": ring.pid,
            "parent": ring.parent,
            "rank": job.rank if job else None,
            "local_rank": job.local_rank if job else None,
            "world_size": job.world_size if job else None,
            "environment": environment,
            "start": {"realtime_ns": run.start_realtime, "monotonic_ns": run.start_time},
            "clock": host_clock(),
            "observed_ns": max(0, inventory.last_time - run.start_time),
            "ended": {"text": str(ended), **asdict(ended)},
            "consumer": {0: "afterwards", 1: "embedded", 2: "collector"}.get(ring.consumer),
            "sources": inventory.sources,
            "devices": {str(device): name for device, name in sorted(inventory.devices.items())},
            "config": asdict(self.config),
            "tools": pipeline.names,
            "failures": failures_of(pipeline),
            "launches": {
                "seen": pipeline.selection.seen,
                "selected": pipeline.selection.selected,
            },
            "steps": self.steps.summary() if self.steps else None,
            "events": dict(sorted(inventory.counts.items())),
            "recorded": self.recorder.counts if self.recorder else {},
            "left_out": self.recorder.left_out if self.recorder else {},
            "dropped": self.dropped(),
            "torn_slots": ring.torn,
            "accesses": {
                "chunks": self.trace.taken if self.trace else 0,
                "dropped": self.trace.dropped if self.trace else 0,
                "waited_ns": self.trace.waited if self.trace else 0,
            },
            "warnings": self.warnings,
            "versions": {"python": platform.python_version(), "system": platform.platform()},
        }

    def write(self, pipeline: Pipeline, ended: Ended) -> RunDirectory:
        """Writes everything and moves the run to its place."""
        # without them the ring is kept, for a disk with more room
        self._attempt("results", lambda: self.write_results(pipeline), fatal=DISK_ERRORS)
        self.warnings.extend(_advice(pipeline, self.ring, self.dropped(), self.trace))
        if self.steps is not None and pipeline.context._probes is not None:
            self.warnings.extend(filter(None, [self.steps.text()]))
        left_out = sum(self.recorder.left_out.values()) if self.recorder else 0
        if left_out:
            which = "oldest" if self.config.rotate else "newest"
            self.warnings.append(
                f"the {which} {counted(left_out, 'event was', 'events were')} not"
                " kept (run.max-size); results have them"
            )
        self._attempt("images of modules", self._copy_modules)
        self._attempt("log.txt", self._copy_log)
        self.run.write_manifest(self.manifest(pipeline, ended))  # it is complete
        told = len(self.warnings)
        self._attempt("report.txt", self._write_report)
        if len(self.warnings) > told:
            self._attempt("log.txt", self._copy_log)
            self.run.write_manifest(self.manifest(pipeline, ended))
        return self.run

    def _write_report(self) -> None:
        from pasta.report.text import write_text_report

        doing("writing the report")
        write_text_report(self.run)

    def dropped(self) -> dict[str, int]:
        """Events lost at the cap of the ring while this collector followed it, by kind."""
        counts = {
            kind: count - self.dropped_before.get(kind, 0)
            for kind, count in self.ring.dropped().items()
        }
        return {kind: count for kind, count in counts.items() if count}

    def _image(self, hash: int) -> Path | None:
        """A module's image, where it was kept."""
        kept = self.session.directory / "modules" / f"{hash:016x}"
        return kept if kept.exists() else None

    def _copy_modules(self) -> None:
        if not self.config.modules:
            return
        for number in sorted(self.inventory.modules):
            kept = self._image(number)
            if kept is not None:
                self.run.modules.mkdir(exist_ok=True)
                with kept.open("rb") as image:
                    suffix = "cubin" if image.read(4) == b"\x7fELF" else "image"
                shutil.copyfile(kept, self.run.modules / f"{kept.name}.{suffix}")

    def _copy_log(self) -> None:
        log = self.session.directory / "log.txt"
        if log.exists():
            shutil.copyfile(log, self.run.path / "log.txt")


def _limit(ring: Ring) -> str:
    """What kept a ring from growing, and what helps."""
    size = f"{ring.backed * ring.segment_bytes >> 20} MiB"
    if ring.limited == abi.LIMIT_SANDBOX and ring.backed < ring.max_segments:
        return (
            f"could not grow beyond {size}: the program restricted its system calls, and half of "
            f"what was free in {ring.path.parent.parent} is what it got; make room there"
        )
    if ring.limited:
        return f"could not grow beyond {size}: make room in {ring.path.parent.parent}"
    return f"was full: raise it with --set ring.max=1GiB (now {size})"


def _advice(
    pipeline: Pipeline, ring: Ring, dropped: dict[str, int], trace: TraceReader | None
) -> Iterator[str]:
    """Lines about what the user would otherwise wonder at."""
    selection = pipeline.selection
    if selection.matched_nothing:
        names = sorted(pipeline.context.demangled(selection.launched))
        shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        yield (
            f"the filter selected none of {counted(selection.seen, 'launch')};"
            f" launched were: {shown}"
        )
    if dropped:
        lost = counted(sum(dropped.values()), "event was", "events were")
        yield f"{lost} lost because the event ring {_limit(ring)}"
    if trace is not None and trace.dropped:
        yield (
            f"{counted(trace.dropped, 'access was', 'accesses were')} lost: there"
            " was no room for too long"
        )
    probes = pipeline.context._probes
    if probes is not None and probes.orphans:
        yield f"stretches of accesses of launches that were never seen: {probes.orphans:,}"
    if ring.torn:
        yield counted(ring.torn, "unfinished slot was", "unfinished slots were") + (
            " skipped: threads were ended while they wrote"
        )


def _moved(session: Session, ring: Ring, run: RunDirectory, plain_name: bool) -> _Moved:
    config, manifest = session.config, run.manifest()
    place = final_place(
        session,
        ring,
        manifest.get("executable") or session.document["command"][0],
        manifest.get("environment", {}),
    )
    wanted = place.path
    if place.root is None and not plain_name and "%p" not in config.out:
        wanted = wanted.with_name(f"{wanted.name}-{ring.pid}")
    force = config.force and place.root is None
    suffix = str(ring.sequence) if place.root else f"{ring.pid}-{ring.sequence}"
    root = str(place.root) if place.root else None
    moving = {"wanted": str(wanted), "suffix": suffix, "root": root}
    private.write_atomically(beside(ring.path, ".moving"), json.dumps(moving).encode())
    return _Moved(run.move_to(wanted, force=force, suffix=suffix), root)


class _Moved(NamedTuple):
    """A run in its place."""

    run: RunDirectory
    root: str | None


def _already_moved(session: Session, ring: Ring) -> _Moved | None:
    """The run of a collector that was killed before it could say where the run is."""
    path = beside(ring.path, ".moving")
    if not path.exists() or staging_directory(session, ring).exists():
        return None
    moving = json.loads(private.read(path))
    for place in places(Path(moving["wanted"]), moving["suffix"]):
        if not place.exists():
            return None
        manifest = RunDirectory(place).manifest() if is_run(place) else {}
        of = manifest.get("pid"), manifest.get("start", {}).get("monotonic_ns")
        if of == (ring.pid, ring.start_time):
            return _Moved(RunDirectory(place), moving["root"])
    return None


def _written(session: Session, ring: Ring) -> RunDirectory:
    """The complete run of a ring, in its staging directory."""
    run = RunDirectory(staging_directory(session, ring))
    if (run.path / MANIFEST).exists():  # a collector was killed when it had only to move it
        private.make_or_check_directory(run.path)
        from pasta.report.text import write_text_report

        write_text_report(run)
    else:
        session.check_tools()
        collector = Collector(session, ring)
        run = collector.write(*collector.collect())
    for source in (SPILL, STAGED):
        shutil.rmtree(run.path / source, ignore_errors=True)
    return run


def collect(ring_path: Path, *, plain_name: bool) -> dict[str, Any]:
    """Follows a ring and writes its run; what the launcher is told about it.

    Raises RunError where another collector does so.
    """
    session = Session.open(ring_path.parent.parent)
    with open(private.open_file(ring_path), "rb") as owned:
        if not private.lock(owned.fileno()):
            raise RunError(f"another collector works on {ring_path}", remedy="let it finish")
        return _collect(session, Ring(ring_path), plain_name)


def _terminal_report(session: Session, ring: Ring, run: RunDirectory, columns: int) -> Path | None:
    """The report as the terminal shows it; None where it fails: the run has it too."""
    from pasta.report.text import write_terminal_report

    path = beside(ring.path, ".report")
    try:
        write_terminal_report(run, path, columns)
    except Exception:
        session.log(f"the terminal's report failed:\n{traceback.format_exc()}")
        return None
    return path


def _collect(session: Session, ring: Ring, plain_name: bool) -> dict[str, Any]:
    report, width = None, session.document["terminal_width"]
    moved = _already_moved(session, ring)
    if moved is None:
        run = _written(session, ring)
        if width is not None:
            report = _terminal_report(session, ring, run, width - _PREFIX_COLUMNS)
        moved = _moved(session, ring, run, plain_name)
    run, root = moved
    done = {"directory": str(run.path), "report": str(report or run.report), "root": root}
    private.write_atomically(beside(ring.path, ".done"), json.dumps(done).encode())
    return done


def main() -> int:
    parser = argparse.ArgumentParser(prog="pasta collector")
    parser.add_argument("ring", type=Path)
    parser.add_argument("--plain-name", action="store_true")
    arguments = parser.parse_args()
    private.set_umask()
    # The launcher blocks it, and children inherit that: no time limit would ever end.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    try:
        with heard(Written(beside(arguments.ring, ".progress"))):
            collect(arguments.ring, plain_name=arguments.plain_name)
    except PastaError as error:
        return _problem(arguments.ring, str(error))
    except Exception as error:
        traceback.print_exc()
        return _problem(arguments.ring, f"{type(error).__name__}: {error}")
    _end_with_threads()
    return 0


def _end_with_threads() -> None:
    """Ends this process at once where a tool has left threads, for which Python would wait."""
    others = [each for each in threading.enumerate() if each is not threading.main_thread()]
    if any(not each.daemon for each in others):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _problem(ring: Path, text: str) -> int:
    """Tells the launcher why there is no run; the ring is kept."""
    private.write_atomically(beside(ring, ".problem"), text.encode())
    return 1


if __name__ == "__main__":
    sys.exit(main())
