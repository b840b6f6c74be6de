"""The report of a directory of runs, `pasta merge`, and `pasta.load`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pasta
from pasta.api.runs import Runs
from pasta.cli.main import main
from pasta.errors import RunError
from pasta.report.ranks import text_report
from pasta.report.text import write_text_report
from pasta.run.directory import RunDirectory
from pasta.run.merge import RunFinding, merge, merged_findings
from pasta.run.results import read_findings, write_result
from pasta.run.root import Root
from pasta.table import Table
from pasta.tool import Finding, Result
from tests.support.runs import EPOCH, MS, made_up


def line(text: str, beginning: str) -> str:
    """The line with this prefix, with single spaces."""
    found = [" ".join(each.split()) for each in text.splitlines()]
    (one,) = (each for each in found if each.startswith(beginning))
    return one


def test_ranks_side_by_side(tmp_path: Path) -> None:
    times = {0: 10, 1: 10, 2: 30, 3: 10}
    for rank, time in times.items():
        kernels = {"gemm": (5, time * MS - rank), "copy": (rank, rank)}
        slow = {"observed_ns": 25 * MS} if rank == 1 else {}
        lost = {"dropped": {"kernel_launch": 9}, "warnings": ["a\x1b[31mb\n"]} if rank > 1 else {}
        made_up(tmp_path, rank, kernels=kernels, host=f"node{1 + rank // 2}", **slow, **lost)
    report = text_report(Root.open(tmp_path))
    assert line(report, "rank 2 node2") == (
        "rank 2 node2 30 ms 3 0 ns 10 ms 2 9"
    )  # fmt: skip
    assert line(report, "device time: ") == (
        "device time: max/mean 2.00; latest: rank 2, 30.00 ms, 100% over the mean; least: rank 0"
    )
    assert line(report, "launches: ") == "launches: the same in all ranks"
    assert line(report, "time observed: ").startswith(
        "time observed: max/mean 1.82; latest: rank 1"
    )
    assert line(report, "last seen: ") == "last seen: rank 1, 15.00 ms after rank 0"
    assert line(report, "gemm") == "gemm 20 10.00 ms 14,999.998 us 29,999.998 us 2 rank 2"
    assert line(report, "copy") == "copy 6 0.00 ms 0.002 us 0.003 us 2 rank 3"
    assert line(report, "times: ") == (
        "times: exact on one host; between hosts from their real-time clocks, "
        "off by up to 4.00 ms, as their kernels report"
    )
    assert line(report, "ranks 2-3: note") == r"ranks 2-3: note: a\x1b[31mb\n"
    assert "no run" not in report and "\x1b" not in report


def test_incomplete_runs(tmp_path: Path) -> None:
    """Missing, unfinished, unreadable and damaged ones are listed, one per line; the rest is
    compared."""
    for rank in (0, 1, 3):
        made_up(tmp_path, rank, of=7, kernels={"k": (1, 10)})
    damaged = tmp_path / "rank-0001-node1-101" / "results" / "kernel_freq" / "kernels.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    made_up(tmp_path, 4, of=7, schema=99)
    (tmp_path / ".pasta-1").mkdir()
    report = text_report(Root.open(tmp_path))
    assert ": 3 runs, 3 of 7 ranks, on 1 host" in report
    assert line(report, "ranks 2, 5-6: no run: ")
    assert line(report, "rank 4: rank-0004-node1-104: written by a newer PASTA (schema 99")
    assert line(report, ".pasta-1: unfinished: ")
    assert line(report, "rank 1: results/kernel_freq/kernels.parquet: cannot be read (")
    assert "rank 1 - 3" in line(report, "rank 1 -")  # its device time is unknown
    assert "1 run is without kernel_freq" in report


def test_job_that_has_just_started(tmp_path: Path) -> None:
    (tmp_path / ".pasta-1").mkdir()
    assert text_report(Root.open(tmp_path)).splitlines()[1:] == [
        ".pasta-1: unfinished: still being written, or its PASTA was killed"
    ]
    with pytest.raises(RunError, match="contains no finished run"):
        merge(Root.open(tmp_path), tmp_path / "all", finish=write_text_report)


def test_different_tools_and_programs(tmp_path: Path) -> None:
    """Device time comes from events if kernel_freq did not run; programs are not compared."""
    made_up(tmp_path, 0, kernels={"k": (1, 40 * MS)})
    events = made_up(tmp_path, 1) / "events"
    events.mkdir()
    table = pa.table({"start": pa.array([5, 7, None], pa.uint64()), "end": [5 + MS, 9, 4]})
    pq.write_table(table, events / "kernel_complete-00000.parquet")
    other = {"command": ["python", "serve.py"], "executable": "/bin/python"}
    made_up(tmp_path, 2, kernels={"k": (2, None)}, **other)
    made_up(tmp_path, None, kernels={}, **other)
    report = text_report(Root.open(tmp_path))
    assert line(report, "app: 2 runs") and line(report, "python serve.py: 2 runs")
    assert line(report, "rank 1 1.00 ms")
    assert line(report, "device time: ").startswith("device time: max/mean 1.95; latest: rank 0")
    assert "Kernels (launches of each rank)" in report  # no clocks there


def test_findings_of_ranks_are_merged(tmp_path: Path) -> None:
    def finding(where: str, gain: float) -> Finding:
        return Finding("slow", where, f"{gain:.0%}", "hurry", gain)

    made_up(tmp_path, 0, kernels={}, findings=(finding("a", 0.1), finding("b", 0.5)))
    made_up(tmp_path, 1, kernels={}, findings=(finding("a", 0.4),))
    report = text_report(Root.open(tmp_path))
    assert line(report, "1. ") == "1. slow: b (rank 0)"
    assert line(report, "2. ") == "2. slow: a (ranks 0-1)"
    assert line(report, "rank 1: 40%") == (
        "rank 1: 40% (kernel_freq; up to 40% of device time, medium confidence)"
    )
    made_up(tmp_path, 2, kernels={}, findings=(finding("\x1b[2Jc\n", 0.9),))
    assert line(text_report(Root.open(tmp_path)), "1. ") == r"1. slow: \x1b[2Jc\n (rank 2)"
    reported = [RunFinding(str(rank), rank, "t", finding("x", rank / 4)) for rank in (1, 2)]
    ((tool, one),) = merged_findings(reported)
    assert (tool, one.gain, one.evidence) == ("t", 0.5, "2: 50%")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Three ranks of four with tables, one of which has a column that the others lack."""
    root = tmp_path / "job"
    for rank in range(3):
        path = made_up(
            root, rank, start=rank * MS, kernels={f"k{rank}": (rank, None), "all": (9, rank)},
            findings=(Finding("w", "x", "e", "r", 0.1),), dropped={"sync": 1},
        )  # fmt: skip
        columns: dict[str, Any] = {"rank": ["first"], "value": [rank / 2 if rank == 1 else rank]}
        if rank == 2:
            columns["more"] = ["x"]
        write_result(RunDirectory(path).results, "own", Result("s", {"t": Table(columns, shown=7)}))
    return root


