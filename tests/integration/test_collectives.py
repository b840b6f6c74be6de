"""Calls of a library with NCCL's functions, which launches kernels on the reference accelerator."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pasta.cli.main import main
from pasta.run.results import read_results
from tests.support.places import PROGRAMS, ROOT

RANKS = r"""
#include "communication/fake_nccl.h"
static void check(int error, int line) {
    if (error) fprintf(stderr, "line %d: error %d\n", line, error), _exit(95);
}
#define NCCL(call) check(call, __LINE__)

static void work(int rank, int size, ncclUniqueId id, int rounds, int late) {
    ncclComm_t world, half;
    launch(1);
    NCCL(ncclCommInitRank(&world, size, id, rank));
    for (int i = 0; i < rounds; i++) {
        if (rank == late) usleep(3000);
        NCCL(ncclAllReduce(NULL, NULL, 1000, ncclFloat32, ncclSum, world, NULL));
        RA(ra_context_synchronize());
    }
    NCCL(ncclGroupStart());
    NCCL(ncclGroupStart());
    NCCL(ncclAllGather(NULL, NULL, 10, ncclFloat16, world, NULL));
    NCCL(ncclGroupEnd());
    NCCL(ncclAllGather(NULL, NULL, 30, ncclFloat16, world, NULL));
    NCCL(ncclGroupEnd());
    NCCL(ncclGroupStart()); /* in a ring */
    NCCL(ncclSend(NULL, 100, ncclInt8, (rank + 1) % size, world, NULL));
    NCCL(ncclRecv(NULL, 100, ncclInt8, (rank + size - 1) % size, world, NULL));
    NCCL(ncclGroupEnd());
    NCCL(ncclGroupStart());
    NCCL(ncclCommSplit(world, rank % 2, rank, &half, NULL));
    NCCL(ncclGroupEnd());
    NCCL(ncclAllReduce(NULL, NULL, 50, ncclFloat32, ncclSum, half, NULL));
    /* fails, and is passed on */
    if (ncclBroadcast(NULL, NULL, 7, ncclInt8, size, world, NULL) != 4) _exit(94);
    NCCL(ncclCommDestroy(half));
    NCCL(ncclCommDestroy(world));
    RA(ra_context_synchronize());
}

int main(int count, char **words) {
    int size = count > 1 ? atoi(words[1]) : 4, rounds = count > 2 ? atoi(words[2]) : 3;
    ncclUniqueId id;
    NCCL(ncclGetUniqueId(&id));
    for (int rank = 0; rank < size; rank++) {
        if (fork()) continue;
        char text[2] = {(char)('0' + rank), 0}, all[2] = {(char)('0' + size), 0};
        setenv("RANK", text, 1);
        setenv("WORLD_SIZE", all, 1);
        work(rank, size, id, rounds, count > 3 ? atoi(words[3]) : -1);
        return 0;
    }
    int failed = 0;
    for (int status; wait(&status) > 0;) failed |= status;
    return failed != 0;
}
"""


@pytest.fixture(scope="session")
def fake_nccl(tmp_path_factory: pytest.TempPathFactory, native: Path) -> Path:
    """The directory of a libnccl.so.2."""
    directory = tmp_path_factory.mktemp("nccl")
    command = [
        *os.environ.get("CC", "cc").split(), "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC",
        "-shared", "-Wl,-soname,libnccl.so.2", f"-I{ROOT / 'shim' / 'refacc'}",
        f"-I{ROOT / 'shim' / 'include'}", PROGRAMS / "communication" / "fake_nccl.c",
        "-o", directory / "libnccl.so.2", f"-L{native}", "-lrefacc", f"-Wl,-rpath,{native}",
    ]  # fmt: skip
    subprocess.run(command, check=True)
    (directory / "libnccl.so").symlink_to("libnccl.so.2")
    return directory


@pytest.fixture
def ranks(compile_c: Callable[..., Path], fake_nccl: Path) -> Path:
    """A program whose children are the ranks of a job: ranks, all-reduces, and a rank that is
    late."""
    link = (f"-L{fake_nccl}", "-lnccl", f"-Wl,-rpath,{fake_nccl}")
    return compile_c(RANKS, *link, name="ranks")


def tables(run: Path, tool: str = "collectives") -> dict[str, list[dict[str, Any]]]:
    (result,) = (each for each in read_results(run / "results") if each.name == tool)
    return {name: list(table.rows()) for name, table in result.tables.items()}


@pytest.mark.main
def test_ranks_of_a_job(pasta_preload, ranks: Path) -> None:
    """Calls, groups, splits, sends and failures of four processes, and the merged run."""
    done = pasta_preload(ranks, options=("-t", "collectives", "-o", "job"))
    assert (done.exit_status, done.stdout) == (0, "")
    job = done.directory / "job"
    runs = sorted(job.iterdir())
    assert [run.name[:9] for run in runs] == [f"rank-000{rank}" for rank in range(4)]
    ids = set()
    for rank, run in enumerate(runs):
        found = tables(run)
        world, half = found["communicators"]
        assert [world["member"], world["ranks"], world["from"]] == [rank, 4, None]
        assert [half["member"], half["ranks"], half["from"]] == [rank // 2, 2, "#1, 4 ranks"]
        assert world["library"] == "NCCL 2.28.3"
        rows = {(row["operation"], row["communicator"]): row for row in found["collectives"]}
        reduced = rows["all_reduce", "#1, 4 ranks"]
        assert [reduced["calls"], reduced["bytes"]] == [3, 3 * 4000]
        gathered = rows["all_gather", "#1, 4 ranks"]
        assert [gathered["calls"], gathered["bytes"]] == [2, (10 + 30) * 2 * 4], "of all ranks"
        ring = rows["exchange", "#1, 4 ranks"]
        assert [ring["calls"], ring["bytes"]] == [2, 100], "sends and receives at once"
        assert rows["all_reduce", "#2, 2 ranks"]["bytes"] == 200
        assert all(row["time"] > 0 for row in rows.values()), "all kernels are known"
        assert "kernels" not in found, "and all are of calls"
        calls = found["calls"]
        assert [call["order"] for call in calls] == [0, 1, 2, 3, 4, 0, 0, 0]
        ids.add(calls[0]["id"])
    assert len(ids) == 1
    assert (
        "1 call failed"
        in json.loads((runs[0] / "results/collectives/result.json").read_text())["notes"][0]
    )
    merged = done.directory / "merged"
    assert main(["merge", str(job), "-o", str(merged)]) == 0
    found = tables(merged, "arrivals")
    rows = {(row["operation"], row["communicator"]): row for row in found["arrivals"]}
    assert {key: row["joined"] for key, row in rows.items()} == {
        ("all_reduce", "ranks 0-3"): 3,
        ("all_gather", "ranks 0-3"): 2,
        ("send and recv", "ranks 0-3"): 4,
        ("all_reduce", "ranks 0, 2"): 1,
        ("all_reduce", "ranks 1, 3"): 1,
    }
    assert "mismatches" not in found
    assert "Arrival of ranks" in (merged / "report.txt").read_text()


PLUGIN = r"""
#include "communication/fake_nccl.h"

