"""Samples of the host: results, flame graph and tracks of samples with known counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pasta.tools.host_samples import HostSamples

from pasta.report.stacks import read_call_tree
from pasta.report.timeline import read_timeline
from pasta.testing import Events, run_tool
from tests.support.runs import recorded

HEAVY, LIGHT = 0xC000_0001, 0xC000_0002
APP = "/home/user/train.py"
MS = 1_000_000
PERIOD = 5 * MS


def events() -> Events:
    """Thread 1: 6 samples in main > heavy > inner, 3 in main > light > inner, one lost before and
    one with an unknown stack. Thread 2, in a system call after a pause: 1 in heavy."""
    found = Events(start_time=1000 * MS)
    found.frames(HEAVY, (APP, "inner", 3), (APP, "heavy", 7), (APP, "main", 20))
    found.frames(LIGHT, (APP, "inner", 4), (APP, "light", 9), (APP, "main", 21))
    usual = {"period": PERIOD, "lost": 0, "in_kernel": 0, "truncated": 0}
    stacks = [*[HEAVY] * 6, *[LIGHT] * 3, 0]
    for number, stack in enumerate(stacks):
        sample = {**usual, "lost": number == 4, "truncated": stack == 0}
        time = 1000 * MS + (number + 1) * PERIOD
        found.add("host_sample", stack=stack, time=time, thread=1, **sample)
    found.add("host_sample", stack=HEAVY, time=1500 * MS, thread=2, **{**usual, "in_kernel": 1})
    return found


@pytest.mark.parametrize("splits", [(), range(1, 17, 3)])
def test_sums(splits: range) -> None:
    result = run_tool(HostSamples, events(), options={"least_time": "20ms"}, splits=splits)
    assert result.summary == (
        "55.00 ms of processor time in 2 threads, 11 samples of 5.00 ms; 90.9 % in inner"
    )
    threads = list(result.tables["threads"].rows())
    assert [(row["thread"], row["samples"], row["time"]) for row in threads] == [
        (1, 10, 50 * MS), (2, 1, 5 * MS),
    ]  # fmt: skip
    assert [row["kernel_time"] for row in threads] == [0, 5 * MS]
    functions = {row["function"]: row for row in result.tables["functions"].rows()}
    times = {name: (row["self_time"], row["time"]) for name, row in functions.items()}
    assert {name: (own // MS, whole // MS) for name, (own, whole) in times.items()} == {
        "inner": (50, 50), "(unknown)": (5, 5), "main": (0, 50), "heavy": (0, 35), "light": (0, 15),
    }  # fmt: skip
    paths = [(row["samples"], row["call_path"]) for row in result.tables["call_paths"].rows()]
    assert paths == [
        (7, "main:20 > heavy:7 > inner:3"), (3, "main:21 > light:9 > inner:4"), (1, "(unknown)"),
    ]  # fmt: skip
    lines = [(row["line"], row["time"]) for row in result.tables["lines"].rows()]
    assert lines[0] == ("train.py:3 inner", 35 * MS)
    [finding] = result.findings
    assert finding.where == "train.py:3 inner" and "35.00 ms of 55.00 ms" in finding.evidence
    assert [note.split(" ")[0] for note in result.notes] == ["1", "outer"]


def test_no_samples() -> None:
    assert run_tool(HostSamples, Events()).tables == {}


def test_flame_graph_and_timeline(tmp_path: Path) -> None:
    run = recorded(events(), tmp_path / "run")
    tree = read_call_tree(run)
    sums = {
        " > ".join(call.name for call in tree.path(node)): time
        for node, time in enumerate(tree.weights["cpu"])
        if time
    }
    assert sums == {
        "train.py:20 main > train.py:7 heavy > train.py:3 inner": 35 * MS,
        "train.py:21 main > train.py:9 light > train.py:4 inner": 15 * MS,
        "": 5 * MS,
    }
    found = read_timeline(run)
    assert found is not None
    drawn = {
        (row.label, row.depth): [
            (found.names[found.name[at]], int(found.start[at]) // MS, int(found.end[at]) // MS)
            for at in range(row.first, row.first + row.count)
        ]
        for row in found.rows
    }
    first, second = "thread 1: sampled calls", "thread 2: sampled calls"
    assert drawn == {
        (first, 0): [(("sample", "main"), 0, 45)],
        (first, 1): [(("sample", "heavy"), 0, 30), (("sample", "light"), 30, 45)],
        (first, 2): [(("sample", "inner"), 0, 30), (("sample", "inner"), 30, 45)],
        (second, 0): [(("sample", "main"), 495, 500)],
        (second, 1): [(("sample", "heavy"), 495, 500)],
        (second, 2): [(("sample", "inner"), 495, 500)],
    }
