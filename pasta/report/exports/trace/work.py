"""Draws copies, sets and events of streams, synchronization, and events of the process."""

from __future__ import annotations

import json

from pasta import abi
from pasta.report.exports.trace.format import ABSENT_U64, Draws, TraceFormat, kind_text

_COPIES = {
    "host_to_host": "HtoH", "host_to_device": "HtoD", "device_to_host": "DtoH",
    "device_to_device": "DtoD", "peer_to_peer": "PtoP",
}  # fmt: skip
_SYNCS = {
    "stream": "cudaStreamSynchronize", "context": "cuCtxSynchronize",
    "device": "cudaDeviceSynchronize", "event": "cudaEventSynchronize",
}  # fmt: skip


class Work:
    """Draws everything other than launches, operators, ranges and memory."""

    def __init__(self, out: TraceFormat) -> None:
        self.out = out

    @property
    def draws(self) -> Draws:
        """Handlers by event kind."""
        return {
            "memory_copy": (self.copy, ("direction", "source", "destination", "bytes")),
            "memory_set": (self.set, ("address", "bytes", "value")),
            "sync": (self.sync, ("what", "duration")),
            "event_record": (self.event, ("kind", "handle")),
            "event_wait": (self.event, ("kind", "handle")),
            "process_start": (self.process_wide, ("kind",)),
            "process_end": (self.process_wide, ("kind",)),
            "profiling_start": (self.process_wide, ("kind",)),
            "profiling_stop": (self.process_wide, ("kind",)),
            "dropped": (self.dropped, ("count",)),
        }

    def copy(
        self, time: int, thread: int, device: int, stream: int,
        direction: int, source: int, destination: int, bytes: int,
    ) -> None:  # fmt: skip
        """Draws a memory copy on its stream."""
        name = abi.enums()["copy"].get(direction, "")
        on = self.out.stream(device, stream)
        args = [f'"device":{device},"stream":{on.tid}', *self._by_operator(thread)]
        args.append(f'"source":"{source:#x}","destination":"{destination:#x}"')
        if bytes != ABSENT_U64:
            args.append(f'"bytes":{bytes}')
        label = json.dumps(f"Memcpy {_COPIES.get(name, 'unknown')}")
        self.out.instant(on, time, label, ",".join(args), category="gpu_memcpy")

    def set(
        self, time: int, thread: int, device: int, stream: int, address: int, bytes: int, value: int
    ) -> None:
        """Draws a memory set on its stream."""
        on = self.out.stream(device, stream)
        args = [f'"device":{device},"stream":{on.tid}', *self._by_operator(thread)]
        args.append(f'"address":"{address:#x}","bytes":{bytes},"value":{value}')
        self.out.instant(on, time, '"Memset"', ",".join(args), category="gpu_memset")

    def _by_operator(self, thread: int) -> list[str]:
        track = self.out.tracks.get(("thread", thread, 0))  # no track is created for this
        return [track.external] if track and track.operator else []

    def sync(
        self, time: int, thread: int, device: int, stream: int, what: int, duration: int
    ) -> None:
        """Draws a synchronization call on its thread."""
        track = self.out.thread(thread)
        name = json.dumps(_SYNCS[abi.enums()["sync"].get(what, "device")])
        if duration == ABSENT_U64:
            self.out.instant(track, time, name, track.external, category="cuda_runtime")
        else:
            self.out.whole(track, time - duration, duration, "cuda_runtime", name, track.external)

    def event(
        self, time: int, thread: int, device: int, stream: int, kind: int, handle: int
    ) -> None:
        """Draws an event record or wait on its stream."""
        track = self.out.stream(device, stream)
        self.out.instant(
            track, time, kind_text(kind), f'"event":"{handle:#x}"', category="cuda_event"
        )

    def process_wide(self, time: int, thread: int, device: int, stream: int, kind: int) -> None:
        """Draws an event of the whole process."""
        self.out.instant(self.out.thread(thread), time, kind_text(kind), scope="p")

    def dropped(self, time: int, thread: int, device: int, stream: int, count: int) -> None:
        """Draws a mark where events were dropped."""
        track = self.out.thread(thread)
        self.out.instant(track, time, '"events dropped"', f'"count":{count}', scope="g")

    def other(self, time: int, thread: int, device: int, stream: int, kind: int) -> None:
        """Draws a kind without a handler as a mark on its thread."""
        self.out.instant(self.out.thread(thread), time, kind_text(kind))
