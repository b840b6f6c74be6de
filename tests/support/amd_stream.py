"""Streams for the replayer: the callbacks of rocprofiler-sdk for a program (hip_app.c).

    s = Stream()
    with s.call("hipLaunchKernel", numBlocks=(8, 2, 1), dimBlocks=(64, 4, 1), stream=S):
        launched = s.dispatch(kernel=1, grid=(512, 8, 1), workgroup=(64, 4, 1))
    s.complete(launched, 1000, 2500)

Names of arguments are the parameters' of HIP. What a program gets back (`ptr=0x1000` of a
hipMalloc) is written where the call ends: at its begin the variable holds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

CPU, GPU, SECOND_GPU = 56435, 56436, 56437
#: Where code objects are loaded, and how far from that the code of kernel N begins: N times.
BASE, CODE = 0x1000188000, 0x100
NAMES = {GPU: "AMD Instinct MI300X", SECOND_GPU: "AMD Instinct MI210"}
#: hipMemcpyKind
HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, DEFAULT = range(5)
OUT_OF_MEMORY, INVALID_VALUE = 2, 1

Value = int | str | Sequence[int]


def written(value: Value) -> str:
    """Formats a value for the replayer."""
    if isinstance(value, str):
        return quote(value, safe="/:.=+,_-[]()<>*&!'") or "%20"
    if isinstance(value, int):
        return hex(value) if value > 4096 else str(value)
    return ",".join(map(written, value))


@dataclass
class Dispatch:
    """A dispatch that was enqueued."""

    number: int
    correlation: int
    thread: int
    fields: dict[str, Value]


@dataclass
class Stream:
    """Lines of a stream, and the ids that the library would give."""

    gpus: Sequence[int] = (GPU,)
    lines: list[str] = field(default_factory=list)
    correlation: int = 0
    dispatches: int = 0
    streams: dict[int, int] = field(default_factory=dict)  # ids by handle
    open: dict[int, list[int]] = field(default_factory=dict)  # correlation ids by thread

    def __post_init__(self) -> None:
        self.say(f"agent id={CPU} type=cpu name=EPYC product=EPYC")
        for i, gpu in enumerate(self.gpus):
            self.say(
                f"agent id={gpu} type=gpu name=gfx942 product={written(NAMES[gpu])} logical={i}"
            )

    def say(self, line: str) -> None:
        self.lines.append(line)

    def write(self, path: Path) -> Path:
        path.write_text("\n".join(self.lines) + "\n")
        return path

    def event(self, name: str, phase: str = "NONE", /, **fields: Value) -> None:
        """One event; `at_` before a field's name stands for the @ of the replayer's own."""
        words = [f"{key.replace('at_', '@')}={written(value)}" for key, value in fields.items()]
        self.say(" ".join([name, phase, *words]))

    @contextmanager
    def block(self, words: str) -> Iterator[None]:
        """Events in a `loop`, `parallel` or `fork`."""
        self.say(words)
        yield
        self.say("end")

    @contextmanager
    def call(
        self,
        operation: str,
        *,
        api: str = "HIP_RUNTIME_API",
        thread: int = 1,
        ret: int = 0,
        **arguments: Value,
    ) -> Iterator[int]:
        """Events inside a call; yields its correlation id."""
        stacked = self.open.setdefault(thread, [])
        self.correlation += 1
        mine = self.correlation
        about: dict[str, Value] = {
            "at_thread": thread,
            "at_corr": mine,
            "at_anc": stacked[-1] if stacked else 0,
        }
        created = operation.startswith("hipStreamCreate")
        handle = arguments.get("stream", 0)
        assert isinstance(handle, int)
        if created:
            self.streams[handle] = len(self.streams) + 1
        number = self.streams.get(handle, 0)
        of_stream: dict[str, Value] = {"at_thread": thread, "value": handle, "id": number}
        if "stream" in arguments and not created:
            self.event("HIP_STREAM:HIP_STREAM_SET", "ENTER", **of_stream)
        self.event(f"{api}:{operation}", "ENTER", **about, **arguments)
        stacked.append(mine)
        yield mine
        stacked.pop()
        self.event(f"{api}:{operation}", "EXIT", **about, ret=ret, **arguments)
        if created and not ret:
            self.event("HIP_STREAM:HIP_STREAM_CREATE", **of_stream)
        elif operation == "hipStreamDestroy" and not ret:
            self.event("HIP_STREAM:HIP_STREAM_DESTROY", **of_stream)
        if "stream" in arguments and not created:
            self.event("HIP_STREAM:HIP_STREAM_SET", "EXIT", **of_stream)

    def hip(self, operation: str, *, thread: int = 1, ret: int = 0, **arguments: Value) -> None:
        """A call without events inside."""
        with self.call(operation, thread=thread, ret=ret, **arguments):
            pass

    def roctx(self, operation: str, kind: str = "CORE", ret: int = 0, **arguments: Value) -> None:
        with self.call(operation, api=f"MARKER_{kind}_API", ret=ret, **arguments):
            pass

    def load(
        self,
        number: int,
        kernels: dict[int, str],
        agent: int = GPU,
        image: int = 4096,
        **about: Value,
    ) -> None:
        """A code object of `image` bytes in memory, and its kernels' descriptors by id."""
        fields: dict[str, Value] = {
            "object": number, "agent": agent, "base": BASE, "bytes": 32768, "storage": 2,
            "memory_bytes": image, "uri": f"memory://1#offset=0x1000&size={image}",
        }  # fmt: skip
        fields.update({key: value for key, value in about.items() if key in fields})
        self.event("CODE_OBJECT:CODE_OBJECT_LOAD", "ENTER", **fields)
        more = {key: value for key, value in about.items() if key not in fields}
        for kernel, name in kernels.items():
            self.symbol("ENTER", number, kernel, name, **more)

    def symbol(self, phase: str, number: int, kernel: int, name: str, **more: Value) -> None:
        fields: dict[str, Value] = {
            "kernel": kernel, "object": number, "name": name, "kernel_object": 0x100018B6C0,
            "lds": 256, "scratch": 16, "sgpr": 32, "vgpr": 24, "accum_vgpr": 8,
            "address": BASE + kernel * CODE, **more,
        }  # fmt: skip
        name = "CODE_OBJECT:CODE_OBJECT_DEVICE_KERNEL_SYMBOL_REGISTER"
        self.event(name, phase, **fields)

    def unload(self, number: int, kernels: dict[int, str], agent: int = GPU) -> None:
        """In the library's order: first the object, then its kernels."""
        load = "CODE_OBJECT:CODE_OBJECT_LOAD"
        self.event(load, "EXIT", object=number, agent=agent, storage=2, memory_bytes=4096)
        for kernel, name in kernels.items():
            self.symbol("EXIT", number, kernel, name)

    def dispatch(
        self,
        kernel: int,
        *,
        thread: int = 1,
        returns: bool = True,
        ancestor: int = 0,
        **fields: Value,
    ) -> Dispatch:
        """A dispatch inside the thread's innermost call, if any."""
        self.dispatches += 1
        stacked = self.open.get(thread, [])
        about: dict[str, Value] = {
            "agent": GPU, "queue": 1, "kernel": kernel, "dispatch": self.dispatches,
            "scratch": 16, "lds": 256, "workgroup": (64, 1, 1), "grid": (64, 1, 1), **fields,
        }  # fmt: skip
        if ancestor:
            about["at_anc"] = ancestor
        made = Dispatch(self.dispatches, stacked[-1] if stacked else 0, thread, about)
        self.enqueue(made, "ENTER")
        if returns:
            self.enqueue(made, "EXIT")
        return made

    def enqueue(self, d: Dispatch, phase: str) -> None:
        name = "KERNEL_DISPATCH:KERNEL_DISPATCH_ENQUEUE"
        self.event(name, phase, at_thread=d.thread, at_corr=d.correlation, **d.fields)

    def complete(self, d: Dispatch, start: int = 1000, end: int = 2000, by: int = 9) -> None:
        """Its completion, on a thread of the library; times in ns since the stream began."""
        name = "KERNEL_DISPATCH:KERNEL_DISPATCH_COMPLETE"
        about: dict[str, Value] = {"at_thread": d.thread, "at_by": by, "at_corr": d.correlation}
        self.event(name, t=f"+{start},+{end}", **about, **d.fields)

    def memory_copy(
        self, direction: str, *, thread: int = 1, by: int = 9, ends: bool = True, **fields: Value
    ) -> Callable[[str], None]:
        """A copy by the copy engine: begin on the program's thread, end on the library's. Returns a
        function that ends it with these times, unless it `ends` at once."""
        stacked = self.open.get(thread, [])
        name = f"MEMORY_COPY:MEMORY_COPY_{direction}"
        about: dict[str, Value] = {
            "at_thread": thread, "at_corr": stacked[-1] if stacked else 0,
            "source_agent": CPU, "destination_agent": GPU, **fields,
        }  # fmt: skip
        self.event(name, "ENTER", **about)
        if not ends:
            return lambda t: self.event(name, "EXIT", at_by=by, t=t, **about)
        self.event(name, "EXIT", at_by=by, t="+1000,+3000", **about)
        return lambda t: None

    def runtime_allocation(
        self, address: int, bytes: int, agent: int = GPU, *, thread: int = 1
    ) -> None:
        """An HSA allocation by the runtime; inside a call, with its correlation id."""
        stacked = self.open.get(thread, [])
        name = "MEMORY_ALLOCATION:MEMORY_ALLOCATION_ALLOCATE"
        about: dict[str, Value] = {
            "at_thread": thread, "at_corr": stacked[-1] if stacked else 0, "agent": agent,
            "bytes": bytes,
        }  # fmt: skip
        self.event(name, "ENTER", **about)
        self.event(name, "EXIT", address=address, **about)

    def runtime_free(self, address: int, *, thread: int = 1) -> None:
        """A free by the runtime; size and device are not reported."""
        stacked = self.open.get(thread, [])
        name = "MEMORY_ALLOCATION:MEMORY_ALLOCATION_FREE"
        about: dict[str, Value] = {
            "at_thread": thread, "at_corr": stacked[-1] if stacked else 0, "address": address,
        }  # fmt: skip
        self.event(name, "ENTER", **about)
        self.event(name, "EXIT", **about)


