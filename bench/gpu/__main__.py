"""Overhead of probes on an NVIDIA GPU, against the same kinds patched with an empty function, and
of PC samples, against a bare client of CUPTI that takes the same.

    python bench/gpu [--rounds 3] [--json FILE] [--only TEXT] [--way TEXT]

Every figure is the median over processes, which are interleaved so that clocks and heat affect all
equally. Needs nvcc, PyTorch for the training step, and PASTA installed. Files are in /dev/shm.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads import TOOLS, Workload, figures_of, profiled, ran, sampling_client, workloads


@dataclass(frozen=True)
class Way:
    """A way to run a workload; `floor` names the one that it is compared with. `client`: under a
    bare client of CUPTI that takes PC samples."""

    name: str
    options: tuple[str, ...] | None
    floor: str | None = None
    most: dict[str, float] | None = None  # workload -> ratio to the floor
    client: bool = False


def _tool(name: str) -> tuple[str, ...]:
    return ("-t", f"{TOOLS}:{name}")


STEPS = ("--set", "probes.window=steps 1/100", "--set", "probes.step-range=step")
INFERENCE = ("inference", "inference, graph")  # of ResNet-18: launches of a few microseconds
DEPENDENT = ("gemm 1024", "resnet18, one image")
VALUES = "values, 1 access in 64"
TRANSFERS = "global and transfers, empty"
WAYS = (
    Way("native", None),
    Way("empty subscription", ("--set", "nvidia.empty=true")),
    Way("global, empty", _tool("EmptyGlobal")),
    Way("memory, empty", _tool("EmptyMemory")),
    Way(
        "attribution", _tool("Attribute"), "global, empty",
        {
            "vadd": 1.05, "vadd, 4096 objects": 1.10,
            "resnet18": 1.15, "resnet18, 4096 objects": 1.25, **dict.fromkeys(INFERENCE, 1.35),
        },
    ),
    Way("attribution by instruction", _tool("AttributeByInstruction"), "attribution",
        dict.fromkeys(("vadd", "resnet18"), 1.25)),
    Way("access_count", ("-t", "access_count"), "memory, empty", dict.fromkeys(INFERENCE, 1.25)),
    Way("access_count + working_set + hotness", ("-c", "memory"), "memory, empty",
        {"vadd": 1.6, "resnet18": 1.6}),
    Way(TRANSFERS, _tool("EmptyTransfers")),
    Way("pc_dependency", ("-t", "pc_dependency", "--set", "pc_dependency.granules=4194304"),
        TRANSFERS, dict.fromkeys(DEPENDENT, 20)),
    Way(VALUES, ("-t", "values", "--set", "values.every=64"),
        TRANSFERS, dict.fromkeys(DEPENDENT, 3)),
    Way("block_schedule", ("-t", "block_schedule"), "empty subscription"),
    Way("mem_trace", ("-t", "mem_trace"), "global, empty", {"vadd, 2^20 floats": 50}),
    Way("access_count, no kernel selected", ("-t", "access_count", "-k", "nothing_matches"),
        "empty subscription", {"vadd": 1.05, "resnet18": 1.05}),
    Way("access_count, batch normalization", ("-t", "access_count", "-k", "bn_"),
        "empty subscription"),
    Way("access_count, budget 10%", ("-t", "access_count", "--overhead-budget", "10%"),
        "empty subscription", {"resnet18, 200 steps": 1.12}),
    Way("attribution, 1 step in 100", (*_tool("Attribute"), *STEPS), "empty subscription",
        {"resnet18, 200 steps": 1.30}),
    # Patching that step's shared memory with empty functions would cost 28 %: no target.
    Way("all three, 1 step in 100", ("-c", "memory", *STEPS), "empty subscription"),
    Way("client of CUPTI with PC samples", None, client=True),
    Way("pc_samples", ("-t", "pc_samples"), "client of CUPTI with PC samples",
        {"vadd": 1.05, "resnet18": 1.05}),
)  # fmt: skip
#: Ways of workloads that are not measured in all ways.
ONLY = {
    "vadd, 4096 objects": ("native", "global, empty", "attribution"),
    "gemm 1024": (
        "native", "empty subscription", TRANSFERS, "pc_dependency", VALUES, "block_schedule",
    ),
    "resnet18, one image": ("native", TRANSFERS, "pc_dependency", VALUES),
    "vadd, 2^20 floats": ("native", "global, empty", "mem_trace"),
    "resnet18, 4096 objects": ("native", "global, empty", "attribution"),
    "resnet18, 200 steps": (
        "native", "empty subscription", "attribution, 1 step in 100", "all three, 1 step in 100",
        "access_count, budget 10%",
    ),
    **dict.fromkeys(
        INFERENCE,
        (
            "native", "empty subscription", "global, empty", "memory, empty", "attribution",
            "access_count",
        ),
    ),
}  # fmt: skip


#: Ways that only workloads of ONLY use.
RARE = (
    "mem_trace", TRANSFERS, "pc_dependency", VALUES,
    "block_schedule", "attribution, 1 step in 100", "all three, 1 step in 100", "access_count",
    "access_count, budget 10%",
)  # fmt: skip
#: Bytes of a coalesced access record of a warp, as the collector receives it.
RECORD = 64


def measured(way: Way, workload: Workload, directory: Path) -> dict[str, float]:
    """The times in ms that one process prints."""
    before = [] if way.options is None else profiled(way.options, directory)
    variables = sampling_client(directory) if way.client else None
    return figures_of(way.name, [*before, *workload.command], directory, variables)


def trace_rates(vadd: list[str], directory: Path) -> tuple[float, float]:
    """GB/s of access records that vadd writes: the whole command, and between 9 and 36 launches."""
    import pyarrow.dataset as ds

    seconds, gigabytes = [], []
    for launches in (9, 9, 36):
        begin = time.perf_counter()
        command = [*profiled(("-t", "mem_trace"), directory), *vadd, "0", "26", str(launches)]
        ran(command, directory).check_returncode()
        seconds.append(time.perf_counter() - begin)
        parts = sorted((directory / "run" / "results" / "mem_trace").glob("accesses-*.parquet"))
        records = ds.dataset([str(part) for part in parts]).count_rows()
        if records != 3 * (1 << 26) // 32 * launches:
            sys.exit(f"bench/gpu: mem_trace wrote {records} records of {launches} launches")
        gigabytes.append(records * RECORD / 1e9)
    rate = (gigabytes[2] - gigabytes[1]) / (seconds[2] - seconds[1])
    return gigabytes[2] / seconds[2], rate


def main() -> None:
    """Measure all workloads in all ways and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="processes for each figure")
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--only", default="", help="only workloads whose name contains this")
    parser.add_argument(
        "--way", action="append", default=[], help="besides native, ways whose name contains this"
    )
    arguments = parser.parse_args()
    times: dict[str, dict[str, list[float]]] = {}
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as temporary:
        directory = Path(temporary)
        processes: dict[tuple[Any, ...], dict[str, float]] = {}  # one may measure two workloads
        programs = workloads(directory)
        for name, workload in programs.items():
            if arguments.only not in name:
                continue
            ways = [
                way for way in WAYS
                if way.name in ONLY.get(name, (way.name,))
                and (name in ONLY or way.name not in RARE)
                and (not arguments.way or any(t in way.name for t in ("native", *arguments.way)))
            ]  # fmt: skip
            if len(ways) == 1 and arguments.way:
                continue
            for number in range(arguments.rounds):
                for way in ways:
                    process = (number, way.name, *workload.command)
                    if process not in processes:
                        processes[process] = measured(way, workload, directory)
                    found = processes[process][workload.figure]
                    times.setdefault(name, {}).setdefault(way.name, []).append(found)
                    print(f"{name}, {way.name}: {found:.3f} ms", file=sys.stderr, flush=True)
        traces = arguments.only in ("", "mem_trace") and not arguments.way
        rates = trace_rates(programs["vadd"].command, directory) if traces else None
    if arguments.json:
        arguments.json.write_text(json.dumps({**times, "mem_trace, GB/s": rates}, indent=1))
    print(f"{'workload':<28}{'way':<40}{'ms':>10}{'to native':>10}{'to floor':>9}{'most':>7}")
    for name, ways_of in times.items():
        medians = {way: statistics.median(values) for way, values in ways_of.items()}
        for way in WAYS:
            if way.name in medians:
                print(_line(name, way, medians))
    if rates:
        print(
            f"mem_trace of vadd into {memory}: {rates[0]:.2f} GB/s of records, start and end "
            f"included; {rates[1]:.2f} GB/s between them (at least 1); 2 bytes an access of a lane"
        )


def _line(name: str, way: Way, medians: dict[str, float]) -> str:
    ms = medians[way.name]
    floor = f"{ms / medians[way.floor]:.3f}" if way.floor in medians else ""
    most = (way.most or {}).get(name) if floor else None
    missed = most is not None and way.floor is not None and ms / medians[way.floor] > most
    wanted = f"{most:.2f}" if most else ""
    return (
        f"{name:<28}{way.name:<40}{ms:>10.3f}{ms / medians['native']:>10.2f}{floor:>9}{wanted:>7}"
        + ("  missed" if missed else "")
    )


if __name__ == "__main__":
    main()
