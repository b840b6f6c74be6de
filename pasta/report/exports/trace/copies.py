"""Draws copies and sets: calls on threads, and the work on streams."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pasta import abi
from pasta.report.exports.trace.format import ABSENT_U64, Draws, Track, Tracks

_COPIES = {
    "host_to_host": "HtoH", "host_to_device": "HtoD", "device_to_host": "DtoH",
    "device_to_device": "DtoD", "peer_to_peer": "PtoP",
}  # fmt: skip
#: Maximum number of copies and sets that wait for their completion.
_MAX_PENDING = 1 << 16
#: First correlation of copies; correlations of kernels are launch numbers.
_CORRELATIONS = 1 << 31


@dataclass(slots=True)
class Work:
    """A copy or set. `missing`: bytes without a completion so far; completions may be partial."""

    time: int
    category: str
    label: str
    detail: str
    device: int
    stream: int
    missing: int
    called: tuple[Track, int] | None  # track and time of the call
    drawn: bool = False


class Copies:
    """Draws copies and sets: as slices if they have device times, otherwise as instants."""

    def __init__(self, out: Tracks, clocked: bool) -> None:
        self.out = out
        self.clocked = clocked
        self.pending: dict[int, Work] = {}  # by correlation

    @property
    def draws(self) -> Draws:
        """Handlers by event kind."""
        common = ("correlation", "flags", "bytes")
        return {
            "memory_copy": (self.copy, (*common, "direction", "source", "destination")),
            "memory_set": (self.set, (*common, "address", "value")),
            "copy_complete": (self.complete, ("correlation", "start", "end", "bytes", "direction")),
        }

    def copy(
        self, time: int, thread: int, device: int, stream: int, correlation: int, flags: int,
        bytes: int, direction: int, source: int, destination: int,
    ) -> None:  # fmt: skip
        """Draws the call of a copy; without clocks, the copy too."""
        args = [f'"source":"{source:#x}","destination":"{destination:#x}"']
        if bytes != ABSENT_U64:
            args.append(f'"bytes":{bytes}')
        work = Work(
            time, "gpu_memcpy", _label(direction), ",".join(args), device, stream, bytes, None
        )
        self._submitted(work, thread, correlation, flags, "copy")

    def set(
        self, time: int, thread: int, device: int, stream: int, correlation: int, flags: int,
        bytes: int, address: int, value: int,
    ) -> None:  # fmt: skip
        """Draws the call of a set; without clocks, the set too."""
        detail = f'"address":"{address:#x}","bytes":{bytes},"value":{value}'
        work = Work(time, "gpu_memset", '"Memset"', detail, device, stream, bytes, None)
        self._submitted(work, thread, correlation, flags, "set")

    def _submitted(self, work: Work, thread: int, correlation: int, flags: int, call: str) -> None:
        on = self.out.stream(work.device, work.stream)
        args = [f'"device":{work.device},"stream":{on.tid}', *self._by_operator(thread)]
        if not self.clocked or not correlation:
            work.detail = ",".join((*args, work.detail))
            self._instant(work)
            return
        link = f'"correlation":{_CORRELATIONS + correlation}'
        work.detail = ",".join((*args, link, work.detail))
        if not flags & abi.FLAG_GRAPH:  # otherwise the graph launch is the call
            track = self.out.thread(thread)
            name = self.out.call(call + (", asynchronous" if flags & abi.FLAG_ASYNC else ""))
            members = ",".join(filter(None, (track.external, link)))
            self.out.whole(track, work.time, 0, "cuda_runtime", name, members)
            work.called = track, work.time
        self.pending[correlation] = work
        if len(self.pending) > _MAX_PENDING:
            self._give_up(next(iter(self.pending)))

    def _by_operator(self, thread: int) -> list[str]:
        track = self.out.tracks.get(("thread", thread, 0))  # no track is created for this
        return [track.external] if track and track.operator else []

    def complete(
        self, time: int, thread: int, device: int, stream: int,
        correlation: int, start: int, end: int, bytes: int, direction: int,
    ) -> None:  # fmt: skip
        """Draws a copy or set on its stream, or a part of it, with an arrow from its call."""
        if end < start or end == ABSENT_U64:
            return
        work = self.pending.get(correlation)
        if work is None:  # its submission was dropped
            is_set = direction not in abi.enums()["copy"]
            category, label = (
                ("gpu_memset", '"Memset"') if is_set else ("gpu_memcpy", _label(direction))
            )
            detail = f'"correlation":{_CORRELATIONS + correlation}'
            work = Work(time, category, label, detail, device, stream, bytes, None)
        track = self.out.free_lane(
            device if device >= 0 else work.device,
            stream if stream != ABSENT_U64 else work.stream,
            start,
            end,
        )
        self.out.whole(track, start, end - start, work.category, work.label, work.detail)
        if work.called and not work.drawn:
            self.out.arrow("ac2g", _CORRELATIONS + correlation, work.called, (track, start))
        work.drawn = True
        work.missing -= bytes
        if work.missing <= 0:
            self.pending.pop(correlation, None)

    def _give_up(self, correlation: int) -> None:
        """Draws what has no completion as an instant: not all copies of a source need have one."""
        work = self.pending.pop(correlation)
        if not work.drawn:
            self._instant(work)

    def _instant(self, work: Work) -> None:
        on = self.out.stream(work.device, work.stream)
        self.out.instant(on, work.time, work.label, work.detail, category=work.category)

    def close(self) -> None:
        """Draws the remaining work."""
        for correlation in tuple(self.pending):
            self._give_up(correlation)


def _label(direction: int) -> str:
    name = abi.enums()["copy"].get(direction, "")
    return json.dumps(f"Memcpy {_COPIES.get(name, 'unknown')}")
