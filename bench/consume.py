"""Events per second that one core consumes from the ring: decoded, correlated and counted by
kernel_freq, without and with recording as Parquet, which a collector does; and counted by a sampled
access_count, for which no launch was probed.

A program leaves a full ring (bench/c/ring_mix.c); a process pinned to one core reads it.  Seconds
are processor time, which excludes other load on the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.figures import Figure, compile_program, environment, ring_session, run

LAUNCHES = 1_000_000
_ROUNDS = 5


def measure() -> list[Figure]:
    """Events per second of one core, and bytes of a recorded event."""
    with tempfile.TemporaryDirectory() as directory, ring_session(512 << 20) as (session, env):
        program = compile_program(Path(directory), "ring_mix", ring=True)
        run([program, str(LAUNCHES)], env)
        (ring,) = (session / "rings").iterdir()
        text = subprocess.run(
            [sys.executable, "-m", "bench.consume", str(ring), directory],
            env=environment(), check=True, stdout=subprocess.PIPE, text=True, timeout=300,
        ).stdout  # fmt: skip
    found = json.loads(text)
    return [
        Figure("consume: kernel_freq", found["counted"] / 1e6, "M events/s", least=5),
        Figure(
            "consume: kernel_freq and recording", found["recorded"] / 1e6, "M events/s", least=2
        ),
        Figure("consume: access_count --sample", found["sampled"] / 1e6, "M events/s", least=3),
        Figure("consume: size on disk", found["bytes"], "bytes/event", most=20),
    ]


def _count(path: Path, directory: Path | None, tool: str = "kernel_freq") -> tuple[int, float, int]:
    """Events, seconds, and bytes written to `directory`; None: nothing is recorded."""
    from pasta.config import Config
    from pasta.processors.strings import Strings
    from pasta.run.events import Recorder
    from pasta.run.inventory import Inventory
    from pasta.runtime.assembly import make_context, make_pipeline
    from pasta.runtime.ring import Ring

    ring = Ring(path)
    strings = Strings(ring.string)
    config = Config(tools=[tool])
    config.set_text("probes.sample=true")
    pipeline = make_pipeline(config, make_context(ring, strings))
    inventory = Inventory(strings)
    recorder = Recorder(directory, strings) if directory else None
    events = 0
    start = time.process_time()
    for batch, _ in ring.batches(0):
        selected = pipeline.feed(batch)
        events += len(batch)
        if recorder:
            inventory.add(batch)
            recorder.add(selected)
            if recorder.full:
                recorder.flush()
    if recorder:
        recorder.flush()
    seconds = time.process_time() - start
    if pipeline.failures:
        raise RuntimeError(pipeline.failures)
    if pipeline.probes:
        counted = sum(pipeline.probes.sampling.seen.values())
    else:
        counted = int(pipeline.tools[0].launches.sum())  # type: ignore[attr-defined]
    if counted != LAUNCHES or ring.torn:
        raise RuntimeError(f"{counted} launches counted, {LAUNCHES} made, {ring.torn} slots torn")
    ring.close()
    written = sum(file.stat().st_size for file in directory.iterdir()) if directory else 0
    return events, seconds, written


def _worker(path: Path, directory: Path) -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    counted, recorded, sampled, size = [], [], [], 0.0
    for number in range(_ROUNDS):
        events, seconds, _ = _count(path, None)
        counted.append(events / seconds)
        events, seconds, _ = _count(path, None, "access_count")
        sampled.append(events / seconds)
        events, seconds, written = _count(path, directory / f"events-{number}")
        recorded.append(events / seconds)
        size = written / events
    rates = {"counted": counted, "recorded": recorded, "sampled": sampled}
    print(json.dumps({name: median(each) for name, each in rates.items()} | {"bytes": size}))


if __name__ == "__main__":
    _worker(Path(sys.argv[1]), Path(sys.argv[2]))