def test_merged_tables(job: Path, tmp_path: Path) -> None:
    merged = merge(Root.open(job), tmp_path / "all", finish=write_text_report)
    kernels = pq.read_table(merged.results / "kernel_freq" / "kernels.parquet")
    assert kernels["rank"].to_pylist() == [0, 1, 2, 0, 1, 2]  # the first of each first
    assert kernels["kernel"].to_pylist() == ["k0", "k1", "k2", "all", "all", "all"]
    assert kernels["total_time"].to_pylist() == [None, None, None, 0, 1, 2]
    assert kernels["run"][1].as_py() == "rank-0001-node1-101"
    assert kernels.schema.field("total_time").metadata == {b"unit": b"ns"}
    own = pq.read_table(merged.results / "own" / "t.parquet").to_pydict()
    assert own["rank_of_tool"] == ["first"] * 3
    assert (own["value"], own["more"]) == ([0, 0.5, 2], [None, None, "x"])
    manifest = merged.manifest()
    assert [rank["start_ns"] for rank in manifest["ranks"]] == [0, MS, 2 * MS]
    assert manifest["merged"]["of"] == str(job)
    assert (manifest["missing"], manifest["dropped"]) == ([3], {"sync": 3})
    assert manifest["warnings"] == ["rank 3: no run"]
    assert [each.where for _, each in read_findings(merged.results)] == ["x (ranks 0-2)"]
    report = (merged.path / "report.txt").read_text()
    assert f"3 runs of {job} on node1" in " ".join(report.split())
    assert "rank   kernel" in report and "rank-0001" not in report
    run = pasta.load(merged.path)
    assert run.arrow("kernel_freq").equals(kernels)


