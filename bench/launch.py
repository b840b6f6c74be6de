"""Cost of probes for the host at each launch, without a GPU.

A driver and Sanitizer library in C (tests/support/fake_gpu.py) deliver the callbacks of launches;
the time in them, from a launch's begin to its end, is measured as the median of batches. The fake
library also provides the page-locked memory and the copies in stream order.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from bench.figures import Figure, environment, preload_command
from tests.support import fake_gpu

_LAUNCHES = 20_000
_OBJECTS = 4096


def _script(*, changing: bool, objects: int) -> str:
    lines = [f"alloc {0x7F0000000000 + i * 8192:x} 1000" for i in range(objects)]
    return "\n".join([*lines, f"cost {_LAUNCHES:x} {int(changing)}"]) + "\n"


def _median(directory: Path, tools: list[str], script: str) -> float:
    """Nanoseconds per launch."""
    options = [option for tool in tools for option in ("-t", tool)]
    done = subprocess.run(
        [*preload_command(), *options, "--set", "probes.sm=90", "-q", "-f",
         "-o", directory / "run", "--", directory / "program"],
        env=environment(**fake_gpu.environment(directory)), input=script, capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    name, _, value = done.stdout.partition("\n")[0].partition(" ")
    if done.returncode != 7 or name != "cost":
        raise RuntimeError(f"the played program ended with {done.returncode}\n{done.stderr}")
    return float(value)


def measure() -> list[Figure]:
    """The figures of this module."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        fake_gpu.build(directory, "-O2")
        ways = (
            ("no tool with probes", ["kernel_freq"], False, 1, None),
            ("access_count", ["access_count"], False, 1, 5000.0),
            (f"… {_OBJECTS:,} live objects", ["access_count"], False, _OBJECTS, 5000.0),
            ("… an object allocated and freed each", ["access_count"], True, 1, None),
        )
        return [
            Figure(
                f"launch: {what}",
                _median(directory, tools, _script(changing=changing, objects=objects)),
                "ns",
                most=most,
            )
            for what, tools, changing, objects, most in ways
        ]
