"""All benchmarks that need no accelerator: python -m bench [NAME ...] [--json FILE]"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from bench import (
    amd,
    analyze,
    consume,
    executor,
    host_samples,
    host_stacks,
    imports,
    launch,
    memory,
    operators,
    passes,
    publish,
    report,
    runs,
    slowdown,
    startup,
    telemetry,
    tools,
    utilization,
)
from bench.figures import Figure


def _publish() -> list[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        program = publish.compile_program(Path(directory))
        one = publish.measure(program, ["1", "4000000"])
        eight = publish.measure(program, ["8", "500000"])
        quiet = publish.measure(program, ["quiet", "100000"])["quiet"]
    return [
        Figure("publish: one thread, median", one["median_ns"], "ns", most=100),
        Figure("publish: eight threads, median", eight["median_ns"], "ns", most=400),
        Figure("publish: runs with system calls", 1 - quiet, "runs", most=0),
    ]


BENCHMARKS = {
    "publish": _publish,
    "consume": consume.measure,
    "executor": executor.measure,
    "launch": launch.measure,
    "runs": runs.measure,
    "analyze": analyze.measure,
    "passes": passes.measure,
    "memory": memory.measure,
    "startup": startup.measure,
    "slowdown": slowdown.measure,
    "imports": imports.measure,
    "operators": operators.measure,
    "amd": amd.measure,
    "telemetry": telemetry.measure,
    "utilization": utilization.measure,
    "report": report.measure,
    "tools": tools.measure,
    "host_stacks": host_stacks.measure,
    "host_samples": host_samples.measure,
}


def main() -> int:
    """Run the named benchmarks; 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}")
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}")
    print(f"{'figure':50} {'measured':>22}  {'target':22} verdict")
    figures: list[Figure] = []
    for name in arguments.names or BENCHMARKS:
        for figure in BENCHMARKS[name]():
            figures.append(figure)
            print(
                f"{figure.name:50} {figure.measured:>22}  {figure.target:22} {figure.verdict}",
                flush=True,
            )
    if arguments.json:
        content = [{**asdict(figure), "verdict": figure.verdict} for figure in figures]
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    return int(any(figure.verdict == "MISSED" for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
