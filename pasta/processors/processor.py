"""Protocol of processors, which follow the batches of a run and answer queries of tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pasta.processors.batch import Batch


class Processor(Protocol):
    """Follows the events of a run, batch by batch; `needs` declares each of them."""

    def feed(self, batch: Batch) -> None:
        """Follow a filtered batch; the processors that this one queries have been fed with it."""


@runtime_checkable
class Follower(Processor, Protocol):
    """A processor that also follows records that the filter drops."""

    def follow(self, selected: Batch, whole: Batch) -> None:
        """Follow a batch after all processors have been fed with its selected part."""
