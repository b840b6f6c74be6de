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
