"""A manipulated run is rejected in one line, without side effects."""

from __future__ import annotations

import gzip
import json
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pasta
from pasta.cli.main import main
from pasta.config import Config
from pasta.errors import RunError
from pasta.report.page import render_page
from pasta.run.directory import RunDirectory
from pasta.run.events import Recorder, read_batches
from pasta.run.results import read_results, write_result
from pasta.runtime.replay import Replay
from pasta.table import Figure, Table
from pasta.testing import Events
from pasta.tool import Finding, Result
from tests.support.runs import MANIFEST

ESCAPE = "\x1b]0;owned\x07\u202e"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory.create(tmp_path / "root" / "run")
    directory.write_manifest(MANIFEST)
    figure = Figure("line", "Level", [1, 2], {"level": [1.5, float("nan")]})
    finding = Finding("much", "f", "90 %", "less", 0.5)
    result = Result("one", {"main": Table({"n": [1, 2]})}, [finding], {"f": figure})
    write_result(directory.results, "first", result)
    return directory


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.parquet"
    pq.write_table(pa.table({"secret": ["canary"]}), path)
    return path


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The line of a failing command, which exits with 1 for an impossible export, otherwise with
    2."""
    capsys.readouterr()
    exports = any(str(each).startswith("--") for each in arguments)
    assert main([str(each) for each in arguments]) == (1 if exports else 2)
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert line.startswith("pasta: ") and "\x1b" not in out + err
    return line


@pytest.mark.parametrize(
    "name", ["{secret}", "../../../../secret", "..", ".x", "a\x1b[2J", "x" * 101]
)
def test_names_cannot_escape_the_run_directory(
    name: str, run: RunDirectory, secret: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = secret.read_bytes()
    name = name.format(secret=secret.with_suffix(""))
    change(run.results / "first" / "result.json", tables=[name])
    for option in ("--json", "--csv", "--parquet"):
        line = refused(capsys, "report", run.path, option, tmp_path / "out")
        assert "results/first/result.json: tables.0: expected a plain name" in line
    assert main(["merge", str(run.path.parent), "-o", str(tmp_path / "merged")]) == 1
    assert "tables.0: expected a plain name" in capsys.readouterr().out
    assert secret.read_bytes() == before
    assert not any("canary" in path.read_text(errors="replace") for path in tmp_path.glob("out/*"))


def test_tools_cannot_use_unsafe_names(run: RunDirectory) -> None:
    with pytest.raises(ValueError, match="the table name 'a/b' must have at most"):
        write_result(run.results, "other", Result("", {"a/b": Table({"n": [1]})}))


def test_links_out_of_the_run_are_not_followed(
    run: RunDirectory, secret: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = run.results / "first" / "main.parquet"
    table.unlink()
    table.symlink_to(secret)
    line = refused(capsys, "report", run.path, "--parquet", tmp_path / "out")
    assert line.endswith("results/first/main.parquet: a link that leads out of the run")
    table.unlink()
    os.mkfifo(table)  # opening it would block forever
    assert refused(capsys, "report", run.path).endswith("main.parquet: not a regular file")
    table.unlink()
    inside = run.results / "first" / "kept.parquet"
    pq.write_table(pa.table({"n": [7]}), inside)
    table.symlink_to(inside.name)
    assert pasta.load(run.path).arrow("first")["n"].to_pylist() == [7]


@pytest.mark.parametrize(
    ("document", "values", "line"),
    [
        ("run.json", {"devices": {"0": 5}}, "run.json: devices.0: expected text"),
        ("run.json", {"pid": True}, "run.json: pid: expected a whole number"),
        ("run.json", {"pid": 10**25}, "a number of 26 digits"),
        ("run.json", {"start": {"realtime_ns": 2**64, "monotonic_ns": 0}},
         "run.json: start.realtime_ns: expected a number from 0 to 9223372036854775807"),
        ("run.json", {"observed_ns": float("nan")}, "observed_ns: expected a whole number"),
        ("run.json", {"world_size": 10**9}, "world_size: expected a number from 0 to 1048576"),
        ("run.json", {"failures": {"t": {"reason": "x"}}}, "run.json: failures.t.where: missing"),
        ("run.json", {"devices": {ESCAPE: 1}}, r"devices.\x1b]0;owned\x07\u202e: expected text"),
        ("results/first/result.json", {"tables": ["main", "main"]}, "tables: expected different"),
        ("results/first/result.json", {"findings": [{"what": "x"}]}, "findings.0.where: missing"),
        ("results/first/result.json", {"tool": "second"}, "tool: expected first, its directory"),
        ("results/first/result.json",
         {"figures": {"f": {"kind": "bar", "title": "", "x": [1], "series": {"a": [1, 2]}}}},
         "figures.f.series.a: expected 1 values, as x has"),
    ],
)  # fmt: skip
def test_document_errors_name_the_location(
    document: str, values: dict[str, Any], line: str, run: RunDirectory,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    change(run.path / document, **values)
    assert line in refused(capsys, "report", run.path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 200_000, "nested too deeply"),
        ('{"a": 1, "a": 2}', "duplicate key 'a'"),
        ('{"a": ' + "1" * 9999 + "}", "a number of 9,999 digits"),
        ("{", "not valid JSON"),
        (b"\xff\xfe\xfd", "not valid JSON"),
        ("[]", "the document: expected an object"),
    ],
)
def test_invalid_documents(
    text: str | bytes, why: str, run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    data = text if isinstance(text, bytes) else text.encode()
    (run.path / "run.json").write_bytes(data)
    assert why in refused(capsys, "report", run.path)


def test_texts_of_a_run_are_escaped_on_the_terminal(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {"host": ESCAPE, "ended": {"text": ESCAPE}, "command": [ESCAPE], "warnings": [ESCAPE],
            "devices": {ESCAPE: ESCAPE}, "sources": {ESCAPE: ESCAPE}, "rank": 0, "world_size": 2,
            "failures": {ESCAPE: {"reason": ESCAPE, "where": ESCAPE}}}  # fmt: skip
    change(run.path / "run.json", **fields)
    path = run.results / "first" / "main.parquet"
    field = pa.field(ESCAPE, pa.string(), metadata={"label": ESCAPE})
    schema = pa.schema([field], metadata={"title": ESCAPE})
    pq.write_table(pa.Table.from_arrays([pa.array([ESCAPE])], schema=schema), path)
    for arguments in (
        ["report", run.path],
        ["report", run.path.parent],
        ["diff", run.path, run.path],
        ["merge", run.path.parent, "-o", "merged"],
    ):
        os.chdir(run.path.parent.parent)
        # a tool of the run failed
        assert main([str(each) for each in arguments]) == (arguments[0] != "diff")
        out, err = capsys.readouterr()
        assert "owned" in out or arguments[0] == "diff"
        assert not {"\x1b", "\x07", "\u202e"} & set(out + err)


@pytest.mark.parametrize("option", ["--html", "--json", "--csv", None])
def test_small_file_with_many_rows(
    option: str | None, run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would expand to gigabytes: readers of the first rows read only these."""
    path = run.results / "first" / "main.parquet"
    many = pa.table({"n": pa.array(np.zeros(140_000_000, np.int8))})
    pq.write_table(many, path, compression="zstd")
    options = () if option is None else (option, tmp_path / "out")
    if option is None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        main(["report", str(run.path), *map(str, options)])
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10
        return
    line = refused(capsys, "report", run.path, *options)
    assert "bytes that decode to 140,000,000 rows of 1 columns" in line
    assert "read it with pyarrow.parquet" in line


