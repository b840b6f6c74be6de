"""Writes the run directory of a process after all of its events have been consumed."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta import abi
from pasta.progress import report_progress
from pasta.run.directory import SCHEMA, RunDirectory
from pasta.run.naming import joined, place_in_job
from pasta.runtime.clock import host_clock
from pasta.runtime.limits import DISK_ERRORS, failures_of, store_results
from pasta.runtime.omissions import none_probed, none_selected, not_kept, profiled_part
from pasta.table import counted
from pasta.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pasta.config import Config
    from pasta.probes.windows import StepRanges
    from pasta.run.events import Recorder
    from pasta.run.inventory import Inventory
    from pasta.runtime.pipeline import Pipeline
    from pasta.runtime.ring import Ring
    from pasta.runtime.session import Ended, Roofs, Session
    from pasta.runtime.trace import TraceReader


def _system() -> str:
    """Kernel, machine and C library. `platform.platform` starts a program to find the processor."""
    name = os.uname()
    library = "".join(platform.libc_ver())
    return f"{name.sysname}-{name.release}-{name.machine}" + (f"-with-{library}" if library else "")


def kept_image(session: Session, hash: int) -> Path | None:
    """File of a module image, by the hash of its content; None if it was not kept."""
    kept = session.directory / "modules" / f"{hash:016x}"
    return kept if kept.exists() else None


def add_warning(session: Session, warnings: list[str], what: str, error: Exception) -> None:
    """Adds a warning about an exception; its traceback goes to the session's log."""
    session.log(f"{what}:\n{traceback.format_exc()}")
    warnings.append(f"{what} ({type(error).__name__}: {error}; traceback in log.txt)")


