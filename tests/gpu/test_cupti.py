"""The CUPTI source on a real GPU: all records, and times against independent references."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
from collections import defaultdict
from operator import itemgetter

import pyarrow.parquet as pq
import pytest

from tests.support.ncu import launch_rows, program

from .conftest import EXAMPLES, GRAPH, Build, Ran, Run

PASSES = ("--passes", "auto", "-t", "kernel_freq,access_count")
CUPTI = ("--set", "nvidia.source=cupti", "-t", "kernel_freq")
PROGRAMS = ["vadd", "graph", "two_streams", "memory", "annotated", "cudnn_app", "contexts"]
#: Variables of modules are not reported by calls of the driver, and nodes of graphs have none.
UNSEEN = re.compile(r"memory_(alloc|free)\.module|kernel_launch_end")


def check_completions(run: Ran) -> None:
    """Every launch that ran has its times, after its call; at most 0.1 ms before it."""
    launches = run.rows("kernel_launch", "ordinal", "time", "flags")
    completions = run.rows("kernel_complete", "ordinal", "start", "end")
    times = {row["ordinal"]: (row["start"], row["end"]) for row in completions}
    assert len(times) == len(completions)
    assert {row["ordinal"] for row in launches} == set(times)
    for row in launches:
        start, end = times[row["ordinal"]]
        assert end > start > row["time"] - 100_000


@pytest.mark.parametrize("cudart", ["shared", "static"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_counts(example: Build, native: Run, profiled: Run, name: str, cudart: str) -> None:
    program = example(name, cudart)
    alone = native(program, "--expect")
    run = profiled(program, "--expect", options=CUPTI)
    assert (run.status, run.stdout) == (alone.status, alone.stdout), run.stderr
    sources = json.loads((run.directory / "run.json").read_text())["sources"]
    assert "nvidia_cupti" in sources, run.stderr
    run.counts.check({key: n for key, n in run.expected.items() if not UNSEEN.match(key)})
    check_completions(run)
    direct = sum(not row["flags"] & GRAPH for row in run.rows("kernel_launch", "flags"))
    assert run.counts["kernel_launch_end"] == direct


def test_device_properties(example: Build, profiled: Run) -> None:
    run = profiled(example("vadd"), options=CUPTI)
    device, *_ = sorted(run.rows("device"), key=itemgetter("device"))
    fields = "name,uuid,memory.total,clocks.max.sm"
    query = ["nvidia-smi", "-i", "0", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    listed = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    name, uuid, mebibytes, megahertz = (text.strip() for text in listed.split(","))
    assert (device["name"], device["uuid"]) == (name, uuid)
    assert device["clock"] == int(megahertz) * 1000
    assert 0.9 < device["memory"] / (int(mebibytes) << 20) <= 1
    assert device["architecture"].startswith("sm_")


def times_by_ncu(command: list[str]) -> dict[str, list[float]]:
    """Durations in ns by mangled name, as ncu measures them, with caches as they are."""
    metric = "gpu__time_duration.sum"
    found: dict[str, list[float]] = defaultdict(list)
    options = ("--cache-control", "none", "--print-units", "base", "--metrics", metric)
    for row in launch_rows(command, *options):
        found[row["Kernel Name"]].append(float(row[metric].replace(",", "")))
    return found


@pytest.mark.torch
@pytest.mark.counters
def test_times_match_ncu(python: str, profiled: Run) -> None:
    """Within 1 % in the median over kernels of at least 20 µs. A kernel takes about 1 µs more under
    ncu, which runs it alone, so that the program is one of longer kernels.
    """
    program = (str(EXAMPLES / "resnet18_train.py"), "--steps", "2", "--batch", "512")
    command = [python, *program]
    theirs = times_by_ncu(command)
    run = profiled(*command, options=CUPTI)
    names = {row["ordinal"]: row["name"] for row in run.rows("kernel_launch")}
    ours: dict[str, list[float]] = defaultdict(list)
    for row in run.rows("kernel_complete"):
        ours[names[row["ordinal"]]].append(row["end"] - row["start"])
    ratios = sorted(
        statistics.median(ours[name]) / statistics.median(times)
        for name, times in theirs.items()
        if statistics.median(times) >= 20_000
    )
    print(ratios)
    assert len(ratios) >= 10
    assert statistics.median(ratios) == pytest.approx(1, abs=0.01)


def test_nodes_of_graphs(example: Build, profiled: Run) -> None:
    """They have the time and the thread of their graph launch, and nodes that repeat."""
    run = profiled(example("graph"), "--replays", "4", options=CUPTI)
    launches = {(row["time"], row["thread"]) for row in run.rows("graph_launch")}
    rows = [row for row in run.rows("kernel_launch") if row["flags"] & GRAPH]
    assert rows
    assert {(row["time"], row["thread"]) for row in rows} == launches
    nodes = {row["graph_node"] for row in rows}
    assert None not in nodes
    assert len(nodes) * 4 == len(rows)


BUSY = """
import json, sys, torch
from torch.profiler import ProfilerActivity, profile
model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8))).cuda()
x = torch.randn(512, 2048, device="cuda")
for _ in range(5):
    model(x).sum().backward()
torch.cuda.synchronize()
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
    for _ in range(20):
        model(x).sum().backward()
    torch.cuda.synchronize()
kernels = [e for e in profiled.events() if e.device_type == torch.autograd.DeviceType.CUDA]
print(json.dumps(sorted([e.name, e.time_range.elapsed_us()] for e in kernels)))
for _ in range(5):
    model(x).sum().backward()
