"""Cost of publishing one event: python -m bench.publish

Median nanoseconds per event with one thread and with eight, beside a consumer, and whether the
path makes a system call in a ring that has grown.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Files of libpasta's core that the ring needs.
RING = (
    *("budget", "call_paths", "cfi", "config", "exec", "hash", "life", "loadable"),
    *("objects", "observers", "process", "processes", "profiling", "python_frames"),
    *("python_objects", "ring", "sandbox", "say", "scope", "select", "shapes", "strings"),
    *("tensors", "unwind", "windows"),
)


def compile_program(directory: Path) -> Path:
    """bench/c/ring_publish.c with the ring, compiled as libpasta is."""
    program = directory / "ring_publish"
    sources = [
        *(ROOT / "shim" / "core" / f"{name}.c" for name in RING),
        ROOT / "shim" / "python" / "reader.c",
        ROOT / "tests" / "programs" / "ring_stubs.c",
        ROOT / "bench" / "c" / "ring_publish.c",
    ]
    compiler = os.environ.get("CC", "cc").split()
    command = [*compiler, "-std=c11", "-O2", "-fPIC", "-pthread", f"-I{ROOT / 'shim' / 'include'}"]
    subprocess.run([*command, *sources, "-o", program, "-ldl"], check=True)
    return program


def measure(program: Path, arguments: list[str]) -> dict[str, float]:
    """The values that one run prints, in a new session in shared memory."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as session:
        Path(session, "rings").mkdir()
        Path(session, "processes").write_bytes(bytes(512 << 10))
        shim = f"schema=1\nsession={session}\nchildren=1\nroot=0\nring_max={1 << 30}"
        text = subprocess.run(
            [program, *arguments],
            env={**os.environ, "PASTA_SHIM": shim},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
    return {name: float(value) for name, value in map(str.split, text.splitlines())}


def main() -> int:
    """Print the cost with one thread and with eight; 1 if publishing made a system call."""
    parser = argparse.ArgumentParser(prog="python -m bench.publish", description=__doc__)
    parser.add_argument("--events", type=int, default=4_000_000, help="events in all")
    events: int = parser.parse_args().events
    with tempfile.TemporaryDirectory() as directory:
        program = compile_program(Path(directory))
        print(f"{os.cpu_count()} cores")
        for threads in (1, 8):
            run = measure(program, [str(threads), str(events // threads)])
            print(
                f"{threads} thread{'s' if threads > 1 else ''}: median {run['median_ns']:.0f} ns, "
                f"p99 of batches of 1000 {run['p99_ns']:.0f} ns, "
                f"all threads together {run['wall_ns']:.0f} ns per event, "
                f"{run['dropped']:.0f} dropped"
            )
        quiet = measure(program, ["quiet", "100000"])["quiet"]
        print(f"system calls while 100,000 events were published: {'none' if quiet else 'SOME'}")
    return 0 if quiet else 1


if __name__ == "__main__":
    sys.exit(main())
