"""Short campaigns, and their table."""

from __future__ import annotations

import pytest

from tests.campaigns.__main__ import main
from tests.campaigns.result import Row, print_table


@pytest.mark.slow
def test_readers_reject_mutated_runs_cleanly(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--count", "40", "--jobs", "2", "--base", "schema-1", "--readers", "2"]
    assert main(["runs", *options]) == 0
    assert " a second" in capsys.readouterr().out


def test_campaign_result_is_printed_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row("report"), Row("merge")]
    for seconds in (0.5, 1.0):
        rows[0].count(seconds)
    assert print_table(rows)
    rows[1].count(2.0, ["hang", "escape", "escape"])
    capsys.readouterr()
    assert not print_table(rows)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        ["tried", "escape", "hang", "slowest"],
        ["report", "2", "0", "0", "1.00", "s"],
        ["merge", "1", "1", "1", "2.00", "s"],
        ["all", "3", "1", "1", "2.00", "s"],
    ]
