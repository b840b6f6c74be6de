"""With any umask, sessions and runs are private, and the program keeps its umask."""

from __future__ import annotations

import argparse
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.campaigns.programs import LIMIT, Place, compile_program, place
from tests.campaigns.result import Row

NAME = "umasks"
#: Writes its umask, and the output of `find` for the sessions, after a launch.
_PROGRAM = """
int main(int n, char **a) {
    mode_t mask = umask(0);
    umask(mask);
    launch(300);
    if (n > 2) wait_for_consumer();
    char line[512];
    snprintf(line, sizeof line, "find %s -mindepth 1 -printf '%%m %%y %%p\\\\n'", a[1]);
    printf("umask %o\\n", (unsigned)mask);
    fflush(stdout);
    return system(line) != 0;
}
"""
_WAYS = {
    "afterwards": ((), ()),
    "embedded": (("--set", "python.embed-delay=0"), ("wait",)),
    "collector": (("--collector", "--record"), ("wait",)),
    "probes": (("-t", "access_count", "-t", "kernel_freq"), ("wait",)),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=512, help="umasks, from 0 on")
    parser.add_argument("--step", type=int, default=7, help="every so many (default: %(default)s)")


def run(arguments: argparse.Namespace) -> list[Row]:
    masks = [*range(0, arguments.count, arguments.step)]
    if arguments.count == 512:
        masks.append(0o777)
    rows = {way: Row(way) for way in _WAYS}
    with TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        program = compile_program(_PROGRAM, Path(directory), "modes")
        work = [(program, way, mask) for mask in masks for way in _WAYS]
        with ThreadPoolExecutor(2) as pool:
            for (_, way, mask), problem in zip(work, pool.map(_one, work), strict=True):
                rows[way].add(f"umask {mask:03o}: {problem}" if problem else None)
    return list(rows.values())


def _one(work: tuple[Path, str, int]) -> str | None:
    program, way, mask = work
    options, arguments = _WAYS[way]
    with place() as here:
        process = here.start(
            ["sh", "-c", f'umask {mask:03o}; exec "$0" "$@"', program, here.sessions, *arguments],
            options, umask=mask,
        )  # fmt: skip
        output, errors = process.communicate(timeout=LIMIT)
        if process.returncode:
            return f"status {process.returncode}: {errors.decode()[-200:]}"
        first, *lines = output.decode().splitlines()
        if first != f"umask {mask:o}":
            return f"the program has {first}"
        if not lines:
            return "no session was seen"
        return _open_to_others(here, lines)


def _open_to_others(here: Place, lines: list[str]) -> str | None:
    for line in lines:
        mode, kind, path = line.split(" ", 2)
        wanted = "700" if kind == "d" else "600"
        if mode != wanted:
            return f"{path} has mode {mode} while the program runs"
    for path in (here.directory / "pasta-out").rglob("*"):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode != (0o700 if path.is_dir() else 0o600):
            return f"{path} has mode {mode:o}"
    if not here.manifests():
        return "there is no run"
    return "a session is left" if here.left() else None