# ---- the recorded one ----

_LINE = re.compile(r"\[ev\] tid=\d+ corr=(\d+)/anc=(\d+) (?:ext=\d+ )?(\w+:\w+) (\w+) ?(.*)")
_KINDS = {"HostToDevice": 1, "DeviceToHost": 2, "DeviceToDevice": 3}
_FIELDS = {
    "co": "object", "mem": "memory_bytes", "kid": "kernel", "kobj": "kernel_object",
    "wg": "workgroup", "addr": "address", "dst": "destination", "src": "source",
    "stream_id": "id",
}  # fmt: skip
_RESULTS = {"hipMalloc", "hipMallocManaged", "hipHostMalloc", "hipMallocAsync"}
_RESULTS_OF = {"hipMalloc": "ptr", "hipHostMalloc": "ptr"}


def _hip_words(operation: str, phase: str, text: str, allocated: str) -> Iterator[str]:
    """`numBlocks={z=1, y=2, x=8}, stream=0x5` as `numBlocks=8,2,1 stream=0x5`."""
    text = re.sub(r"\{z=(\d+), y=(\d+), x=(\d+)\}", r"\3;\2;\1", text)
    for pair in filter(None, text.split(", ")):
        name, value = pair.split("=")
        if operation in _RESULTS and name == _RESULTS_OF.get(operation, "dev_ptr"):
            value = allocated if phase == "EXIT" else "0"
        value = {"(null)": "0"}.get(value, value).replace(";", ",")
        yield f"{name}={_KINDS.get(value, value)}"


