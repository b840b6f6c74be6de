"""Lane accesses per second that one core processes from recorded accesses: `hotness`, and counts by
object with and without the instruction, by the CPU executor of probes.

Each record is a warp of 32 lanes that read 4 bytes each.  The objects have 64 MiB in total, 16,384
parts of 4 KiB, with a gap after each object.  Coalesced: the lanes are adjacent, and each warp
continues after the previous one.  Scattered: every lane has a random address in any of the objects.
Seconds are processor time, which excludes other load on the machine, without the first round, which
compiles and allocates.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.figures import Figure, environment
from pasta.probes import Counter, probe
from pasta.tool import Result, Tool

if TYPE_CHECKING:
    from numpy.typing import NDArray

WARPS = 1 << 18
LANES = 32
BYTES = 64 << 20
_GAP = 4096
_CHUNK = 1 << 20
_ROUNDS = 9


class ByObject(Tool):
    """Accesses by launch and object."""

    counts = Counter(by=("launch", "object"))

    @probe.on("global")
    def count(access: Any, maps: Any) -> None:
        """Count a lane's access."""
        maps.counts.add(access.object)

    def result(self) -> Result:
        """Nothing: `counts` is read."""
        return Result(summary="")


class ByInstruction(ByObject):
    """Accesses by launch, object and instruction."""

    counts = Counter(by=("launch", "object", "pc"))

    @probe.on("global")
    def count(access: Any, maps: Any) -> None:
        """Count a lane's access."""
        maps.counts.add(access.object, access.pc)


def measure() -> list[Figure]:
    """Lane accesses per second, by layout of the addresses."""
    text = subprocess.run(
        [sys.executable, "-m", "bench.executor"],
        env=environment(), check=True, stdout=subprocess.PIPE, text=True, timeout=300,
    ).stdout  # fmt: skip
    return [
        Figure(f"executor: {name}", rate / 1e6, "M lanes/s", least=50)
        for name, rate in json.loads(text).items()
    ]


def _addresses(bytes: NDArray[Any], objects: int) -> NDArray[Any]:
    """Addresses (uint64) of bytes, numbered over all objects."""
    return (1 << 46) + bytes + bytes // (BYTES // objects) * _GAP


def records(form: int, objects: int) -> list[bytes]:
    """Chunks of whole records, of launch 0, in one of the forms STRIDE, DELTAS, FULL."""
    from pasta.probes.kinds import DELTAS, KIND, READ, STRIDE
    from pasta.probes.records import ACCESS

    records = np.zeros(WARPS, ACCESS)
    records["mask"], records["form"] = (1 << LANES) - 1, form
    records["kind"], records["flags"] = KIND["global"].number, READ
    records["bytes"], records["rows"] = 4, 1
    if form == STRIDE:
        records["stride"] = 4
        records["address"] = _addresses(np.arange(WARPS) * 4 * LANES % BYTES, objects)
        listed = np.empty((WARPS, 0), np.int64)
    else:
        words = np.random.default_rng(1).integers(0, BYTES // 4, (WARPS, LANES))
        listed = _addresses(4 * words, objects)
        if form == DELTAS:
            records["address"] = listed[:, 0]
            listed = (listed - listed[:, :1]).astype(np.int32).view(np.int64)
    rows = np.concatenate([records.view(np.int64).reshape(WARPS, -1), listed], axis=1)
    each = _CHUNK // rows[0].nbytes
    return [rows[begin : begin + each].tobytes() for begin in range(0, WARPS, each)]


def _rate(form: int, objects: int, tool: Any) -> float:
    """Lane accesses per second of processor time; `tool` counts them in its first map."""
    from pasta.probes.maps import accumulators_of
    from pasta.processors.filter import Filter
    from pasta.runtime.pipeline import Pipeline
    from pasta.testing import Events

    events = Events()
    size = BYTES // objects
    for start in _addresses(np.arange(objects) * size, objects).tolist():
        events.alloc(start, size)
    events.launch("kernel")
    pipeline = Pipeline(Filter(), [tool], events.context())
    pipeline.feed(events.batch())
    chunks = records(form, objects)
    seconds = []
    for _ in range(_ROUNDS):
        start = time.process_time()
        for chunk in chunks:
            pipeline.feed_accesses(chunk)
        seconds.append(time.process_time() - start)
    pipeline.finish()
    rows = next(iter(accumulators_of(tool).values())).rows()
    counted = int(rows["count"][rows["object"] >= 0].sum())
    if counted != _ROUNDS * WARPS * LANES:
        raise RuntimeError(f"{counted} accesses to objects counted: {pipeline.failures}")
    return WARPS * LANES / median(seconds[1:])


def _worker() -> None:
    from pasta.tools.hotness import Hotness

    from pasta.probes.kinds import DELTAS, FULL, STRIDE

    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rates = {
        "hotness, coalesced": _rate(STRIDE, 8, Hotness()),
        "hotness, scattered in 8 objects": _rate(DELTAS, 8, Hotness()),
        "hotness, scattered in 4,096 objects": _rate(DELTAS, 4096, Hotness()),
        "hotness, the same, 64-bit addresses": _rate(FULL, 4096, Hotness()),
        "by launch and object, coalesced": _rate(STRIDE, 8, ByObject()),
        "by launch, object and instruction, coalesced": _rate(STRIDE, 8, ByInstruction()),
        "by launch and object, scattered": _rate(DELTAS, 8, ByObject()),
        "by launch, object and instruction, scattered": _rate(DELTAS, 8, ByInstruction()),
    }
    print(json.dumps(rates))


if __name__ == "__main__":
    _worker()
