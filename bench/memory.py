"""Memory of a run of ten million events, in the program and in the process that finishes its run.

The program launches empty kernels every 2 us, as fast as accelerators accept them
(bench/c/launches.c), and in another run without a pause, which fills the ring faster than disks
empty it. Memory is the proportional set size, read every few milliseconds: pages of the ring that a
process has mapped twice count once.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from bench.figures import Figure, compile_program, environment, preload_command

LAUNCHES = 3_333_334
_GAP_NS = 2000
_INTERVAL_SECONDS = 0.005


class Watch:
    """Largest proportional set size, in bytes, of a process's descendants by their program."""

    def __init__(self, root: int) -> None:
        self.peaks: dict[str, int] = {}
        self.ended: dict[str, float] = {}
        self._root = root
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the process."""
        self._thread.join()

    def _follow(self) -> None:
        while Path(f"/proc/{self._root}").exists():
            for pid in (self._root, *_descendants(self._root)):
                self._look(pid)
            time.sleep(_INTERVAL_SECONDS)

    def _look(self, pid: int) -> None:
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            return
        sizes = [
            int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Pss:")
        ]
        if not sizes:
            return
        key = "launcher" if pid == self._root else name
        self.peaks[key] = max(self.peaks.get(key, 0), sizes[0])
        self.ended[key] = time.perf_counter()


def _descendants(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    children = [int(child) for child in text.split()]
    return [*children, *(each for child in children for each in _descendants(child))]


def measure() -> list[Figure]:
    """Peak memory of each process, lost events and the size of the run."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        program = compile_program(directory, "launches")
        target = [str(program), str(LAUNCHES), str(_GAP_NS)]
        native = _peak(target, directory).peaks["launcher"]
        profiled, manifest, size = _profiled(target, directory)
        target[2] = "0"
        _, fastest, _ = _profiled(target, directory)
    events = sum(manifest["events"].values())
    # Everything but the program: the launcher, and its collector under the interpreter's name.
    collector = max(
        size for key, size in profiled.peaks.items() if key not in ("launches", "launcher")
    )
    return [
        Figure("memory: events", events / 1e6, "M", least=10),
        Figure("memory: events lost", _lost(manifest), "events", most=0),
        Figure(
            "memory: growth of the program",
            (profiled.peaks["launches"] - native) / 2**20,
            "MiB",
            most=300,
        ),
        Figure("memory: process that finishes the run", collector / 2**20, "MiB", most=300),
        Figure("memory: launcher", profiled.peaks["launcher"] / 2**20, "MiB"),
        Figure(
            "memory: finishing after the program's end",
            profiled.ended["launcher"] - profiled.ended["launches"],
            "s",
        ),
        Figure("memory: run directory", size / events, "bytes/event", most=20),
        Figure(
            "memory: lost, launching without a pause", 100 * _lost(fastest) / (3 * LAUNCHES), "%"
        ),
    ]


def _lost(manifest: dict[str, Any]) -> int:
    return sum(manifest["dropped"].values())


def _profiled(target: list[str], directory: Path) -> tuple[Watch, dict[str, Any], int]:
    """A profiled run: its processes' memory, its manifest, and the bytes of its run directory."""
    run = directory / f"run-{target[-1]}"
    watch = _peak([*preload_command(), "-q", "-o", str(run), "--", *target], directory)
    manifest = json.loads((run / "run.json").read_text())
    if (
        manifest["events"]["kernel_launch"] + manifest["dropped"].get("kernel_launch", 0)
        != LAUNCHES
    ):
        raise RuntimeError(f"{manifest['events']}, {manifest['dropped']}: not {LAUNCHES} launches")
    return watch, manifest, sum(file.stat().st_size for file in run.rglob("*") if file.is_file())


def _peak(command: list[str], directory: Path) -> Watch:
    process = subprocess.Popen(
        command, env=environment(), cwd=directory, stdout=subprocess.PIPE, start_new_session=True
    )
    watch = Watch(process.pid)
    process.communicate(timeout=300)
    watch.join()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {process.returncode}")
    return watch


if __name__ == "__main__":
    for figure in measure():
        print(f"{figure.name}: {figure.measured}")
