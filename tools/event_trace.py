"""The run as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from pasta.lazy import np
from pasta.processors.demangle import demangle, short_name
from pasta.table import Table, shares
from pasta.tool import HANDLERS, Context, Result, Tool, option

if TYPE_CHECKING:
    from pasta.processors.batch import Batch
    from pasta.processors.objects import ObjectTable

_ABSENT_U16, _ABSENT_U32, _ABSENT_U64 = 0xFFFF, 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF
_TENSORS = ("tensor_alloc", "tensor_free")
#: Launches without a completion yet that are remembered.
_PENDING = 1 << 20
#: Not drawn: they say what other events mean, or belong to tables.
_NOT_DRAWN = frozenset(
    {"python_frame", "pad", "pc_sample", "probe_data", "tensor_create", "allocator_state"}
    | {"graph_node", "graph_instantiate"}
)


class EventTrace(Tool):
    """Every event in order as a Perfetto trace: streams, threads, ranges and live memory."""

    needs_recording = True

    compress = option(True, help="write trace.json.gz instead of trace.json")

    def start(self) -> None:
        self.clocked = False
        self.counts: dict[str, int] = {}
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}

    def on_batch(self, batch: Batch) -> None:
        for kind, records in batch:
            if len(records):
                first, last = int(records["time"].min()), int(records["time"].max())
                self.counts[kind] = self.counts.get(kind, 0) + len(records)
                self.first[kind] = min(first, self.first.get(kind, first))
                self.last[kind] = max(last, self.last.get(kind, last))
        self.clocked |= len(batch["kernel_complete"]) > 0

    def result(self) -> Result:
        total = sum(self.counts.values())
        kinds = sorted(self.counts, key=lambda kind: (-self.counts[kind], kind))
        counts = np.asarray([self.counts[kind] for kind in kinds], np.int64)
        start = self.context.run.start_time
        name = "trace.json.gz" if self.compress else "trace.json"
        table = Table(
            {
                "event": kinds,
                "events": counts,
                "share": shares(counts, total),
                "first": np.asarray([self.first[kind] - start for kind in kinds], np.int64),
                "last": np.asarray([self.last[kind] - start for kind in kinds], np.int64),
            },
            units={"share": "share", "first": "ns", "last": "ns"},
            labels={"share": "of events"},
            title="Events",
            shown=50,
        )
        return Result(
            summary=f"{total:,} events; open {name} at ui.perfetto.dev",
            tables={"events": table},
            files={name: self.write},
        )

    def write(self, file: BinaryIO) -> None:
        """Writes the trace, in memory that does not grow with the number of events."""
        if not self.compress:
            self._write(file)
            return
        with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1, mtime=0) as compressed:
            self._write(compressed)  # type: ignore[arg-type]

    def _write(self, file: BinaryIO) -> None:
        trace = _Trace(self.context, self.clocked)
        file.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
        separator = b""
        for lines in trace.lines():
            if lines:
                file.write(separator + ",\n".join(lines).encode("utf-8"))
                separator = b",\n"
        file.write(b"\n]}\n")


@dataclass
class _Track:
    """One row of the trace. `open` are its begun slices; `busy_until` ends its last whole one."""

    pid: int
    tid: int
    open: list[object] = field(default_factory=list)
    busy_until: int = -1

    def __post_init__(self) -> None:
        self.place = f'"pid":{self.pid},"tid":{self.tid}'


class _Trace:
    """Turns batches into lines, each one event of the Trace Event Format."""

    def __init__(self, context: Context, clocked: bool) -> None:
        self.context = context
        self.run = context.run
        self.clocked = clocked
        self.out: list[str] = []
        self.last = 0
        self.tracks: dict[tuple[object, ...], _Track] = {}
        self.open_ranges: dict[int, str] = {}
        self.pending: dict[int, tuple[str, str, int, int]] = {}
        self.objects: ObjectTable | None = None
        self.live: dict[str, int] = {}
        self.full_names: dict[int, str] = {}
        self.texts: dict[tuple[bool, int], str] = {}

    def lines(self) -> Iterator[list[str]]:
        """Lines of each batch, and those that end what is open."""
        self.emit(
            f'"ph":"M","name":"process_name","pid":{self.run.pid}', self._named(self._program)
        )
        for batch in self.context.recorded():
            self._batch(batch)
            yield self._taken()
        self._close_all()
        yield self._taken()

    @property
    def _program(self) -> str:
        return self.run.program or "program"

    def _taken(self) -> list[str]:
        taken, self.out = self.out, []
        return taken

    def _batch(self, batch: Batch) -> None:
        calls: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = []
        for kind, records in batch:
            if kind in _NOT_DRAWN or not len(records):
                continue
            draw, fields = _DRAWN.get(kind, (_Trace.other, ("kind",)))
            common = ("time", "thread", "device", "stream")
            columns = [records[name].tolist() for name in (*common, *fields)]
            indices = records["index"].tolist()
            calls += [
                (index, draw, row)
                for index, row in zip(indices, zip(*columns, strict=True), strict=True)
            ]
        calls += self._levels(batch)
        calls.sort(key=lambda call: call[0])
        for _, draw, row in calls:
            self.last = max(self.last, row[0])
            draw(self, *row)

    def _levels(self, batch: Batch) -> Iterator[tuple[int, Callable[..., None], Any]]:
        """Changes of live bytes, as the object table has them: exact also after missed frees."""
        from pasta import abi

        if not any(kind in batch.records for kind in HANDLERS["on_memory"] + _TENSORS):
            return
        if self.objects is None:
            from pasta.processors.objects import ObjectTable

            self.objects = ObjectTable()
        self.objects.feed(batch)
        changes = self.objects.changes
        rows = self.objects.rows[changes["object"]]
        sizes = np.where(rows["bytes"] == _ABSENT_U64, 0, rows["bytes"]).astype(np.int64)
        internal = (rows["flags"] & abi.FLAG_INTERNAL) != 0
        for index, time, size, layer, device, memory, own in zip(
            changes["index"].tolist(),
            changes["time"].tolist(),
            (sizes * changes["sign"]).tolist(),
            rows["layer"].tolist(),
            rows["device"].tolist(),
            rows["memory"].tolist(),
            internal.tolist(),
            strict=True,
        ):
            what = abi.ENUMS["memory"].get(memory, "unknown") + (" tensors" if layer == 1 else "")
            where = f"device {device}" if device >= 0 else "host"
            name = f"{where}: {what}" + (" (runtime's own)" if own else "")
            yield index, _Trace.level, (time, name, size)

    # ---- what an event of the format is ----

    def emit(self, head: str, *rest: str) -> None:
        self.out.append("{" + ",".join((head, *rest)) + "}")

    def ts(self, time: int) -> str:
        """Microseconds since the start, as a JSON number that keeps the nanoseconds."""
        since = time - self.run.start_time
        micro, nano = divmod(abs(since), 1000)
        return f'"ts":{"-" if since < 0 else ""}{micro}.{nano:03d}'

    def text(self, id: int, kernel: bool = False) -> str:
        """JSON text of a string id; a kernel's is its short name."""
        key = (kernel, id)
        if key not in self.texts:
            text = self.context.strings[id]
            self.texts[key] = json.dumps(short_name(text) if kernel else text)
        return self.texts[key]

    def full_name(self, id: int) -> str:
        """JSON text of a kernel's whole name."""
        if id not in self.full_names:
            self.full_names[id] = json.dumps(demangle(self.context.strings[id]))
        return self.full_names[id]

    @staticmethod
    def _named(name: str) -> str:
        return f'"args":{{"name":{json.dumps(name)}}}'

    def _track(self, key: tuple[object, ...], pid: int, tid: int, name: str) -> _Track:
        track = self.tracks[key] = _Track(pid, tid)
        self.emit('"ph":"M","name":"thread_name"', track.place, self._named(name))
        return track

    def thread(self, thread: int, domain: int = 0) -> _Track:
        """Track of a thread; ranges of a named domain nest on their own, so they have their own."""
        key = ("thread", thread, domain)
        if key in self.tracks:
            return self.tracks[key]
        if not domain:
            return self._track(key, self.run.pid, thread, f"thread {thread}")
        name = f"thread {thread}: {self.context.strings[domain]}"
        return self._track(key, self.run.pid, (1 << 30) + len(self.tracks), name)

    def stream(self, device: int, stream: int, lane: int = 0) -> _Track:
        """Track of a stream; what overlaps on a stream goes to further lanes of it."""
        key = ("stream", device, stream, lane)
        if key in self.tracks:
            return self.tracks[key]
        pid = self._device(device)
        name = f"stream {stream:#x}" if stream else "default stream"
        if stream == _ABSENT_U64:
            name = "unknown stream"
        tid = 1 + len(self.tracks)
        return self._track(key, pid, tid, name + (f" (overlapping, {lane})" if lane else ""))

    def _device(self, device: int) -> int:
        """Process number of a device's tracks: above those of real processes."""
        pid = (1 << 30) + self.run.pid * 64 + device + 1
        key = ("device", device)
        if key not in self.tracks:
            self.tracks[key] = _Track(pid, 0)
            name = f"device {device}" if device >= 0 else "unknown device"
            full = f"{name} of {self._program} ({self.run.pid})"
            self.emit(f'"ph":"M","name":"process_name","pid":{pid}', self._named(full))
        return pid

    def begin(self, track: _Track, what: object, time: int, name: str, args: str = "") -> None:
        track.open.append(what)
        rest = [f'"args":{{{args}}}'] if args else []
        self.emit(f'"ph":"B","name":{name}', track.place, self.ts(time), *rest)

    def end(self, track: _Track, what: object, time: int) -> None:
        """Ends the innermost such slice and those open in it, if it ever began."""
        if what not in track.open:
            return
        while True:
            ended = track.open.pop()
            self.emit('"ph":"E"', track.place, self.ts(time))
            if ended == what:
                return

    def instant(
        self, track: _Track, time: int, name: str, args: str = "", scope: str = "t"
    ) -> None:
        rest = [f'"args":{{{args}}}'] if args else []
        self.emit(f'"ph":"i","s":"{scope}","name":{name}', track.place, self.ts(time), *rest)

    def whole(self, track: _Track, time: int, duration: int, name: str, args: str = "") -> None:
        micro, nano = divmod(duration, 1000)
        rest = [f'"args":{{{args}}}'] if args else []
        length = f'"dur":{micro}.{nano:03d}'
        self.emit(f'"ph":"X","name":{name}', track.place, self.ts(time), length, *rest)

    def _close_all(self) -> None:
        for track in self.tracks.values():
            while track.open:
                track.open.pop()
                self.emit('"ph":"E"', track.place, self.ts(self.last))
        for id, name in self.open_ranges.items():
            self._process_range("e", id, name, self.last)

    # ---- what each kind of event becomes: time, thread, device, stream, then its fields ----

    def launch(
        self, time: int, thread: int, device: int, stream: int, name: int, ordinal: int,
        grid: list[int], block: list[int], registers: int, shared: int,
    ) -> None:  # fmt: skip
        label = self.text(name, kernel=True)
        args = [
            f'"kernel":{self.full_name(name)}',
            f'"launch":{ordinal},"grid":{grid},"block":{block}',
        ]
        if registers != _ABSENT_U16:
            args.append(f'"registers":{registers}')
        if shared != _ABSENT_U32:
            args.append(f'"dynamic shared bytes":{shared}')
        detail = ",".join(args)
        track = self.thread(thread)
        self.begin(
            track, ("launch", ordinal), time, '"launch"', f'"kernel":{label},"launch":{ordinal}'
        )
        if not self.clocked:
            self.instant(self.stream(device, stream), time, label, detail)
            return
        self.emit(self._flow("s", ordinal), track.place, self.ts(time))
        self.pending[ordinal] = (label, detail, device, stream)
        if len(self.pending) > _PENDING:
            del self.pending[next(iter(self.pending))]

    def _flow(self, phase: str, ordinal: int) -> str:
        number = (self.run.pid << 40) + ordinal  # no other process's in a merged trace
        return f'"ph":"{phase}","cat":"launch","name":"launch","id":"{number:#x}"'

    def launch_end(self, time: int, thread: int, device: int, stream: int, ordinal: int) -> None:
        self.end(self.thread(thread), ("launch", ordinal), time)

    def complete(
        self, time: int, thread: int, device: int, stream: int, ordinal: int, start: int, end: int
    ) -> None:
        if end < start or end == _ABSENT_U64:
            return
        launched = self.pending.pop(ordinal, None)
        label, detail, launch_device, launch_stream = launched or (
            '"kernel"', f'"launch":{ordinal}', device, stream,
        )  # fmt: skip
        device = device if device >= 0 else launch_device
        stream = stream if stream != _ABSENT_U64 else launch_stream
        lane = 0
        while self.stream(device, stream, lane).busy_until > start:
            lane += 1
        track = self.stream(device, stream, lane)
        track.busy_until = end
        self.last = max(self.last, end)
        self.whole(track, start, end - start, label, detail)
        if launched:
            self.emit(self._flow("f", ordinal) + ',"bp":"e"', track.place, self.ts(start))

    def graph_launch(
        self, time: int, thread: int, device: int, stream: int, correlation: int, upload: int
    ) -> None:
        name = '"graph upload"' if upload == 1 else '"graph launch"'
        self.begin(self.thread(thread), ("graph", correlation), time, name)

    def graph_launch_end(
        self, time: int, thread: int, device: int, stream: int, correlation: int
    ) -> None:
        self.end(self.thread(thread), ("graph", correlation), time)

    def push(
        self, time: int, thread: int, device: int, stream: int, name: int, domain: int
    ) -> None:
        self.begin(self.thread(thread, domain), "range", time, self.text(name))

    def pop(self, time: int, thread: int, device: int, stream: int, domain: int) -> None:
        self.end(self.thread(thread, domain), "range", time)

    def range_start(
        self, time: int, thread: int, device: int, stream: int, name: int, id: int
    ) -> None:
        if id in self.open_ranges:
            self._process_range("e", id, self.open_ranges[id], time)
        self.open_ranges[id] = self.text(name)
        self._process_range("b", id, self.open_ranges[id], time)

    def range_end(self, time: int, thread: int, device: int, stream: int, id: int) -> None:
        name = self.open_ranges.pop(id, None)
        if name is not None:
            self._process_range("e", id, name, time)

    def _process_range(self, phase: str, id: int, name: str, time: int) -> None:
        head = f'"ph":"{phase}","cat":"range","id":"{id:#x}","name":{name}'
        self.emit(head, f'"pid":{self.run.pid},"tid":{self.run.pid}', self.ts(time))

    def mark(self, time: int, thread: int, device: int, stream: int, name: int) -> None:
        self.instant(self.thread(thread), time, self.text(name))

    def operator_begin(
        self, time: int, thread: int, device: int, stream: int, name: int, module: int
    ) -> None:
        args = f'"module":{self.text(module)}' if module else ""
        self.begin(self.thread(thread), ("operator", name), time, self.text(name), args)

    def operator_end(self, time: int, thread: int, device: int, stream: int) -> None:
        track = self.thread(thread)
        opened = [what for what in track.open if isinstance(what, tuple) and what[0] == "operator"]
        if opened:
            self.end(track, opened[-1], time)

    def copy(
        self, time: int, thread: int, device: int, stream: int,
        direction: int, source: int, destination: int, bytes: int,
    ) -> None:  # fmt: skip
        from pasta import abi

        name = abi.ENUMS["copy"].get(direction, "unknown direction").replace("_", " ")
        args = f'"source":"{source:#x}","destination":"{destination:#x}"'
        if bytes != _ABSENT_U64:
            args = f'"bytes":{bytes},' + args
        self.instant(self.stream(device, stream), time, json.dumps(f"copy {name}"), args)

    def set(
        self, time: int, thread: int, device: int, stream: int, address: int, bytes: int, value: int
    ) -> None:
        args = f'"address":"{address:#x}","bytes":{bytes},"value":{value}'
        self.instant(self.stream(device, stream), time, '"memory set"', args)

    def sync(
        self, time: int, thread: int, device: int, stream: int, what: int, duration: int
    ) -> None:
        from pasta import abi

        name = json.dumps(f"wait for {abi.ENUMS['sync'].get(what, 'device')}")
        if duration == _ABSENT_U64:
            self.instant(self.thread(thread), time, name)
        else:
            self.whole(self.thread(thread), time - duration, duration, name)

    def event(
        self, time: int, thread: int, device: int, stream: int, kind: int, handle: int
    ) -> None:
        track = self.stream(device, stream)
        self.instant(track, time, self._kind(kind), f'"event":"{handle:#x}"')

    def process_wide(self, time: int, thread: int, device: int, stream: int, kind: int) -> None:
        self.instant(self.thread(thread), time, self._kind(kind), scope="p")

    def dropped(self, time: int, thread: int, device: int, stream: int, count: int) -> None:
        self.instant(self.thread(thread), time, '"events dropped"', f'"count":{count}', scope="g")

    def other(self, time: int, thread: int, device: int, stream: int, kind: int) -> None:
        self.instant(self.thread(thread), time, self._kind(kind))

    def memory(self, *event: object) -> None:
        """Drawn by the change of a level."""

    def level(self, time: int, name: str, change: int) -> None:
        self.live[name] = self.live.get(name, 0) + change
        head = f'"ph":"C","name":{json.dumps(name)},"pid":{self.run.pid}'
        self.emit(head, self.ts(time), f'"args":{{"bytes":{self.live[name]}}}')

    @staticmethod
    def _kind(kind: int) -> str:
        from pasta import abi

        names = {number: name for name, number in abi.KINDS.items()}
        return json.dumps(names[kind].replace("_", " "))


