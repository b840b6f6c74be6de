"""Records every access, so that `pasta replay` can run tools with probes later."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta.probes import KINDS, Trace, probe
from pasta.run.accesses import AccessWriter, part_name
from pasta.table import counted, formatted
from pasta.tool import Result, Tool, option

if TYPE_CHECKING:
    from pasta.probes.records import Accesses
    from pasta.processors.batch import Batch

_KINDS = tuple(kind.name for kind in KINDS)


class RecordAccesses(Tool):
    """Records every access of every warp, for pasta replay with tools that have probes."""

    title = "Recorded accesses"
    topic = "accesses"

    directory = option("", help="directory for files until the run ends; default: TMPDIR or /tmp")
    values = option(
        False, help="record the values of global memory accesses, if the source provides them"
    )
    accesses = Trace(values=values)

    @probe.on(*_KINDS, per="warp")
    def record(access: Any, maps: Any) -> None:
        """Record a warp's access."""
        maps.accesses.write(access)

    def start(self) -> None:
        """Initialize the list of files."""
        self.parts: list[str] = []
        self.records = 0
        self.position = 0  # end of the processed events
        self._writer: AccessWriter | None = None

    def __getstate__(self) -> dict[str, Any]:
        self._close()  # another process continues in its own file
        return super().__getstate__()

    def on_batch(self, batch: Batch) -> None:
        """Update the position to which the events were processed."""
        self.position = max(self.position, batch.end)

    def on_accesses(self, accesses: Accesses) -> None:
        """Write the records, each chunk with its position among the events."""
        if self._writer is None:
            self._writer = AccessWriter(self.directory)
            self.parts.append(self._writer.path)
        self._writer.add(self.position, accesses.raw)
        self.records += len(accesses)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def result(self) -> Result:
        """The files of access records."""
        self._close()
        size = formatted(sum(os.path.getsize(path) for path in self.parts), "bytes")
        files = {part_name(number): Path(path) for number, path in enumerate(self.parts)}
        return Result(summary=f"{counted(self.records, 'warp instruction')} in {size}", files=files)
