"""Recorded demos of the reference accelerator against their own counts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pasta import abi
from pasta._native import DIRECTORY
from pasta.runtime.ring import Ring

#: Path of another build of the native parts, such as one with a sanitizer.
NATIVE = Path(os.environ.get("PASTA_TEST_NATIVE", DIRECTORY))
ABSENT64 = np.uint64(2**64 - 1)

Table = np.ndarray[Any, Any]


class Recorded:
    """The tables of one run's ring."""

    def __init__(self, path: Path) -> None:
        self.ring = Ring(path)
        parts: dict[str, list[Table]] = {}
        for batch, _ in self.ring.batches(0, final=True):
            for kind in abi.KINDS:
                if len(batch[kind]):
                    parts.setdefault(kind, []).append(batch[kind])
        assert not self.ring.dropped()
        assert self.ring.torn == 0
        self.tables = {kind: np.concatenate(tables) for kind, tables in parts.items()}

    def __getitem__(self, kind: str) -> Table:
        return self.tables.get(kind, np.empty(0, abi.dtype(kind)))

    def names(self, kind: str) -> list[str | None]:
        return [self.ring.string(int(number)) for number in self[kind]["name"]]


Record = Callable[..., Recorded]


def run(demo: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [NATIVE / "bin" / demo, *arguments],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


@pytest.fixture
def record(tmp_path: Path) -> Record:
    def record_demo(demo: str, *arguments: str, **environment: str) -> Recorded:
        (tmp_path / "rings").mkdir()
        shim = f"session={tmp_path}\nschema={abi.SCHEMA}\ncollector=1\nring_max={1 << 28}\n"
        preload = str(NATIVE / "libpasta.so")
        alone = run(demo, *arguments)
        recorded = run(demo, *arguments, PASTA_SHIM=shim, LD_PRELOAD=preload, **environment)
        assert (recorded.stdout, recorded.stderr) == (alone.stdout, "")
        (path,) = (tmp_path / "rings").iterdir()
        return Recorded(path)

    return record_demo


def expected(demo: str, *arguments: str) -> dict[str, int]:
    lines = run(demo, *arguments, "--expect").stdout.splitlines()
    return {key: int(value) for key, value in (line.split("=") for line in lines)}


@pytest.mark.parametrize(
    "command",
    ["vadd", "vadd 1000", "gemm", "convolution 3", "streams", "streams 8 2 50", "graph 7", "memory",
     "memory --leak", "lifetimes 3"],
)  # fmt: skip
def test_counts_match_the_program(record: Record, command: str) -> None:
    recorded, expect = record(*command.split()), expected(*command.split())
    assert {
        "launches": len(recorded["kernel_launch"]),
        "graph_launches": len(recorded["graph_launch"]),
        "copies": len(recorded["memory_copy"]),
        "sets": len(recorded["memory_set"]),
        "allocations": len(recorded["memory_alloc"]),
        "frees": len(recorded["memory_free"]),
        "streams": len(recorded["stream_create"]),
        "event_records": len(recorded["event_record"]),
        "leaked_bytes": int(
            recorded["memory_alloc"]["bytes"].sum() - recorded["memory_free"]["bytes"].sum()
        ),
    } == expect
    ordinals = np.arange(expect["launches"], dtype=np.uint64)
    for kind in ("kernel_launch", "kernel_launch_end", "kernel_complete"):
        assert np.array_equal(np.sort(recorded[kind]["ordinal"]), ordinals)


def test_records_of_a_launch_share_its_correlation(record: Record) -> None:
    recorded = record("streams")
    launches = np.sort(recorded["kernel_launch"], order="ordinal")
    assert len(np.unique(launches["correlation"])) == len(launches)
    for kind in ("kernel_launch_end", "kernel_complete"):
        other = np.sort(recorded[kind], order="ordinal")
        assert np.array_equal(other["correlation"], launches["correlation"])
    complete = np.sort(recorded["kernel_complete"], order="ordinal")
    assert (launches["time"] <= complete["start"]).all()
    assert (complete["start"] <= complete["end"]).all()
    assert len(np.unique(launches["thread"])) == 4
    # stream handles of an ended thread may be reused
    assert len(np.unique(launches[["thread", "stream"]])) == 12


def test_launch_fields(record: Record) -> None:
    (launch,) = (recorded := record("gemm", "33", "17", "16"))["kernel_launch"]
    assert recorded.names("kernel_launch") == ["_Z10gemm_tiledILi16EEvPKfS1_Pfiii"]
    assert (launch["grid"].tolist(), launch["block"].tolist()) == ([2, 3, 1], [16, 16, 1])
    assert (launch["shared_static"], launch["shared_dynamic"], launch["local"]) == (2048, 0, 0)
    assert (launch["device"], launch["context"], launch["stream"], launch["flags"]) == (0, 0, 0, 0)
    assert launch["graph_node"] == ABSENT64
    (module,) = recorded["module_load"]
    assert launch["module"] == module["handle"]
    assert module["hash"] not in (0, ABSENT64)
    assert recorded.names("context_create") == ["Reference Accelerator"]
    (start,) = recorded["process_start"]
    assert recorded.ring.string(int(start["source"])) == "refacc"
    assert recorded.ring.string(int(start["version"])) == "1.0"


def test_device_properties(record: Record) -> None:
    """Once, before its first context; limits that the device does not have are absent."""
    recorded = record("accesses", "cluster", "contexts", REFACC_MEMORY="64")
    (device,) = recorded["device"]
    assert recorded.names("device") == ["Reference Accelerator"]
    assert (device["device"], device["warp"], device["multiprocessors"]) == (0, 32, 16)
    assert (device["shared_per_block"], device["memory"]) == (65536, 64 << 20)
    for name in ("threads", "blocks", "registers", "shared", "clock", "l2"):
        assert device[name] == 2**32 - 1, name
    assert device["bandwidth"] == ABSENT64
    assert (device["architecture"], device["uuid"]) == (0, 0)
    assert device["time"] <= recorded["context_create"]["time"].min()


def test_graph_nodes_are_marked(record: Record) -> None:
    recorded = record("graph", "5")
    launches = recorded["kernel_launch"]
    assert (launches["flags"] == abi.FLAG_GRAPH).all()
    assert len(np.unique(launches["graph_node"])) == 3
    assert (recorded["memory_copy"]["flags"] == abi.FLAG_GRAPH | abi.FLAG_ASYNC).all()
    assert recorded["graph_launch"]["launch_id"].tolist() == [1, 2, 3, 4, 5]
    begun, ended = recorded["graph_launch"], recorded["graph_launch_end"]
    assert np.array_equal(begun["correlation"], ended["correlation"])


def test_memory_fields(record: Record) -> None:
    recorded = record("memory")
    kinds, directions = abi.enums()["memory"], abi.enums()["copy"]
    assert [kinds[int(kind)] for kind in recorded["memory_alloc"]["memory"]] == [
        "device", "device", "device", "managed", "pinned", "pool",
    ]  # fmt: skip
    assert recorded["memory_alloc"]["flags"].tolist() == [0, 0, 0, 0, 0, abi.FLAG_ASYNC]
    copies = recorded["memory_copy"]
    assert [directions[int(direction)] for direction in copies["direction"]] == [
        "host_to_device", "device_to_device", "device_to_host", "host_to_device", "device_to_host",
        "host_to_device", "device_to_host", "host_to_host", "device_to_device",
    ]  # fmt: skip
    flat = copies[6]  # rows of 300 bytes out of rows of 512
    assert (flat["bytes"], flat["width"], flat["height"]) == (30000, 300, 100)
    assert (flat["source_pitch"], flat["destination_pitch"]) == (512, 300)
    sets = recorded["memory_set"]
    assert sets["bytes"].tolist() == [65536, 65536, 200, 65536, 30000]
    assert sets["element"].tolist() == [1, 1, 2, 4, 1]
    for kind in ("uvm_attach", "uvm_prefetch", "uvm_advise"):
        assert recorded[kind]["address"].tolist() == [recorded["memory_alloc"][3]["address"]]


@pytest.mark.parametrize("command", ["memory", "graph 7", "gemm", "streams 8 2 50"])
def test_every_copy_and_set_has_its_device_times(record: Record, command: str) -> None:
    recorded = record(*command.split())
    done = np.sort(recorded["copy_complete"], order="correlation")
    submitted = {
        kind: np.sort(recorded[kind], order="correlation") for kind in ("memory_copy", "memory_set")
    }
    all_of = np.sort(np.concatenate([each["correlation"] for each in submitted.values()]))
    assert len(done) and 0 not in all_of
    assert np.array_equal(done["correlation"], all_of)  # one each: they are distinct
    assert len(np.unique(all_of)) == len(all_of)
    for kind, work in submitted.items():
        mine = done[np.isin(done["correlation"], work["correlation"])]
        for field in ("device", "context", "stream", "flags", "bytes"):
            assert np.array_equal(mine[field], work[field]), (kind, field)
        absent = np.full(len(mine), 2**32 - 1, np.uint32)
        directions = work["direction"] if kind == "memory_copy" else absent
        assert np.array_equal(mine["direction"], directions)
        assert (work["time"] <= mine["start"]).all()
    assert (done["start"] <= done["end"]).all() and (done["end"] <= done["time"]).all()
    (began,), (ended,) = recorded["process_start"], recorded["process_end"]
    assert began["time"] <= done["start"].min() and done["end"].max() <= ended["time"]
    in_ring = recorded["copy_complete"]
    for stream in np.unique(in_ring["stream"]):  # one after the other, as submitted
        mine = in_ring[in_ring["stream"] == stream]
        assert (mine["start"][1:] >= mine["end"][:-1]).all()
        if not command.startswith("streams"):  # by several threads
            assert (mine["correlation"][1:] > mine["correlation"][:-1]).all()


PROGRAM = """
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include "refacc.h"

static ra_function fill;

static void launch(void) {
    void *x;
    int n = 64;
    float one = 1;
    if (ra_alloc(&x, 256)) exit(1);
    if (ra_memset_async(x, 0, 4, 64, NULL)) exit(1);
    if (ra_launch(fill, (uint32_t[]){1, 1, 1}, (uint32_t[]){64, 1, 1}, 0, NULL,
                  (void *[]){&x, &one, &n}) || ra_context_synchronize()) exit(2);
}

static void load(void) {
    ra_module module;
    if (ra_module_load_builtin(&module)) exit(3);
    if (ra_module_function(&fill, module, "_Z4fillIfEvPT_S0_i")) exit(4);
}

int main(int argc, char **argv) {
    load();
    if (argc > 1) { /* leaves with launches still queued */
        void *x;
        int n = 1 << 20;
        float one = 1;
        if (ra_alloc(&x, (uint64_t)n * 4)) exit(1);
        for (int i = 0; i < 50; i++)
            if (ra_launch(fill, (uint32_t[]){4096, 1, 1}, (uint32_t[]){256, 1, 1}, 0, NULL,
                          (void *[]){&x, &one, &n})) exit(2);
        if (argc > 2) { /* a set is queued while profiling is stopped, and runs later */
            ra_profiler_stop();
            if (ra_memset_async(x, 0, 4, n, NULL)) exit(1);
            ra_profiler_start();
            if (ra_memset_async(x, 0, 4, 1, NULL)) exit(1);
            ra_profiler_stop(); /* its completion is of no use: profiling is stopped */
        }
        return argv[1][0] - '0';
    }
    launch();
    ra_profiler_stop();
    launch();
    ra_profiler_start();
    launch();
    pid_t child = fork();
    if (!child) {
        load();
        launch();
        exit(5);
    }
    int status;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}
"""


@pytest.fixture
def record_program(tmp_path: Path) -> Callable[..., list[Recorded]]:
    def record(status: int, *arguments: str) -> list[Recorded]:
        (tmp_path / "rings").mkdir()
        (tmp_path / "program.c").write_text(PROGRAM)
        program = tmp_path / "program"
        subprocess.run(
            [os.environ.get("CC", "cc"), tmp_path / "program.c", f"-I{NATIVE}/include",
             "-o", program, f"-L{NATIVE}", "-lrefacc", f"-Wl,-rpath,{NATIVE}"],
            check=True,
        )  # fmt: skip
        shim = f"session={tmp_path}\nschema={abi.SCHEMA}\ncollector=1\nring_max={1 << 28}\n"
        environment = {"PASTA_SHIM": shim, "LD_PRELOAD": str(NATIVE / "libpasta.so")}
        done = subprocess.run(
            [program, *arguments], env=environment, capture_output=True, timeout=60
        )
        assert (done.returncode, done.stdout, done.stderr) == (status, b"", b"")
        return [Recorded(path) for path in (tmp_path / "rings").iterdir()]

    return record


def test_work_queued_at_exit_completes_before_the_process_ends(
    record_program: Callable[..., list[Recorded]],
) -> None:
    (recorded,) = record_program(6, "6")
    assert len(recorded["kernel_launch"]) == len(recorded["kernel_complete"]) == 50
    (end,) = recorded["process_end"]
    assert (recorded["kernel_complete"]["time"] <= end["time"]).all()


def test_a_set_queued_while_profiling_is_stopped_has_no_completion(
    record_program: Callable[..., list[Recorded]],
) -> None:
    (recorded,) = record_program(6, "6", "stop")
    (recorded_set,) = recorded["memory_set"]
    assert recorded_set["bytes"] == 4
    assert not len(recorded["copy_complete"])


def test_profiler_calls_and_a_forked_child(
    record_program: Callable[..., list[Recorded]],
) -> None:
    rings = record_program(5)
    child, parent = sorted(rings, key=lambda recorded: len(recorded["memory_alloc"]))
    assert child["kernel_launch"]["ordinal"].tolist() == [0]
    assert child["context_create"]["context"].tolist() == [0]
    assert child["device"]["device"].tolist() == parent["device"]["device"].tolist() == [0]
    assert child["process_start"]["parent"] == parent["process_start"]["pid"]
    # allocations are recorded while stopped, and the launch consumes an ordinal
    assert len(parent["memory_alloc"]) == 3
    assert parent["kernel_launch"]["ordinal"].tolist() == [0, 2]
    sets, done = parent["memory_set"], parent["copy_complete"]
    assert len(sets) == 2 and sets["correlation"].tolist() == done["correlation"].tolist()
    assert len(child["memory_set"]) == len(child["copy_complete"]) == 1
    origins = {name: number for number, name in abi.enums()["origin"].items()}
    for kind in ("profiling_stop", "profiling_start"):
        assert parent[kind]["origin"].tolist() == [origins["profiler"]]


def test_unloadable_library_records_nothing(tmp_path: Path) -> None:
    silent = run("vadd", REFACC_INJECTION_PATH="/nonexistent/tool.so")
    assert silent.stderr == ""
    unloadable = run("vadd", REFACC_INJECTION_PATH="/nonexistent/tool.so", REFACC_VERBOSE="1")
    assert unloadable.stderr.startswith("refacc: cannot inject /nonexistent/tool.so: ")
