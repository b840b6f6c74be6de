"""Facts about the process from a run's events: program, sources, devices, counts."""

from __future__ import annotations

from typing import Any

from pasta.lazy import np
from pasta.processors.batch import ABSENT_U64, Batch
from pasta.processors.collectives import link_bandwidths
from pasta.processors.context import Process
from pasta.processors.stops import Stops
from pasta.processors.strings import Strings
from pasta.processors.symbols import Code
from pasta.run.directory import RunDirectory
from pasta.run.events import span

_SEPARATOR = "\x1f"


def process_of(run: RunDirectory) -> Process:
    """The process of a run; for an unfinished run, only its start. Raises RunError for a damaged
    manifest."""
    manifest = run.manifest()
    if not manifest:
        return Process(start_time=span(run.events, lambda line: None)[0])
    start = manifest["start"]
    return Process(
        pid=manifest["pid"],
        program=manifest.get("executable") or "",
        start_realtime=start["realtime_ns"],
        start_time=start["monotonic_ns"],
    )


class Inventory:
    """Facts about one process, collected from its batches for the manifest."""

    #: Kinds that `learn` reads.
    KINDS = frozenset(
        {
            "process_start", "module_load", "context_create", "device", "device_sample",
            "host_frame", "profiling_start", "profiling_stop",
        }
    )  # fmt: skip

    def __init__(self, strings: Strings) -> None:
        self._strings = strings
        self.process: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        self.devices: dict[int, str] = {}
        #: Bandwidth of a device's links in one direction, 10^6 bytes/s.
        self.link_bandwidth: dict[int, int] = {}
        self.counts: dict[str, int] = {}
        self.modules: set[int] = set()
        #: Program counter samples, and those without a place by reason.
        self.samples = 0
        self.unlocated_samples: dict[str, int] = {}
        #: Native code in call paths.
        self.codes: set[Code] = set()
        self.last_time = 0
        self.stops = Stops()

    def add(self, batch: Batch) -> None:
        """Counts the events of a batch and learns from it."""
        for kind, records in batch:
            if len(records):
                self.counts[kind] = self.counts.get(kind, 0) + len(records)
                self.last_time = max(self.last_time, int(records["time"][-1]))
        self._count_samples(batch["pc_sample"])
        self.learn(batch)

    def _count_samples(self, samples: Any) -> None:
        located = samples["pc"] != ABSENT_U64
        self.samples += int(samples["samples"][located].sum(dtype=np.int64))
        for record in samples[~located]:
            reason = self._strings[int(record["reason"])]
            known = self.unlocated_samples.get(reason, 0)
            self.unlocated_samples[reason] = known + int(record["samples"])

    def learn(self, batch: Batch) -> None:
        """Collects facts from a batch without counting its events."""
        for record in batch["process_start"]:
            self._add_process(record)
        self.modules.update(batch["module_load"]["hash"].tolist())
        text = self._strings
        for image, build, address in batch["host_frame"][["image", "build", "address"]].tolist():
            self.codes.add(Code(text[image], text[build], address))
        for kind in ("context_create", "device"):
            for record in batch[kind]:
                if record["device"] >= 0 and record["name"]:
                    self.devices[int(record["device"])] = self._strings[int(record["name"])]
        self.link_bandwidth.update(link_bandwidths(batch))
        self.stops.feed(batch)

    def _add_process(self, record: Any) -> None:
        text = self._strings
        if record["source"]:
            self.sources[text[int(record["source"])]] = text[int(record["version"])]
        if not self.process:
            variables = text[int(record["environment"])].split(_SEPARATOR)
            self.process = {
                "pid": int(record["pid"]),
                "parent": int(record["parent"]),
                "executable": text[int(record["executable"])],
                "command": text[int(record["command"])].split(_SEPARATOR),
                "environment": dict(v.split("=", 1) for v in variables if "=" in v),
            }
