"""Mutated run directories before every reader: no traceback, hang, escape or write outside.

Each run is a copy of a base (tests/fuzz/bases.py) that `tests.fuzz.hostile` changes; some readers
then read it, in processes of limited memory. Run N is the same whenever it is made:
`--first N --count 1` repeats it.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.campaigns.result import Row
from tests.fuzz import bases, readers
from tests.fuzz.hostile import mutate
from tests.fuzz.readers import Failure, Scene

NAME = "runs"
#: Maximum growth of a reader's resident memory, in bytes.
MEMORY = 1 << 30
_ADDRESS_SPACE = 8 << 30
#: Seconds of wall-clock time after which a silent process is killed.
_SILENCE = 60
_OTHER = 0x5EED  # so that the choice of readers is independent of the mutations
#: One call in this many runs the command, in a separate process.
_SAMPLE = 400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--count", type=int, default=10_000, metavar="N", help="mutated runs (default: %(default)s)"
    )
    add("--first", type=int, default=0, metavar="N", help="number of the first one")
    add("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="processes")
    add("--base", action="append", choices=list(bases.BASES), help="only of this run (repeatable)")
    add("--reader", action="append", choices=readers.READERS, help="only this one (repeatable)")
    add("--readers", type=int, default=1, metavar="N", help="of each run (default: %(default)s)")
    add("--keep", type=Path, metavar="DIR", help="keep runs that a reader failed on")


class _Maker:
    """Makes the mutated run with a number, deterministically."""

    def __init__(self, place: Path, chosen: Sequence[str]) -> None:
        self.place, self.chosen = place, list(chosen)

    def prepare(self) -> None:
        for name in self.chosen:
            bases.BASES[name](self.place / name)

    def make(self, number: int, directory: Path) -> tuple[Scene, list[str]]:
        rng = random.Random(number)
        scene = Scene(directory)
        directory.mkdir()
        readers.make_canary(directory)
        base = self.place / rng.choice(self.chosen)
        shutil.copytree(base, scene.run, symlinks=True)
        shutil.copytree(base, scene.good, symlinks=True)
        bases.ranked(scene.run, 0, 2)
        bases.ranked(scene.good, 1, 2)
        done = mutate(rng, scene.run)
        return scene, [f"of {base.name}", *done]


def _readers_of(number: int, of: Sequence[str], count: int) -> list[str]:
    return random.Random(number ^ _OTHER).sample(list(of), min(count, len(of)))


def _work(
    maker: _Maker, numbers: Iterable[int], of: Sequence[str], count: int, keep: Path | None,
    pipe: Connection,
) -> None:  # fmt: skip
    """A worker process: reads runs, and reports before and after each reader."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    sys.stdout = open(os.devnull, "w")
    for number in numbers:
        with tempfile.TemporaryDirectory(prefix="pasta-campaign-") as scratch:
            directory = Path(scratch) / "scene"
            scene, done = maker.make(number, directory)
            for reader in _readers_of(number, of, count):
                scene.out.mkdir()
                pipe.send((number, reader, None, None))
                before = _resident()
                seconds, failures = readers.timed(reader, scene)
                grown = _resident() - before
                if grown > MEMORY:
                    failures.append(Failure("memory", f"{grown >> 20} MiB"))
                if number % _SAMPLE == 0 and reader in readers.VERBS:
                    failures += _through_command(reader, scene)
                reported = [Failure(each.kind, f"{done}\n{each.detail}") for each in failures]
                pipe.send((number, reader, seconds, reported))
                if failures and keep:
                    shutil.copytree(directory, keep / f"{number}-{reader.replace(' ', '_')}",
                                    symlinks=True, dirs_exist_ok=True)  # fmt: skip
                shutil.rmtree(scene.out)
    pipe.send(None)


def _resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _through_command(reader: str, scene: Scene) -> list[Failure]:
    """The same with the installed command."""
    shutil.rmtree(scene.out)
    scene.out.mkdir()
    done = subprocess.run(
        [*bases.command("pasta"), *readers.VERBS[reader](scene)],
        capture_output=True, timeout=_SILENCE, cwd=bases.REPOSITORY, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    out, err = (text.decode("utf-8", "backslashreplace") for text in (done.stdout, done.stderr))
    return readers.check_output(reader, done.returncode, out, err)


class _Worker:
    """A process that reads a share of the runs, and is restarted if it crashes."""

    def __init__(self, start: Any, numbers: list[int]) -> None:
        self._start, self.numbers = start, numbers
        self.begin()

    def begin(self) -> None:
        self.pipe, theirs = multiprocessing.Pipe(duplex=False)
        self.process = self._start(self.numbers, theirs)
        theirs.close()
        self.at: tuple[int, str] | None = None
        self.heard = time.monotonic()

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()

    def skip(self) -> None:
        """Continues after the run at which the process ended."""
        assert self.at is not None
        self.numbers = self.numbers[self.numbers.index(self.at[0]) + 1 :]


def run(arguments: argparse.Namespace) -> list[Row]:
    of = arguments.reader or readers.READERS
    rows = {name: Row(name) for name in of}
    numbers = list(range(arguments.first, arguments.first + arguments.count))
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pasta-campaign-") as scratch:
        maker = _Maker(Path(scratch), arguments.base or list(bases.BASES))
        maker.prepare()
        context = multiprocessing.get_context("spawn")

        def start(mine: list[int], pipe: Connection) -> Any:
            work = (maker, mine, of, arguments.readers, arguments.keep, pipe)
            process = context.Process(target=_work, args=work, daemon=True)
            process.start()
            return process

        shares = [numbers[at :: arguments.jobs] for at in range(arguments.jobs)]
        _follow([_Worker(start, share) for share in shares if share], rows)
    took = time.monotonic() - begun
    print(f"{len(numbers):,} runs in {took:.0f} s, {len(numbers) / took:.1f} a second")
    return list(rows.values())


def _follow(workers: list[_Worker], rows: dict[str, Row]) -> None:
    while workers:
        ready = wait([each.pipe for each in workers], timeout=1)
        for worker in list(workers):
            if worker.pipe in ready and _hear(worker, rows):
                worker.end()
                workers.remove(worker)
            elif time.monotonic() - worker.heard > _SILENCE:
                _failed(worker, rows, "hang")


def _hear(worker: _Worker, rows: dict[str, Row]) -> bool:
    """Receives a message of a process; returns whether it was the last."""
    worker.heard = time.monotonic()
    try:
        message = worker.pipe.recv()
    except EOFError:
        _failed(worker, rows, "crash")
        return not worker.numbers
    if message is None:
        return True
    number, reader, seconds, failures = message
    worker.at = (number, reader)
    if seconds is not None:
        rows[reader].count(seconds, [each.kind for each in failures])
        for each in failures:
            _print(number, reader, each)
    return False


def _failed(worker: _Worker, rows: dict[str, Row], kind: str) -> None:
    worker.end()
    if worker.at is None:
        raise RuntimeError(f"a process of the campaign ended: {worker.process.exitcode}")
    number, reader = worker.at
    rows[reader].count(_SILENCE if kind == "hang" else 0, [kind])
    _print(number, reader, Failure(kind, f"status {worker.process.exitcode}"))
    worker.skip()
    with contextlib.suppress(OSError):
        worker.begin()


def _print(number: int, reader: str, failure: Failure) -> None:
    print(f"run {number}, {reader}: {failure.kind}: {failure.detail}", flush=True)


__all__ = ["NAME", "add_arguments", "run"]
