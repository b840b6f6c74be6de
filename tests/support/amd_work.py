"""One workload, described once, and its execution by each replayed runtime.

A line is a step; names stand for what a step made; a stream at the end makes it asynchronous.

    stream S PRIORITY · unstream S · event E · record E S · wait E S · await E · unevent E
    alloc A device|managed|pinned|pool BYTES [S] · free A [S]
    copy TO FROM BYTES [S] · rows TO FROM PITCH_TO PITCH_FROM WIDTH HEIGHT [S]
    set A VALUE ELEMENT COUNT [S] · area A PITCH VALUE WIDTH HEIGHT [S]
    launch GRID[3] BLOCK[3] SHARED A S          the kernel _Z4fillIfEvPT_S0_i
    drain [S] · device                        waits for a stream, the context, the device
    prefetch A BYTES DEVICE S · advise A BYTES ADVICE DEVICE · attach A BYTES S FLAGS
    capture S · captured G S · instantiate X G · run X S
    push NAME · pop · mark NAME · off · on    ranges, profiling
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.amd_stream import (
    CPU,
    DEVICE_TO_DEVICE,
    DEVICE_TO_HOST,
    GPU,
    HOST_TO_DEVICE,
    Dispatch,
    Stream,
)

KERNEL = "_Z4fillIfEvPT_S0_i"
WORK = """
stream s1 0
stream s2 -1
alloc a device 1048576
alloc b device 524288
alloc m managed 65536
alloc h pinned 1048576
alloc p pool 4096 s1
push step
copy a h 4096
copy a h 1048576 s1
rows a h 512 1024 300 10
rows a h 512 1024 300 10 s1
copy b a 65536 s1
copy h a 4096
copy h b 4096 s2
set a 7 1 4097
set a 7 4 100 s1
set b 7 2 100
area a 512 7 300 100
area a 512 7 300 100 s2
launch 8 2 1 64 4 1 0 a s1
launch 1 1 1 32 1 1 512 b s2
launch 3 1 1 96 1 1 0 a -
pop
mark half
event e
record e s1
wait e s2
await e
drain s1
drain
device
prefetch m 65536 0 s1
advise m 4096 3 0
attach m 65536 s1 1
capture s1
launch 4 1 1 64 1 1 0 a s1
copy b a 1024 s1
launch 5 1 1 64 1 1 0 b s1
captured g s1
instantiate x g
run x s1
run x s1
drain s1
off
launch 9 1 1 64 1 1 0 a s1
copy a h 64
on
launch 6 1 1 64 1 1 0 a s1
drain s1
free p s1
free m
free a
free b
free h
unevent e
unstream s2
unstream s1
"""

ALLOCATES = {
    "device": ("hipMalloc", "ptr", {}),
    "managed": ("hipMallocManaged", "dev_ptr", {"flags": 1}),
    "pinned": ("hipHostMalloc", "ptr", {"flags": 0}),
    "pool": ("hipMallocAsync", "dev_ptr", {}),
}
#: Steps that are not valid Python names, or already have another meaning here.
STEPS = {"await": "wait_for_event", "captured": "end_capture"}
SETS = {1: "", 2: "D16", 4: "D32"}
FILL, COPY = 9, 6  # the runtime's own kernels
MODULE = 2


@dataclass
class Hip:
    """The work as a HIP program, and the callbacks of rocprofiler-sdk for it."""

    s: Stream = field(default_factory=Stream)
    values: dict[str, int] = field(default_factory=lambda: {"-": 0})
    kinds: dict[str, str] = field(default_factory=dict)
    nodes: list[list[str]] | None = None  # of the graph that is being captured
    graphs: dict[str, list[list[str]]] = field(default_factory=dict)
    next: int = 0x1101000000
    waiting: list[Dispatch] = field(default_factory=list)

    def do(self, work: str) -> Stream:
        self.s.load(1, {COPY: "__amd_rocclr_copyBuffer.kd", FILL: "__amd_rocclr_fillBuffer.kd"})
        self.s.load(MODULE, {1: f"{KERNEL}.kd"}, lds=0, vgpr=8, accum_vgpr=0, scratch=0)
        for line in filter(None, work.splitlines()):
            word, *words = line.split()
            method: Callable[..., None] = getattr(self, STEPS.get(word, word))
            method(*words)
        return self.s

    def new(self, name: str) -> int:
        self.next += 0x100000
        self.values[name] = self.next
        return self.next

    def stream(self, name: str, priority: str) -> None:
        stream = self.new(name)
        self.s.hip("hipStreamCreateWithPriority", stream=stream, flags=0, priority=int(priority))

    def unstream(self, name: str) -> None:
        self.s.hip("hipStreamDestroy", stream=self.values[name])

    def event(self, name: str) -> None:
        self.s.hip("hipEventCreate", event=self.new(name))

    def record(self, name: str, stream: str) -> None:
        self.s.hip("hipEventRecord", event=self.values[name], stream=self.values[stream])

    def wait(self, name: str, stream: str) -> None:
        event = self.values[name]
        self.s.hip("hipStreamWaitEvent", stream=self.values[stream], event=event, flags=0)

    def unevent(self, name: str) -> None:
        self.s.hip("hipEventDestroy", event=self.values[name])

    def alloc(self, name: str, kind: str, size: str, stream: str = "") -> None:
        operation, result, more = ALLOCATES[kind]
        self.kinds[name] = kind
        arguments = {"size": int(size), **more, result: self.new(name)}
        if stream:
            arguments["stream"] = self.values[stream]
        with self.s.call(operation, **arguments):
            self.s.runtime_allocation(
                self.values[name], int(size), CPU if kind == "pinned" else GPU
            )

    def free(self, name: str, stream: str = "") -> None:
        address = self.values[name]
        if stream:
            self.s.hip("hipFreeAsync", dev_ptr=address, stream=self.values[stream])
            return
        with self.s.call("hipHostFree" if self.kinds[name] == "pinned" else "hipFree", ptr=address):
            self.s.runtime_free(address)

    # ---- copies and sets ----

    def direction(self, to: str, source: str) -> int:
        if self.kinds[source] == "pinned":
            return HOST_TO_DEVICE
        return DEVICE_TO_HOST if self.kinds[to] == "pinned" else DEVICE_TO_DEVICE

    def copy(self, to: str, source: str, size: str, stream: str = "") -> None:
        if self.nodes is not None:
            self.nodes.append(["copy", to, source, size])
        arguments = {
            "dst": self.values[to], "src": self.values[source], "sizeBytes": int(size),
            "kind": self.direction(to, source),
        }  # fmt: skip
        if stream:
            arguments["stream"] = self.values[stream]
        with self.s.call("hipMemcpyAsync" if stream else "hipMemcpy", **arguments):
            if self.nodes is None:
                self.moved(to, source, int(size))

    def moved(self, to: str, source: str, size: int) -> None:
        """By the copy engine, and within the device by a kernel."""
        kind = self.direction(to, source)
        if kind == DEVICE_TO_DEVICE:
            self.waiting.append(self.s.dispatch(COPY))
            return
        agents = (CPU, GPU) if kind == HOST_TO_DEVICE else (GPU, CPU)
        name = "HOST_TO_DEVICE" if kind == HOST_TO_DEVICE else "DEVICE_TO_HOST"
        self.s.memory_copy(
            name, bytes=size, source=self.values[source], destination=self.values[to],
            source_agent=agents[0], destination_agent=agents[1],
        )  # fmt: skip

    def rows(self, to: str, source: str, *words: str) -> None:
        pitch, source_pitch, width, height = map(int, words[:4])
        arguments = {
            "dst": self.values[to], "dpitch": pitch, "src": self.values[source],
            "spitch": source_pitch, "width": width, "height": height,
            "kind": self.direction(to, source),
        }  # fmt: skip
        if words[4:]:
            arguments["stream"] = self.values[words[4]]
        with self.s.call("hipMemcpy2DAsync" if words[4:] else "hipMemcpy2D", **arguments):
            self.moved(to, source, width * height)

    def set(self, name: str, value: str, element: str, count: str, stream: str = "") -> None:
        asynchronous, wide = "Async" if stream else "", int(element) > 1
        # the parameter is called dest, except in one function
        to = "dst" if (element == "4" and stream) or not wide else "dest"
        arguments = {
            to: self.values[name], "value": int(value),
            "count" if wide else "sizeBytes": int(count),
        }  # fmt: skip
        if stream:
            arguments["stream"] = self.values[stream]
        with self.s.call(f"hipMemset{SETS[int(element)]}{asynchronous}", **arguments):
            self.waiting.append(self.s.dispatch(FILL))

    def area(self, name: str, *words: str) -> None:
        pitch, value, width, height = map(int, words[:4])
        arguments = {
            "dst": self.values[name], "pitch": pitch, "value": value, "width": width,
            "height": height,
        }  # fmt: skip
        if words[4:]:
            arguments["stream"] = self.values[words[4]]
        with self.s.call("hipMemset2DAsync" if words[4:] else "hipMemset2D", **arguments):
            self.waiting.append(self.s.dispatch(FILL))

    # ---- launches and graphs ----

    def launch(self, *words: str) -> None:
        grid, block = list(map(int, words[:3])), list(map(int, words[3:6]))
        if self.nodes is not None:
            self.nodes.append(["launch", *words])
        with self.s.call(
            "hipLaunchKernel", function_address=0x55D6D033FD80, numBlocks=grid, dimBlocks=block,
            sharedMemBytes=int(words[6]), stream=self.values[words[8]],
        ):  # fmt: skip
            if self.nodes is None:
                self.dispatched(*words)

    def dispatched(self, *words: str) -> None:
        grid, block = list(map(int, words[:3])), list(map(int, words[3:6]))
        items = [blocks * threads for blocks, threads in zip(grid, block, strict=True)]
        shared = int(words[6])
        made = self.s.dispatch(1, grid=items, workgroup=block, lds=shared, scratch=0)
        self.waiting.append(made)

    def capture(self, stream: str) -> None:
        self.s.hip("hipStreamBeginCapture", stream=self.values[stream], mode=0)
        self.nodes = []

    def end_capture(self, graph: str, stream: str) -> None:
        self.graphs[graph] = self.nodes or []
        self.nodes = None
        self.s.hip("hipStreamEndCapture", stream=self.values[stream], pGraph=self.new(graph))

    def instantiate(self, name: str, graph: str) -> None:
        self.graphs[name] = self.graphs[graph]
        self.s.hip(
            "hipGraphInstantiate", graph=self.values[graph], pErrorNode=0, pLogBuffer=0,
            bufferSize=0, pGraphExec=self.new(name),
        )  # fmt: skip

    def run(self, name: str, stream: str) -> None:
        with self.s.call("hipGraphLaunch", graphExec=self.values[name], stream=self.values[stream]):
            for word, *words in self.graphs[name]:
                if word == "launch":
                    self.dispatched(*words)
                else:  # by the copy engine
                    to, source, size = words
                    self.s.memory_copy(
                        "DEVICE_TO_DEVICE", bytes=int(size), source=self.values[source],
                        destination=self.values[to], source_agent=GPU, destination_agent=GPU,
                    )  # fmt: skip

    # ---- waiting ----

    def completed(self) -> None:
        """Completes all dispatches, the last one first."""
        while self.waiting:
            self.s.complete(self.waiting.pop())

    def drain(self, stream: str = "") -> None:
        if stream:
            with self.s.call("hipStreamSynchronize", stream=self.values[stream]):
                self.completed()
        else:
            with self.s.call("hipCtxSynchronize"):
                self.completed()

    def device(self) -> None:
        with self.s.call("hipDeviceSynchronize"):
            self.completed()

    def wait_for_event(self, name: str) -> None:
        self.s.hip("hipEventSynchronize", event=self.values[name])

    # ---- managed memory, ranges, profiling ----

    def prefetch(self, name: str, size: str, device: str, stream: str) -> None:
        self.s.hip(
            "hipMemPrefetchAsync", dev_ptr=self.values[name], count=int(size), device=int(device),
            stream=self.values[stream],
        )  # fmt: skip

    def advise(self, name: str, size: str, advice: str, device: str) -> None:
        self.s.hip(
            "hipMemAdvise", dev_ptr=self.values[name], count=int(size), advice=int(advice),
            device=int(device),
        )  # fmt: skip

    def attach(self, name: str, size: str, stream: str, flags: str) -> None:
        self.s.hip(
            "hipStreamAttachMemAsync", stream=self.values[stream], dev_ptr=self.values[name],
            length=int(size), flags=int(flags),
        )  # fmt: skip

    def push(self, name: str) -> None:
        self.s.roctx("roctxRangePushA", message=name)

    def pop(self) -> None:
        self.s.roctx("roctxRangePop")

    def mark(self, name: str) -> None:
        self.s.roctx("roctxMarkA", message=name)

    def off(self) -> None:
        self.s.hip("hipProfilerStop")

    def on(self) -> None:
        self.s.hip("hipProfilerStart")
