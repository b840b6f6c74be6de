"""`pasta replay` on the run of a real program."""

from __future__ import annotations

from typing import Any

import pytest

TOOLS = ("-t", "kernel_freq", "-t", "memory_timeline", "-t", "event_trace")


@pytest.mark.main
def test_replay_reproduces_the_report(pasta_preload: Any, pasta: Any, demo: Any) -> None:
    run = pasta_preload(demo("vadd"), options=TOOLS).run
    again = pasta("replay", run.path, *TOOLS, "-o", "again")
    assert (again.returncode, again.stderr) == (0, "")
    report = run.report
    assert again.stdout == report + "results: again\n"
    refused = pasta("replay", run.path, "-t", "kernel_freq", "-o", "again")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "pasta: again exists: replace it with -f, or use -o DIR-%p\n"
    itself = pasta("replay", run.path, "-o", run.path, "-f")
    assert itself.returncode == 2
    assert "is the run to replay" in itself.stderr
    assert run.report == report


PROBES = ("-t", "access_count")


def test_replay_reproduces_results_of_probes(pasta_preload: Any, pasta: Any, demo: Any) -> None:
    """Every kind of access; the recorded run has no such tool."""
    live = pasta_preload(demo("accesses"), options=PROBES).run
    recorded = pasta_preload(demo("accesses"), options=("--record-accesses",)).runs[-1]
    again = pasta("replay", recorded.path, *PROBES, "-o", "again")
    assert (again.returncode, again.stderr) == (0, "")

    def tables(report: str) -> str:
        return report[report.index("access_count:") :].replace("results: again\n", "")

    assert tables(again.stdout) == tables(live.report)
    refused = pasta("replay", live.path, "-t", "access_count")
    assert refused.returncode == 2
    assert refused.stderr == (
        f"pasta: {live.path}: no accesses were recorded, which access_count needs: "
        "record them with pasta-preload --record-accesses\n"
    )


ORDERED = ("-t", "pc_dependency", "-t", "values", "-t", "block_schedule")


@pytest.mark.slow
def test_replay_reproduces_results_that_depend_on_the_order(
    pasta_preload: Any, pasta: Any, demo: Any
) -> None:
    """Of blocks, and on times and values: the reference accelerator repeats them in each run."""
    live = pasta_preload(demo("gemm"), options=ORDERED).run
    values = ("--set", "record_accesses.values=true")
    recorded = pasta_preload(demo("gemm"), options=("--record-accesses", *values)).runs[-1]
    again = pasta("replay", recorded.path, *ORDERED, "-o", "again")
    assert (again.returncode, again.stderr) == (0, "")

    def tables(report: str) -> str:
        return report[report.index("pc_dependency:") :].replace("results: again\n", "")

    assert tables(again.stdout) == tables(live.report)
    for text in (
        "90 blocks of 1 launch on up to 16 multiprocessors",
        "311,000 elements, 4.1 % zero",
        "311,000 accesses to granules of 4 B, 16.2 % first touches",
    ):
        assert text in again.stdout.replace("\n", " ")
