"""Directories of runs: ranks, reasons for missing ones, and the common timeline."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pasta.errors import RunError
from pasta.run.directory import RunDirectory
from pasta.run.root import Root, is_root, numbers, program_of
from tests.support.runs import MS, made_up


def test_ranks_precede_other_processes(tmp_path: Path) -> None:
    made_up(tmp_path, None, pid=7)
    for rank in (10, 2, 0):
        made_up(tmp_path, rank, of=12)
    root = Root.open(tmp_path)
    assert [run.rank for run in root.runs] == [0, 2, 10, None]
    assert [root.label(run) for run in root.runs] == ["rank 0", "rank 2", "rank 10", "app-node1-7"]
    assert (root.world_size, root.ranks) == (12, [0, 2, 10])
    assert numbers(root.missing) == "1, 3-9, 11"
    assert is_root(tmp_path) and not is_root(root.runs[0].directory.path)


def test_unusable_runs_have_a_reason(tmp_path: Path) -> None:
    made_up(tmp_path, 0, of=6)
    made_up(tmp_path, 1, schema=99)
    (made_up(tmp_path, 2) / "run.json").write_text("{")
    made_up(tmp_path, 3, events=[])
    (made_up(tmp_path, 4) / "run.json").write_text("[]")
    (tmp_path / "logs").mkdir()
    (tmp_path / "notes.txt").write_text("not a directory")
    made_up(tmp_path, 7, ranks=[])
    events = tmp_path / ".pasta-0-1-ab-9-0" / "events"
    events.mkdir(parents=True)
    recorded = pa.table({"environment": ["RANK=5\x1fWORLD_SIZE=6"]})
    pq.write_table(recorded, events / "process_start-00000.parquet")
    root = Root.open(tmp_path)
    found = {problem.path.name: (problem.rank, problem.why) for problem in root.problems}
    assert found == {
        "rank-0001-node1-101": (
            1, "written by a newer PASTA (schema 99; this PASTA supports 4): "
            "pip install --upgrade pasta-profiler",
        ),
        "rank-0002-node1-102": (2, found["rank-0002-node1-102"][1]),
        "rank-0003-node1-103": (
            3, "events: expected an object",
        ),
        "rank-0004-node1-104": (4, "the document: expected an object"),
        "rank-0007-node1-107": (None, "made by pasta merge, not the run of a process"),
        "logs": (None, "not a run directory"),
        ".pasta-0-1-ab-9-0": (5, "unfinished: still being written, or its PASTA was killed"),
    }  # fmt: skip
    assert "not valid JSON" in found["rank-0002-node1-102"][1]
    assert root.missing == []
    with pytest.raises(RunError, match=r"rank 2: .*not valid JSON"):
        root.of_rank(2)
    with pytest.raises(RunError, match="no run of rank 9: there are 0"):
        root.of_rank(9)


def test_no_root(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run directory, and contains none"):
        Root.open(tmp_path)
    with pytest.raises(RunError, match="no such directory"):
        Root.open(tmp_path / "nowhere")
    with pytest.raises(RunError, match="a run, not a directory of runs"):
        Root.open(made_up(tmp_path, 0))


def test_runs_share_one_timeline(tmp_path: Path) -> None:
    """Exact on one host, even if its real time was set meanwhile; an error bound is stated between
    hosts."""
    made_up(tmp_path, 0, start=5 * MS)
    late = made_up(tmp_path, 1, start=9 * MS)
    made_up(tmp_path, 2, start=2 * MS, host="node2")
    run = RunDirectory(late)
    manifest = run.manifest()
    manifest["start"]["realtime_ns"] += 3 * MS  # NTP set the clock
    run.write_manifest(manifest)
    root = Root.open(tmp_path)
    zero, one, two = root.runs
    assert root.since(one, one.start) - root.since(zero, zero.start) == 4 * MS
    assert root.since(two, two.start + 7) == 7
    assert (root.error(zero, one), root.error(zero, two)) == (0, 2 * MS + 3 * MS + 2 * MS)
    assert root.worst_error == 7 * MS


def test_unknown_clocks(tmp_path: Path) -> None:
    made_up(tmp_path, 0, clock={})
    made_up(tmp_path, 1, host="node2", clock={"boot": None, "error_ns": None})
    root = Root.open(tmp_path)
    assert {clock.hosts for clock in root.clocks.values()} == {("node1",), ("node2",)}
    assert root.error(*root.runs) is root.worst_error is None


def test_inconsistent_ranks_are_reported(tmp_path: Path) -> None:
    made_up(tmp_path, 0, pid=10)
    made_up(tmp_path, 0, pid=11, parent=10)
    assert list(Root.open(tmp_path).doubts()) == []
    made_up(tmp_path, 0, pid=12, parent=1, of=8)
    first, second = Root.open(tmp_path).doubts()
    assert first.startswith("runs of jobs with 4 and 8 ranks")
    assert second.startswith("rank 0: several unrelated processes")


def test_programs(tmp_path: Path) -> None:
    python = "/usr/bin/python3.11"
    for command, expected in {
        ("python", "-u", "dir/train.py", "--lr", "1"): "python3.11 train.py",
        ("python", "-m", "train.now"): "python3.11 -m train.now",
        ("python", "-c", "print()"): "python3.11",
        ("python",): "python3.11",
    }.items():
        assert program_of(list(command), python) == expected
    assert program_of(["./app", "in.txt"], None) == "app"
    train = {"executable": python, "command": ["python", "train.py"]}
    made_up(tmp_path, 0, pid=20, **train)
    made_up(tmp_path, 0, pid=21, parent=20, **{**train, "command": ["python", "-c", "spawned"]})
    made_up(tmp_path, 0, pid=22, parent=9, **{**train, "command": ["python", "-c", "another"]})
    programs = {name: len(runs) for name, runs in Root.open(tmp_path).programs.items()}
    assert programs == {"python3.11 train.py": 2, "python3.11": 1}


def test_concurrent_runs_do_not_replace_each_other(tmp_path: Path) -> None:
    """As on two hosts with the same name: an existing run is detected when renaming, not before."""
    places = []
    for text in ("one", "two", "three"):
        run = RunDirectory.create(tmp_path / f".{text}")
        (run.path / "who").write_text(text)
        places.append(run.move_to(tmp_path / "out" / "rank-0", force=False, suffix="7").path)
    assert [place.name for place in places] == ["rank-0", "rank-0-7", "rank-0-7-2"]
    assert [(place / "who").read_text() for place in places] == ["one", "two", "three"]
    (tmp_path / "out" / "file").write_text("")
    run = RunDirectory.create(tmp_path / ".four")
    assert run.move_to(tmp_path / "out" / "file", force=True, suffix="7").path.name == "file-7"
    assert os.path.isfile(tmp_path / "out" / "file")