torch.cuda.synchronize()
"""


@pytest.mark.torch
@pytest.mark.counters  # it compares device times
def test_torch_profiler_gets_all_of_it(native: Run, profiled: Run, python: str) -> None:
    """Its CUDA activities are those without PASTA, and PASTA's records are complete."""
    alone = native(python, "-c", BUSY)
    run = profiled(python, "-c", BUSY, options=CUPTI)
    assert (alone.status, run.status) == (0, 0), run.stderr
    print(run.stderr)
    expected, found = (json.loads(each.stdout) for each in (alone, run))
    assert len(expected) > 100
    assert [name for name, _ in found] == [name for name, _ in expected]
    total = sum(time for _, time in expected)
    assert sum(time for _, time in found) == pytest.approx(total, rel=0.1)
    assert "initialization failed" not in run.stderr
    check_completions(run)


SHARE = """
import sys, time, torch
from torch.profiler import ProfilerActivity, profile
a = torch.randn(4096, 4096, device="cuda")
def step():
    b = a
    for _ in range(8):
        b = b @ a
        b = b / b.norm()
    torch.cuda.synchronize()
    time.sleep(0.002)
for _ in range(3):
    step()
if sys.argv[1] == "torch":
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(100):
            step()
    spans = sorted(
        (e.time_range.start, e.time_range.end) for e in profiled.events()
        if e.device_type == torch.autograd.DeviceType.CUDA
    )
    busy, last = 0, spans[0][0]
    for begin, end in spans:
        busy += max(0, end - max(begin, last))
        last = max(last, end)
    print(busy / (last - spans[0][0]))
else:
    torch.cuda.profiler.start()
    for _ in range(100):
        step()
    torch.cuda.profiler.stop()
"""


@pytest.mark.torch
@pytest.mark.counters
def test_busy_share_is_that_of_torch_profiler(native: Run, profiled: Run, python: str) -> None:
    """Within 1 %, of programs that do the same in two processes."""
    import pyarrow.parquet as pq

    alone = native(python, "-c", SHARE, "torch")
    options = ("--set", "nvidia.source=cupti", "-t", "utilization", "--profile-from-start", "off")
    run = profiled(python, "-c", SHARE, "plain", options=options)
    assert (alone.status, run.status) == (0, 0), run.stderr
    path = run.directory / "results" / "utilization" / "devices.parquet"
    (row,) = pq.read_table(path).to_pylist()
    assert 0.2 < row["share"] < 0.99
    assert row["share"] == pytest.approx(float(alone.stdout), rel=0.01)


@pytest.mark.torch
def test_losses_do_not_change(example: Build, native: Run, profiled: Run, python: str) -> None:
    command = (python, example("resnet18_train.py"), "--steps", "3", "--batch", "8", "--size", "64")
    alone, run = native(*command), profiled(*command, options=CUPTI)
    assert (run.status, run.stdout) == (alone.status, alone.stdout), run.stderr
    check_completions(run)
    assert run.counts["kernel_launch"] > 300


def test_another_tool_first(example: Build, profiled: Run) -> None:
    """The Sanitizer records, and one line says why."""
    options = ("-t", "kernel_freq")
    command = (program(), "--mode", "launch-and-attach", "--replay-mode", "application")
    run = profiled(*command, example("vadd"), options=options)
    assert "Traceback" not in run.stderr


def test_details_and_managed_memory(example: Build, profiled: Run) -> None:
    chosen = ("--set", "nvidia.details=true", "--set", "nvidia.uvm=true")
    run = profiled(example("memory"), options=(*CUPTI, *chosen))
    assert run.status == 0, run.stderr
    run = profiled(example("vadd"), options=(*CUPTI, *chosen))
    assert run.status == 0, run.stderr
    details = run.rows("kernel_details")
    times = {row["ordinal"]: row["start"] for row in run.rows("kernel_complete")}
    assert len(details) == len(times)
    for row in details:
        assert row["queued"] <= row["submitted"] <= times[row["ordinal"]]


def joined(run: Ran) -> list[dict[str, object]]:
    assert run.status == 0, run.stderr
    found = pq.read_table(run.directory / "results" / "joined" / "kernels.parquet")
    return found.to_pylist()  # type: ignore[no-any-return]


@pytest.mark.counters  # it compares device times
def test_two_passes(example: Build, profiled: Run) -> None:
    """Achieved bandwidth: bytes by the Sanitizer's probes, time by CUPTI; within 2 % of arithmetic
    over ncu's time."""
    vectors = ("--n", str(1 << 26), "--launches", "20", "--blocks", "1056", "--apart", "1")
    command = [example("vadd"), *vectors]
    run = profiled(*command, options=PASSES)
    (row,) = (row for row in joined(run) if "vadd" in str(row["kernel"]))
    assert (row["launches_times"], row["launches_accesses"], row["joined"]) == (20, 20, 20)
    read, write = 2 * 4 << 26, 4 << 26
    assert (row["read_bytes"], row["write_bytes"]) == (read, write)
    (times,) = (times for name, times in times_by_ncu(command).items() if "vadd" in name)
    expected = (read + write) / statistics.median(times)
    assert row["gb_per_second"] == pytest.approx(expected, rel=0.02)


@pytest.mark.torch
@pytest.mark.parametrize("program", ["cuda/resnet18_train.py", "torch/gpt_train.py"])
def test_launches_of_training_join(program: str, python: str, profiled: Run) -> None:
    run = profiled(python, EXAMPLES.parent / program, "--steps", "4", options=PASSES)
    rows = joined(run)
    for side in ("launches_times", "launches_accesses"):
        launches = sum(int(str(row[side])) for row in rows)
        assert sum(int(str(row["joined"])) for row in rows) >= 0.99 * launches > 1000
