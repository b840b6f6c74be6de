"""Compiles functions side by side, in other processes, into the cache."""

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

#: Of the lock that a process holds while it compiles.
_KEY = "building"


def declared(module: str) -> list[Compiled]:
    """The compiled functions of a module."""
    values = vars(import_module(module)).values()
    return [each for each in values if isinstance(each, Compiled) and each.place[0] == module]


def build_missing(functions: Iterable[Compiled]) -> int:
    """Compile the functions that are not in the cache, and return their number. A second process
    waits for what the first one compiles: starting Numba takes longer than most functions.

    Functions that cannot be compiled or stored are left to their first call, which reports why.
    """
    missing = [each for each in functions if not each.is_stored()]
    if len(missing) < 2 or not store.is_writable():
        return len(missing)
    with store.locked(_KEY):
        unbuilt = [each for each in missing if not each.is_stored()]
        processes = min(len(os.sched_getaffinity(0)), len(unbuilt))
        if processes > 1:
            _run(_shares(unbuilt, processes))
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
    request = [[(each.text, *each.place) for each in share] for share in shares]
    with suppress(OSError):  # too many processes
        subprocess.run(
            own_python("pasta.compiled.building"),
            input=json.dumps(request).encode(),
            env=own_environment(os.environ),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )


def main() -> int:
    """Compile the request on standard input, lists of functions, each in a process of its own.

    A function is the text of a generated module or null, the name of its module, and its name.
    """
    import gc

    from pasta.compiled.lowering import prepare

    shares = json.load(sys.stdin)
    gc.disable()  # a sixth of the time
    prepare()
    children = []
    for share in shares[1:]:
        child = os.fork()
        if child == 0:
            os._exit(_build(share))
        children.append(child)
    failed = _build(shares[0])
    for child in children:
        failed |= os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return failed


def _build(share: Iterable[tuple[str | None, str, str]]) -> int:
    failed = 0
    for text, module, name in share:
        function = generated(text, name) if text else getattr(import_module(module), name)
        try:
            function.prepare()
        except Exception:
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
