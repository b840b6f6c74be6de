"""Compiles functions side by side, in other processes, so that the code is in the cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module

from pasta.compiled import Compiled, generated, store
from pasta.own_python import own_environment, own_python

#: More processes gain little: each imports Numba, and the largest function is not divided.
_MAX_PROCESSES = 4


def declared() -> list[Compiled]:
    """The compiled functions of the modules of PASTA that are imported."""
    return [
        value
        for name, module in sorted(sys.modules.items())
        if name.startswith("pasta.")
        for value in list(vars(module).values())
        if isinstance(value, Compiled) and value.function.__module__ == name
    ]


def build_missing(functions: Iterable[Compiled]) -> int:
    """Compile those that the cache lacks, and return their number.

    What cannot be compiled or stored is left to the function's first call, which reports why.
    """
    missing = [each for each in functions if not each.is_stored()]
    processes = min(len(os.sched_getaffinity(0)), _MAX_PROCESSES, len(missing))
    if processes > 1 and store.is_writable():
        _run(_shares(missing, processes))
    return len(missing)


def _shares(functions: Sequence[Compiled], count: int) -> list[list[Compiled]]:
    """Functions divided into parts that take about the same time."""
    shares: list[list[Compiled]] = [[] for _ in range(count)]
    sizes = [0] * count
    for each in sorted(functions, key=lambda each: each.size, reverse=True):
        smallest = sizes.index(min(sizes))
        shares[smallest].append(each)
        sizes[smallest] += each.size
    return shares


def _run(shares: Sequence[Sequence[Compiled]]) -> None:
    processes = []
    try:
        for share in shares:
            request = [(each.text, *each.place) for each in share]
            process = subprocess.Popen(
                own_python("pasta.compiled.building"),
                env=own_environment(os.environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            processes.append((process, json.dumps(request).encode()))
    except OSError:
        pass  # too many processes
    for process, request in processes:
        assert process.stdin is not None
        with suppress(OSError), process.stdin as stdin:  # it may have ended
            stdin.write(request)
    for process, _ in processes:
        process.wait()


def main() -> int:
    """Compile the request on standard input: text of a generated module or null, module, name."""
    for text, module, name in json.load(sys.stdin):
        function = generated(text, name) if text else getattr(import_module(module), name)
        function.prepare()
    return 0


if __name__ == "__main__":
    sys.exit(main())
