"""Runs on a GPU: replay, live view, limited duration, several processes."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import sys
import termios
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.support.places import ROOT

from .conftest import TIMEOUT, Ran, Run, environment, script

EXAMPLES = ROOT / "examples"
GPT = (str(EXAMPLES / "torch" / "gpt_train.py"), "--batch", "2", "--length", "64", "--layers", "2",
       "--width", "128", "--vocabulary", "512")  # fmt: skip


def tables(directory: Path) -> dict[str, list[dict[str, Any]]]:
    """Rows of all tables of results, by tool/table."""
    return {
        f"{path.parent.name}/{path.stem}": pq.ParquetFile(path).read().to_pylist()
        for path in sorted((directory / "results").glob("*/*.parquet"))
    }


def findings(directory: Path) -> list[dict[str, Any]]:
    return [
        found
        for path in sorted((directory / "results").glob("*/result.json"))
        for found in json.loads(path.read_text())["findings"]
    ]


def replayed(run: Ran, tools: tuple[str, ...], *settings: str) -> Path:
    out = run.directory.with_name("again")
    named = [word for tool in tools for word in ("-t", tool)]
    command = [
        script("pasta"),
        "replay",
        str(run.directory),
        "-f",
        "-o",
        str(out),
        *settings,
        *named,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    return out


def same(run: Ran, again: Path, tools: tuple[str, ...]) -> None:
    """Every table and finding of the tools equals that of the run."""
    ours = {
        name: rows for name, rows in tables(run.directory).items() if name.split("/")[0] in tools
    }
    assert {name.split("/")[0] for name in ours} == set(tools)
    found = tables(again)
    assert found.keys() == ours.keys()
    different = [name for name in ours if found[name] != ours[name]]
    first = {name: next(each for each in zip_longest(ours[name], found[name]) if each[0] != each[1])
             for name in different}  # fmt: skip
    assert first == {}
    assert findings(again) == findings(run.directory)


SCENARIOS = ("stride1", "stride32", "divergent", "shared_8way")
PROBING = ("access_count", "coalescing", "bank_conflicts", "divergence", "hotness", "working_set")


def test_replay_reproduces_gpu_results(kernels: str, profiled: Run) -> None:
    tools = ("kernel_freq", "copies", "memory_timeline", *PROBING)
    options = [word for tool in tools for word in ("-t", tool)]
    settings = ("--set", "coalescing.wasted=1", "--set", "bank_conflicts.conflicts=1")
    run = profiled(kernels, *SCENARIOS, options=("--record-accesses", *settings, *options))
    assert run.status == 0, run.stderr
    same(run, replayed(run, tools, *settings), tools)
    found = {each["what"] for each in findings(run.directory)}
    assert "global memory accesses are not coalesced" in found
    assert "shared memory accesses have bank conflicts" in found


@pytest.mark.torch
def test_replay_of_training_reproduces_results(native: Run, profiled: Run, python: str) -> None:
    tools = ("operators", "tensors", "kernel_freq", "coalescing", "access_count")
    options = [word for tool in tools for word in ("-t", tool)]
    command = (python, *GPT, "--steps", "2")
    run = profiled(*command, options=("--record-accesses", *options))
    assert (run.status, run.stdout) == (0, native(*command).stdout), run.stderr
    same(run, replayed(run, tools), tools)


@pytest.mark.torch
def test_live_view_names_kernels(native: Run, profiled: Run, python: str, tmp_path: Path) -> None:
    """In a terminal, whose last lines it uses; the program's output stays visible."""
    command = [python, *GPT, "--steps", "600"]
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    started = subprocess.Popen(
        [script("pasta-preload"), "--live", "-t", "kernel_freq", "-o", str(tmp_path / "run"),
         "--", *command],
        env=environment({"TERM": "xterm"}), stdout=subprocess.PIPE, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 1 << 16):
            shown += part
    except OSError:  # its last writer is gone
        pass
    stdout, _ = started.communicate(timeout=TIMEOUT)
    os.close(ours)
    assert started.returncode == 0, shown.decode()
    assert stdout.decode() == native(*command).stdout
    text = shown.decode()
    assert "launches" in text and "live, peak" in text
    assert "gemm" in text or "kernel" in text


