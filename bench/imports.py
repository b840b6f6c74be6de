"""Modules imported for kernel_freq, and the time until a tool with compiled code is ready."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.figures import Figure, compile_program, environment, ring_session, run

_COUNT = """
import sys
from pathlib import Path
from bench.consume import _count
import bench.consume
bench.consume.LAUNCHES = 1000
_count(Path(sys.argv[1]), Path(sys.argv[2]))
print(" ".join(sys.modules))
"""
_OBJECTS = """
import numpy as np
from pasta import abi
from pasta.processors.batch import Batch
from pasta.processors.objects import ObjectTable
allocations = np.zeros(4, abi.dtype("memory_alloc"))
allocations["address"] = np.arange(1, 5) * 4096
allocations["bytes"] = 4096
allocations["kind"] = abi.KINDS["memory_alloc"]
allocations["index"] = np.arange(4)
ObjectTable(history=False).feed(Batch(0, {"memory_alloc": allocations}))
"""


def measure() -> list[Figure]:
    """Modules imported for kernel_freq, and seconds until compiled code is ready."""
    with tempfile.TemporaryDirectory() as directory, ring_session(64 << 20) as (session, env):
        run([compile_program(Path(directory), "ring_mix", ring=True), "1000"], env)
        (ring,) = (session / "rings").iterdir()
        modules = run(
            [sys.executable, "-c", _COUNT, ring, Path(directory, "events")], environment()
        )
        cache = environment(XDG_CACHE_HOME=str(Path(directory, "cache")))
        first, second = _ready(cache), _ready(cache)
    compiled = sum(name in ("numba", "llvmlite") for name in modules.split())
    return [
        Figure("imports: Numba and LLVM for kernel_freq", compiled, "modules", most=0),
        Figure("imports: object table ready, first time", first, "s"),
        Figure("imports: object table ready, from the cache", second, "s", most=0.5),
    ]


def _ready(env: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", _OBJECTS], env=env, check=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    for figure in measure():
        print(f"{figure.name}: {figure.measured}")
