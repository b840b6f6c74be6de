"""Header fields of a trace, collected in a first pass over the events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pasta.run.naming import rank_of

if TYPE_CHECKING:
    from pasta.processors.batch import Batch
    from pasta.processors.context import Process
    from pasta.processors.strings import Strings


@dataclass
class TraceHead:
    """Fields of the document before its events; fed all batches before they are written."""

    #: Whether frameworks were followed: operators, tensors, modules and stacks.
    operators: bool = True
    #: Whether kernels have device times.
    clocked: bool = False
    #: Whether returns of launch calls were recorded.
    returns: bool = False
    #: Whether copies have device times.
    copies_clocked: bool = False
    rank: int | None = None
    devices: dict[int, str] = field(default_factory=dict)

    def feed(self, batch: Batch, strings: Strings) -> None:
        """Reads the rank, the devices, and which times there are from a batch."""
        self.clocked |= len(batch["kernel_complete"]) > 0
        self.returns |= len(batch["kernel_launch_end"]) > 0
        self.copies_clocked |= len(batch["copy_complete"]) > 0
        for started in batch["process_start"]:
            variables = strings[int(started["environment"])].split("\x1f")
            self.rank = rank_of(dict(each.split("=", 1) for each in variables if "=" in each))
        for kind in ("context_create", "device"):
            numbers, names = batch[kind]["device"].tolist(), batch[kind]["name"].tolist()
            for device, name in zip(numbers, names, strict=True):
                if device >= 0 and (name or device not in self.devices):
                    self.devices[device] = strings[name]

    def fields(self, process: Process) -> dict[str, Any]:
        """Fields before `traceEvents`."""
        count = max(self.devices, default=-1) + 1
        fields: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [
                {"id": number, "name": self.devices.get(number, "")} for number in range(count)
            ],
            "record_shapes": int(self.operators),
            "profile_memory": 1,
            "with_stack": int(self.operators),
            "with_modules": int(self.operators),
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": process.start_realtime,
        }
        if self.rank is not None:
            fields["distributedInfo"] = {"rank": self.rank}
        return fields
