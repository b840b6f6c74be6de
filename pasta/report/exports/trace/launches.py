"""Draws launches of kernels and graphs on threads, and kernels on streams."""

from __future__ import annotations

from dataclasses import dataclass

from pasta.report.exports.trace.format import ABSENT_U64, Draws, Track, Tracks

_ABSENT_U16, _ABSENT_U32 = 0xFFFF, 0xFFFF_FFFF
#: Maximum number of launches that wait for their completion.
_MAX_PENDING = 1 << 20
_GRAPH = 1  # PASTA_FLAG_GRAPH
_FIELDS = (
    "name", "ordinal", "flags", "grid", "block", "registers", "shared_static", "shared_dynamic",
)  # fmt: skip


@dataclass(slots=True)
class Launch:
    """A launch that waits for the completion of its kernel."""

    label: str
    detail: str
    device: int
    stream: int
    called: tuple[Track, int] | None  # track and time of the call


class Launches:
    """Draws kernels as slices if they have device times, otherwise as instants; and launch calls
    as slices if their returns were recorded, otherwise as instants."""

    def __init__(self, out: Tracks, clocked: bool, returns: bool) -> None:
        self.out = out
        self.clocked, self.returns = clocked, returns
        self.pending: dict[int, Launch] = {}
        #: Operators open at graph launches by thread and time, for nodes that are recorded later.
        self.graphs: dict[tuple[int, int], int] = {}

    @property
    def draws(self) -> Draws:
        """Handlers by event kind."""
        return {
            "kernel_launch": (self.launch, _FIELDS),
            "kernel_launch_end": (self.launch_end, ("ordinal",)),
            "kernel_complete": (self.complete, ("ordinal", "start", "end")),
            "graph_launch": (self.graph_launch, ("correlation", "upload")),
            "graph_launch_end": (self.graph_launch_end, ("correlation",)),
        }

    def launch(
        self, time: int, thread: int, device: int, stream: int, name: int, ordinal: int,
        flags: int, grid: list[int], block: list[int], registers: int, static: int, shared: int,
    ) -> None:  # fmt: skip
        """Draws a launch call; without clocks, the kernel too."""
        label = self.out.text(name, kernel=True)
        track, on = self.out.thread(thread), self.out.stream(device, stream)
        in_graph = flags & _GRAPH  # the graph launch is the call
        while not in_graph and track.open and track.open[-1].what[0] == "launch":
            self.out.cut(track, time)
        detail = call = ""
        if self.out.detailed:
            operator = self.graphs.get((thread, time), track.operator)
            call = f'{self._correlated(ordinal, operator)},"kernel":{label},"launch":{ordinal}'
            detail = self._detail(
                name, ordinal, operator, on, device, grid, block, registers, static, shared
            )
        if not in_graph:
            launching, category = self.out.call("kernel launch"), "cuda_runtime"
            if self.returns:
                self.out.begin(track, ("launch", ordinal), time, category, launching, call)
            else:
                self.out.instant(track, time, launching, call, category=category)
        if not self.clocked:
            self.out.instant(on, time, label, detail, category="kernel")
            return
        called = None if in_graph or not self.returns else (track, time)
        self.pending[ordinal] = Launch(label, detail, device, stream, called)
        if len(self.pending) > _MAX_PENDING:
            del self.pending[next(iter(self.pending))]

    def _detail(
        self, name: int, ordinal: int, operator: int, on: Track, device: int, grid: list[int],
        block: list[int], registers: int, static: int, shared: int,
    ) -> str:  # fmt: skip
        """Arguments of a kernel."""
        args = [
            f'"kernel":{self.out.full_name(name)},{self._correlated(ordinal, operator)}',
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
        return ",".join(args)

    @staticmethod
    def _correlated(ordinal: int, operator: int) -> str:
        """JSON members that link a kernel, its launch and the operator; correlation 0 is none."""
        external = f'"External id":{operator},' if operator else ""
        return f'{external}"correlation":{ordinal + 1}'

    def launch_end(self, time: int, thread: int, device: int, stream: int, ordinal: int) -> None:
        """Ends a launch call."""
        self.out.end(self.out.thread(thread), ("launch", ordinal), time)

    def complete(
        self, time: int, thread: int, device: int, stream: int, ordinal: int, start: int, end: int
    ) -> None:
        """Draws a kernel on its stream, with an arrow from its launch."""
        if end < start or end == ABSENT_U64:
            return
        launched = self.pending.pop(ordinal, None)
        label, detail = '"kernel"', f'{self._correlated(ordinal, 0)},"launch":{ordinal}'
        if launched:
            label, detail = launched.label, launched.detail
            device = device if device >= 0 else launched.device
            stream = stream if stream != ABSENT_U64 else launched.stream
        track = self.out.free_lane(device, stream, start, end)
        self.out.whole(track, start, end - start, "kernel", label, detail)
        if launched and launched.called:
            self.out.arrow("ac2g", ordinal + 1, launched.called, (track, start))

    def graph_launch(
        self, time: int, thread: int, device: int, stream: int, correlation: int, upload: int
    ) -> None:
        """Begins a graph launch call."""
        name = self.out.call("graph upload" if upload == 1 else "graph launch")
        track = self.out.thread(thread)
        self.graphs[thread, time] = track.operator
        if len(self.graphs) > _MAX_PENDING:
            del self.graphs[next(iter(self.graphs))]
        self.out.begin(track, ("graph", correlation), time, "cuda_runtime", name, track.external)

    def graph_launch_end(
        self, time: int, thread: int, device: int, stream: int, correlation: int
    ) -> None:
        """Ends a graph launch call."""
        self.out.end(self.out.thread(thread), ("graph", correlation), time)
