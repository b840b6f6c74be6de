"""The run as a trace in the format of torch.profiler: for Perfetto (ui.perfetto.dev),
chrome://tracing, TensorBoard's PyTorch plug-in and HolisticTraceAnalysis."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from pasta.lazy import np
from pasta.processors.demangle import demangle, short_name
from pasta.processors.stacks import Stacks
from pasta.run.naming import rank_of
from pasta.table import Table, counted, shares
from pasta.tool import HANDLERS, Context, Result, Tool, option

if TYPE_CHECKING:
    from pasta.processors.batch import Batch
    from pasta.processors.objects import ObjectTable

_ABSENT_U8, _ABSENT_U16, _ABSENT_U32, _ABSENT_U64 = 0xFF, 0xFFFF, 0xFFFF_FFFF, (1 << 64) - 1
_TENSORS = ("tensor_alloc", "tensor_free")
#: Launches without a completion yet that are remembered.
_PENDING = 1 << 20
#: Scope number of gradients' operators, and role of what operators take.
_BACKWARD, _INPUT = 1, 1
_GRAPH = 1  # PASTA_FLAG_GRAPH
_EVALUATE = '"name":"autograd::engine::evaluate_function: '
_NUMBERS = re.compile(r"[-0-9,]*")
#: Forward operators that are remembered for their gradients.
_LINKS = 1 << 17
#: Slices of calls, which take no others of their sort.
_CALLS = ("launch", "graph")
#: Frames of a Python stack that are written.
_FRAMES = 8
#: Not drawn: they say what other events mean, or belong to tables.
_NOT_DRAWN = frozenset(
    {
        "python_frame", "python_sample", "pad", "pc_sample", "counter", "probe_data", "graph_node",
        "graph_instantiate",
    }
)  # fmt: skip
#: Where devices come in the order of processes: below those of the host, as torch has it.
_DEVICES_FROM = 5_000_000
#: Types of elements as torch's profiler calls them.
_TYPES = {
    "Byte": "unsigned char", "Char": "signed char", "Short": "short int", "Int": "int",
    "Long": "long int", "Half": "c10::Half", "Float": "float", "Double": "double",
    "ComplexHalf": "c10::complex<c10::Half>", "ComplexFloat": "c10::complex<float>",
    "ComplexDouble": "c10::complex<double>", "Bool": "bool", "BFloat16": "c10::BFloat16",
}  # fmt: skip
_COPIES = {
    "host_to_host": "HtoH", "host_to_device": "HtoD", "device_to_host": "DtoH",
    "device_to_device": "DtoD", "peer_to_peer": "PtoP",
}  # fmt: skip
_SYNCS = {
    "stream": "cudaStreamSynchronize", "context": "cuCtxSynchronize",
    "device": "cudaDeviceSynchronize", "event": "cudaEventSynchronize",
}  # fmt: skip


class EventTrace(Tool):
    """Every event in order as a trace for Perfetto and tools of torch.profiler's traces."""

    needs_recording = True
    uses = (
        "kernel_complete", "registers", "shared_static", "shared_dynamic", "copy_addresses",
        "wait_times",
    )  # fmt: skip

    compress = option(True, help="write trace.json.gz instead of trace.json")
    operators = option(True, help="follow PyTorch: operators and the tensors they take")

    @property
    def asks_for_tensors(self) -> bool:
        return self.operators

    def start(self) -> None:
        self.clocked = False
        self.rank: int | None = None
        self.devices: dict[int, str] = {}
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
        for started in batch["process_start"]:
            told = self.context.strings[int(started["environment"])].split("\x1f")
            self.rank = rank_of(dict(each.split("=", 1) for each in told if "=" in each))
        contexts = batch["context_create"]
        for device, name in zip(
            contexts["device"].tolist(), contexts["name"].tolist(), strict=True
        ):
            if device >= 0:
                self.devices[device] = self.context.strings[name]

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
            sums=("events",),
            title="Events",
            shown=50,
        )
        return Result(
            summary=f"{counted(total, 'event')}; open {name} at ui.perfetto.dev",
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
        file.write(b"{" + self._head().encode() + b',\n"traceEvents":[\n')
        separator = b""
        for lines in trace.lines():
            if lines:
                file.write(separator + ",\n".join(lines).encode("utf-8"))
                separator = b",\n"
        file.write(b"\n]}\n")

    def _head(self) -> str:
        """Fields of the document before its events, without the braces."""
        names = [
            self.devices.get(number, "") for number in range(max(self.devices, default=-1) + 1)
        ]
        head: dict[str, object] = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": id, "name": name} for id, name in enumerate(names)],
            "record_shapes": int(self.operators),
            "profile_memory": 1,
            "with_stack": int(self.operators),
            "with_modules": int(self.operators),
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": self.context.run.start_realtime,
        }
        if self.rank is not None:
            head["distributedInfo"] = {"rank": self.rank}
        return json.dumps(head)[1:-1]