@pytest.mark.torch
def test_profiling_ends_after_its_duration(native: Run, profiled: Run, python: str) -> None:
    command = (python, *GPT, "--steps", "2500")
    run = profiled(*command, options=("--duration", "12s", "-t", "kernel_freq"))
    assert (run.status, run.stdout) == (0, native(*command).stdout), run.stderr
    stops = run.table("profiling_stop")
    assert stops.column("origin").to_pylist() == ["limit"]
    launches = run.table("kernel_launch", ["time"])
    (stop,) = stops.column("time").to_pylist()
    assert launches.num_rows > 0 and pc.max(launches["time"]).as_py() <= stop


@pytest.mark.torch
@pytest.mark.parametrize("tools", ["operators,kernel_freq", "access_count,operators"])
def test_windows(native: Run, profiled: Run, python: str, tools: str) -> None:
    """Through CUPTI, and through the Sanitizer with patches that come and go."""
    command = (python, *GPT, "--steps", "600")
    run = profiled(*command, options=("--window", "seconds 0.3/1", "-t", tools))
    assert (run.status, run.stdout) == (0, native(*command).stdout), run.stderr
    starts = run.table("profiling_start").column("time").to_pylist()
    stops = run.table("profiling_stop").column("time").to_pylist()
    assert len(stops) >= 2 and set(run.table("profiling_stop")["origin"].to_pylist()) == {"window"}
    launches = np.asarray(run.table("kernel_launch", ["time"])["time"])
    # of threads that were at it when the window closed
    late = [np.sum((launches > stop + 10**7) & (launches < start))
            for stop, start in zip(stops, starts, strict=False)]  # fmt: skip
    assert len(launches) > 0 and not any(late)
    assert np.sum(launches > starts[0]) > 0


RANKS = """
import os, torch, torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
nccl = torch.cuda.device_count() >= size
torch.cuda.set_device(rank if nccl else 0)
dist.init_process_group("nccl" if nccl else "gloo")
x = torch.full((1 << 20,), rank + 1.0, device="cuda")
for step in range(10):
    y = (x * 2).relu()
    dist.all_reduce(y)
torch.cuda.synchronize()
line = f"rank {rank}: {y[0].item()} {'nccl' if nccl else 'gloo'}\\n"
os.write(1, line.encode())  # in one piece: the ranks share it
dist.destroy_process_group()
os._exit(0)
"""


@pytest.mark.torch
def test_ranks_of_torchrun_side_by_side(tmp_path: Path) -> None:
    program = tmp_path / "ranks.py"
    program.write_text(RANKS)
    launch = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(program),
    ]  # fmt: skip
    root = tmp_path / "job"
    done = subprocess.run(
        [script("pasta-preload"), "--root", str(root), "-t", "kernel_freq", *launch],
        env=environment({"OMP_NUM_THREADS": "1"}), capture_output=True, text=True, timeout=TIMEOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    assert [line.split()[2] for line in lines] == ["6.0", "6.0"]
    report = subprocess.run([script("pasta"), "report", str(root)], capture_output=True, text=True)
    assert report.returncode == 0, report.stderr
    assert "rank 0" in report.stdout and "rank 1" in report.stdout
    merged = subprocess.run(
        [script("pasta"), "merge", str(root), "-o", str(tmp_path / "merged")],
        capture_output=True,
        text=True,
    )
    assert merged.returncode == 0, merged.stderr
    rows = tables(tmp_path / "merged")["kernel_freq/kernels"]
    assert {row["rank"] for row in rows} == {0, 1}
    if lines[0].endswith("nccl"):
        assert sum(row["launches"] for row in rows if "nccl" in row["kernel"].lower()) == 20
