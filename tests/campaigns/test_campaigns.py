"""Short campaigns, and their table."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.campaigns import third_party, third_party_record
from tests.campaigns.__main__ import main
from tests.campaigns.result import Row, print_table
from tests.support.examples import SHARE


@pytest.mark.slow
def test_readers_reject_mutated_runs_cleanly(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--jobs", "2", "--base", "schema-1", "--readers", "2"]
    assert main(["runs", "--count", str(max(8, round(40 * SHARE))), *options]) == 0
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
[wrong]
needs = ["sh"]
lines = ['no-such-program']
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
    unstable = "not the same by itself: random: echo $$; echo same: stdout: line 1: "
    assert any(text.startswith(unstable) for text in texts)
    assert "fails by itself: wrong: no-such-program: sh: 1: no-such-program: not found" in texts
    rows = [text.rsplit(" ", 2)[0] for text in texts[-6:]]
    assert texts[-6] == "tried left stdout slowest"
    assert rows[1:] == [
        "same 1 0 0", "different 1 1 1", "random 1 0 0", "wrong 1 0 0", "all 4 1 1",
    ]  # fmt: skip
    assert "stdout: line 2: b'' became b'with'" in printed.err
    assert "left: () became ('s" in printed.err  # sleep, or sh before exec
    listed.write_text('[suite]\nneeds = ["sh"]\nlimit = 0.5\nlines = ["true", "sleep 9"]\n')
    assert main(["third-party", "--suites", "--list", str(listed)]) == 1
    printed = capsys.readouterr()
    assert "suite: true: alone: stdout: printed nothing" in printed.err
    assert "suite: sleep 9: alone: status: did not end in time" in printed.err


@pytest.mark.parametrize("name", ["", "_suites", "_gpu"])
def test_lists_of_third_party_programs_are_valid(name: str) -> None:
    path = Path(third_party.__file__).with_name(f"third_party{name}.toml")
    listing = third_party.read_list(path)
    assert {"text", "other"} <= set(listing.files)
    assert all(program.lines for program in listing.programs)
    assert third_party.normalise(b"pasta: x\nb 0x7fff1234\na\n", ["addresses", "order"]) == (
        b"a\nb ADDRESS\n"
    )


def test_results_are_recorded_in_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By group, with what differs and what was not run; the rest of the page stays."""
    page = tmp_path / "page.md"
    marks = [f"<!-- {word} of the results of --programs -->" for word in ("begin", "end")]
    page.write_text(f"before\n{marks[0]}\nold\n{marks[1]}\nafter\n")
    monkeypatch.setattr(third_party_record, "PAGE", page)
    monkeypatch.setattr(third_party_record, "RESULTS", tmp_path)
    kind = third_party.KINDS["programs"]
    sh = third_party.Program("sh", "shells", ("echo", "$$"), ("sh",))
    bash, zsh = (replace(sh, name=name, lines=("exit",)) for name in ("bash", "zsh"))
    for found in (
        [
            third_party.Compared(sh, "echo", printed=1200),
            third_party.Compared(sh, "$$", unstable={"stdout": "line 1"}, printed=34),
        ],
        [third_party.Compared(bash, "exit", {("events", "status"): "'0' became '1'"})],
    ):
        third_party_record.record(kind, found, sys.executable, "/usr/bin:/bin")
    third_party_record.write_section(kind, [sh, bash, zsh])
    text = page.read_text()
    assert text.startswith(f"before\n{marks[0]}\n20") and text.endswith(f"\n{marks[1]}\nafter\n")
    for part in (
        "**3 lines of 2 programs, 1 with differences**; 1 are not the same",
        "| shells | sh, bash | 3 | 1,234 | 1 | 1 |",
        "- `bash: exit`: status (events)", "Not run: zsh.",
    ):  # fmt: skip
        assert part in text
    changed = replace(sh, lines=("echo again",))
    third_party_record.write_section(kind, [changed, bash, zsh])
    assert "Not run: sh, zsh." in page.read_text()
    page.write_text("no marks")
    with pytest.raises(ValueError, match="has no lines <!-- begin"):
        third_party_record.write_section(kind, [sh])


@pytest.mark.parametrize("name", third_party.KINDS)
def test_docs_have_the_recorded_results(name: str) -> None:
    """Where an entry has changed, run it: third-party --record --only NAME."""
    kind = third_party.KINDS[name]
    listing = third_party.read_list(Path(third_party.__file__).with_name(kind.listing))
    programs = [each for each in listing.programs if each.accelerated or not kind.accelerated]
    text = "\n".join(third_party_record.section(kind, programs))
    assert f"results of --{name} -->\n{text}\n<!-- end" in third_party_record.PAGE.read_text()