@dataclass(slots=True)
class _Slice:
    """A slice that has begun. `number` is that of an operator, which launches in it refer to."""

    what: tuple[Any, ...]  # its sort, and what tells it from others of that
    time: int
    head: str
    args: str
    number: int


@dataclass
class _Track:
    """One row of the trace. `open` are its begun slices; `busy_until` ends its last whole one.

    `inputs`: tensors that the thread's next operator takes beyond those in its own record.
    """

    pid: int
    tid: int
    open: list[_Slice] = field(default_factory=list)
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
        """Argument that refers to it, or nothing."""
        return f'"External id":{self.operator}' if self.operator else ""


@dataclass(slots=True)
class _Launch:
    """What a kernel that is yet to complete will be drawn with."""

    label: str
    detail: str
    device: int
    stream: int
    called: tuple[_Track, int] | None  # where and when


@dataclass(slots=True)
class _Forward:
    """An operator that may have a gradient."""

    track: _Track
    time: int
    module: int


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
        self.pending: dict[int, _Launch] = {}
        self.objects: ObjectTable | None = None
        self.live: dict[str, int] = {}
        self.allocators: dict[int, tuple[int, int | None]] = {}  # by device: handed out, held
        self.full_names: dict[int, str] = {}
        self.texts: dict[tuple[bool, int], str] = {}
        self.numbers = 0  # operators and annotations begun
        self.flows = 0  # from forward operators to gradients
        self.forward: dict[tuple[int, int], _Forward] = {}
        self.stacks = Stacks()
        self.calls: dict[int, str] = {}  # arguments that name a stack's frames
        self.tensors: dict[int, tuple[int, int, int]] = {}  # shape, strides, dtype
        self.forms: dict[int, tuple[str, str]] = {}  # JSON of shapes and types by string id

    def lines(self) -> Iterator[list[str]]:
        """Lines of each batch, and those that end what is open."""
        self._process(self.run.pid, self._program, "CPU", self.run.pid)
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
        self.stacks.feed(batch)
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
        tensors = batch.merged(*_TENSORS)
        threads = dict(zip(tensors["index"].tolist(), tensors["thread"].tolist(), strict=True))
        for index, time, size, layer, address, device, memory, own in zip(
            changes["index"].tolist(),
            changes["time"].tolist(),
            (sizes * changes["sign"]).tolist(),
            rows["layer"].tolist(),
            rows["address"].tolist(),
            rows["device"].tolist(),
            rows["memory"].tolist(),
            internal.tolist(),
            strict=True,
        ):
            what = abi.ENUMS["memory"].get(memory, "unknown") + (" tensors" if layer == 1 else "")
            where = f"device {device}" if device >= 0 else "host"
            name = f"{where}: {what}" + (" (runtime's own)" if own else "")
            yield index, _Trace.level, (time, name, size)
            if index in threads:
                row = (time, name, size, address, device, threads[index])
                yield index, _Trace.allocation, row

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

    def _told(self, what: str, place: str, args: str) -> None:
        self.emit(f'"ph":"M","name":"{what}","ts":0', place, f'"args":{{{args}}}')

    def _process(self, pid: int, name: str, label: str, order: int) -> None:
        place = f'"pid":{pid},"tid":0'
        self._told("process_name", place, f'"name":{json.dumps(name)}')
        self._told("process_labels", place, f'"labels":"{label}"')
        self._told("process_sort_index", place, f'"sort_index":{order}')

    def _track(self, key: tuple[object, ...], pid: int, tid: int, name: str) -> _Track:
        track = self.tracks[key] = _Track(pid, tid)
        self._told("thread_name", track.place, f'"name":{json.dumps(name)}')
        self._told("thread_sort_index", track.place, f'"sort_index":{tid}')
        return track

    def thread(self, thread: int, domain: int = 0) -> _Track:
        """Track of a thread; ranges of a named domain nest on their own, so they have their own."""
        key = ("thread", thread, domain)
        if key in self.tracks:
            return self.tracks[key]
        if not domain:
            return self._track(key, self.run.pid, thread, f"thread {thread}")
        if self.context.strings[domain] == "torch":  # record_function: nests with operators
            return self.tracks.setdefault(key, self.thread(thread))
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
        """Process number of a device's tracks: the device's own, as tools want it, if free."""
        pid = device if device >= 0 and device != self.run.pid else (1 << 30) + device + 1
        key = ("device", device)
        if key not in self.tracks:
            self.tracks[key] = _Track(pid, 0)
            name = f"device {device}" if device >= 0 else "unknown device"
            full = f"{name} of {self._program} ({self.run.pid})"
            label = f"GPU {device}" if device >= 0 else "GPU"
            self._process(pid, full, label, _DEVICES_FROM + device)
        return pid

    def begin(
        self, track: _Track, what: tuple[Any, ...], time: int, category: str, name: str,
        args: str = "", number: int = 0,
    ) -> None:  # fmt: skip
        head = f'"ph":"X","cat":"{category}","name":{name}'
        track.open.append(_Slice(what, time, head, args, number))

    def end(self, track: _Track, what: tuple[Any, ...], time: int) -> None:
        """Ends the innermost such slice and those open in it, if it ever began."""
        if not any(each.what == what for each in track.open):
            return
        while track.open[-1].what != what:
            self._cut(track, time)
        self._ended(track, track.open.pop(), time)

    def _cut(self, track: _Track, time: int) -> None:
        """Ends the innermost slice, whose own end was not told: a call's duration is not known."""
        ended = track.open.pop()
        self._ended(track, ended, ended.time if ended.what[0] in _CALLS else time)

    def _ended(self, track: _Track, ended: _Slice, time: int) -> None:
        micro, nano = divmod(max(time - ended.time, 0), 1000)
        length = f'"dur":{micro}.{nano:03d},"args":{{{ended.args}}}'
        self.emit(ended.head, track.place, self.ts(ended.time), length)

    def instant(
        self, track: _Track, time: int, name: str, args: str = "", scope: str = "t",
        category: str = "cpu_instant_event",
    ) -> None:  # fmt: skip
        head = f'"ph":"i","s":"{scope}","cat":"{category}","name":{name}'
        self.emit(head, track.place, self.ts(time), f'"args":{{{args}}}')

    def whole(
        self, track: _Track, time: int, duration: int, category: str, name: str, args: str = ""
    ) -> None:
        ended = _Slice((), time, f'"ph":"X","cat":"{category}","name":{name}', args, 0)
        self._ended(track, ended, time + duration)

    def arrow(
        self, category: str, id: int, begin: tuple[_Track, int], end: tuple[_Track, int]
    ) -> None:
        """A flow from the slice around a place and time to another."""
        for phase, (track, time) in (("s", begin), ("f", end)):
            head = f'"ph":"{phase}","id":{id}'
            rest = f'"cat":"{category}","name":"{category}"' + (',"bp":"e"' if phase == "f" else "")
            self.emit(head, track.place, self.ts(time), rest)

    def _close_all(self) -> None:
        for track in self.tracks.values():
            while track.open:
                self._cut(track, self.last)
        for id, name in self.open_ranges.items():
            self._process_range("e", id, name, self.last)

    # ---- what each kind of event becomes: time, thread, device, stream, then its fields ----

    def launch(
        self, time: int, thread: int, device: int, stream: int, name: int, ordinal: int,
        flags: int, grid: list[int], block: list[int], registers: int, static: int, shared: int,
    ) -> None:  # fmt: skip
        label = self.text(name, kernel=True)
        track, on = self.thread(thread), self.stream(device, stream)
        while track.open and track.open[-1].what[0] == "launch":
            self._cut(track, time)
        in_graph = flags & _GRAPH  # then the graph's launch is the call
        link = self._correlated(ordinal, track.operator)
        args = [
            f'"kernel":{self.full_name(name)},{link}',
            f'"launch":{ordinal},"device":{device},"stream":{on.tid},"grid":{grid},"block":{block}',
        ]
        if registers != _ABSENT_U16:
            args.append(f'"registers per thread":{registers}')
        if static != _ABSENT_U32:
            args.append(f'"static shared memory":{static}')
        if shared != _ABSENT_U32:
            args.append(f'"dynamic shared memory":{shared}')
        if _ABSENT_U32 not in (static, shared):
            args.append(f'"shared memory":{static + shared}')
        detail = ",".join(args)
        call = f'{link},"kernel":{label},"launch":{ordinal}'
        if not in_graph:
            self.begin(track, ("launch", ordinal), time, "cuda_runtime", '"cudaLaunchKernel"', call)
        if not self.clocked:
            self.instant(on, time, label, detail, category="kernel")
            return
        called = None if in_graph else (track, time)
        self.pending[ordinal] = _Launch(label, detail, device, stream, called)
        if len(self.pending) > _PENDING:
            del self.pending[next(iter(self.pending))]

    @staticmethod
    def _correlated(ordinal: int, operator: int) -> str:
        """Arguments that link a kernel, its launch and the operator; 0 is no correlation."""
        external = f'"External id":{operator},' if operator else ""
        return f'{external}"correlation":{ordinal + 1}'

    def launch_end(self, time: int, thread: int, device: int, stream: int, ordinal: int) -> None:
        self.end(self.thread(thread), ("launch", ordinal), time)

    def complete(
        self, time: int, thread: int, device: int, stream: int, ordinal: int, start: int, end: int
    ) -> None:
        if end < start or end == _ABSENT_U64:
            return
        launched = self.pending.pop(ordinal, None)
        label, detail = '"kernel"', f'{self._correlated(ordinal, 0)},"launch":{ordinal}'
        if launched:
            label, detail = launched.label, launched.detail
            device = device if device >= 0 else launched.device
            stream = stream if stream != _ABSENT_U64 else launched.stream
        lane = 0
        while self.stream(device, stream, lane).busy_until > start:
            lane += 1
        track = self.stream(device, stream, lane)
        track.busy_until = end
        self.last = max(self.last, end)
        self.whole(track, start, end - start, "kernel", label, detail)
        if launched and launched.called:
            self.arrow("ac2g", ordinal + 1, launched.called, (track, start))

    def graph_launch(
        self, time: int, thread: int, device: int, stream: int, correlation: int, upload: int
    ) -> None:
        name = '"cudaGraphUpload"' if upload == 1 else '"cudaGraphLaunch"'
        track = self.thread(thread)
        self.begin(track, ("graph", correlation), time, "cuda_runtime", name, track.external)

    def graph_launch_end(
        self, time: int, thread: int, device: int, stream: int, correlation: int
    ) -> None:
        self.end(self.thread(thread), ("graph", correlation), time)

    def push(
        self, time: int, thread: int, device: int, stream: int, name: int, domain: int
    ) -> None:
        self.numbers += 1
        track, args = self.thread(thread, domain), f'"External id":{self.numbers}'
        self.begin(track, ("range", domain), time, "user_annotation", self.text(name), args)

    def pop(self, time: int, thread: int, device: int, stream: int, domain: int) -> None:
        self.end(self.thread(thread, domain), ("range", domain), time)

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

    # ---- operators ----

    def operator_begin(
        self, time: int, thread: int, device: int, stream: int, name: int, module: int, stack: int,
        sequence: int, forward_thread: int, framework_thread: int, depth: int, scope: int,
        inputs: int, tensor: list[int],
    ) -> None:  # fmt: skip
        track = self.thread(thread)
        lost = (each for each in track.open if each.what[0] == "operator" and each.what[1] >= depth)
        for each in lost:
            self.end(track, each.what, time)
            break
        self.numbers += 1
        args = [f'"External id":{self.numbers}']
        gradient = forward_thread != _ABSENT_U16
        linked = None
        if sequence != _ABSENT_U32:
            fwd = forward_thread if gradient else 0
            args.append(f'"Sequence number":{sequence},"Fwd thread id":{fwd}')
            if gradient:
                linked = self.forward.get((forward_thread, sequence))
                around = track.open[-1] if track.open else None
                if around and _EVALUATE in around.head and "Sequence" not in around.args:
                    around.args += f",{args[-1]}"  # torch tells it of this one only, too
            else:
                key = (framework_thread, sequence)
                self.forward.pop(key, None)  # the innermost of a number counts, and is the newest
                self.forward[key] = _Forward(track, time, module)
                if len(self.forward) > _LINKS:
                    del self.forward[next(iter(self.forward))]
        if linked:
            module = module or linked.module
            if scope == _BACKWARD:
                self.flows += 1
                self.arrow("fwdbwd", self.flows, (linked.track, linked.time), (track, time))
        if module:
            args.append(f'"Module Hierarchy":{self.text(module)}')
        if stack not in (0, _ABSENT_U32):
            args.append(self._call_stack(stack))
        taken = tensor[:inputs] + track.inputs if inputs != _ABSENT_U8 else []
        track.inputs = []
        if taken:
            args.append(self._tensors(taken))
        told = ",".join(args)
        what = ("operator", depth)
        self.begin(track, what, time, "cpu_op", self.text(name), told, self.numbers)

    def operator_end(self, time: int, thread: int, device: int, stream: int, depth: int) -> None:
        self.end(self.thread(thread), ("operator", depth), time)

    def operator_tensors(
        self, time: int, thread: int, device: int, stream: int, role: int, count: int,
        tensor: list[int],
    ) -> None:  # fmt: skip
        if role == _INPUT:
            self.thread(thread).inputs += tensor[:count]

    def tensor(
        self, time: int, thread: int, device: int, stream: int, id: int, shape: int, strides: int,
        dtype: int,
    ) -> None:  # fmt: skip
        if id != _ABSENT_U32:
            self.tensors[id] = (shape, strides, dtype)

    def _call_stack(self, stack: int) -> str:
        if stack not in self.calls:
            frames = self.stacks.own(stack, self.context.strings)[:_FRAMES]
            lines = ";".join(f"{each.file}({each.line}): {each.function}" for each in frames)
            self.calls[stack] = f'"Call stack":{json.dumps(lines)}'
        return self.calls[stack]

    def _tensors(self, ids: list[int]) -> str:
        """Arguments that say what an operator takes."""
        known = [self.tensors[id] for id in ids if id in self.tensors]
        types, strides, shapes = (
            ",".join(self._form(told[at])[kind] for told in known)
            for at, kind in ((2, 1), (1, 0), (0, 0))
        )
        return f'"Input type":[{types}],"Input Strides":[{strides}],"Input Dims":[{shapes}]'

    def _form(self, id: int) -> tuple[str, str]:
        """A string as JSON: a shape's or strides' numbers, and the name of a type."""
        if id not in self.forms:
            text = self.context.strings[id]
            numbers = text if _NUMBERS.fullmatch(text) else ""
            self.forms[id] = f"[{numbers}]", json.dumps(_TYPES.get(text, text))
        return self.forms[id]

    # ---- work on a stream, and waits ----

    def copy(
        self, time: int, thread: int, device: int, stream: int,
        direction: int, source: int, destination: int, bytes: int,
    ) -> None:  # fmt: skip
        from pasta import abi

        name = abi.ENUMS["copy"].get(direction, "")
        on = self.stream(device, stream)
        args = [f'"device":{device},"stream":{on.tid}', *self._by_operator(thread)]
        args.append(f'"source":"{source:#x}","destination":"{destination:#x}"')
        if bytes != _ABSENT_U64:
            args.append(f'"bytes":{bytes}')
        label = json.dumps(f"Memcpy {_COPIES.get(name, 'unknown')}")
        self.instant(on, time, label, ",".join(args), category="gpu_memcpy")

    def set(
        self, time: int, thread: int, device: int, stream: int, address: int, bytes: int, value: int
    ) -> None:
        on = self.stream(device, stream)
        args = [f'"device":{device},"stream":{on.tid}', *self._by_operator(thread)]
        args.append(f'"address":"{address:#x}","bytes":{bytes},"value":{value}')
        self.instant(on, time, '"Memset"', ",".join(args), category="gpu_memset")

    def _by_operator(self, thread: int) -> list[str]:
        track = self.tracks.get(("thread", thread, 0))  # none is made for this alone
        return [track.external] if track and track.operator else []

    def sync(
        self, time: int, thread: int, device: int, stream: int, what: int, duration: int
    ) -> None:
        from pasta import abi

        track = self.thread(thread)
        name = json.dumps(_SYNCS[abi.ENUMS["sync"].get(what, "device")])
        if duration == _ABSENT_U64:
            self.instant(track, time, name, track.external, category="cuda_runtime")
        else:
            self.whole(track, time - duration, duration, "cuda_runtime", name, track.external)

    def event(
        self, time: int, thread: int, device: int, stream: int, kind: int, handle: int
    ) -> None:
        track = self.stream(device, stream)
        self.instant(track, time, self._kind(kind), f'"event":"{handle:#x}"', category="cuda_event")

    def process_wide(self, time: int, thread: int, device: int, stream: int, kind: int) -> None:
        self.instant(self.thread(thread), time, self._kind(kind), scope="p")

    def dropped(self, time: int, thread: int, device: int, stream: int, count: int) -> None:
        self.instant(self.thread(thread), time, '"events dropped"', f'"count":{count}', scope="g")

    def other(self, time: int, thread: int, device: int, stream: int, kind: int) -> None:
        self.instant(self.thread(thread), time, self._kind(kind))

    def memory(self, *event: object) -> None:
        """Drawn by the change of a level."""

    def allocator(
        self, time: int, thread: int, device: int, stream: int, allocated: int, reserved: int
    ) -> None:
        self.allocators[device] = allocated, reserved

    def level(self, time: int, name: str, change: int) -> None:
        self.live[name] = self.live.get(name, 0) + change
        head = f'"ph":"C","name":{json.dumps(name)},"pid":{self.run.pid}'
        self.emit(head, self.ts(time), f'"args":{{"bytes":{self.live[name]}}}')

    def allocation(
        self, time: int, name: str, change: int, address: int, device: int, thread: int
    ) -> None:
        """A tensor's memory, given or taken back, with what its allocator has then."""
        usual = (self.live[name], 0 if device < 0 else None)  # the host's allocator keeps nothing
        total, reserved = self.allocators.get(device, usual)
        args = [f'"Total Reserved":{reserved}'] if reserved is not None else []
        args.append(f'"Total Allocated":{total},"Bytes":{change},"Device Id":{device}')
        args.append(f'"Device Type":{int(device >= 0)},"Addr":{address}')
        self.instant(self.thread(thread), time, '"[memory]"', ",".join(args))

    @staticmethod
    def _kind(kind: int) -> str:
        from pasta import abi

        names = {number: name for name, number in abi.KINDS.items()}
        return json.dumps(names[kind].replace("_", " "))


#: What draws a kind, and the fields it gets after time, thread, device and stream.
_DRAWN: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    "kernel_launch": (
        _Trace.launch,
        (
            "name",
            "ordinal",
            "flags",
            "grid",
            "block",
            "registers",
            "shared_static",
            "shared_dynamic",
        ),
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
    "operator_begin": (
        _Trace.operator_begin,
        (
            "name",
            "module",
            "stack",
            "sequence",
            "forward_thread",
            "framework_thread",
            "depth",
            "scope",
            "inputs",
            "tensor",
        ),
    ),
    "operator_end": (_Trace.operator_end, ("depth",)),
    "operator_tensors": (_Trace.operator_tensors, ("role", "count", "tensor")),
    "tensor_create": (_Trace.tensor, ("tensor", "shape", "strides", "dtype")),
    "memory_copy": (_Trace.copy, ("direction", "source", "destination", "bytes")),
    "memory_set": (_Trace.set, ("address", "bytes", "value")),
    "memory_alloc": (_Trace.memory, ()),
    "memory_free": (_Trace.memory, ()),
    "allocator_state": (_Trace.allocator, ("allocated", "reserved")),
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