def test_exit_status_reports_tools_that_failed_in_a_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job"
    kernels = {"k": (1, None)}
    made_up(job, 0, of=2, kernels=kernels)
    path = made_up(job, 1, of=2, kernels=kernels)
    merging = ["merge", str(job), "-f", "-o", str(tmp_path / "all")]
    assert main(["report", str(job)]) == main(merging) == 0
    assert capsys.readouterr().err == ""
    run = RunDirectory(path)
    failures = {"bad": {"where": "result", "reason": "ValueError: no"}}
    run.write_manifest({**run.manifest(), "failures": failures})
    said = "tool bad was disabled: ValueError: no (in result"
    assert main(["report", str(job)]) == main(["report", str(job), "--rank", "1"]) == 1
    assert said in " ".join(capsys.readouterr().out.split())
    assert main(["report", str(job), "--rank", "0"]) == 0
    assert main(merging) == 1
    assert capsys.readouterr().err == f"pasta: {said}; traceback in log.txt)\n"
    run.write_manifest({**run.manifest(), "failures": {}})
    (run.results / "kernel_freq" / "kernels.parquet").write_bytes(b"PAR1")
    assert main(merging) == 1, "a table is missing in it"


def test_merging_omits_damaged_results(job: Path, tmp_path: Path) -> None:
    results = job / "rank-0001-node1-101" / "results"
    table = results / "kernel_freq" / "kernels.parquet"
    table.write_bytes(table.read_bytes()[:40])
    (results / "own" / "result.json").write_text("{}")
    odd = job / "rank-0002-node1-102" / "results" / "own"
    pq.write_table(pa.table({"value": [["a"]]}), odd / "t.parquet")
    merged = merge(Root.open(job), tmp_path / "all", finish=write_text_report)
    ranks = pq.read_table(merged.results / "kernel_freq" / "kernels.parquet")["rank"].to_pylist()
    assert ranks == [0, 2, 0, 2]
    reported = merged.manifest()["warnings"]
    assert len(reported) == 4 and reported[0] == "rank 3: no run"
    assert reported[1] == f"{results / 'own' / 'result.json'}: summary: missing"
    assert reported[2].startswith(f"{table}: cannot be read (") and reported[2].endswith(
        "): left out"
    )
    assert reported[3].startswith(
        "own: table t: left out, the types of its columns differ between ranks"
    )
    assert not list(tmp_path.glob(".all*"))


def test_tables_exceeding_the_row_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pasta.run import merge_tables as module

    monkeypatch.setattr(module, "_ROWS", 50)
    for rank in range(2):
        path = made_up(tmp_path / "job", rank)
        table = Table({"n": list(range(rank * 1000, rank * 1000 + 230 + rank))})
        write_result(RunDirectory(path).results, "own", Result("s", {"t": table}))
    path = (
        merge(Root.open(tmp_path / "job"), tmp_path / "all", finish=write_text_report).results
        / "own"
        / "t.parquet"
    )
    numbers = pq.read_table(path)["n"].to_pylist()
    assert numbers[:4] == [0, 1000, 1, 1001]
    assert sorted(numbers) == [*range(230), *range(1000, 1231)]
    assert max(pq.ParquetFile(path).metadata.row_group(i).num_rows for i in range(2)) <= 250


