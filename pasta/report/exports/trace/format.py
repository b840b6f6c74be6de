"""Tracks with slices, instants, counters and arrows: what draws events emits to.

`TraceFormat` writes them in the Trace Event Format, one line of JSON each:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pasta.processors.demangle import demangle, short_name

if TYPE_CHECKING:
    from pasta.processors.context import Process
    from pasta.processors.strings import Strings

#: Draws an event from its time (ns), thread, device and stream, then the requested fields.
Draw = Callable[..., None]
#: Handler of each event kind, with the fields of the record that it requests.
Draws = dict[str, tuple[Draw, tuple[str, ...]]]

#: After the ids of all domains.
_SAMPLED = 1 << 32
ABSENT_U64 = (1 << 64) - 1
#: Sorts of slices that do not nest in their own sort.
_CALLS = ("launch", "graph")
#: Kinds of the categories that torch.profiler has; slices of any other category are marks.
Kind = Literal[
    "range", "operator", "call", "wait", "kernel", "copy", "set", "block", "sample", "mark"
]
CATEGORIES: dict[str, Kind] = {
    "cpu_op": "operator",
    "user_annotation": "range",
    "cuda_runtime": "call",
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "set",
    "block": "block",
    "host_sample": "sample",
}
#: Calls into the runtime, as torch.profiler names them for any vendor.
RUNTIME_CALLS = {
    "kernel launch": "cudaLaunchKernel",
    "graph launch": "cudaGraphLaunch",
    "graph upload": "cudaGraphUpload",
    "copy": "cudaMemcpy",
    "copy, asynchronous": "cudaMemcpyAsync",
    "set": "cudaMemset",
    "set, asynchronous": "cudaMemsetAsync",
    "wait for stream": "cudaStreamSynchronize",
    "wait for context": "cuCtxSynchronize",
    "wait for device": "cudaDeviceSynchronize",
    "wait for event": "cudaEventSynchronize",
}
#: Limits for damaged runs: slices that one end closes, and lanes of a stream.
_MAX_DEPTH = 256
_MAX_LANES = 255
#: Sort index of the first device: after the host's processes, as in torch's traces.
_DEVICES_FROM = 5_000_000


@dataclass(slots=True)
class Slice:
    """A slice. `number` is an operator's number, to which launches in it refer.

    `name` is JSON text, `args` the members of a JSON object.
    """

    what: tuple[Any, ...]  # its sort, and an identifier
    time: int
    category: str
    name: str
    args: str
    number: int


@dataclass
class Track:
    """One row of the trace. `open` are its open slices; `busy_until` ends its last complete one.

    `inputs`: inputs of the thread's next operator that do not fit into its record. `name` is empty
    if nothing is drawn on the track itself.
    """

    pid: int
    tid: int
    name: str = ""
    open: list[Slice] = field(default_factory=list)
    busy_until: int = -1
    inputs: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.place = f'"pid":{self.pid},"tid":{self.tid}'

    @property
    def operator(self) -> int:
        """Number of the innermost open operator, or 0."""
        return next((each.number for each in reversed(self.open) if each.number), 0)

    @property
    def external(self) -> str:
        """JSON member that refers to the innermost open operator, or ""."""
        return f'"External id":{self.operator}' if self.operator else ""


class Tracks(ABC):
    """Tracks with their open slices. Subclasses receive the drawn items."""

    #: Whether arguments of slices and the allocations of tensors are used: making them takes time.
    detailed: ClassVar[bool] = True

    def __init__(self, process: Process, strings: Strings) -> None:
        self.process, self.strings = process, strings
        self.last = 0  # time of the last event
        self.numbers = 0  # operators and annotations begun
        self.tracks: dict[tuple[object, ...], Track] = {}
        self._full_names: dict[int, str] = {}
        self._texts: dict[tuple[bool, int], str] = {}

    @abstractmethod
    def slice(self, track: Track, ended: Slice, time: int) -> None:
        """Takes a complete slice, which ended at `time` (ns)."""

    @abstractmethod
    def instant(
        self, track: Track, time: int, name: str, args: str = "", scope: str = "t",
        category: str = "cpu_instant_event",
    ) -> None:  # fmt: skip
        """Takes an instant event; `scope` is t (thread), p (process) or g (global)."""

    @abstractmethod
    def arrow(
        self, category: str, id: int, begin: tuple[Track, int], end: tuple[Track, int]
    ) -> None:
        """Takes a flow between the slices around two points (track, time in ns)."""

    @abstractmethod
    def counter(self, name: str, time: int, unit: str, value: float, device: int) -> None:
        """Takes the value of a counter from `time` on; `device` is -1 for the host."""

    @abstractmethod
    def process_range(self, phase: Literal["b", "e"], id: int, name: str, time: int) -> None:
        """Takes the begin or end of a range of the process, which may overlap others."""

    @abstractmethod
    def name_process(self, pid: int, name: str, label: str, order: int) -> None:
        """Takes the name of the tracks of `pid`, and their place in the order."""

    @abstractmethod
    def name_track(self, track: Track) -> None:
        """Takes the name of a new track."""

    def call(self, what: str) -> str:
        """JSON text of the name of a call, a key of RUNTIME_CALLS."""
        return f'"{what}"'

    @property
    def _program(self) -> str:
        return self.process.program or "program"

    def text(self, id: int, kernel: bool = False) -> str:
        """JSON text of a string id; `kernel`: of the short kernel name."""
        key = (kernel, id)
        if key not in self._texts:
            text = self.strings[id]
            self._texts[key] = json.dumps(short_name(text) if kernel else text)
        return self._texts[key]

    def full_name(self, id: int) -> str:
        """JSON text of a kernel's full name."""
        if id not in self._full_names:
            self._full_names[id] = json.dumps(demangle(self.strings[id]))
        return self._full_names[id]

    def _track(self, key: tuple[object, ...], pid: int, tid: int, name: str) -> Track:
        track = self.tracks[key] = Track(pid, tid, name)
        self.name_track(track)
        return track

    def thread(self, thread: int, domain: int = 0) -> Track:
        """Track of a thread; ranges of a named domain nest separately, on another track."""
        key = ("thread", thread, domain)
        if key in self.tracks:
            return self.tracks[key]
        if not domain:
            return self._track(key, self.process.pid, thread, f"thread {thread}")
        if self.strings[domain] == "torch":  # record_function: nests with operators
            return self.tracks.setdefault(key, self.thread(thread))
        name = f"thread {thread}: {self.strings[domain]}"
        return self._track(key, self.process.pid, (1 << 30) + len(self.tracks), name)

    def sampled(self, thread: int) -> Track:
        """Track of a thread for the calls that samples found it in."""
        key = ("thread", thread, _SAMPLED)
        name = f"thread {thread}: sampled calls"
        return self.tracks.get(key) or self._track(
            key, self.process.pid, (1 << 30) + len(self.tracks), name
        )

    def stream(self, device: int, stream: int, lane: int = 0) -> Track:
        """Track of a stream; overlapping work is drawn on further lanes."""
        key = ("stream", device, stream, lane)
        if key in self.tracks:
            return self.tracks[key]
        pid = self._device(device)
        name = f"stream {stream:#x}" if stream else "default stream"
        if stream == ABSENT_U64:
            name = "unknown stream"
        tid = 1 + len(self.tracks)
        return self._track(key, pid, tid, name + (f" (overlapping, {lane})" if lane else ""))

    def free_lane(self, device: int, stream: int, start: int, end: int) -> Track:
        """Track of a stream on which nothing runs from `start` on, from now on busy until `end`."""
        lane = 0
        while lane < _MAX_LANES and self.stream(device, stream, lane).busy_until > start:
            lane += 1
        track = self.stream(device, stream, lane)
        track.busy_until = end
        self.last = max(self.last, end)
        return track

    def _device(self, device: int) -> int:
        """Process number of a device's tracks: the device number, as tools expect, if unused."""
        pid = device if device >= 0 and device != self.process.pid else (1 << 30) + device + 1
        key = ("device", device)
        if key not in self.tracks:
            self.tracks[key] = Track(pid, 0)
            name = f"device {device}" if device >= 0 else "unknown device"
            full = f"{name} of {self._program} ({self.process.pid})"
            label = f"GPU {device}" if device >= 0 else "GPU"
            self.name_process(pid, full, label, _DEVICES_FROM + device)
        return pid

    def begin(
        self, track: Track, what: tuple[Any, ...], time: int, category: str, name: str,
        args: str = "", number: int = 0,
    ) -> None:  # fmt: skip
        """Opens a slice on a track; `name` and `args` are JSON text, `time` in ns."""
        track.open.append(Slice(what, time, category, name, args, number))

    def end(self, track: Track, what: tuple[Any, ...], time: int) -> None:
        """Ends the innermost slice `what` and those open in it; ignored if it is not open, or more
        than `_MAX_DEPTH` are open in it."""
        if not any(each.what == what for each in islice(reversed(track.open), _MAX_DEPTH)):
            return
        while track.open[-1].what != what:
            self.cut(track, time)
        self.slice(track, track.open.pop(), time)

    def cut(self, track: Track, time: int) -> None:
        """Ends the innermost slice, whose end is missing: a call gets duration 0."""
        ended = track.open.pop()
        self.slice(track, ended, ended.time if ended.what[0] in _CALLS else time)

    def whole(
        self, track: Track, time: int, duration: int, category: str, name: str, args: str = ""
    ) -> None:
        """Draws a complete slice; `time` and `duration` in ns."""
        self.slice(track, Slice((), time, category, name, args, 0), time + duration)

    def close(self) -> None:
        """Ends all open slices."""
        for track in self.tracks.values():
            while track.open:
                self.cut(track, self.last)


