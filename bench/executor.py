"""Lane accesses per second that one core takes from recorded accesses: `hotness`, by the CPU
executor of probes.

Every record is a warp of 32 lanes that read 4 bytes each in objects of 64 MiB in all, which touch
16,384 bins of 4 KiB.  Coalesced: the lanes are next to each other (one stride), warps go on where
the one before ended.  Scattered: each lane has an address of its own, uniformly random over all
objects (32-bit deltas or 64-bit addresses), which are 8 of 8 MiB or 4,096 of 16 KiB.  Records come
in chunks as from the ring, of launches that have no allocation between them.  Seconds are of
processor time in a process pinned to one core, without the compilation and a first round.
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

if TYPE_CHECKING:
    from numpy.typing import NDArray

WARPS = 1 << 18
_ROUNDS = 7
_BYTES = 64 << 20
_FEW, _MANY = 8, 4096
_FIRST = 0x7F00_0000_0000
_CHUNK = 1 << 20


def measure() -> list[Figure]:
    text = subprocess.run(
        [sys.executable, "-m", "bench.executor"],
        env=environment(), check=True, stdout=subprocess.PIPE, text=True, timeout=300,
    ).stdout  # fmt: skip
    return [
        Figure(f"executor: hotness, {name}", rate / 1e6, "M lane accesses/s", least=50)
        for name, rate in json.loads(text).items()
    ]


def _chunks(form: int, objects: int) -> list[bytes]:
    """Records of WARPS warps in chunks of whole records, all of launch 0."""
    from pasta.probes.kinds import DELTAS, FULL, KIND, READ, STRIDE
    from pasta.probes.records import ACCESS

    records = np.zeros(WARPS, ACCESS)
    records["mask"] = 0xFFFF_FFFF
    records["kind"] = KIND["global"].number
    records["flags"], records["form"], records["bytes"], records["rows"] = READ, form, 4, 1
    places = _places(objects)
    words = records.view(np.uint64).reshape(WARPS, -1)
    if form == STRIDE:
        records["stride"] = 4
        records["address"] = places(128 * np.arange(WARPS, dtype=np.uint64) % np.uint64(_BYTES))
    else:
        random = np.random.default_rng(1).integers(0, _BYTES // 4, (WARPS, 32), np.uint64)
        addresses = places(4 * random)
        if form == DELTAS:
            records["address"] = addresses[:, 0]
            addresses = (addresses - addresses[:, :1]).astype(np.uint32).view(np.uint64)
        else:
            assert form == FULL
        words = np.concatenate([words, addresses], axis=1)
    each = _CHUNK // words[0].nbytes
    return [words[at : at + each].tobytes() for at in range(0, WARPS, each)]


def _places(objects: int) -> Any:
    """Addresses of bytes of all objects, between which there are gaps of 4 KiB."""
    size = np.uint64(_BYTES // objects)

    def places(bytes: NDArray[Any]) -> NDArray[Any]:
        return np.uint64(_FIRST) + bytes + bytes // size * np.uint64(4096)

    return places


def _rate(form: int, objects: int) -> float:
    """Lane accesses per second of processor time."""
    from pasta.processors.filter import Filter
    from pasta.processors.pipeline import Pipeline
    from pasta.testing import Events
    from pasta.tools.hotness import Hotness

    events = Events()
    for start in _places(objects)(np.arange(objects, dtype=np.uint64) * np.uint64(_BYTES // objects)):
        events.alloc(int(start), _BYTES // objects)
    events.launch("kernel")
    tool = Hotness()
    pipeline = Pipeline(Filter(), [tool], events.context())
    pipeline.feed(events.batch())
    chunks = _chunks(form, objects)
    seconds = []
    for _ in range(_ROUNDS):
        start = time.process_time()
        for chunk in chunks:
            pipeline.feed_accesses(chunk)
        seconds.append(time.process_time() - start)
    pipeline.finish()
    counted = tool.heat.total()
    if pipeline.failures or counted != _ROUNDS * WARPS * 32:
        raise RuntimeError(f"{counted} accesses counted: {pipeline.failures}")
    return WARPS * 32 / median(seconds[1:])


def _worker() -> dict[str, float]:
    from pasta.probes.kinds import DELTAS, FULL, STRIDE

    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    return {
        "coalesced": _rate(STRIDE, _FEW),
        "scattered in 8 objects": _rate(DELTAS, _FEW),
        "scattered in 8 objects, 64-bit": _rate(FULL, _FEW),
        "scattered in 4,096 objects": _rate(DELTAS, _MANY),
    }


if __name__ == "__main__":
    print(json.dumps(_worker()))
