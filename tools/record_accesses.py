"""Every access as it came, so that `pasta replay` can run tools with probes later."""

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
    """Every access of every warp as it came, for pasta replay with tools that have probes."""

    directory = option("", help="where the files lie until the run ends; default: TMPDIR or /tmp")
    accesses = Trace()

    @probe.on(*_KINDS, per="warp")
    def take(access: Any, maps: Any) -> None:
        maps.accesses.write(access)

    def start(self) -> None:
        self.parts: list[str] = []
        self.records = 0
        self.position = 0  # up to which events were seen
        self._writer: AccessWriter | None = None

    def __getstate__(self) -> dict[str, Any]:
        self._close()  # another process goes on in a part of its own
        return super().__getstate__()

    def on_batch(self, batch: Batch) -> None:
        self.position = max(self.position, batch.end)

    def on_accesses(self, accesses: Accesses) -> None:
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
        self._close()
        size = formatted(sum(os.path.getsize(path) for path in self.parts), "bytes")
        files = {part_name(number): Path(path) for number, path in enumerate(self.parts)}
        return Result(
            summary=f"{counted(self.records, 'instruction')} of warps in {size}", files=files
        )
