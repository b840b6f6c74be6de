"""PASTA beside other tools, on the same work: the table of docs/performance.md.

    python bench/gpu/peers.py [--rounds 7] [--seconds 540] [--accelprof DIR] [--json FILE]
                              [--only TEXT]

Figures are medians over interleaved processes, with the lowest and highest, their number, and the
median time of a whole process; ratios are to the program alone. No process begins that would end
after `--seconds`, so slow tools get fewer. What is not installed or fails is left out, and said.
AccelProf is run from a checkout that was built there; nothing of it is kept. Its analysis of
accesses and PASTA's `access_count` and `hotness` count the same: accesses by object and launch.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from workloads import HERE, TOOLS, figures_of, profiled, ran, workloads

Command = list[str]
ALONE = "the program alone"


@dataclass(frozen=True)
class Peer:
    """A tool: the command that runs a command under it, and variables of the environment."""

    name: str
    around: Callable[[Command, Path], Command]
    environment: dict[str, str] = field(default_factory=dict)
    #: Workloads that it is measured on; empty: all.
    only: tuple[str, ...] = ()


def ours(name: str, *options: str) -> Peer:
    """PASTA with these options."""
    return Peer(name, lambda command, directory: [*profiled(options, directory), *command])


def before(name: str, *words: str, only: tuple[str, ...] = (), **environment: str) -> Peer:
    """A tool whose command line is written before the program's."""
    return Peer(name, lambda command, _: [*words, *command], environment, only)


def under_torch_profiler(command: Command, directory: Path) -> Command:
    """A Python program under torch.profiler."""
    return [command[0], str(HERE / "with_profiler.py"), *command[1:]]


def peers(accelprof: Path | None) -> list[Peer]:
    """The tools that are installed here, the program alone first."""
    found = [
        before(ALONE),
        ours("empty subscription", "--set", "nvidia.empty=true"),
        ours("patches without content: the floor", "-t", f"{TOOLS}:EmptyGlobal"),
        ours("PASTA, kernel_freq", "-t", "kernel_freq"),
        ours("PASTA, exact attribution", "-t", f"{TOOLS}:Attribute"),
        ours("PASTA, access_count and hotness", "-t", "access_count,hotness"),
        ours("PASTA, access_count --sample", "-t", "access_count", "--sample"),
    ]
    if sanitizer := shutil.which("compute-sanitizer"):
        found.append(before("compute-sanitizer memcheck", sanitizer, "--tool", "memcheck"))
    if ncu := shutil.which("ncu"):
        words = (ncu, "--clock-control", "none", "--metrics", "gpu__time_duration.sum")
        found.append(before("ncu, one metric", *words))
    found.append(Peer("torch.profiler", under_torch_profiler, only=("resnet18",)))
    if accelprof:
        home = {"ACCEL_PROF_HOME": str(accelprof)}
        program = str(accelprof / "bin" / "accelprof")
        for tool in ("app_analysis", "app_analysis_cpu"):
            found.append(before(f"AccelProf, {tool}", program, "-t", tool, **home))
    return found


def left_out(accelprof: Path | None) -> list[str]:
    """Tools that are not measured, and why."""
    missing = [
        f"{name}: not on PATH" for name in ("compute-sanitizer", "ncu") if not shutil.which(name)
    ]
    return missing + ([] if accelprof else ["AccelProf: give its folder with --accelprof"])


def recorded_and_replayed(command: Command, directory: Path) -> tuple[float, float]:
    """Seconds of a run that records all accesses, and of its analysis on the CPU by replay."""
    began = time.perf_counter()
    options = ("-t", "record_accesses", "--record")
    ran([*profiled(options, directory), *command], directory).check_returncode()
    recorded = time.perf_counter()
    pasta = str(Path(profiled((), directory)[0]).with_name("pasta"))
    replay = [pasta, "replay", str(directory / "run"), "-t", "access_count,hotness"]
    out = ["-f", "-o", str(directory / "replayed")]
    ran([*replay, *out], directory).check_returncode()
    return recorded - began, time.perf_counter() - recorded


@dataclass
class Measured:
    """The processes of a tool on a workload: their figures, in ms, and how long they took, in s.
    Why none of them gave a figure, if one failed."""

    figures: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    failed: str = ""

    def measure(self, name: str, line: Command, directory: Path, peer: Peer, figure: str) -> None:
        """Run one process. A tool that fails once is not run again."""
        began = time.perf_counter()
        try:
            printed = figures_of(peer.name, line, directory, peer.environment)
        except (SystemExit, subprocess.TimeoutExpired) as error:
            self.failed = f"{name}, {peer.name}: {error}"
            return
        self.seconds.append(time.perf_counter() - began)
        self.figures.append(printed[figure])


def show(name: str, measured: dict[str, Measured]) -> None:
    """One workload's table, in Markdown."""
    if not (alone := measured[ALONE].figures):
        return  # `main` says why
    native = statistics.median(alone)
    print(f"\n### {name}\n\n| | ms | lowest to highest | processes | / program | whole process |")
    print("|---|--:|--:|--:|--:|--:|")
    for peer, found in measured.items():
        if found.figures:
            middle, number = statistics.median(found.figures), len(found.figures)
            spread = f"{min(found.figures):.3f} to {max(found.figures):.3f}"
            whole = f"{statistics.median(found.seconds):.1f} s"
            print(
                f"| {peer} | {middle:.3f} | {spread} | {number} | {middle / native:.2f} | {whole} |"
            )


def main() -> None:
    """Measure all tools on all workloads and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="processes for each figure")
    parser.add_argument("--seconds", type=float, default=3600, help="time for all processes")
    parser.add_argument("--accelprof", type=Path, help="folder of a built AccelProf")
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--only", default="", help="tools whose name contains this")
    given = parser.parse_args()
    if given.accelprof and not (given.accelprof / "bin" / "accelprof").exists():
        sys.exit(f"bench/gpu: {given.accelprof}/bin/accelprof was not found: build AccelProf there")
    ends = time.perf_counter() + given.seconds
    figures: dict[str, dict[str, Measured]] = {}
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as temporary:
        directory = Path(temporary)
        programs = workloads(directory)
        if given.only in "record and replay":
            small = [*programs["vadd"].command, "0", "22"]
            on_gpu, on_cpu = recorded_and_replayed(small, directory)
            print(f"\nvadd, 2^22 floats: {on_gpu:.1f} s with all accesses recorded; their analysis")
            print(f"on the CPU, by replay: {on_cpu:.1f} s", flush=True)
        for name in ("vadd", "resnet18"):
            chosen = [
                each
                for each in peers(given.accelprof)
                if name in (each.only or (name,))
                and (given.only in each.name or each.name == ALONE)
            ]
            found = figures[name] = {each.name: Measured() for each in chosen}
            for _ in range(given.rounds):
                for each in chosen:
                    mine, workload = found[each.name], programs[name]
                    left = ends - time.perf_counter()
                    if not mine.failed and left > max(mine.seconds, default=0):
                        line = each.around(workload.command, directory)
                        mine.measure(name, line, directory, each, workload.figure)
            show(name, found)
    for text in left_out(given.accelprof):
        print(f"not measured: {text}")
    for name, measured in figures.items():
        for peer, mine in measured.items():
            if mine.failed:
                print(f"failed: {mine.failed}")
            elif not mine.figures:
                print(f"no time left: {name}, {peer}")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1, default=vars) + "\n")


if __name__ == "__main__":
    main()
