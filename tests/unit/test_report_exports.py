"""Exports of a run, read back."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from pasta.cli.main import main
from pasta.report.exports import exports
from pasta.run.directory import RunDirectory
from pasta.run.events import Recorder
from pasta.run.results import write_result
from pasta.table import Figure, Table, absent_where
from pasta.testing import Events
from pasta.tool import Finding, Result
from tests.support.places import ROOT
from tests.support.runs import MANIFEST
from tests.support.streams import EVENT_STEP, training

NAME = 'void f<int, 2>(a;b)\n"quoted"'


def rows() -> dict[str, Any]:
    return {
        "kernel": [NAME, None, ""],
        "bytes": np.array([2**64 - 1, 5, 0], np.uint64),
        "time": absent_where(np.array([1, 2, 3]), np.array([False, True, False])),
        "grid": [(4, 2, 1), (1, 1, 1), None],
        "share": [0.25, float("nan"), None],
        "nothing": [None, None, None],
    }


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory.create(tmp_path / "run")
    directory.write_manifest(MANIFEST)
    table = Table(rows(), units={"bytes": "bytes"}, labels={"time": "at"}, title="Some")
    figure = Figure("line", "Level", [1, 2], {"level": [1.5, float("nan")]})
    finding = Finding("much", "f", "90 %", "less", 0.5)
    result = Result("one", {"main": table, "other": Table({"n": [1]})}, [finding], {"f": figure})
    write_result(directory.results, "first", result)
    return directory


@pytest.fixture
def recorded(tmp_path: Path) -> RunDirectory:
    events = training()
    directory = RunDirectory.create(tmp_path / "recorded")
    recorder = Recorder(directory.events, events.strings)
    recorder.add(events.batch())
    recorder.flush()
    directory.write_manifest({**MANIFEST, "executable": "program", "parent": 1, "environment": {}})
    return directory


def report(run: RunDirectory, *arguments: str | Path) -> int:
    return main(["report", str(run.path), *map(str, arguments)])


def test_json(run: RunDirectory, tmp_path: Path) -> None:
    assert report(run, "--json", tmp_path / "run.json") == 0
    document = json.loads((tmp_path / "run.json").read_text())
    assert document["run"] == MANIFEST
    assert document["findings"][0]["what"] == "much" and document["findings"][0]["tool"] == "first"
    tool = document["tools"]["first"]
    assert (tool["summary"], list(tool["tables"])) == ("one", ["main", "other"])
    assert tool["figures"]["f"]["series"] == {"level": [1.5, None]}
    main_table = tool["tables"]["main"]
    assert main_table["columns"]["bytes"] == {"heading": "bytes", "unit": "bytes", "hidden": False}
    assert main_table["columns"]["time"]["heading"] == "at"
    assert main_table["rows"] == [
        {"kernel": NAME, "bytes": 2**64 - 1, "time": 1, "grid": [4, 2, 1], "share": 0.25,
         "nothing": None},
        {"kernel": None, "bytes": 5, "time": None, "grid": [1, 1, 1], "share": None,
         "nothing": None},
        {"kernel": "", "bytes": 0, "time": 3, "grid": None, "share": None, "nothing": None},
    ]  # fmt: skip


def test_csv_and_parquet(run: RunDirectory, tmp_path: Path) -> None:
    assert report(run, "--csv", tmp_path / "c", "--parquet", tmp_path / "p") == 0
    names = ["first.main", "first.other"]
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [f"{n}.csv" for n in names]
    for name in names:
        stored = run.results / "first" / f"{name.partition('.')[2]}.parquet"
        copy = tmp_path / "p" / f"{name}.parquet"
        assert copy.read_bytes() == stored.read_bytes()
    read = csv.read_csv(
        tmp_path / "c" / "first.main.csv",
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types={"bytes": pa.uint64()},
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    ).to_pydict()
    assert read["kernel"] == [NAME, None, ""]
    assert read["bytes"] == [2**64 - 1, 5, 0]
    assert (read["time"], read["grid"]) == ([1, None, 3], ["4x2x1", "1x1x1", None])
    assert pq.read_table(tmp_path / "p" / "first.main.parquet")["bytes"][0].as_py() == 2**64 - 1


LINE = "train.py:5 <module>;model.py:9 forward;Net.fc (Linear)"


@pytest.mark.parametrize(
    ("weight", "lines"),
    [
        (
            "device",
            {
                f"{LINE};aten::linear;aten::mm;gemm 400",
                f"{LINE};(backward);MmBackward0;gemm 30",
                "(no operator);init 1",
            },
        ),
        (
            "host",
            {
                f"{LINE};aten::linear {2 * EVENT_STEP}",
                f"{LINE};aten::linear;aten::mm {3 * EVENT_STEP}",
                f"{LINE};(backward);MmBackward0 {2 * EVENT_STEP}",
            },
        ),
        ("bytes", {f"{LINE};aten::linear;aten::mm 512"}),
    ],
)
def test_stacks(weight: str, lines: set[str], recorded: RunDirectory, tmp_path: Path) -> None:
    folded, scope = tmp_path / "folded", tmp_path / "speedscope.json"
    assert report(recorded, "--flamegraph", folded, "--speedscope", scope, "--weight", weight) == 0
    assert set(folded.read_text().splitlines()) == lines
    document = json.loads(scope.read_text())
    frames = document["shared"]["frames"]
    assert {"name": "model.py:9 forward", "file": "/my/model.py", "line": 9} in frames
    first = document["profiles"][document["activeProfileIndex"]]
    assert first["unit"] == ("bytes" if weight == "bytes" else "nanoseconds")
    assert len(document["profiles"]) == 3
    found = {
        f"{';'.join(frames[frame]['name'] for frame in sample)} {own}"
        for sample, own in zip(first["samples"], first["weights"], strict=True)
    }
    assert found == lines
    assert first["endValue"] == sum(first["weights"])


def test_names_cannot_break_the_stack_format(tmp_path: Path) -> None:
    from io import BytesIO

    from pasta.report.exports.flamegraph import write_folded
    from pasta.report.stacks import Call, CallTree

    tree = CallTree()
    tree.weights["device"][tree.node(0, Call("a;b\n\x1b[31m", "kernel"))] = 3
    written = BytesIO()
    write_folded(tree, "device", written)
    assert written.getvalue() == b"a:b\\n\\x1b[31m 3\n"


def test_trace_is_copied_or_generated(recorded: RunDirectory, tmp_path: Path) -> None:
    plain, packed = tmp_path / "trace.json", tmp_path / "trace.json.gz"
    assert report(recorded, "--perfetto", plain) == 0
    names = {event.get("name") for event in json.loads(plain.read_text())["traceEvents"]}
    assert {"aten::mm", "gemm", "init"} <= names
    place = recorded.results / "event_trace"
    place.mkdir(parents=True)
    (place / "trace.json.gz").write_bytes(gzip.compress(b'{"traceEvents":[]}', mtime=0))
    assert report(recorded, "--perfetto", packed) == 0
    assert packed.read_bytes() == (place / "trace.json.gz").read_bytes()
    assert report(recorded, "--perfetto", plain) == 0
    assert plain.read_text() == '{"traceEvents":[]}'


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("--flamegraph", "x"),
            "run: neither operators nor call paths were recorded, and stacks require one of them",
        ),
        (("--perfetto", "x"), "run: no events were recorded: record the run again"),
        (("--json", "run/run.json"), "run/run.json is part of the run: name another place"),
        (("--csv", "run/results"), "run/results is part of the run: name another place"),
        (("--html", "no/where.html"), "where.html: cannot be written (No such file or directory)"),
        (("--weight", "host"), "--weight applies to --speedscope and --flamegraph"),
    ],
)
def test_impossible_exports(
    arguments: tuple[str, str], says: str, run: RunDirectory, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert report(run, *arguments) == (2 if arguments[0] == "--weight" else 1)
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1
    assert run.manifest() == MANIFEST
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_failing_exports_do_not_affect_others(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Each has its line, whatever it raises; the exit status is nonzero."""

    def fail(run: RunDirectory) -> str:
        raise RuntimeError("a fault of PASTA's\nin two lines")

    monkeypatch.setattr("pasta.report.page.render_page", fail)
    page, document, tables = tmp_path / "page.html", tmp_path / "run.json", tmp_path / "tables"
    status = report(
        run, "--html", page, "--json", "/dev/full", "--csv", tables, "--parquet", "/proc/none",
        "--flamegraph", document, "--perfetto", document,
    )  # fmt: skip
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    named = [line.removeprefix("pasta: ").partition(":")[0] for line in lines]
    made = [line.partition(":")[0] for line in captured.out.splitlines()]
    assert status == 1
    assert named == ["--html", "--json", "--parquet", "--flamegraph", "--perfetto"]
    assert made == ["csv"]
    assert list(tables.glob("*.csv"))


