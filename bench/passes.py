"""Two recorded passes of a million launches joined as one run, with and without operators.

Four threads launch 200 kernels, in another order in each pass, two launches to an operator. Seconds
and memory are measured in the process that joins, from reading the events to writing the report.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.figures import Figure, environment
from bench.runs import absent

if TYPE_CHECKING:
    from pasta.processors.batch import Batch
    from pasta.processors.strings import Strings

LAUNCHES = 1_000_000
_KERNELS, _OPERATORS, _THREADS = 200, 100, 4
_BATCH = 16384  # launches
_MIB = 1 << 20


def measure() -> list[Figure]:
    """Seconds and memory of a join."""
    shared = Path("/dev/shm")
    figures = []
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as directory:
        for operators, what in ((True, "in operators"), (False, "without operators")):
            place = Path(directory, what)
            for name in ("times", "accesses"):
                _write(place / name, times=name == "times", operators=operators)
            seconds, memory = _join(place)
            figures += [
                Figure(f"passes: join a million launches {what}", seconds, "s", most=10),
                Figure("passes: … memory", memory / _MIB, "MiB", most=1000),
            ]
    return figures


def _join(place: Path) -> tuple[float, float]:
    """Processor seconds and bytes that `pasta merge --passes` takes."""
    code = "from pasta.cli.main import main; raise SystemExit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "merge", "--passes", str(place / "accesses"),
         str(place / "times"), "-o", str(place / "joined")],
        env=environment(), stdout=subprocess.DEVNULL,
    )  # fmt: skip
    _, status, used = os.wait4(process.pid, 0)
    joined = json.loads((place / "joined" / "run.json").read_text())["joined"]["launches"]
    if status or joined != LAUNCHES:
        raise RuntimeError(f"pasta merge ended with {status} and {joined:,} joined launches")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def _write(path: Path, *, times: bool, operators: bool) -> None:
    """A pass with device times, or with the bytes of each launch."""
    from pasta.processors.strings import Strings
    from pasta.run.directory import SCHEMA, RunDirectory
    from pasta.run.events import Recorder
    from pasta.run.results import write_result
    from pasta.table import Table
    from pasta.tool import Result

    run = RunDirectory.create(path)
    strings = Strings()
    if not times:
        strings.id_of("other ids than in the other pass")
    recorder = Recorder(run.events, strings)
    for first in range(0, LAUNCHES, _BATCH):
        recorder.add(
            _batch(first, min(_BATCH, LAUNCHES - first), strings, times=times, operators=operators)
        )
        if recorder.full:
            recorder.flush()
    recorder.flush()
    numbers = np.arange(LAUNCHES, dtype=np.uint64)
    bytes = {name: 4 * (numbers % np.uint64(99)) for name in ("bytes", "read_bytes")}
    zero = {name: numbers * np.uint64(0) for name in ("write_bytes", "atomic_bytes")}
    if not times:
        launches = Table({"launch": numbers, "kind": ["global"] * LAUNCHES, **bytes, **zero})
        write_result(run.results, "access_count", Result("", {"launches": launches}))
    run.write_manifest(
        {
            "schema": SCHEMA, "command": ["bench"], "executable": "bench", "host": "here",
            "pid": 1, "parent": 0, "environment": {}, "observed_ns": 1, "sources": {"bench": "1"},
            "start": {"realtime_ns": 0, "monotonic_ns": 0}, "ended": {"text": ""}, "devices": {},
        }
    )  # fmt: skip


def _batch(first: int, count: int, strings: Strings, *, times: bool, operators: bool) -> Batch:
    """Launches from ordinal `first` on; pairs of them are those of one operator of a thread."""
    from pasta import abi
    from pasta.processors.batch import Batch

    numbers = np.arange(first, first + count)
    calls = numbers // 2
    order = np.random.default_rng(1 + times + 2 * first)  # of the threads, in this pass
    threads = np.repeat(order.permuted(np.resize(np.arange(_THREADS), count // 2)), 2)
    names = [strings.id_of(f"void kernel_{at}<float, {at}>(float*)") for at in range(_KERNELS)]
    launches = absent("kernel_launch", count)
    # what a thread does depends on how often it was chosen, not on when
    turn = np.zeros(count, np.int64)
    for thread in range(_THREADS):
        mine = threads == thread
        turn[mine] = (first // _THREADS) + np.arange(mine.sum())
    launches["name"] = np.asarray(names)[(turn * 7 + threads) % _KERNELS]
    launches["grid"], launches["block"] = (64, 1, 1), (128, 1, 1)
    launches["index"], launches["ordinal"] = 4 * (numbers - first) + 2, numbers
    launches["time"] = 1000 * numbers
    launches["thread"] = (100 if times else 200) + threads
    launches["flags"] = 0 if times else abi.FLAG_PROBED
    records: dict[str, Any] = {"kernel_launch": launches}
    if times:
        done = absent("kernel_complete", count)
        done["index"], done["ordinal"], done["time"] = launches["index"] + 1, numbers, numbers
        done["start"] = 1000 * numbers
        done["end"] = done["start"] + np.uint64(500)
        records["kernel_complete"] = done
    if operators:
        begins, ends = (absent(f"operator_{which}", len(calls[::2])) for which in ("begin", "end"))
        begins["name"] = np.asarray([strings.id_of(f"aten::op{at}") for at in range(_OPERATORS)])[
            turn[::2] // 2 % _OPERATORS
        ]
        begins["stack"], begins["module"] = 0, 0
        for each, at in ((begins, 0), (ends, 7)):
            each["depth"], each["thread"] = 1, launches["thread"][::2]
            each["index"], each["time"] = 4 * (numbers[::2] - first) + at, 1000 * numbers[::2]
        records |= {"operator_begin": begins, "operator_end": ends}
    return Batch(4 * first, records)