#: What draws a kind, and the fields it gets after time, thread, device and stream.
_DRAWN: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    "kernel_launch": (
        _Trace.launch,
        ("name", "ordinal", "grid", "block", "registers", "shared_dynamic"),
    ),
    "kernel_launch_end": (_Trace.launch_end, ("ordinal",)),
    "kernel_complete": (_Trace.complete, ("ordinal", "start", "end")),
    "graph_launch": (_Trace.graph_launch, ("correlation", "upload")),
    "graph_launch_end": (_Trace.graph_launch_end, ("correlation",)),
    "range_push": (_Trace.push, ("name", "domain")),
    "range_pop": (_Trace.pop, ("domain",)),
    "range_start": (_Trace.range_start, ("name", "id")),
    "range_end": (_Trace.range_end, ("id",)),
    "mark": (_Trace.mark, ("name",)),
    "operator_begin": (_Trace.operator_begin, ("name", "module")),
    "operator_end": (_Trace.operator_end, ()),
    "memory_copy": (_Trace.copy, ("direction", "source", "destination", "bytes")),
    "memory_set": (_Trace.set, ("address", "bytes", "value")),
    "memory_alloc": (_Trace.memory, ()),
    "memory_free": (_Trace.memory, ()),
    "tensor_alloc": (_Trace.memory, ()),
    "tensor_free": (_Trace.memory, ()),
    "sync": (_Trace.sync, ("what", "duration")),
    "event_record": (_Trace.event, ("kind", "handle")),
    "event_wait": (_Trace.event, ("kind", "handle")),
    "process_start": (_Trace.process_wide, ("kind",)),
    "process_end": (_Trace.process_wide, ("kind",)),
    "profiling_start": (_Trace.process_wide, ("kind",)),
    "profiling_stop": (_Trace.process_wide, ("kind",)),
    "dropped": (_Trace.dropped, ("count",)),
}
