"""Cost of reading GPU code: python -m bench.sass CUBIN...

CPU and elapsed seconds of disassembly, control flow and definitions of all functions, or of some as
in a run that launched these; then of disassembly from the cache, of all def-use edges, and of
blaming a sample at every wait for a scoreboard. A library's modules: cuobjdump -xelf sm_90.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pasta.sass.blame import Blamer
from pasta.sass.control import decode_control
from pasta.sass.control_flow import build_control_flow
from pasta.sass.cubin import INSTRUCTION_BYTES, Cubin
from pasta.sass.dataflow import DefUse
from pasta.sass.disassembler import Code, read_code

#: A module and the names of functions in it.
Module = tuple[Cubin, list[str]]


def main() -> None:
    """Measure, and print a line for each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="+", type=Path)
    parser.add_argument(
        "--functions", type=int, metavar="N", help="read only N functions, spread over all modules"
    )
    parser.add_argument("--chains", action="store_true", help="also all def-use edges")
    parser.add_argument("--blame", action="store_true", help="also blame at every wait")
    given = parser.parse_args()
    print(f"{'step':24}{'CPU s':>8}{'with children':>15}{'elapsed s':>11}")
    with tempfile.TemporaryDirectory() as cache:
        with step("total"):
            with step("modules"):
                cubins = [Cubin(path.read_bytes()) for path in given.modules]
                modules = select(cubins, given.functions)
            with step("disassembly"):
                codes = read(modules, cache)
            with step("flow and definitions"):
                find_definitions(codes)
        print_memory()
        del codes
        with step("disassembly, cached"):
            codes = read(modules, cache)
    if given.chains:
        with step("all def-use edges"):
            for code in codes:
                DefUse(code, build_control_flow(code)).chains()
    if given.blame:
        with step("blame at every wait"):
            edges = sum(map(blame_waits, codes))
        print(f"{edges:,} edges")
    size = sum(len(cubin.image) for cubin, _ in modules) / 1e6
    count = sum(len(code.form) for code in codes)
    print(f"{size:.0f} MB, {len(codes):,} functions, {count:,} instructions")


def select(cubins: list[Cubin], count: int | None) -> list[Module]:
    """All functions of modules, or `count` at equal distances, with the modules that have them."""
    every = [(at, name) for at, cubin in enumerate(cubins) for name in cubin.names()]
    distance = 1 if count is None else max(1, len(every) // count)
    names: dict[int, list[str]] = {}
    for at, name in every[::distance][:count]:
        names.setdefault(at, []).append(name)
    return [(cubins[at], some) for at, some in names.items()]


def read(modules: list[Module], cache: str) -> list[Code]:
    """Functions of modules."""
    return [code for each in read_code(modules, cache=Path(cache)) for code in each.values()]


def find_definitions(codes: list[Code]) -> None:
    """Control flow and definitions of functions."""
    for code in codes:
        DefUse(code, build_control_flow(code))


def blame_waits(code: Code) -> int:
    """Edges of a sample at each instruction that waits for a scoreboard."""
    waiting = decode_control(code.control).wait.nonzero()[0].tolist()
    samples = {INSTRUCTION_BYTES * at: {"long_scoreboard": 1000} for at in waiting}
    return len(Blamer(code).blame(samples).edges)


def print_memory() -> None:
    """Print the maximum so far."""
    own, child = (
        resource.getrusage(who).ru_maxrss / 1e6
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    print(f"memory: {own:.2f} GB, each process of nvdisasm {child:.2f} GB")


@contextmanager
def step(name: str) -> Iterator[None]:
    """Print what a step costs."""
    start, (own, all_) = time.monotonic(), cpu()
    yield
    own, all_ = (after - before for after, before in zip(cpu(), (own, all_), strict=True))
    print(f"{name:24}{own:8.1f}{all_:15.1f}{time.monotonic() - start:11.1f}", flush=True)


def cpu() -> tuple[float, float]:
    """CPU seconds of this process, and with its children."""
    own, children = (
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
    return own, own + children


if __name__ == "__main__":
    main()
