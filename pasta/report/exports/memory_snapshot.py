"""Allocations of a framework as a memory snapshot of PyTorch, for pytorch.org/memory_viz.

The format is that of torch.cuda.memory._snapshot(); torch.cuda._memory_viz reads it.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

from pasta.errors import PastaError, RunError
from pasta.lazy import np
from pasta.processors.batch import ABSENT_U64
from pasta.progress import report_progress
from pasta.report.exports.base import FileExport, Request

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasta.processors.batch import Batch
    from pasta.processors.objects import ObjectTable
    from pasta.processors.stacks import Stacks
    from pasta.processors.strings import Strings
    from pasta.run.directory import RunDirectory
    from pasta.tool import Process

#: Entries that the trace of a device has at most: the latest ones.
MAX_ENTRIES = 1_000_000
#: Segments up to this size hold small blocks, bytes.
_SMALL = 2 << 20
_HOST = -1
Entry = dict[str, Any]


class MemorySnapshot(FileExport):
    """A memory snapshot of PyTorch."""

    name = "memory-snapshot"
    help = "write PyTorch allocations as a memory snapshot, for pytorch.org/memory_viz"

    def writer(self, request: Request) -> Callable[[BinaryIO], object]:
        """Returns a function that writes the snapshot. Raises RunError without allocations."""
        return partial(_write, request.run.recorded())


class Snapshot:
    """Builds a snapshot from batches: traces of allocations, and the segments at the end.

    Memory of the host is the device after the last one. Without allocations of the device that
    hold them, blocks are segments of their own.
    """

    def __init__(self, process: Process, strings: Strings, stacks: Stacks) -> None:
        from pasta.processors.objects import ObjectTable

        self._objects: ObjectTable = ObjectTable(history=True)
        self._process, self._strings, self._stacks = process, strings, stacks
        self._frames: dict[int, list[Entry]] = {}
        self._traces: dict[int, deque[Entry]] = {}
        self._segments: dict[int, set[int]] = {}  # live ones by device
        self._owners: dict[int, int] = {}  # segment of each live block; -1: none
        self._memory: dict[int, int] = {}  # bytes of devices
        self.blocks = 0

    def feed(self, batch: Batch) -> None:
        """Follows a batch."""
        self._stacks.feed(batch)
        self._objects.feed(batch)
        for device, bytes in zip(
            *(batch["device"][name].tolist() for name in ("device", "memory")), strict=True
        ):
            if bytes != ABSENT_U64:
                self._memory[device] = bytes
        changes = self._objects.changes
        marks = self._out_of_memory(batch)
        if not len(changes) and not marks:
            return
        owners = self._owners_of(changes)
        rows = self._objects.rows[changes["object"]]
        fields = ("object", "time", "index", "sign")
        of_row = ("layer", "device", "address", "bytes", "stream", "stack")
        for object, time, index, sign, layer, device, address, size, stream, stack, owner in zip(
            *(changes[name].tolist() for name in fields),
            *(rows[name].tolist() for name in of_row),
            owners.tolist(),
            strict=True,
        ):
            while marks and marks[0][0] < index:
                self._fail(*marks.pop(0)[1:])
            if size == ABSENT_U64:
                continue
            block = self._entry("", address, size, stream, time, stack)
            if layer == _tensor_layer():
                self._change_block(object, device, block, sign, owner)
            elif object in self._segments.get(device, ()) and sign < 0:
                self._segments[device].discard(object)
                self._trace(device, "segment_free", block)
        for _, *mark in marks:
            self._fail(*mark)

    def _owners_of(self, changes: NDArray[Any]) -> NDArray[Any]:
        """Ids (int64) of the allocations that hold tensors which begin; -1 for none and others."""
        rows = self._objects.rows[changes["object"]]
        begins = (rows["layer"] == _tensor_layer()) & (changes["sign"] > 0) & (rows["device"] >= 0)
        found = np.full(len(changes), -1, np.int64)
        addresses, indices = rows["address"][begins], changes["index"][begins]
        found[begins] = self._objects.lookup(addresses, indices, "memory")
        return found

    def _out_of_memory(self, batch: Batch) -> list[tuple[int, int, int, int]]:
        """Index, time, device and bytes of allocations that failed."""
        from pasta.processors.out_of_memory import failures

        failed = failures(batch["mark"], self._strings)
        names = ("index", "time", "device", "bytes")
        return list(zip(*(failed[name].tolist() for name in names), strict=True))

    def _fail(self, time: int, device: int, size: int) -> None:
        reserved = sum(self._size(each) for each in self._segments.get(device, ()))
        free = max(0, self._memory.get(device, reserved) - reserved)
        self._trace(device, "oom", {**self._entry("", 0, size, 0, time, 0), "device_free": free})

    def _change_block(self, object: int, device: int, block: Entry, sign: int, owner: int) -> None:
        if sign < 0:
            self._owners.pop(object, None)
            self._trace(device, "free_requested", block)
            self._trace(device, "free_completed", block)
            return
        self.blocks += 1
        self._owners[object] = owner
        segments = self._segments.setdefault(device, set())
        if owner >= 0 and owner not in segments:
            segments.add(owner)
            row = self._objects.rows[owner]
            names = ("address", "bytes", "stream", "alloc_time", "stack")
            self._trace(device, "segment_alloc", self._entry("", *(int(row[n]) for n in names)))
        self._trace(device, "alloc", block)

    def _entry(
        self, action: str, address: int, size: int, stream: int, time: int, stack: int
    ) -> Entry:
        since = time - self._process.start_time + self._process.start_realtime
        return {
            "action": action,
            "addr": address,
            "size": size,
            "stream": 0 if stream == ABSENT_U64 else stream,
            "time_us": since // 1000,
            "frames": self._stack(stack),
        }

    def _trace(self, device: int, action: str, entry: Entry) -> None:
        trace = self._traces.setdefault(device, deque(maxlen=MAX_ENTRIES))
        trace.append({**entry, "action": action})

    def _stack(self, stack: int) -> list[Entry]:
        if stack not in self._frames:
            self._frames[stack] = [
                {"filename": frame.file, "line": frame.line, "name": frame.function}
                for frame in self._stacks.frames(stack, self._strings)
            ]
        return self._frames[stack]

    def _size(self, object: int) -> int:
        return int(self._objects.rows["bytes"][object])

    def document(self) -> dict[str, Any]:
        """The snapshot."""
        devices = 1 + max([device for device in self._traces if device >= 0], default=-1)
        place = {_HOST: devices, **{device: device for device in range(devices)}}
        traces: list[list[Entry]] = [[] for _ in range(devices + (_HOST in self._traces))]
        for device, trace in self._traces.items():
            traces[place[device]] = list(trace)
        by_segment: dict[int, list[int]] = {}
        for block, owner in self._owners.items():
            by_segment.setdefault(owner, []).append(block)
        alone = by_segment.pop(-1, [])
        segments = [
            self._segment(place[device], segment, by_segment.get(segment, []))
            for device, live in self._segments.items()
            for segment in sorted(live)
        ]
        rows = self._objects.rows
        segments += [
            self._segment(place[int(rows["device"][each])], each, [each]) for each in alone
        ]
        return {"segments": segments, "device_traces": traces}

    def _segment(self, device: int, segment: int, blocks: Iterable[int]) -> Entry:
        """A live allocation, with its live blocks and the free ones between them."""
        rows = self._objects.rows
        address, size = int(rows["address"][segment]), self._size(segment)
        found: list[Entry] = []
        at = address
        for block in sorted(blocks, key=lambda each: int(rows["address"][each])):
            begin = int(rows["address"][block])
            if begin > at:
                found.append(_block(at, begin - at, "inactive", []))
            stack = self._stack(int(rows["stack"][block]))
            found.append(_block(begin, self._size(block), "active_allocated", stack))
            at = begin + self._size(block)
        if at < address + size:
            found.append(_block(at, address + size - at, "inactive", []))
        active = sum(each["size"] for each in found if each["state"] != "inactive")
        stream = int(rows["stream"][segment])
        return {
            "device": device,
            "address": address,
            "total_size": size,
            "allocated_size": active,
            "active_size": active,
            "requested_size": active,
            "stream": 0 if stream == ABSENT_U64 else stream,
            "segment_type": "small" if size <= _SMALL else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": self._stack(int(rows["stack"][segment])),
            "blocks": found,
        }


def _block(address: int, size: int, state: str, frames: list[Entry]) -> Entry:
    used = size if state != "inactive" else 0
    return {
        "address": address, "size": size, "requested_size": used, "state": state, "frames": frames,
    }  # fmt: skip


def _write(run: RunDirectory, file: BinaryIO) -> None:
    """Writes the snapshot of a run's events. Raises RunError without allocations."""
    from pasta.frameworks import conventions
    from pasta.processors.stacks import Stacks
    from pasta.processors.strings import Strings
    from pasta.run.events import read_batches
    from pasta.run.inventory import process_of

    strings = Strings()
    snapshot = Snapshot(process_of(run), strings, Stacks(conventions()))
    report_progress("reading events")
    try:
        for batch in read_batches(run.events, strings, on_warning=lambda line: None):
            snapshot.feed(batch)
        document = snapshot.document()
    except (PastaError, OSError):
        raise
    except Exception as error:  # records of an untrusted run may be inconsistent
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise RunError(f"{run.path}: cannot be converted to a snapshot ({why})") from error
    if not snapshot.blocks:
        raise RunError(
            f"{run.path}: no framework allocations were recorded",
            remedy="record the run with a tool that needs them: pasta-preload -c torch",
        )
    pickle.dump(document, file, protocol=4)


def _tensor_layer() -> int:
    from pasta.processors.objects import TENSOR

    return TENSOR


EXPORT = MemorySnapshot()
