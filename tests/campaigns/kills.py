"""Processes of a profiled run are killed at random times; every published event must be kept.

A victim is the program, its launcher, its collector, or several of them.  The program counts its
launches in shared memory, so that what was published at the least is known from outside.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.campaigns.programs import (
    COUNTING,
    LIMIT,
    Counter,
    Place,
    alive,
    compile_program,
    kill,
    place,
    wait_for,
)
from tests.campaigns.result import Row

NAME = "kills"
THREADS = 3
#: Kinds of consumers, and the options that select them.
WAYS = {
    "afterwards": (),
    "embedded": ("--set", "python.embed-delay=0"),
    "collector": ("--collector",),
    "small ring": ("--collector", "--set", "ring.max=2MiB"),
}
#: Processes to kill, one after the other.
VICTIMS = {
    "program": ("program",),
    "launcher": ("launcher",),
    "collector": ("collector",),
    "launcher, then program": ("launcher", "program"),
    "launcher and collector": ("launcher", "collector"),
    "all": ("program", "launcher", "collector"),
    "recover": ("launcher", "program", "recover"),
}
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGABRT)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=500, help="runs (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")


def run(arguments: argparse.Namespace) -> list[Row]:
    rows: dict[str, Row] = {}
    with TemporaryDirectory() as directory:
        program = compile_program(COUNTING, Path(directory), "counting")
        with ThreadPoolExecutor(arguments.jobs) as pool:
            seeds = range(arguments.seed, arguments.seed + arguments.count)
            found = pool.map(lambda seed: _one(program, seed), seeds)
            for seed, (label, problem) in zip(seeds, found, strict=True):
                row = rows.setdefault(label, Row(label))
                row.add(f"seed {seed}: {problem}" if problem else None)
    return [rows[label] for label in sorted(rows)]


def _one(program: Path, seed: int) -> tuple[str, str | None]:
    random_ = random.Random(seed)
    way, victims = random_.choice(list(WAYS)), random_.choice(list(VICTIMS))
    number = random_.choice(SIGNALS)
    pause = random_.choice((0.0, 0.05, 0.3, 1.0)) * random_.random()
    with place() as here:
        label = f"{victims} ({way})"
        try:
            problems = _attempt(here, program, way, VICTIMS[victims], number, pause, random_)
        except subprocess.TimeoutExpired:
            problems = ["hangs"]
        return label, "; ".join(problems) or None


def _attempt(
    here: Place, program: Path, way: str, victims: tuple[str, ...], number: int, pause: float,
    random_: random.Random,
) -> list[str]:  # fmt: skip
    counter = Counter(here.directory / "counter")
    seconds = 1.5
    launcher = here.start(
        [program, counter.path, str(THREADS), str(int(seconds * 1000))], WAYS[way]
    )
    if not wait_for(lambda: counter.read()[1] > 0):
        launcher.kill()
        return ["the program did not start"]
    pid, _ = counter.read()
    time.sleep(pause)
    for victim in victims:
        if victim == "program":
            kill(pid, number)
        elif victim == "launcher":
            launcher.kill()
        elif victim == "collector":
            for each in here.collectors():
                kill(each, signal.SIGKILL)
        time.sleep(random_.random() * 0.05)
    if "recover" in victims:  # while collectors may still run
        here.pasta("recover", *here.left())
    _, stderr = launcher.communicate(timeout=LIMIT)
    problems = []
    if b"Traceback" in stderr:
        problems.append("the launcher prints a traceback")
    if "launcher" not in victims:
        expected = -number if "program" in victims else 7
        if launcher.returncode != expected:
            problems.append(f"status {launcher.returncode} instead of {expected}")
    wait_for(lambda: not alive(pid))
    published = counter.read()[1]
    wait_for(lambda: not here.processes())
    if here.left():
        recovered = here.pasta("recover", *here.left())
        if "Traceback" in recovered.stderr + recovered.stdout:
            problems.append(f"recover prints a traceback: {recovered.stderr[-300:]}")
    problems += _missing(here, published)
    if here.left():
        problems.append("a session is left")
    return problems


def _missing(here: Place, published: int) -> list[str]:
    manifests = here.manifests()
    if len(manifests) != 1:
        return [f"{len(manifests)} runs; {published:,} launches were published"]
    (manifest,) = manifests
    seen = manifest["events"].get("kernel_launch", 0)  # type: ignore[attr-defined]
    recorded = manifest["recorded"].get("kernel_launch", 0)  # type: ignore[attr-defined]
    dropped = manifest["dropped"].get("kernel_launch", 0)  # type: ignore[attr-defined]
    problems = []
    if not published <= seen + dropped <= published + THREADS:
        problems.append(f"{seen:,} launches seen and {dropped:,} dropped of {published:,}")
    if recorded != seen:
        problems.append(f"{recorded:,} launches recorded of {seen:,} seen")
    return problems
