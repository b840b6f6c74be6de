"""Runs of many processes: one directory, however they are started."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.preload import wait_until

RANKS = r"""
int main(void) {
    for (int rank = 0; rank < 4; rank++) {
        if (fork()) continue;
        char text[2] = {(char)('0' + rank), 0};
        setenv("RANK", text, 1);
        setenv("LOCAL_RANK", text, 1);
        setenv("WORLD_SIZE", "4", 1);
        launch(10 * (rank + 1));
        return 0;
    }
    while (wait(NULL) > 0) {}
    return 0;
}
"""


def manifests(root: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(root.glob("*/run.json"))]


@pytest.mark.main
def test_forked_ranks(pasta_preload, pasta, compile_c) -> None:
    """The launcher is not a rank; its children are, and learn it at run time."""
    done = pasta_preload(compile_c(RANKS), options=("-o", "job"))
    root = done.directory / "job"
    names = sorted(path.name for path in root.iterdir())
    assert [name[:10] for name in names] == [f"rank-000{rank}-" for rank in range(4)]
    found = manifests(root)
    assert [(run["rank"], run["local_rank"], run["world_size"]) for run in found] == [
        (rank, rank, 4) for rank in range(4)
    ]
    assert len({run["clock"]["boot"] for run in found}) == 1
    assert done.lines[-1] == "all of them: pasta report job"
    assert not any("kernel_freq" in each for each in done.lines), "a rank's report is printed"
    report = " ".join(pasta("report", root).stdout.split())
    assert "4 runs, 4 ranks, on 1 host" in report
    assert "launches: max/mean 1.60; most: rank 3, 40, 60% over the mean; least: rank 0" in report


RANK_AND_PARENT = r"""
int main(int count, char **words) {
    bool first = !strcmp(words[1], "first");
    if (count > 2) { /* the rank, which learns it here and starts anew */
        launch(5);
        if (first) sleep(3); /* until the other's run is there */
        return 0;
    }
    if (!fork()) {
        setenv("RANK", "1", 1);
        setenv("WORLD_SIZE", "2", 1);
        execv(words[0], (char *[]){words[0], words[1], "rank", NULL});
    }
    if (first) sleep(1); /* until the rank uses the accelerator, so that it is waited for */
    else wait(NULL), sleep(2);
    launch(3);
    return 0;
}
"""


@pytest.mark.parametrize("first", [True, False])
def test_process_without_a_rank_beside_one_with(pasta_preload, compile_c, first: bool) -> None:
    """Ranks are in one root, in any order of completion."""
    program = compile_c(RANK_AND_PARENT)
    done = pasta_preload(program, "first" if first else "last", options=("-o", "job"))
    assert done.exit_status == 0
    job, ranks = done.directory / "job", done.directory / "job-ranks"
    of_ranks = ranks if first else job
    wait_until(lambda: list(of_ranks.glob("rank-0001-*/run.json")), "the rank's run")
    (rank,) = of_ranks.glob("rank-0001-*/run.json")
    (other,) = [job / "run.json"] if first else job.glob(f"{program.name}-*/run.json")
    found = [json.loads(path.read_text()) for path in (rank, other)]
    assert [run["rank"] for run in found] == [1, None]
    assert [run["launches"]["seen"] for run in found] == [5, 3]


CRASHING = """
import os
from pasta.tool import Result, Tool
made = 0
class Crashing(Tool):
    "Ends the process that makes the results of three launches."
    count = 0
    def on_launches(self, launches): self.count += len(launches)
    def result(self):
        global made
        made += 1
        if self.count == 3: os.abort()
        return Result(summary=f"{self.count} launches, {made} made here")
"""


def test_processes_share_collectors(pasta_preload, compile_c, tmp_path: Path) -> None:
    """Each is analysed as alone: a tool begins anew, and its crash is that of one run."""
    (tmp_path / "crashing.py").write_text(CRASHING)
    program = compile_c(
        "int main(void) { for (int i = 1; i < 9; i++) if (!fork()) return launch(i), 0;"
        " while (wait(NULL) > 0) {} return 0; }"
    )
    options = ("-t", str(tmp_path / "crashing.py"), "-o", "job/%p")
    one_processor = ("taskset", "-c", str(min(os.sched_getaffinity(0))))
    done = pasta_preload(program, options=options, before=one_processor)
    found = [path.parent / "report.txt" for path in (done.directory / "job").glob("*/run.json")]
    texts = sorted(path.read_text() for path in found)
    summaries = sorted(re.findall(r"(\d) launches, (\d) made here", " ".join(texts)))
    assert summaries == [(str(i), "1") for i in range(1, 9) if i != 3]
    (line,) = (each for each in done.lines if "could not be finished" in each)
    assert "(status -6)" in line and "pasta recover" in line
    pasta_preload.may_leave_sessions = True


def test_concurrent_launchers(pasta_preload, pasta, compile_c) -> None:
    """As started by srun: each task has its own pasta-preload, and nothing is replaced, even by a
    program that is run by exec in the same process."""
    program = compile_c(
        "int main(int n, char **a) { launch(5);"
        " return n > 1 ? execv(a[1], (char *[]){a[1], 0}) : 0; }"
    )
    started = [
        pasta_preload.popen(
            program, *([program] if rank == 0 else []), options=("--root", "job"),
            environment={
                "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_NTASKS": "4",
            },
        )
        for rank in range(3)
    ]  # fmt: skip
    for process in started:
        assert pasta_preload.finish(process).exit_status == 0
    root = pasta_preload.directory / "job"
    assert [(run["rank"], run["world_size"]) for run in manifests(root)] == [
        (0, 4), (0, 4), (1, 4), (2, 4),
    ]  # fmt: skip
    report = pasta("report", root).stdout
    assert "4 runs, 3 of 4 ranks" in report and "rank 3: no run" in report


@pytest.mark.main
def test_invalid_roots(pasta_preload) -> None:
    for options, text in {
        ("--root", "out", "-o", "out"): "--root and -o both name the output: use only one of them",
        ("--root", "out", "-f"): "out: runs in a root are not replaced, because others may be",
        ("--root", "out/%p"): "out/%p: %p differs between processes, which share one root",
    }.items():
        done = pasta_preload.bare(*options, "true")
        assert done.exit_status == 2
        assert done.stderr.startswith(f"pasta: {text}"), done.stderr
