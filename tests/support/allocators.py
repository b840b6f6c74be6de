"""A caching allocator, whose totals are recorded at each tensor or only where needed."""

from __future__ import annotations

from typing import Any

from pasta.testing import Events

#: Changes of a program: bytes (negative: freed), and the reserved bytes after it.
PROGRAM = ((300, 1000), (600, 2000), (-300, 2000), (100, 2000), (250, 2000), (-600, 1500))


class CachingAllocator:
    """Adds its tensors to events, with its totals: `dense` at each of them. `allocated`: bytes in
    use before."""

    def __init__(
        self, events: Events, *, dense: bool = False, device: int = 0, allocated: int = 0
    ) -> None:
        self.events = events
        self.dense = dense
        self.device = device
        self.allocated = allocated
        self._known: tuple[int, int] | None = None

    def change(self, bytes: int, reserved: int, *, again: bool = False, thread: int = 1) -> None:
        """Allocates bytes at an address of their number, or frees them (negative); `again` records
        totals that follow."""
        self.allocated += bytes
        fields: dict[str, Any] = {"device": self.device, "thread": thread}
        follows = self._known == (self.allocated - bytes, reserved)
        if self.dense or again or not follows:
            fields.update(allocated=self.allocated, reserved=reserved)
        self._known = self.allocated, reserved
        address = abs(bytes) << 20
        if bytes > 0:
            self.events.tensor_alloc(address, bytes, **fields)
        else:
            self.events.tensor_free(address, bytes=-bytes, **fields)


def allocating(*, dense: bool) -> Events:
    """The events of PROGRAM."""
    events = Events()
    allocator = CachingAllocator(events, dense=dense)
    for bytes, reserved in PROGRAM:
        allocator.change(bytes, reserved)
    return events
