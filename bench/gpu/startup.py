"""What a tool with probes adds to the start and the end of a program on an NVIDIA GPU.

    python bench/gpu/startup.py [--rounds 3] [--json FILE] [--only vadd|jax]

Three times of each process, in seconds: `whole`, from the command to its end; `program`, from the
start of the program to its end; `after`, from there to the end of the command: the wait for the
report. A cold process has an empty cache: it compiles probes and disassembles code; a warm one
finds both. Figures are medians over interleaved processes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workloads import HERE, TIMEOUT, profiled, workloads

ADVICE = HERE.parents[1] / "examples" / "advice"
#: Runs a program and prints when it began and ended, in ns since the epoch.
TIMED = 'begin=$(date +%s%N); "$@"; status=$?; echo "ran $begin $(date +%s%N)" >&2; exit $status'
Times = dict[str, float]


@dataclass(frozen=True)
class Way:
    """Options of pasta-preload, and the name of its cache, by the number of the round."""

    options: tuple[str, ...]
    cache: str


PROBES = ("-t", "access_count")
WAYS = {
    "empty subscription": Way(("--set", "nvidia.empty=true"), "other"),
    "cold": Way(PROBES, "round {}"),
    "warm": Way(PROBES, "round 0"),  # which the first cold process has filled
}


@dataclass(frozen=True)
class Target:
    """The most seconds that one time of a way may be, or exceed that of another way by."""

    program: str
    time: str
    way: str
    beyond: str
    most: float


TARGETS = (
    Target("vadd", "whole", "warm", "empty subscription", 0.3),
    Target("vadd", "whole", "cold", "warm", 2.5),
    Target("vadd", "program", "cold", "warm", 0.3),
    Target("jax", "after", "cold", "", 3),
    Target("jax", "after", "warm", "", 1),
)


def measured(command: list[str], environment: Mapping[str, str]) -> Times:
    """The times of one process. Exits with its messages if it fails."""
    begin = time.time_ns()
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT, env=dict(environment)
    )
    end = time.time_ns()
    ran = re.search(r"^ran (\d+) (\d+)$", done.stderr, re.MULTILINE)
    if done.returncode or not ran:
        sys.exit(f"startup: {command} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    started, ended = int(ran[1]), int(ran[2])
    return {
        "whole": (end - begin) / 1e9,
        "program": (ended - started) / 1e9,
        "after": (end - ended) / 1e9,
    }


def processes(program: list[str], rounds: int, directory: Path) -> dict[str, list[Times]]:
    """The times of all processes of a program, by way."""
    found: dict[str, list[Times]] = {name: [] for name in WAYS}
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    for number in range(rounds):
        for name, way in WAYS.items():
            cache = directory / way.cache.format(number)
            command = [*profiled(way.options, directory), "sh", "-c", TIMED, "sh", *program]
            times = measured(command, {**environment, "XDG_CACHE_HOME": str(cache)})
            found[name].append(times)
            shown = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in times.items())
            print(f"{Path(program[-1]).name}, {name}: {shown}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Measure the programs in all ways and print what has a target."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="processes for each figure")
    parser.add_argument("--json", type=Path, help="write all times there")
    parser.add_argument("--only", choices=("vadd", "jax"))
    given = parser.parse_args()
    found: dict[str, dict[str, list[Times]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        programs = {
            "vadd": [*workloads(directory)["vadd"].command, "0", "20"],
            "jax": [sys.executable, str(ADVICE / "jax_mlp.py"), "--steps", "5"],
        }
        for name, program in programs.items():
            if given.only in (None, name):
                runs = directory / f"{name}-runs"
                runs.mkdir()
                found[name] = processes(program, given.rounds, runs)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{'program':9}{'time':9}{'way':36}{'s':>7}{'most':>7}")
    for each in TARGETS:
        if each.program not in found:
            continue

        def middle(way: str, each: Target = each) -> float:
            return statistics.median(times[each.time] for times in found[each.program][way])

        seconds = middle(each.way) - (middle(each.beyond) if each.beyond else 0)
        way = f"{each.way}, beyond {each.beyond}" if each.beyond else each.way
        missed = "  missed" if seconds > each.most else ""
        print(f"{each.program:9}{each.time:9}{way:36}{seconds:7.2f}{each.most:7.1f}{missed}")


if __name__ == "__main__":
    main()
