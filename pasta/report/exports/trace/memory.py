"""Draws live bytes as counters, and tensor memory as torch.profiler does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pasta.lazy import np
from pasta.processors.allocator_states import AllocatorStates
from pasta.report.exports.trace.format import ABSENT_U64, Draw, Draws, Tracks

if TYPE_CHECKING:
    from pasta.processors.batch import Batch
    from pasta.processors.objects import ObjectTable

_TENSORS = ("tensor_alloc", "tensor_free")
_MEMORY = ("memory_alloc", "memory_free", *_TENSORS)


class Memory:
    """Draws memory levels by device, and allocations of tensor memory."""

    def __init__(self, out: Tracks) -> None:
        self.out = out
        self.objects: ObjectTable | None = None
        self.states = AllocatorStates()
        self.live: dict[str, int] = {}
        self.allocators: dict[int, tuple[int, int | None]] = {}  # by device: handed out, held

    @property
    def draws(self) -> Draws:
        """Handlers by event kind."""
        return dict.fromkeys((*_MEMORY, "allocator_state"), (self.memory, ()))

    def changes(self, batch: Batch) -> Iterator[tuple[int, Draw, Any]]:
        """Changes of allocators' totals, then of live bytes from the object table, which stay exact
        after missed frees."""
        from pasta import abi

        if self.out.detailed:
            states = self.states.feed(batch)
            for index, *totals in states.tolist():
                yield index, self.allocator, totals
        if not any(kind in batch.records for kind in _MEMORY):
            return
        if self.objects is None:
            from pasta.processors.objects import ObjectTable

            self.objects = ObjectTable()
        self.objects.feed(batch)
        changes = self.objects.changes
        rows = self.objects.rows[changes["object"]]
        sizes = np.where(rows["bytes"] == ABSENT_U64, 0, rows["bytes"]).astype(np.int64)
        internal = (rows["flags"] & abi.FLAG_INTERNAL) != 0
        threads: dict[int, int] = {}
        if self.out.detailed:
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
            what = abi.enums()["memory"].get(memory, "unknown") + (" tensors" if layer == 1 else "")
            where = f"device {device}" if device >= 0 else "host"
            name = f"{where}: {what}" + (" (runtime's own)" if own else "")
            yield index, self.level, (time, name, size, device)
            if index in threads:
                row = (time, name, size, address, device, threads[index])
                yield index, self.allocation, row

    def allocator(self, time: int, device: int, allocated: int, reserved: int) -> None:
        """Records the bytes that an allocator handed out and holds, by device."""
        self.allocators[device] = allocated, reserved

    def level(self, time: int, name: str, change: int, device: int) -> None:
        """Draws a counter of live bytes after a change."""
        self.live[name] = self.live.get(name, 0) + change
        self.out.counter(name, time, "bytes", self.live[name], device)

    def allocation(
        self, time: int, name: str, change: int, address: int, device: int, thread: int
    ) -> None:
        """Draws an allocation or release of tensor memory, with the allocator's totals."""
        default = (self.live[name], 0 if device < 0 else None)  # the host allocator caches nothing
        total, reserved = self.allocators.get(device, default)
        args = [f'"Total Reserved":{reserved}'] if reserved is not None else []
        args.append(f'"Total Allocated":{total},"Bytes":{change},"Device Id":{device}')
        args.append(f'"Device Type":{int(device >= 0)},"Addr":{address}')
        self.out.instant(self.out.thread(thread), time, '"[memory]"', ",".join(args))

    def memory(self, *event: object) -> None:
        """Draws nothing: `changes` draws memory events."""
