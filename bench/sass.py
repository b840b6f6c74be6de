"""Cost of reading GPU code: python -m bench.sass CUBIN...

CPU and elapsed seconds of disassembly, without and with a cache, of control flow and definitions,
and of blaming a sample at every wait for a scoreboard. A library's modules: cuobjdump -xelf sm_90.
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


def main() -> None:
    """Measure, and print a line for each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="+", type=Path)
    parser.add_argument("--chains", action="store_true", help="also all def-use edges")
    given = parser.parse_args()
    print(f"{'step':24}{'CPU s':>8}{'with children':>15}{'elapsed s':>11}")
    cubins = []
    with step("modules"):
        cubins = [Cubin(path.read_bytes()) for path in given.modules]
    with tempfile.TemporaryDirectory() as scratch:
        with step("disassembly"):
            codes = read(cubins, Path(scratch, "cache"))
        with step("disassembly, cached"):
            codes = read(cubins, Path(scratch, "cache"))
    with step("flow and definitions"):
        for code in codes:
            DefUse(code, build_control_flow(code))
    if given.chains:
        with step("all def-use edges"):
            for code in codes:
                DefUse(code, build_control_flow(code)).chains()
    edges = 0
    with step("blame at every wait"):
        for code in codes:
            waiting = decode_control(code.control).wait.nonzero()[0].tolist()
            samples = {INSTRUCTION_BYTES * at: {"long_scoreboard": 1000} for at in waiting}
            edges += len(Blamer(code).blame(samples).edges)
    size = sum(len(cubin.image) for cubin in cubins) / 1e6
    count = sum(len(code.form) for code in codes)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{size:.0f} MB, {len(codes):,} functions, {count:,} instructions, {edges:,} edges")
    print(f"{most:.2f} GB of memory at most")


def read(cubins: list[Cubin], cache: Path) -> list[Code]:
    """All functions of modules."""
    modules = read_code([(cubin, None) for cubin in cubins], cache=cache)
    return [code for module in modules for code in module.values()]


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