def _other_words(kind: str, text: str) -> Iterator[str]:
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals or (name == "size" and kind == "KERNEL_DISPATCH"):
            continue  # a kernel's name, and the size of the payload
        if name == "size":
            name = "bytes"
        if name == "mem":
            yield "storage=2"
            value = value.split("+")[1]
        if name == "t":
            value = value.strip("[]")
        yield f"{_FIELDS.get(name, name)}={value}"


def recorded(path: Path) -> Stream:
    """The stream recorded with library 1.0.0 for a HIP program on one thread."""
    s = Stream()
    allocated: list[str] = []
    for line in path.read_text().splitlines():
        if not (found := _LINE.match(line)):
            continue
        correlation, ancestor, name, phase, text = found.groups()
        kind, operation = name.split(":")
        if kind == "HIP_RUNTIME_API":
            words = list(_hip_words(operation, phase, text, allocated[-1] if allocated else "0"))
        else:
            words = list(_other_words(kind, text))
        if operation == "MEMORY_ALLOCATION_ALLOCATE" and phase == "EXIT":
            allocated.append(text.split()[0].partition("=")[2])
        s.say(" ".join([name, phase, f"@corr={correlation}", f"@anc={ancestor}", *words]))
    return s


_HSA_WORDS = (
    (r"(?:info\.)?size=\d+ ", ""),
    (r"([0-9a-f]+)<-([0-9a-f]+) agents (\d+)<-(\d+)",
     r"destination=0x\1 source=0x\2 destination_agent=\3 source_agent=\4"),
    (r"type=2 (\S*size=(\d+))", r"storage=2 memory_bytes=\2 uri=\1"),
    (r"vgpr=(\d+)\+(\d+)", r"vgpr=\1 accum_vgpr=\2"),
    (r"addr=([0-9a-f]+)", r"address=0x\1"),
    (r" (\S+\.kd)$", r" name=\1"),
    (r"t=(\d+)\.\.(\d+)", r"t=\1,\2"),
    (r"\bkid=", "kernel="), (r"\bco=", "object="), (r"\bdid=", "dispatch="), (r"\bq=", "queue="),
    (r"\bwg=", "workgroup="), (r"\bpriv=", "scratch="),
)  # fmt: skip


def recorded_hsa(path: Path) -> Stream:
    """The stream recorded with library 1.0.0 for a program that uses only HSA."""
    s = Stream()
    s.lines = ["agent id=43462 type=cpu name=EPYC", "agent id=43463 type=gpu name=gfx942"]
    for line in path.read_text().splitlines():
        if found := _LINE.match(line):
            correlation, ancestor, name, phase, text = found.groups()
            for pattern, words in _HSA_WORDS:
                text = re.sub(pattern, words, text)
            s.say(f"{name} {phase} @corr={correlation} @anc={ancestor} {text}")
    return s