class TraceFormat(Tracks):
    """Formats drawn items as lines."""

    def __init__(self, process: Process, strings: Strings) -> None:
        super().__init__(process, strings)
        self._lines: list[str] = []

    def start(self) -> None:
        """Emits the metadata of the program."""
        self.name_process(self.process.pid, self._program, "CPU", self.process.pid)

    def taken(self) -> list[str]:
        """Lines since the last call."""
        taken, self._lines = self._lines, []
        return taken

    def call(self, what: str) -> str:
        return f'"{RUNTIME_CALLS[what]}"'

    def _emit(self, head: str, *rest: str) -> None:
        """Appends an event: its members as JSON text."""
        self._lines.append("{" + ",".join((head, *rest)) + "}")

    def _ts(self, time: int) -> str:
        """Microseconds since the start, as a JSON number that keeps the nanoseconds."""
        since = time - self.process.start_time
        micro, nano = divmod(abs(since), 1000)
        return f'"ts":{"-" if since < 0 else ""}{micro}.{nano:03d}'

    def _describe(self, what: str, place: str, args: str) -> None:
        self._emit(f'"ph":"M","name":"{what}","ts":0', place, f'"args":{{{args}}}')

    def name_process(self, pid: int, name: str, label: str, order: int) -> None:
        place = f'"pid":{pid},"tid":0'
        self._describe("process_name", place, f'"name":{json.dumps(name)}')
        self._describe("process_labels", place, f'"labels":"{label}"')
        self._describe("process_sort_index", place, f'"sort_index":{order}')

    def name_track(self, track: Track) -> None:
        self._describe("thread_name", track.place, f'"name":{json.dumps(track.name)}')
        self._describe("thread_sort_index", track.place, f'"sort_index":{track.tid}')

    def slice(self, track: Track, ended: Slice, time: int) -> None:
        micro, nano = divmod(max(time - ended.time, 0), 1000)
        length = f'"dur":{micro}.{nano:03d},"args":{{{ended.args}}}'
        head = f'"ph":"X","cat":"{ended.category}","name":{ended.name}'
        self._emit(head, track.place, self._ts(ended.time), length)

    def instant(
        self, track: Track, time: int, name: str, args: str = "", scope: str = "t",
        category: str = "cpu_instant_event",
    ) -> None:  # fmt: skip
        head = f'"ph":"i","s":"{scope}","cat":"{category}","name":{name}'
        self._emit(head, track.place, self._ts(time), f'"args":{{{args}}}')

    def arrow(
        self, category: str, id: int, begin: tuple[Track, int], end: tuple[Track, int]
    ) -> None:
        for phase, (track, time) in (("s", begin), ("f", end)):
            head = f'"ph":"{phase}","id":{id}'
            rest = f'"cat":"{category}","name":"{category}"' + (',"bp":"e"' if phase == "f" else "")
            self._emit(head, track.place, self._ts(time), rest)

    def counter(self, name: str, time: int, unit: str, value: float, device: int) -> None:
        head = f'"ph":"C","name":{json.dumps(name)},"pid":{self.process.pid}'
        text = f"{value:g}" if isinstance(value, float) else str(value)
        self._emit(head, self._ts(time), f'"args":{{"{unit}":{text}}}')

    def process_range(self, phase: Literal["b", "e"], id: int, name: str, time: int) -> None:
        head = f'"ph":"{phase}","cat":"range","id":"{id:#x}","name":{name}'
        place = f'"pid":{self.process.pid},"tid":{self.process.pid}'
        self._emit(head, place, self._ts(time))


@cache
def kind_text(kind: int) -> str:
    """JSON text of an event kind's name."""
    from pasta import abi

    names = {number: name for name, number in abi.KINDS.items()}
    return json.dumps(names[kind].replace("_", " "))