def test_exit_status_reports_failed_tools(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    failures = {"bad": {"where": "result", "reason": "ValueError: no"}}
    run.write_manifest({**MANIFEST, "failures": failures})
    assert report(run) == 1
    said = "tool bad was disabled: ValueError: no (in result; traceback in log.txt)"
    assert said in capsys.readouterr().out


def test_pipes_and_devices_are_not_replaced(run: RunDirectory, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # lets a writer open it
    try:
        assert report(run, "--json", str(pipe)) == 0
        assert json.loads(os.read(reader, 1 << 16))["run"] == MANIFEST
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_unavailable_weight(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = Events(step=EVENT_STEP)
    events.operator("aten::mm")
    events.operator_end()
    directory = RunDirectory.create(tmp_path / "run")
    recorder = Recorder(directory.events, events.strings)
    recorder.add(events.batch())
    recorder.flush()
    assert report(directory, "--flamegraph", "-", "--weight", "device") == 1
    assert capsys.readouterr().err == (
        f"pasta: --flamegraph: {directory.path}: no device time was recorded: --weight host\n"
    )


def test_page_is_written_into_the_run(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--html", str(run.path)]) == 0
    assert (run.path / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert "report.html" in capsys.readouterr().out


def test_page_without_readable_events(run: RunDirectory) -> None:
    run.events.mkdir()
    (run.events / "operator_begin-00000.parquet").write_bytes(b"PAR1")
    assert report(run, "--html") == 0
    page = (run.path / "report.html").read_text()
    assert "no flame graph: " in page and "operator_begin-00000.parquet: cannot be read" in page
    assert 'id="tool-first"' in page


def test_every_format_is_documented() -> None:
    documented = (ROOT / "docs" / "runs.md").read_text()
    for each in exports():
        place = f"`--{each.name} {each.metavar}`"
        assert place in documented or f"report DIR --{each.name}" in documented, place
        assert each.help and each.metavar
