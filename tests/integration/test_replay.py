"""`pasta replay` on the run of a real program."""

from __future__ import annotations

from typing import Any

TOOLS = ("-t", "kernel_freq", "-t", "memory_timeline", "-t", "event_trace")


def test_the_report_is_that_of_the_run(pasta_preload: Any, pasta: Any, demo: Any) -> None:
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
