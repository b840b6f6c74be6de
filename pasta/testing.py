"""Support for tests of tools: synthetic events, and runs of tools on them.

def test_counts_launches():
    events = Events()
    events.launch("vadd", grid=(4, 1, 1))
    assert run_tool(MyTool, events).summary == "1 launch"
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pasta import abi
from pasta.processors.batch import ABSENT_U32, Batch
from pasta.processors.filter import Filter
from pasta.processors.strings import Strings
from pasta.runtime.pipeline import Pipeline
from pasta.tool import Context, Process, Result, Tool

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MEMORY = {name: number for number, name in abi.enums()["memory"].items()}
_DIRECTION = {name: number for number, name in abi.enums()["copy"].items()}
_OPERATION = {name: number for number, name in abi.enums()["collective"].items()}
_ROLE = {name: number for number, name in abi.enums()["role"].items()}


def _padded(tensors: Sequence[int], length: int) -> tuple[int, ...]:
    return (*tensors, *[ABSENT_U32] * (length - len(tensors)))


class Events:
    """A run's events, in the order in which they are added.

    Omitted fields are absent. Each event is `step` ns after the previous one unless its `time` is
    given; strings may be given as text.
    """

    def __init__(self, *, start_time: int = 1_000_000, step: int = 1000) -> None:
        self.strings = Strings()
        self.process = Process(pid=4242, program="program", start_time=start_time)
        #: `context.roofs`: by uuid of the device, and by name.
        self.roofs: dict[str, dict[str, float]] = {}
        self._time = start_time
        self._step = step
        self._ids: dict[str, int] = {"": 0}
        self._position = 0
        self._launches = 0
        self._records: list[tuple[str, int, NDArray[Any]]] = []
        self._accesses: list[tuple[int, bytes]] = []  # number of events before it, record

    def __len__(self) -> int:
        return len(self._records)

    def string(self, text: str) -> int:
        """Id of a text; the same text has the same id."""
        if text not in self._ids:
            self._ids[text] = 8 * len(self._ids)
            self.strings.add(self._ids[text], text)
        return self._ids[text]

    def add(self, kind: str, **fields: Any) -> None:
        """Adds an event of any kind with fields of its record. Raises KeyError for unknown
        fields."""
        dtype = abi.dtype(kind)
        record = abi.absent_records(1, dtype, kind)
        self._time = fields.get("time", self._time + self._step)
        header = {
            "index": 0,
            "kind": abi.KINDS[kind],
            "slots": dtype.itemsize // abi.SLOT,
            "flags": 0,
            "time": self._time,
            "thread": 1,
            "stream": 0,
        }
        for name, value in {**header, **fields}.items():
            if dtype.fields is None or name not in dtype.fields:
                raise KeyError(f"{kind} has no field {name}")
            record[name] = self.string(value) if isinstance(value, str) else value
        self._records.append((kind, self._position, record))
        self._position += dtype.itemsize // abi.SLOT

    def device(self, number: int = 0, **fields: Any) -> None:
        """Adds properties of a device; those not given are absent: `multiprocessors`, `warp`,
        `threads`, `architecture`, …"""
        self.add("device", device=number, **fields)

    def launch(self, name: str, **fields: Any) -> int:
        """Adds a kernel launch; returns its ordinal."""
        ordinal = int(fields.pop("ordinal", self._launches))
        self._launches = max(self._launches, ordinal + 1)
        usual = {"grid": (1, 1, 1), "block": (32, 1, 1), "flags": abi.FLAG_PROBED}
        self.add(
            "kernel_launch", **{"device": 0, "name": name, "ordinal": ordinal, **usual, **fields}
        )
        return ordinal

    def launch_end(self, ordinal: int, **fields: Any) -> None:
        """Adds the return of a launch call."""
        self.add("kernel_launch_end", **{"device": 0, "ordinal": ordinal, **fields})

    def complete(self, ordinal: int, start: int, end: int, **fields: Any) -> None:
        """Adds a completion with its device times, ns."""
        times = {"ordinal": ordinal, "start": start, "end": end}
        self.add("kernel_complete", **{"device": 0, **times, **fields})

    def communicator(self, number: int, id: int, rank: int, size: int, **fields: Any) -> None:
        """Adds a communicator: its number in the process, and its id, which all ranks share."""
        given = {"communicator": number, "id": id, "rank": rank, "size": size, "library": 0}
        self.add("communicator", **{"device": 0, **given, **fields})

    def collective(self, operation: str, communicator: int, count: int, **fields: Any) -> None:
        """Adds a call of a communication library; `operation` is a name in
        `abi.enums()["collective"]`. By default of float32, outside of a group, without a launch."""
        usual = {"element": 4, "type": "float32", "launches": 0, "result": 0, "device": 0}
        time = fields.setdefault("time", self._time + self._step)
        given = {"operation": _OPERATION[operation], "count": count, "begin": time}
        self.add("collective", **{"communicator": communicator, **usual, **given, **fields})

    def alloc(self, address: int, bytes: int, memory: str = "device", **fields: Any) -> None:
        """Adds a memory allocation; `memory` is a name in `abi.enums()["memory"]`."""
        self._memory("memory_alloc", address, memory, {"bytes": bytes, **fields})

    def free(self, address: int, memory: str = "device", **fields: Any) -> None:
        """Adds a memory free."""
        self._memory("memory_free", address, memory, fields)

    def tensor_alloc(self, address: int, bytes: int, memory: str = "device", **fields: Any) -> None:
        """Adds an allocation of a tensor; `allocated` and `reserved`: totals of the allocator after
        it, bytes."""
        self._allocator_state(fields)
        self._memory("tensor_alloc", address, memory, {"bytes": bytes, **fields})

    def tensor_free(self, address: int, memory: str = "device", **fields: Any) -> None:
        """Adds a free of a tensor; `allocated` and `reserved`: totals of the allocator after it,
        bytes."""
        self._allocator_state(fields)
        self._memory("tensor_free", address, memory, fields)

    def _allocator_state(self, fields: dict[str, Any]) -> None:
        state = {name: fields.pop(name) for name in ("allocated", "reserved") if name in fields}
        if not state:
            return
        thread, device = fields.get("thread", 1), fields.get("device", 0)
        fields.setdefault("time", self._time + self._step)  # of both
        self.add("allocator_state", thread=thread, device=device, time=fields["time"], **state)

    def operator(
        self, name: str, depth: int = 1, *, inputs: Sequence[int] = (), **fields: Any
    ) -> None:
        """Adds the begin of an operator; `inputs`: tensor ids, at most 16."""
        self.add(
            "operator_begin", name=name, depth=depth, scope=fields.pop("scope", 0),
            framework_thread=fields.pop("framework_thread", 1), inputs=len(inputs),
            tensor=_padded(inputs, 16), **fields,
        )  # fmt: skip

    def operator_end(self, depth: int = 1, *, outputs: Sequence[int] = (), **fields: Any) -> None:
        """Adds the end of the operator at a depth; `outputs`: tensor ids, at most 4."""
        tensors = {"outputs": len(outputs), "tensor": _padded(outputs, 4)}
        self.add("operator_end", depth=depth, **tensors, **fields)

    def tensor(self, id: int, storage: int, bytes: int, shape: str, **fields: Any) -> None:
        """Adds the definition of a tensor id."""
        usual = {"dtype": "Float", "strides": "", "offset": 0, "role": 0}
        given = {"tensor": id, "storage": storage, "bytes": bytes, "shape": shape}
        self.add("tensor_create", **given, **{**usual, **fields})

    def role(self, storage: int, role: str, name: str = "", **fields: Any) -> None:
        """Adds the role of a storage in the program: "parameter", "buffer", …"""
        self.add("tensor_create", storage=storage, role=_ROLE[role], name=name, **fields)

    def frames(self, stack: int, *frames: tuple[str, str, int]) -> None:
        """Adds the frames of a Python stack, innermost first: file, function, line."""
        for depth, (file, function, line) in enumerate(frames):
            self.add(
                "python_frame", stack=stack, depth=depth, line=line, first_line=1,
                file=self.string(file), function=self.string(function),
            )  # fmt: skip

    def native_frames(self, stack: int, *frames: tuple[int, str, int]) -> None:
        """Adds native frames of a host stack: depth, image and address."""
        for depth, image, address in frames:
            self.add(
                "host_frame", stack=stack, depth=depth, image=self.string(image), build=0,
                address=address,
            )  # fmt: skip

    def host_stack(self, stack: int, kind: str, key: int, **fields: Any) -> None:
        """Adds the call stack of the last event, of a kind: `key` is a launch's ordinal or an
        allocation's address."""
        work = {"work": abi.KINDS[kind], "work_time": self._time, "truncated": 0}
        self.add("host_stack", stack=stack, key=key, **{**work, **fields})

    def _memory(self, kind: str, address: int, memory: str, fields: Mapping[str, Any]) -> None:
        self.add(kind, **{"device": 0, "address": address, "memory": _MEMORY[memory], **fields})

    def copy(
        self, direction: str, source: int, destination: int, bytes: int, **fields: Any
    ) -> None:
        """Adds a memory copy; `direction` is a name in `abi.enums()["copy"]`."""
        what = {"source": source, "destination": destination, "bytes": bytes}
        self.add("memory_copy", **{**what, "direction": _DIRECTION[direction], **fields})

    def copy_complete(
        self, correlation: int, start: int, end: int, direction: str | None = None, **fields: Any
    ) -> None:
        """Adds the completion of the copy, or without `direction` the set, that has this
        correlation, with its device times, ns."""
        times = {"device": 0, "correlation": correlation, "start": start, "end": end}
        if direction is not None:
            times["direction"] = _DIRECTION[direction]
        self.add("copy_complete", **{**times, **fields})

    def push(self, name: str, **fields: Any) -> None:
        """Adds the begin of a range of a thread."""
        self.add("range_push", name=name, **fields)

    def pop(self, **fields: Any) -> None:
        """Adds the end of the innermost range of a thread."""
        self.add("range_pop", **fields)

    def access(
        self,
        kind: str = "global",
        addresses: Sequence[int] = (),
        *,
        bytes: int = 4,
        write: bool = False,
        atomic: bool = False,
        read: bool | None = None,
        launch: int | None = None,
        **fields: Any,
    ) -> None:
        """Adds an access of one warp, by default of the last launch.

        `addresses` are those of the active lanes: lanes 0, 1, … or those of `mask`. By default
        it reads unless it writes. More `fields`: mask, pc, block, warp, sm; rows, stride of a
        transfer; time of a kind without addresses; values of the lanes, unsigned; form. Raises
        ValueError if they are inconsistent.
        """
        from pasta.probes.kinds import ATOMIC, KIND, READ, WRITE
        from pasta.probes.records import Access

        if read is None:
            read = atomic or not write
        flags = READ * read | WRITE * (write or atomic) | ATOMIC * atomic
        if KIND[kind].space == "none":
            flags, bytes = 0, 0
        if launch is None:
            launch = self._launches - 1
        made = Access(kind, addresses, bytes, flags=flags, launch=launch, **fields)
        self._accesses.append((len(self._records), made.encoded()))

    def accesses(self, begin: int = 0, end: int | None = None) -> bytes:
        """Encoded accesses between the events of these numbers, as in a trace."""
        end = len(self._records) if end is None else end
        return b"".join(record for at, record in self._accesses if begin < at <= end)

    def batches(self, splits: Iterable[int] = ()) -> Iterator[Batch]:
        """The events in batches that end before the events of these numbers (0 … len)."""
        for batch, _ in self.stretches(splits):
            yield batch

    def batch(self) -> Batch:
        """All events in one batch."""
        return self._batch(0, len(self._records))

    def stretches(self, splits: Iterable[int] = ()) -> Iterator[tuple[Batch, bytes]]:
        """`batches`, each with its encoded accesses."""
        edges = [0, *sorted(splits), len(self._records)]
        for begin, end in itertools.pairwise(edges):
            if begin < end:
                yield self._batch(begin, end), self.accesses(begin, end)

    def _batch(self, begin: int, end: int) -> Batch:
        base = self._records[begin][1] if begin < end else 0
        by_kind: dict[str, list[NDArray[Any]]] = {}
        for kind, position, record in self._records[begin:end]:
            record["index"] = position - base
            by_kind.setdefault(kind, []).append(record.copy())
        records = {
            kind: np.concatenate(each, dtype=abi.dtype(kind)) for kind, each in by_kind.items()
        }
        return Batch(base, records)

    def context(self) -> Context:
        """A context for these events, whose source is the reference accelerator unless they name
        another one."""
        return Context(
            self.strings, self.process, {"refacc": ""}, lambda: iter([self.batch()]),
            roofs=self.roofs,
        )  # fmt: skip


def run_tools(
    tools: Iterable[Tool],
    events: Events,
    *,
    splits: Iterable[int] = (),
    filter: Filter | None = None,
) -> dict[str, Result]:
    """Results of tools on events. Raises RuntimeError with the traceback of a tool that failed."""
    pipeline = Pipeline(filter or Filter(), list(tools), events.context())
    recorded = []
    for batch, accesses in events.stretches(splits):
        recorded.append(pipeline.feed(batch))
        pipeline.feed_accesses(accesses)
    pipeline.context.recorded = lambda: iter(recorded)
    results = pipeline.finish()
    for failure in pipeline.failures.values():
        raise RuntimeError(f"tool {failure.tool} failed in {failure.where}:\n{failure.traceback}")
    return results


def run_tool(
    tool: type[Tool],
    events: Events,
    *,
    options: Mapping[str, object] | None = None,
    splits: Iterable[int] = (),
    filter: Filter | None = None,
) -> Result:
    """Result of one tool with these options on events, fed in batches split at `splits`."""
    return run_tools([tool(options)], events, splits=splits, filter=filter)[tool.name]