def write_trace(run: Path, pid: int, cut: int = 0) -> None:
    """A trace as written by event_trace: times since the run's start."""
    events = [
        f'{{"ph":"M","name":"process_name","ts":0,"pid":{pid},"tid":0,"args":{{"name":"app"}}}}',
        f'{{"ph":"X","cat":"c","name":"\\"pid\\":9","pid":{pid},"tid":1,"ts":-0.500,"dur":1.000}}',
        '{"ph":"M","name":"process_name","ts":0,"pid":0,"tid":0,"args":{"name":"device 0 of app"}}',
        '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":2,"ts":2.001,"dur":1.000}',
        f'{{"ph":"s","id":5,"pid":{pid},"tid":1,"ts":1.000,"cat":"ac2g","name":"ac2g"}}',
        f'{{"ph":"b","cat":"range","id":"0x5","name":"r","pid":{pid},"tid":1,"ts":1.000}}',
    ]
    text = '{"schemaVersion":1,\n"traceEvents":[\n' + ",\n".join(events) + "\n]}\n"
    packed = gzip.compress(text[: len(text) - cut].encode())
    write_result(
        RunDirectory(run).results,
        "event_trace",
        Result("s", files={"trace.json.gz": lambda file: file.write(packed) and None}),
    )


def test_merged_trace(tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        path = made_up(tmp_path / "job", rank, start=rank * MS)
        if rank:
            write_trace(path, 100 + rank, cut=60 if rank == 2 else 0)
    merged = merge(Root.open(tmp_path / "job"), tmp_path / "all", finish=write_text_report)
    trace = json.loads(gzip.open(merged.results / "event_trace" / "trace.json.gz").read())
    assert trace["baseTimeNanoseconds"] == EPOCH
    names = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert names == {
        1: "rank 1 (node1)", 1_000_001: "rank 1 (node1): device 0",
        2: "rank 2 (node1)", 1_000_002: "rank 2 (node1): device 0",
    }  # fmt: skip
    events = [e for e in trace["traceEvents"] if e["ph"] != "M"]
    assert [(e["pid"], e["ts"]) for e in events if e["ph"] == "X"] == [
        (1, 999.5), (1_000_001, 1002.001), (2, 1999.5), (1_000_002, 2002.001),
    ]  # fmt: skip
    assert next(e["name"] for e in events if e["pid"] == 1) == '"pid":9'
    assert [e["id"] for e in events if e["ph"] == "s"] == [5 * 3 + 1, 5 * 3 + 2]
    assert [e["id"] for e in events if e["ph"] == "b"] == [hex(5 * 3 + 1)]
    (reported,) = (each for each in merged.manifest()["warnings"] if "trace" in each)
    assert "rank-0002" in reported and reported.endswith("only up to the damage (truncated)")


def test_loaded_root(job: Path) -> None:
    runs = pasta.load(job)
    assert isinstance(runs, Runs)
    assert [run.manifest["rank"] for run in runs.ranks] == [0, 1, 2]
    assert (runs.missing, runs.problems) == ([3], {})
    assert runs.tables() == {"kernel_freq": ["kernels"], "own": ["t"]}
    table = runs.arrow("kernel_freq")
    assert table["rank"].to_pylist() == [0, 0, 1, 1, 2, 2]
    assert runs.rank(2).arrow("own", "t")["more"].to_pylist() == ["x"]
    assert repr(runs) == f"<pasta.Runs {job}: 3 runs>" and "rank 3: no run" in str(runs)
    for names, text in {
        ("none",): "no results of the tool 'none': there are kernel_freq, own",
        ("own", "u"): "own has no table 'u': there are t",
    }.items():
        with pytest.raises(RunError, match=text):
            runs.arrow(*names)


def test_on_the_command_line(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, status, text in (
        (("report", "job"), 0, "3 runs, 3 of 4 ranks"),
        (("report", "job", "--rank", "1"), 0, "process 101 on node1"),
        (("report", "job", "--rank", "3"), 2, "no run of rank 3: there are 0-2"),
        (("merge", "job"), 0, "3 runs: job-merged"),
        (("merge", "job"), 2, "job-merged exists"),
        (("merge", "job", "-f"), 0, "3 runs: job-merged"),
        (("merge", "job", "-o", "job/all"), 2, "job/all is inside the root to merge"),
        (("report", "job-merged"), 0, "3 runs of"),
        (("report", "job-merged", "--rank", "0"), 2, "--rank applies to a directory of runs only"),
        (("merge", "job-merged"), 2, "a run, not a directory of runs"),
    ):
        assert main(list(words)) == status
        assert text in " ".join("".join(capsys.readouterr()).split())