def test_repeated_texts_are_stored_once(run: RunDirectory) -> None:
    """A gigabyte of text in a few kilobytes."""
    path = run.results / "first" / "main.parquet"
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1000, np.int8)), ["x" * (1 << 20)])
    pq.write_table(pa.table({"t": texts}), path, compression="zstd")
    (result,) = read_results(run.results)
    assert len({id(text) for text in result.tables["main"].columns["t"]}) == 1
    assert len(render_page(run)) < 8 << 20
    with pytest.raises(RunError, match="texts of 1,000 rows are larger than 512 MiB"):
        pasta.load(run.path).arrow("first")


def test_invalid_layout(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    path = run.results / "first" / "main.parquet"
    for layout, why in (
        (b'{"shown": -1}', "pasta.layout.shown: expected"),
        (b'{"keys": ["none"]}', "'none' is not a column"),
        (b"\xff", "cannot be read ("),
    ):
        schema = pa.schema([pa.field("n", pa.int64())], metadata={"pasta.layout": layout})
        pq.write_table(pa.Table.from_arrays([pa.array([1])], schema=schema), path)
        assert why in refused(capsys, "report", run.path)


# ---- events


@pytest.fixture
def recorded(run: RunDirectory) -> RunDirectory:
    events = Events()
    events.add("context_create", device=0, name="A GPU")
    for number in range(5):
        events.launch("gemm")
        events.tensor_alloc(0x1000 * number, 64)
    recorder = Recorder(run.events, events.strings)
    recorder.add(events.batch())
    recorder.flush()
    return run


def rewrite(path: Path, **columns: Any) -> None:
    table = pq.ParquetFile(path).read()
    for name, column in columns.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, pa.array(column))
    pq.write_table(table, path)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"position": [5, 4, 3, 2, 1]}, "positions are not ascending"),
        ({"position": [1, 1, 2, 3, 4]}, "positions are not ascending"),
        ({"position": [0, 1, None, 3, 4]}, "position is absent in 1 rows"),
        ({"time": [None] * 5}, "time is null, not a number"),
        ({"ordinal": [-1] * 5}, "ordinal: Integer value -1 not in range"),
        ({"ordinal": ["a"] * 5}, "ordinal is string, not a number"),
        ({"name": [1, 2, 3, 4, 5]}, "name is int64, not text"),
        ({"grid_x": [2**40] * 5}, "grid: Integer value"),
        ({"grid_x": [1.5] * 5}, "grid: Float value 1.5"),
    ],
)
def test_invalid_events_are_omitted(
    columns: dict[str, Any], why: str, recorded: RunDirectory, tmp_path: Path
) -> None:
    """They are omitted, with a warning; the rest is read."""
    path = recorded.events / "kernel_launch-00000.parquet"
    rewrite(path, **columns)
    done = Replay(recorded, Config(tools=["kernel_freq"])).write(tmp_path / "replay")
    (warning,) = done.manifest()["warnings"]
    assert warning.startswith(f"{path}: not written by PASTA (")
    assert why in warning and warning.endswith("its events are missing")


