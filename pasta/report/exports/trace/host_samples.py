"""Draws samples of the host's call stacks: a call from the first sample that has it to the last."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pasta.report.exports.trace.format import Draws, Track, Tracks

if TYPE_CHECKING:
    from pasta.processors.stacks import Stacks

CATEGORY = "host_sample"
#: Outermost calls of a stack that a picture has room for; a trace has all.
_MAX_CALLS = 24
#: Periods without processor time after which a thread's sampled calls end.
_PAUSE = 2.0


@dataclass
class _Thread:
    """The calls that its last sample was in, outermost first, and the end of that sample."""

    track: Track
    calls: list[str] = field(default_factory=list)
    until: int = 0


class HostSamples:
    """Draws the sampled calls of each thread, on a separate track."""

    def __init__(self, out: Tracks, stacks: Stacks) -> None:
        self.out, self.stacks = out, stacks
        self._threads: dict[int, _Thread] = {}
        self._paths: dict[int, list[str]] = {}  # JSON texts, by stack

    @property
    def draws(self) -> Draws:
        """Handlers by event kind."""
        return {"host_sample": (self.sample, ("stack", "period"))}

    def sample(
        self, time: int, thread: int, device: int, stream: int, stack: int, period: int
    ) -> None:
        """Draws the period before a sample, in which the thread used the processor."""
        found = self._threads.get(thread)
        if found is None:
            found = self._threads[thread] = _Thread(self.out.sampled(thread))
        if time <= found.until:
            return  # of another processor's buffer, read later
        start = max(time - period, found.until)
        if start - found.until > _PAUSE * period:
            self._leave(found, 0)
            found.until = start
        path = self._path(stack)
        kept = 0
        for known, call in zip(found.calls, path, strict=False):
            if known != call:
                break
            kept += 1
        self._leave(found, kept)
        for call in path[kept:]:
            depth = len(found.calls)
            self.out.begin(found.track, (CATEGORY, depth), found.until, CATEGORY, call)
            found.calls.append(call)
        found.until = time

    def _leave(self, thread: _Thread, kept: int) -> None:
        """Ends the calls beyond the outermost `kept` ones at the end of the last sample."""
        if len(thread.calls) > kept:
            self.out.end(thread.track, (CATEGORY, kept), thread.until)
            del thread.calls[kept:]

    def _path(self, stack: int) -> list[str]:
        if stack not in self._paths:
            frames = self.stacks.path(stack, self.out.strings)
            drawn = frames if self.out.detailed else frames[:_MAX_CALLS]
            self._paths[stack] = [json.dumps(frame.name) for frame in drawn]
        return self._paths[stack]

    def close(self) -> None:
        """Ends all calls with their last samples."""
        for thread in self._threads.values():
            self._leave(thread, 0)
