"""Programs sandbox themselves between launches: they exit as without PASTA, and no event is
lost."""

from __future__ import annotations

import argparse
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.campaigns.programs import LIMIT, compile_program, place
from tests.campaigns.result import Row

NAME = "sandboxes"
_LAUNCHES = 30_000
#: Functions of programs/restrict.h, and system calls that a filter for all threads must also allow.
_THREADS = "ALLOW(SYS_rt_sigprocmask), ALLOW(SYS_madvise), ALLOW(SYS_munmap),"
_RESTRICTIONS = {
    "restrict_by_prctl": "", "restrict_by_syscall": "", "restrict_every_thread": _THREADS,
    "to_empty_root": "", "to_nobody": "", "no_descriptors": "", "close_all": "", "landlock": "",
}  # fmt: skip
_WAYS = {
    "afterwards": ((), ()),
    "embedded": (("--set", "python.embed-delay=0"), ("wait",)),
    "collector": (("--collector",), ("wait",)),
}
_NOT_HERE = 77  # of restrict.h
_PROGRAM = f"""
#define MORE %s
#include "restrict.h"
int main(int n, char **a) {{
    launch(atoi(a[1]));
    if (n > 2) wait_for_consumer();
    %s();
    launch({_LAUNCHES});
    return 5;
}}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="of each (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="programs at a time")


def run(arguments: argparse.Namespace) -> list[Row]:
    rows = {name: Row(name) for name in _RESTRICTIONS}
    with TemporaryDirectory() as directory:
        programs = {
            name: compile_program(_PROGRAM % (more, name), Path(directory), name)
            for name, more in _RESTRICTIONS.items()
        }
        work = [
            (name, programs[name], way, 1 + 331 * number)
            for number in range(arguments.rounds) for name in rows for way in _WAYS
        ]  # fmt: skip
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for (name, _, way, _), problem in zip(work, pool.map(_one, work), strict=True):
                rows[name].add(f"{way}: {problem}" if problem else None)
    return list(rows.values())


def _one(work: tuple[str, Path, str, int]) -> str | None:
    """Failure of one run of a program that launches this many kernels before it is restricted; None
    if correct."""
    _, program, way, before = work
    options, arguments = _WAYS[way]
    with place() as here:
        process = here.start([program, str(before), *arguments], options)
        try:
            output, errors = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return "hangs"
        if process.returncode == _NOT_HERE:
            return None
        theirs = [line for line in errors.splitlines() if not line.startswith(b"pasta:")]
        if (process.returncode, output, theirs) != (5, b"", []):
            return f"status {process.returncode}, {output!r}, {theirs!r}"
        manifests = here.manifests()
        if len(manifests) != 1:
            return f"{len(manifests)} runs"
        seen = manifests[0]["events"].get("kernel_launch", 0)  # type: ignore[attr-defined]
        if seen != before + _LAUNCHES or manifests[0]["dropped"]:
            return f"{seen} of {before + _LAUNCHES} launches, dropped {manifests[0]['dropped']}"
        return "a session is left" if here.left() else None