int run(void) {
    ncclComm_t made[2];
    int failed = ncclCommInitAll(made, 2, NULL);
    for (int i = 0; i < 3; i++) {
        failed |= ncclGroupStart();
        for (int rank = 0; rank < 2; rank++)
            failed |= ncclAllReduce(NULL, NULL, 10, ncclFloat16, ncclSum, made[rank], NULL);
        failed |= ncclGroupEnd();
    }
    return failed;
}
"""


def test_a_library_of_a_plugin(pasta_preload, compile_c, fake_nccl: Path) -> None:
    """As Python loads PyTorch: neither the plugin nor its library is visible to others. The process
    has two ranks."""
    link = (f"-L{fake_nccl}", "-lnccl", f"-Wl,-rpath,{fake_nccl}")
    plugin = compile_c(PLUGIN, "-shared", "-fPIC", *link, name="plugin.so")
    program = compile_c(r"""
        #include <dlfcn.h>
        int main(int count, char **words) {
            launch(count - 1);
            void *plugin = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
            int (*run)(void) = plugin ? (int (*)(void))dlsym(plugin, "run") : NULL;
            int status = run ? run() : 92;
            RA(ra_context_synchronize());
            return status;
        }
    """)
    done = pasta_preload(program, plugin, options=("-t", "collectives"))
    assert (done.exit_status, done.stderr.count("no library")) == (0, 0)
    (run,) = (path.parent for path in done.directory.rglob("run.json"))
    found = tables(run)
    (row,) = found["collectives"]
    assert [row["operation"], row["communicator"]] == ["all_reduce", "#1, 2 ranks"]
    assert [row["calls"], row["bytes"]] == [6, 6 * 20]
    (row,) = found["arrivals"]
    assert [row["communicator"], row["joined"]] == ["#1, 2 ranks", 3]


def test_a_library_that_is_missing(pasta_preload, compile_c) -> None:
    """A program that could do without the library gets an error, and one line."""
    program = compile_c(r"""
        int ncclGroupStart(void) __attribute__((weak));
        int main(void) {
            launch(1);
            return ncclGroupStart ? ncclGroupStart() + ncclGroupStart() : 0;
        }
    """)
    done = pasta_preload(program, options=("-t", "collectives"))
    assert done.exit_status == 4
    assert done.stderr.count("ncclGroupStart was called, but no loaded library") == 1
