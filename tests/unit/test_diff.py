"""`pasta diff` and `Run.diff`: two runs, compared by rows and columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pasta
from pasta.cli.main import main
from pasta.errors import RunError
from pasta.run.diff import Comparison
from pasta.run.directory import SCHEMA, RunDirectory
from pasta.run.results import read_results, write_result
from pasta.table import Table, absent_where
from pasta.tool import Result

MANIFEST: dict[str, Any] = {
    "schema": SCHEMA,
    "command": ["app"],
    "host": "here",
    "pid": 7,
    "start": {"realtime_ns": 0, "monotonic_ns": 0},
    "observed_ns": 1_000,
    "ended": {"text": "exited with 0"},
    "devices": {"0": "A GPU"},
    "sources": {"nvidia": "13.5"},
    "dropped": {},
}


def run_of(path: Path, tables: dict[str, Table], **manifest: Any) -> RunDirectory:
    run = RunDirectory.create(path)
    run.write_manifest({**MANIFEST, **manifest})
    write_result(run.results, "freq", Result("", tables))
    return run


def kernels(**launches: int) -> Table:
    count = np.array(list(launches.values()))
    return Table(
        {"kernel": list(launches), "launches": count, "time": 1000 * count, "share": count / 100},
        units={"time": "ns", "share": "share"},
    )


def compared(tmp_path: Path, before: Table, after: Table) -> Any:
    runs = (run_of(tmp_path / "a", {"t": before}), run_of(tmp_path / "b", {"t": after}))
    return Comparison(*runs).table("freq", "t")


def rows(table: Any, column: str) -> dict[str, tuple[Any, ...]]:
    changes = table.columns[column].changes
    return {
        table.label(at): (side, each.before, each.after, each.difference, each.ratio)
        for at, (side, each) in enumerate(zip(table.sides, changes, strict=True))
    }


def test_rows_are_matched_by_their_keys(tmp_path: Path) -> None:
    table = compared(tmp_path, kernels(gemm=8, gone=3), kernels(new=5, gemm=10))
    assert rows(table, "launches") == {
        "gemm": ("both", 8, 10, 2, 1.25),
        "new": ("after", None, 5, 5, None),
        "gone": ("before", 3, None, -3, None),
    }
    assert rows(table, "share")["new"] == ("after", None, 0.05, None, None)  # zero total
    total = table.columns["time"].total
    assert (total.before, total.after, total.difference) == (11_000, 15_000, 4_000)
    assert table.columns["share"].total is None


def test_rows_with_equal_keys_are_summed(tmp_path: Path) -> None:
    def table(*bytes: int) -> Table:
        count = len(bytes)
        return Table(
            {
                "device": [0] * count,
                "shape": [[2, 3]] * count,
                "name": [None] * count,
                "bytes": list(bytes),
                "mean": [float(each) for each in bytes],
                "at": list(range(count)),
            },
            keys=("device", "shape", "name"),
            sums=("bytes",),
            levels=("mean",),
        )

    found = compared(tmp_path, table(5, 6, 7), table(20))
    assert rows(found, "bytes") == {"0, 2x3, -": ("both", 18, 20, 2, 20 / 18)}
    assert rows(found, "mean") == {"0, 2x3, -": ("both", None, 20.0, None, None)}
    assert "at" not in found.columns
    assert "not compared by mean" in found.notes[0]


def test_absent_values_are_omitted_and_reported(tmp_path: Path) -> None:
    def table(*missing: bool) -> Table:
        return Table({"k": ["a", "b"], "n": absent_where(np.array([1, 2]), np.array(missing))})

    found = compared(tmp_path, table(False, False), table(True, False))
    assert rows(found, "n") == {"a": ("both", 1, None, None, None), "b": ("both", 2, 2, 0, 1.0)}
    assert (found.columns["n"].total.before, found.columns["n"].total.after) == (3, 2)
    assert found.notes == ["freq.t: rows without a value are left out: n (0 before, 1 after)"]


def test_nan_values_are_absent(tmp_path: Path) -> None:
    before = Table({"k": ["a", "b"], "n": [float("nan"), 2.0]})
    found = compared(tmp_path, before, Table({"k": ["a", "b"], "n": [1.0, float("inf")]}))
    assert rows(found, "n") == {
        "a": ("both", None, 1.0, None, None), "b": ("both", 2.0, None, None, None),
    }  # fmt: skip


def test_tables_keep_their_comparison_layout(tmp_path: Path) -> None:
    declared = Table({"a": [1], "b": [2], "c": [3]}, keys=("a",), sums=(), levels=("c",))
    run = run_of(tmp_path / "a", {"declared": declared, "undeclared": Table({"a": [1]})})
    (result,) = read_results(run.results)
    table = result.tables["declared"]
    assert (table.keys, table.sums, table.levels) == (["a"], [], ["c"])
    assert result.tables["undeclared"].keys is None
    with pytest.raises(ValueError, match="'d' is not a column"):
        Table({"a": [1]}, keys=("d",))


def test_incomparable_tables_are_reported(tmp_path: Path) -> None:
    a = run_of(
        tmp_path / "a",
        {"t": kernels(k=1), "old": kernels(k=1)},
        dropped={"sync": 3},
        command=["app", "x" * 200, "1"],
    )
    b = run_of(
        tmp_path / "b", {"t": kernels(k=1)}, sources={"refacc": "1.0"},
        command=["app", "x" * 200, "2"],
        failures={"more": {"reason": "ValueError: no", "where": "result"}},
    )  # fmt: skip
    write_result(a.results, "more", Result("", {}))
    assert Comparison(a, b).notes == [
        f"{a.path}: 3 events were lost, so its numbers are too low",
        "the runs have different backends: nvidia; refacc",
        f"the runs have different commands: app {'x' * 116}…; app {'x' * 116}…",
        f"freq: old not compared, missing in {b.path}",
        f"more: not compared, missing in {b.path} (it was disabled: ValueError: no)",
    ]


# ---- Python ------------------------------------------------------------------------------------


def test_differences_as_tables(tmp_path: Path) -> None:
    a = run_of(tmp_path / "a", {"t": kernels(gemm=8, gone=3)})
    b = run_of(tmp_path / "b", {"t": kernels(gemm=10)})
    diff = pasta.load(a.path).diff(pasta.load(b.path))
    assert diff.tables() == {"freq": ["t"]}
    table = diff.arrow("freq")
    assert table.select(["kernel", "run", "time_before", "time_after"]).to_pydict() == {
        "kernel": ["gemm", "gone"], "run": ["both", "before"],
        "time_before": [8000, 3000], "time_after": [10000, None],
    }  # fmt: skip
    assert table.schema.field("time_difference").metadata == {b"unit": b"ns"}
    assert table.column("launches_ratio").to_pylist() == [1.25, None]
    assert "freq.t.launches: 11 → 10 (-9.1%)" in str(diff)
    with pytest.raises(RunError, match="both have t"):
        diff.arrow("freq", "other")
    with pytest.raises(RunError, match="both have freq"):
        diff.arrow("other")


# ---- the command -------------------------------------------------------------------------------


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    before = kernels(**{"gemm": 8, "\x1b[31mred\n": 3, "x" * 100_000: 1, "same": 4})
    after = kernels(**{"gemm": 10, "\x1b[31mred\n": 4, "x" * 100_000: 2, "same": 4})
    for name, table in (("a", before), ("b", after)):
        run_of(tmp_path / name, {"t": table, "stored": Table({"n": [1]}, shown=0)})
    return [str(tmp_path / "a"), str(tmp_path / "b")]


def test_the_largest_change_comes_first(runs: list[str], capsys: Any) -> None:
    assert main(["diff", *runs]) == 0
    out, err = capsys.readouterr()
    assert not err
    assert "freq.t.launches: 16 → 20 (+25.0%)" in out
    lines = [line.split() for line in out.splitlines() if line.startswith(" gemm")]
    assert lines[0] == ["gemm", "8", "10", "2", "1.25", "10.0", "%"]
    assert out.index("gemm") < out.index("\\x1b[31mred\\n")
    assert "\x1b" not in out and "same" not in out and len(out) < 10_000
    assert "stored" not in out


def test_rows_tools_and_columns_can_be_selected(runs: list[str], capsys: Any) -> None:
    assert main(["diff", *runs, "--column", "share", "-n", "1"]) == 0
    out = capsys.readouterr().out
    assert "freq.t.share" in out and "freq.t.time" not in out and "2 more rows" in out
    assert main(["diff", *runs, "-t", "freq.stored"]) == 0
    assert "unchanged: n (1)" in capsys.readouterr().out


def test_thresholds_determine_the_exit_status(runs: list[str], capsys: Any) -> None:
    assert main(["diff", *runs, "--fail-on", "launches>+4"]) == 0
    capsys.readouterr()
    given = ["--fail-on", "launches>+20%", "--fail-on", "t.time[red]>+5us", "--fail-on", "time>+0s"]
    assert main(["diff", *runs, *given]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "pasta: freq.t.launches: 16 before, 20 after (+25.00%): exceeds launches>+20%",
        "pasta: freq.t.time: 16.00 us before, 20.00 us after (+25.00%): exceeds time>+0s",
    ]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--fail-on", "launches"], "the comparison, > or <, is missing"),
        (["--fail-on", "nothing>+0"], "no column 'nothing' to compare"),
        (["--tool", "other"], "do not both have a tool 'other': both have freq"),
        (["--column", "other"], "no compared column has this name: columns: launches"),
        (["--json", "/dev/null/x"], "cannot be written"),
    ],
)
def test_usage_errors_exit_with_2(
    runs: list[str], arguments: list[str], why: str, capsys: Any
) -> None:
    assert main(["diff", *runs, *arguments]) == 2
    err = capsys.readouterr().err
    assert why in err and err.count("\n") == 1


def test_unreadable_runs_exit_with_2(runs: list[str], tmp_path: Path, capsys: Any) -> None:
    newer = run_of(tmp_path / "newer", {"t": kernels(k=1)}, schema=SCHEMA + 1)
    assert main(["diff", runs[0], str(newer.path)]) == 2
    assert "written by a newer PASTA" in capsys.readouterr().err
    assert main(["diff", runs[0], str(tmp_path / "none")]) == 2
    (Path(runs[1]) / "results/freq/t.parquet").write_bytes(b"PAR1")
    assert main(["diff", *runs]) == 2
    assert "t.parquet: cannot be read" in capsys.readouterr().err


def test_json_output(runs: list[str], tmp_path: Path, capsys: Any) -> None:
    assert main(["diff", *runs, "--json", "-", "--fail-on", "launches[gemm]>+1"]) == 1
    out, err = capsys.readouterr()
    document = json.loads(out)
    (table,) = document["tables"]
    assert (table["tool"], table["table"], table["keys"]) == ("freq", "t", ["kernel"])
    assert table["columns"]["time"]["unit"] == "ns"
    assert table["columns"]["launches"]["total"] == {
        "before": 16, "after": 20, "difference": 4, "ratio": 1.25,
    }  # fmt: skip
    assert len(table["rows"]) == 4
    assert table["rows"][0]["keys"] == {"kernel": "gemm"}
    (exceeded,) = document["exceeded"]
    assert (exceeded["place"], exceeded["row"], exceeded["difference"]) == (
        "freq.t.launches", "gemm", 2,
    )  # fmt: skip
    assert err.count("pasta: ") == 1
    file = tmp_path / "diff.json"
    assert main(["diff", *runs, "--json", str(file), "--column", "time"]) == 0
    assert list(json.loads(file.read_text())["tables"][0]["columns"]) == ["time"]
    assert "freq.t.time" in capsys.readouterr().out
