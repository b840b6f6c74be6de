"""Seconds of one core for the tool utilization: a million launches on four streams with operators,
waits between streams, waits of the host and copies, in batches as a collector feeds them.

Seconds are processor time, the minimum of three rounds; compiling is excluded.
"""

from __future__ import annotations

import time

import numpy as np

from bench.figures import Figure
from pasta import abi
from pasta.plugins import load_tools
from pasta.processors.batch import Batch
from pasta.processors.filter import Filter
from pasta.processors.strings import Strings
from pasta.runtime.pipeline import Pipeline
from pasta.tool import Context, Process

LAUNCHES = 1_000_000
_BATCH = 1 << 15  # launches
_STREAMS, _NAMES = 4, 64
#: Launches to a wait of the host, to a copy, to a stream's wait for another one.
_SYNC, _COPY, _WAIT = 512, 32, 64
_ROUNDS = 3


def _records(kind: str, count: int, index: np.ndarray, **fields: object) -> np.ndarray:
    made = abi.absent_records(count, abi.dtype(kind), kind)
    made["kind"], made["thread"], made["device"], made["flags"] = abi.KINDS[kind], 1, 0, 0
    made["index"] = index
    for name, value in fields.items():
        made[name] = value
    return made


def _batch(first: int, strings: list[int]) -> Batch:
    """Launches `first` and on, 2 us apart, each of 5 us on one of the streams."""
    number = np.arange(first, first + _BATCH)
    at = (number - first) * 16
    submitted = 1_000_000 + 2000 * number
    stream = 1 + number % _STREAMS
    begin = submitted + 10_000
    end = begin + 5000
    name = np.asarray(strings, np.uint32)[number % _NAMES]
    launches = _records(
        "kernel_launch", _BATCH, at + 3, time=submitted, stream=stream, ordinal=number, name=name,
        grid=(1000, 1, 1), block=(256, 1, 1), registers=32, shared_static=0, shared_dynamic=0,
    )  # fmt: skip
    completions = _records(
        "kernel_complete", _BATCH, at + 4, time=end, stream=stream, ordinal=number, start=begin,
        end=end, thread=9,
    )  # fmt: skip
    some = number % _COPY == 0
    about = {"correlation": number[some] + 1, "stream": stream[some]}
    copies = _records(
        "memory_copy", int(some.sum()), at[some] + 5, time=submitted[some] + 500, bytes=4096,
        direction=1, **about,
    )  # fmt: skip
    copies["flags"] = abi.FLAG_ASYNC
    copied = _records(
        "copy_complete", int(some.sum()), at[some] + 6, time=end[some] + 1000, bytes=4096,
        start=end[some], end=end[some] + 900, **about,
    )  # fmt: skip
    some = number % _WAIT == 0
    waits = {
        kind: _records(
            kind, int(some.sum()), at[some] + offset, time=submitted[some] + 700 + offset,
            stream=stream[some] + offset - 7, handle=77,
        )
        for kind, offset in (("event_record", 7), ("event_wait", 8))
    }  # fmt: skip
    some = number % _SYNC == 0
    syncs = _records(
        "sync", int(some.sum()), at[some] + 9, time=submitted[some] + 1500, duration=900, what=3
    )
    begins = _records("operator_begin", _BATCH, at + 1, time=submitted - 100, depth=1)
    begins["name"], begins["inputs"] = name, 0
    ends = _records("operator_end", _BATCH, at + 10, time=submitted + 1800, depth=1, outputs=0)
    records = {
        "kernel_launch": launches, "kernel_complete": completions, "memory_copy": copies,
        "copy_complete": copied, "sync": syncs, "operator_begin": begins, "operator_end": ends,
        **waits,
    }  # fmt: skip
    return Batch(first * 16, records)


def _seconds(batches: int) -> float:
    strings = Strings()
    names = list(range(8, 8 * _NAMES + 8, 8))
    for id in names:
        strings.add(id, f"_Z{len(str(id)) + 6}kernel{id}v")
    context = Context(strings, Process(pid=1, program="program", start_time=1_000_000))
    pipeline = Pipeline(Filter(), load_tools(["utilization"]), context)
    strings.add(8 * _NAMES + 8, "sm_90")
    device = _records(
        "device",
        1,
        np.zeros(1),
        time=1_000_000,
        architecture=8 * _NAMES + 8,
        multiprocessors=132,
        warp=32,
    )
    pipeline.feed(Batch(0, {"device": device}))
    taken = 0.0
    for number in range(batches):
        batch = _batch(number * _BATCH, names)
        begin = time.process_time()
        pipeline.feed(batch)
        taken += time.process_time() - begin
    begin = time.process_time()
    results = pipeline.finish()
    taken += time.process_time() - begin
    if pipeline.failures or not results:
        raise RuntimeError(pipeline.failures)
    return taken


def measure() -> list[Figure]:
    """Seconds for a million launches."""
    _seconds(2)
    batches = LAUNCHES // _BATCH
    seconds = min(_seconds(batches) for _ in range(_ROUNDS)) * LAUNCHES / (batches * _BATCH)
    return [Figure("utilization: a million launches", seconds, "s", most=3)]
