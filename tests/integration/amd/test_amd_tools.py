"""Tools give the same results for the same work on AMD and on the reference accelerator."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from pasta.api.runs import Run
from pasta.backends.amd import rocprofiler as rocm
from tests.support.amd_replayer import Replayer
from tests.support.amd_work import KERNEL, WORK, Hip
from tests.support.places import PROGRAMS, ROOT
from tests.support.played import LIBRARY

TOOLS = ("kernel_freq", "copies", "memory_timeline", "event_trace")
OPTIONS = tuple(word for tool in TOOLS for word in ("-t", tool))


@pytest.fixture
def hip(replayer: Replayer, tmp_path: Path) -> tuple[list[Path], dict[str, str]]:
    """The workload as a HIP program, and the environment in which it finds an SDK."""
    environment = {
        rocm.NAMED: str(replayer.library),
        "ROCPROFILER_REGISTER_LIBRARY": str(replayer.library),
        "REPLAY_VERSION": "1.0.0",
    }
    return [replayer.program, Hip().do(WORK).write(tmp_path / "stream.txt")], environment


def columns(run: Run, tool: str, table: str, *names: str) -> list[tuple[Any, ...]]:
    rows = run.arrow(tool, table).to_pylist()
    return sorted((tuple(row[name] for name in names) for row in rows), key=repr)


@pytest.mark.main
def test_tools_agree_across_sources(
    pasta_preload: Any, hip: Any, programs: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work.txt"
    work.write_text(WORK)
    command, environment = hip
    amd = pasta_preload(*command, options=(*OPTIONS, "-o", "amd"), environment=environment)
    refacc = pasta_preload(programs / "refacc", work, options=(*OPTIONS, "-o", "refacc"))
    assert (amd.exit_status, refacc.exit_status) == (7, 7)
    ours, theirs = Run.load(amd.directory / "amd"), Run.load(refacc.directory / "refacc")
    assert set(ours.manifest["sources"]) == {"amd_rocprofiler"}
    for run in (ours, theirs):
        assert run.failures == {}
    for tool, table, *names in (
        ("kernel_freq", "kernels", "kernel", "launches", "grids", "blocks", "completions"),
        ("kernel_freq", "configurations", "kernel", "grid", "block", "launches"),
        ("copies", "directions", "direction", "source_memory", "destination_memory",
         "asynchronous", "copies", "bytes"),
        ("copies", "sizes", "direction", "from_bytes", "copies"),
        ("copies", "devices", "source_device", "destination_device", "copies", "bytes"),
        ("memory_timeline", "peaks", "device", "memory", "internal", "peak", "live_at_end",
         "allocations"),
    ):  # fmt: skip
        found = columns(ours, tool, table, *names)
        assert found and found == columns(theirs, tool, table, *names), (tool, table)
    (kernel,) = ours.arrow("kernel_freq").to_pylist()
    assert kernel["name"] == KERNEL
    assert kernel["total_time"] > 0
    peaks = columns(ours, "memory_timeline", "peaks", "memory", "peak")
    assert {("device", 1048576 + 524288), ("pinned", 1048576), ("pool", 4096)} <= set(peaks)
    counts = {
        run: {row["event"]: row["events"] for row in run.arrow("event_trace").to_pylist()}
        for run in (ours, theirs)
    }
    for kind in ("kernel_launch", "kernel_complete", "memory_copy", "memory_set", "graph_launch",
                 "sync", "event_record", "range_push", "mark", "uvm_prefetch"):  # fmt: skip
        assert counts[ours][kind] == counts[theirs][kind] > 0, kind


#: hip_app with a different main, and a kernel of the reference accelerator before the replay.
BOTH = """
#include "refacc.h"
int hip_main(int count, char **words);
int main(int count, char **words) {
    void *memory;
    if (ra_alloc(&memory, 4096) || ra_memset(memory, 1, 1, 4096) || ra_free(memory)) return 90;
    return hip_main(count, words);
}
"""


def test_program_using_both_backends(pasta_preload: Any, hip: Any, tmp_path: Path) -> None:
    (tmp_path / "both.c").write_text(BOTH)
    native = LIBRARY.parent
    cc = ["cc", "-std=gnu11", "-O1"]
    hip_object = tmp_path / "hip.o"
    for command in (
        [*cc, "-Dmain=hip_main", "-c", PROGRAMS / "amd" / "hip_app.c", "-o", hip_object],
        [*cc, f"-I{ROOT / 'shim' / 'refacc'}", tmp_path / "both.c", hip_object, "-o",
         tmp_path / "both", f"-L{native}", "-lrefacc", f"-Wl,-rpath,{native}", "-lpthread"],
    ):  # fmt: skip
        subprocess.run([str(word) for word in command], check=True)
    (_, stream), environment = hip
    done = pasta_preload(tmp_path / "both", stream, options=OPTIONS, environment=environment)
    assert done.exit_status == 7, done.stderr
    run = Run.load(done.run.path)
    assert set(run.manifest["sources"]) == {"refacc", "amd_rocprofiler"}
    assert run.failures == {}
    (kernel,) = run.arrow("kernel_freq").to_pylist()
    assert kernel["name"] == KERNEL
    addresses = run.events("memory_alloc", ["address", "bytes"]).to_pylist()
    assert sum(row["bytes"] == 4096 for row in addresses) == 2  # one of each; the other is a pool's
    assert set(run.manifest["devices"].values()) >= {"AMD Instinct MI300X"}