def test_extreme_position(recorded: RunDirectory) -> None:
    """A batch ends before a record whose index would not fit."""
    path = recorded.events / "kernel_launch-00000.parquet"
    rewrite(path, position=pa.array([1, 2, 2**40, 2**41, 2**63], pa.uint64()))
    from pasta.processors.strings import Strings

    batches = list(read_batches(recorded.events, Strings(), kinds=["kernel_launch"]))
    positions = [p for batch in batches for p in batch.positions(batch["kernel_launch"]).tolist()]
    assert positions == [1, 2, 2**40, 2**41, 2**63]


def test_extreme_indices() -> None:
    from pasta.processors.snapshots import SELECTED, Launches

    events = Events()
    for ordinal in (0, 2**39, 2**63):
        events.add("kernel_launch", name="gemm", ordinal=ordinal)
    launches, batch = Launches(), events.batch()
    launches.feed(batch, batch["kernel_launch"]["ordinal"])
    assert launches.states(np.array([0], np.uint64)).tolist() == [SELECTED]
    assert len(launches._state) < 1 << 20


def test_tensor_ids_are_not_used_as_other_indices(recorded: RunDirectory, tmp_path: Path) -> None:
    events = Events()
    events.operator("aten::add")
    events.add("operator_begin", name="aten::mm", depth=2, inputs=9, tensor=[2**32 - 2] * 16)
    events.operator_end(1)
    (recorded.events / "context_create-00000.parquet").unlink()
    recorder = Recorder(recorded.events, events.strings)
    recorder.add(events.batch())
    recorder.flush()
    done = Replay(recorded, Config(tools=["tensors"])).write(tmp_path / "replay")
    assert done.manifest()["failures"] == {}


def test_trace_decompression_bomb(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("pasta.run.files.MAX_UNPACKED", 1 << 20)
    trace = run.results / "event_trace" / "trace.json.gz"
    trace.parent.mkdir()
    with gzip.open(trace, "wt") as file:
        file.write('{\n"traceEvents":[\n' + "x" * (8 << 20))
    line = refused(capsys, "report", run.path, "--perfetto", tmp_path / "out")
    assert line.endswith("damaged trace (its decompressed size exceeds the limit)")
    assert not (tmp_path / "out").exists()


def test_access_chunk_decompression_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pasta.run import accesses

    place = tmp_path / "run" / "results" / accesses.TOOL
    place.mkdir(parents=True)
    writer = accesses.AccessWriter(str(place))
    writer.add(5, np.arange(16))
    writer.add(9, np.zeros(1 << 20, np.int64))
    writer.close()
    path = place / accesses.part_name(0)
    Path(writer.path).rename(path)
    warnings: list[str] = []
    assert [len(words) for _, words in accesses.read_accesses([path], warnings.append)] == [
        16,
        1 << 20,
    ]
    monkeypatch.setattr(accesses, "_MAX_CHUNK", 4 << 20)
    assert [len(words) for _, words in accesses.read_accesses([path], warnings.append)] == [16]
    assert warnings == ["accesses-000.arrows is truncated: accesses after chunk 1 are missing"]


def test_export_name_too_long(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "é" * 90
    write_result(run.results, name, Result("", {name: Table({"n": [1]})}))
    line = refused(capsys, "report", run.path, "--csv", tmp_path / "out")
    assert line.endswith("cannot be written (File name too long)")