@dataclass
class RunWriter:
    """Writes results, manifest, log and report of a run."""

    session: Session
    ring: Ring
    config: Config
    run: RunDirectory
    pipeline: Pipeline
    inventory: Inventory
    #: None if events are not recorded; the others None without accesses or step ranges.
    recorder: Recorder | None
    trace: TraceReader | None
    steps: StepRanges | None
    #: Events lost because the ring was full, by kind.
    dropped: dict[str, int]
    warnings: list[str]
    #: Parts of the text report, by tool.
    texts: dict[str, str] = field(default_factory=dict)

    def _write_results(self) -> None:
        """Stores the results of all tools."""
        program = self.inventory.process.get("executable", "")
        context, sources = self.pipeline.context, self.inventory.sources
        context.process = context.process._replace(program=program)
        context.roofs = self._roofs()
        timeout = self.config.tool_timeout
        log = self.session.log
        self.texts = store_results(self.run, self.pipeline, sources, timeout, log)

    def _roofs(self) -> dict[str, Mapping[str, float]]:
        """Roofs of the devices of the backends that the process used."""
        every: Roofs = self.session.document["roofs"]
        return {
            uuid: rates
            for backend in self.config.backends()
            if any(source.name in self.inventory.sources for source in backend.sources)
            for uuid, rates in every.get(backend.name, {}).items()
        }

    @property
    def _observed(self) -> int:
        """Time from the process's start to its last event, ns."""
        return max(0, self.inventory.last_time - self.pipeline.context.process.start_time)

    def _manifest(self, ended: Ended) -> dict[str, Any]:
        inventory, ring, run = self.inventory, self.ring, self.pipeline.context.process
        process = inventory.process
        environment = process.get("environment", {})
        job = place_in_job(joined(environment, os.environ))
        return {
            "schema": SCHEMA,
            "pasta": VERSION,
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
            "observed_ns": self._observed,
            "ended": {"text": str(ended), **ended._asdict()},
            "consumer": {0: "afterwards", 1: "embedded", 2: "collector"}.get(ring.consumer),
            "sources": inventory.sources,
            "devices": {str(device): name for device, name in sorted(inventory.devices.items())},
            "roofs": dict(self.pipeline.context.roofs),
            "link_bandwidth": {
                str(device): each for device, each in sorted(inventory.link_bandwidth.items())
            },
            "config": self.config.document(),
            "tools": self.pipeline.names,
            "failures": failures_of(self.pipeline),
            "launches": {
                "seen": self.pipeline.selection.seen,
                "selected": self.pipeline.selection.selected,
            },
            "steps": self.steps.summary() if self.steps and self.steps.pattern else None,
            "events": dict(sorted(inventory.counts.items())),
            "recorded": self.recorder.counts if self.recorder else {},
            "left_out": self.recorder.left_out if self.recorder else {},
            "dropped": self.dropped,
            "torn_slots": ring.torn,
            "accesses": {
                "chunks": self.trace.taken if self.trace else 0,
                "dropped": self.trace.dropped if self.trace else 0,
                "waited_ns": self.trace.waited if self.trace else 0,
            },
            "samples": {"located": inventory.samples, "unlocated": inventory.unlocated_samples},
            "warnings": self.warnings,
            "versions": {"python": platform.python_version(), "system": _system()},
        }

    def write(self, ended: Ended) -> RunDirectory:
        """Writes the remaining parts of the run. Raises OSError if the disk is full."""
        # if results cannot be written, the ring is kept for a later attempt
        self._attempt("results", self._write_results, fatal=DISK_ERRORS)
        stopped = self.inventory.stops.total(self.inventory.last_time)
        self.warnings.extend(profiled_part(self.config, self._observed, stopped))
        self.warnings.extend(_advice(self.pipeline, self.ring, self.dropped, self.trace))
        if self.steps is not None and (self.pipeline.probes is not None or self.config.window):
            self.warnings.extend(filter(None, [self.steps.text()]))
        if self.pipeline.probes is not None:
            self.warnings.extend(none_probed(self.config, self.pipeline.probes.sampling))
        left_out = sum(self.recorder.left_out.values()) if self.recorder else 0
        self.warnings.extend(not_kept(left_out, rotate=self.config.rotate))
        self._attempt("images of modules", self._copy_modules)
        self._attempt("symbols.json", self._write_symbols)
        self._attempt("log.txt", self._copy_log)
        self.run.write_manifest(self._manifest(ended))  # from here on the run is complete
        known = len(self.warnings)
        self._attempt("report.txt", self._write_report)
        if len(self.warnings) > known:
            self._attempt("log.txt", self._copy_log)
            self.run.write_manifest(self._manifest(ended))
        return self.run

    def _write_report(self) -> None:
        from pasta.report.text import write_text_report

        report_progress("writing the report")
        write_text_report(self.run, self.texts)

    def _write_symbols(self) -> None:
        self.run.write_symbols(self.pipeline.context.symbols, self.inventory.codes)

    def _copy_modules(self) -> None:
        if not self.config.modules:
            return
        for number in sorted(self.inventory.modules):
            kept = kept_image(self.session, number)
            if kept is not None:
                self.run.modules.mkdir(exist_ok=True)
                with kept.open("rb") as image:
                    suffix = "cubin" if image.read(4) == b"\x7fELF" else "image"
                shutil.copyfile(kept, self.run.modules / f"{kept.name}.{suffix}")

    def _copy_log(self) -> None:
        log = self.session.directory / "log.txt"
        if log.exists():
            shutil.copyfile(log, self.run.path / "log.txt")

    def _attempt(
        self, what: str, work: Callable[[], object], fatal: frozenset[int] = frozenset()
    ) -> None:
        """Writes a part of the run; a failure becomes a warning. Raises OSError for an error number
        in `fatal`."""
        try:
            work()
        except Exception as error:
            if isinstance(error, OSError) and error.errno in fatal:
                raise
            add_warning(self.session, self.warnings, f"{what} could not be written", error)


def _limit(ring: Ring) -> str:
    """Why a ring could not grow, and the remedy."""
    size = f"{ring.backed * ring.segment_bytes >> 20} MiB"
    if ring.limited == abi.LIMIT_SANDBOX and ring.backed < ring.max_segments:
        return (
            f"could not grow beyond {size}: the program restricted its system calls, and the "
            f"ring got half of the free space in {ring.path.parent.parent}; make room there"
        )
    if ring.limited:
        return f"could not grow beyond {size}: make room in {ring.path.parent.parent}"
    return f"was full: raise it with --set ring.max=1GiB (now {size})"


def _advice(
    pipeline: Pipeline, ring: Ring, dropped: dict[str, int], trace: TraceReader | None
) -> Iterator[str]:
    """Warnings about filtered, lost and damaged data."""
    yield from none_selected(pipeline)
    if dropped:
        lost = counted(sum(dropped.values()), "event was", "events were")
        yield f"{lost} lost because the event ring {_limit(ring)}"
    if trace is not None and trace.dropped:
        lost = counted(trace.dropped, "access was", "accesses were")
        yield f"{lost} lost: the trace buffer stayed full, and its reader did not answer"
    probes = pipeline.probes
    if probes is not None and probes.orphans:
        yield f"batches of accesses without a recorded launch: {probes.orphans:,}"
    if ring.torn:
        yield counted(ring.torn, "unfinished slot was", "unfinished slots were") + (
            " skipped: threads ended while writing them"
        )
