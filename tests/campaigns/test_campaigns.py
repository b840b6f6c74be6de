"""Short campaigns, and their table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns import third_party
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


_PROGRAMS = """
[files]
"given" = "file"
"leave" = "sleep 60 > /dev/null 2>&1 &"
[same]
needs = ["sh"]
lines = ['cat given; echo out > made; echo err >&2; exit 3']
[different]
needs = ["sh"]
ignore = ["pids"]
lines = ['echo $$; echo "${PASTA_SHIM:+with}"; [ ! "$PASTA_SHIM" ] || . ./leave']
[absent]
needs = ["no-such-program|nor-this"]
lines = ["true"]
[random]
needs = ["sh"]
lines = ['echo $$; echo same']
"""


@pytest.mark.slow
def test_third_party_programs_are_compared(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(third_party, "_GRACE", 0.1)
    listed = tmp_path / "list.toml"
    listed.write_text(_PROGRAMS)
    assert main(["third-party", "--list", str(listed), "--jobs", "1"]) == 1
    printed = capsys.readouterr()
    texts = [" ".join(line.split()) for line in printed.out.splitlines()]
    assert texts[0] == "not run: absent: no no-such-program|nor-this"
    assert "not the same by itself: random: echo $$; echo same: stdout" in texts
    rows = [text.rsplit(" ", 2)[0] for text in texts[-5:]]
    assert texts[-5] == "tried left stdout slowest"
    assert rows[1:] == ["same 1 0 0", "different 1 1 1", "random 1 0 0", "all 3 1 1"]
    assert "stdout: line 2: b'' became b'with'" in printed.err
    assert "left: () became ('s" in printed.err  # sleep, or sh before exec
    listed.write_text('[files]\n[suite]\nneeds = ["sh"]\nlines = ["true"]\n')
    assert main(["third-party", "--suites", "--list", str(listed)]) == 1
    assert "suite: true: alone: stdout: nothing was printed" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "_suites", "_gpu"])
def test_lists_of_third_party_programs_are_valid(name: str) -> None:
    path = Path(third_party.__file__).with_name(f"third_party{name}.toml")
    files, programs = third_party.read_list(path)
    assert {"text", "other"} <= set(files)
    assert all(program.lines for program in programs)
    assert third_party.normalise(b"pasta: x\nb 0x7fff1234\na\n", ["addresses", "order"]) == (
        b"a\nb ADDRESS\n"
    )
