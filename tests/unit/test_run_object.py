"""`pasta.Run`: a run directory as tables, text and HTML."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import pasta
from pasta.api.runs import Findings
from pasta.errors import MissingDependency, RunError
from pasta.report.markdown import code, escaped
from pasta.run.directory import SCHEMA, RunDirectory
from pasta.run.results import write_result
from pasta.table import Table, absent_where
from pasta.tool import Finding, Result

MANIFEST = {
    "schema": SCHEMA,
    "command": ["python", "<b>train</b>.py"],
    "pid": 7,
    "host": "here",
    "start": {"realtime_ns": 0, "monotonic_ns": 0},
    "observed_ns": 1_500_000,
    "ended": {"text": "exited with 0"},
    "devices": {"0": "A GPU"},
    "sources": {"torch": "2.13"},
    "failures": {"broken": {"where": "result", "reason": "ValueError: <nothing>"}},
    "warnings": ["3 events were lost & counted"],
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    run = RunDirectory.create(tmp_path / "run")
    run.write_manifest(MANIFEST)
    main = Table(
        {
            "name": ["void f<int>(int*)", "<script>alert(1)</script>", None],
            "bytes": np.array([1 << 20, 5, 0]),
            "time": absent_where(np.array([1, 2, 3]), np.array([False, True, False])),
            "place": ["a", "b", "c"],
        },
        units={"bytes": "bytes", "time": "ns"},
        labels={"time": "time & more"},
        title="Main <table>",
        shown=2,
        hidden=frozenset({"place"}),
    )
    other = Table({"count": np.arange(3)}, shown=0)
    write_result(run.results, "first", Result("1 & 2", {"zebra": main, "apple": other}))
    write_result(run.results, "second", Result("nothing", {}))
    return run.path


def test_tables_by_name_with_the_main_one_first(directory: Path) -> None:
    run = pasta.load(directory)
    assert run.tables() == {"first": ["zebra", "apple"], "second": []}
    assert run.arrow("first").column_names == ["name", "bytes", "time", "place"]
    assert run.arrow("first", "apple").to_pydict() == {"count": [0, 1, 2]}
    assert run.arrow("first").to_pydict()["time"] == [1, None, 3]
    assert run.arrow("first").schema.field("bytes").metadata == {b"unit": b"bytes"}
    assert ("first" in run, "third" in run) == (True, False)
    assert (run.summary("first"), run.summary("second")) == ("1 & 2", "nothing")


def test_data_frames(directory: Path) -> None:
    pytest.importorskip("pandas")
    run = pasta.load(str(directory))
    frame = run.table("first")
    assert frame["bytes"].tolist() == [1 << 20, 5, 0]
    assert frame["time"].isna().tolist() == [False, True, False]
    assert run["first", "apple"]["count"].sum() == 3
    assert run["first"].equals(frame)


def test_data_frames_of_polars(directory: Path) -> None:
    pytest.importorskip("polars")
    assert pasta.load(directory).polars("first", "apple")["count"].to_list() == [0, 1, 2]


@pytest.mark.parametrize(("package", "method"), [("pandas", "table"), ("polars", "polars")])
def test_missing_library(
    directory: Path, monkeypatch: pytest.MonkeyPatch, package: str, method: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependency) as caught:
        getattr(pasta.load(directory), method)("first")
    assert str(caught.value) == (
        f"{package} is not installed: pip install {package}, or use run.arrow(…), which"
        " does not need it"
    )


def test_unknown_names(directory: Path) -> None:
    run = pasta.load(directory)
    for names, text in {
        ("third",): f"{directory}: no results of the tool 'third': there are first, second",
        ("first", "banana"): f"{directory}: first has no table 'banana': there are zebra, apple",
        ("second",): f"{directory}: second has no tables",
        ("broken",): "tool broken was disabled: ValueError: <nothing> (in result)",
    }.items():
        with pytest.raises(RunError) as caught:
            run.arrow(*names)
        assert str(caught.value) == text


def test_invalid_runs(tmp_path: Path, directory: Path) -> None:
    with pytest.raises(RunError, match="no such run directory"):
        pasta.load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="not a run directory"):
        pasta.load(tmp_path / "empty")
    (directory / "results" / "first" / "zebra.parquet").write_bytes(b"PAR1")
    with pytest.raises(RunError, match=r"zebra\.parquet: cannot be read"):
        pasta.load(directory).arrow("first")
    (directory / "results" / "first" / "result.json").write_text("{}")
    with pytest.raises(RunError, match=r"results/first/result.json: summary: missing"):
        pasta.load(directory).tables()


def test_str_is_the_report(directory: Path) -> None:
    run = pasta.load(directory)
    text = str(run)
    assert "process 7 on here" in text and "1.50 ms observed, exited with 0" in text
    assert "void f<int>(int*)" in text and "1,024.000 KiB" in text and "1 more row" in text
    assert "tool broken was disabled" in text and "3 events were lost" in text
    assert repr(run) == f"<pasta.Run {directory}>"
    assert run.failures == {"broken": "ValueError: <nothing> (in result)"}


def test_html_escapes_every_name(directory: Path) -> None:
    html = pasta.load(directory)._repr_html_()
    assert html is not None
    for name in (
        "python &lt;b&gt;train&lt;/b&gt;.py", "void f&lt;int&gt;(int*)", "Main &lt;table&gt;",
        "&lt;script&gt;alert(1)&lt;/script&gt;", "time &amp; more", "1 &amp; 2",
        "ValueError: &lt;nothing&gt;", "lost &amp; counted",
    ):  # fmt: skip
        assert name in html
    assert "<script>" not in html and "<b>train" not in html
    assert html.count("<tr>") == 3  # headings and two of three rows
    assert "1 more row" in html and "1,024.000 KiB" in html
    assert "place" not in html and "count</th>" not in html  # hidden, and not shown


def test_markdown_has_no_markup_of_a_name(directory: Path) -> None:
    markdown = pasta.load(directory)._repr_markdown_()
    assert markdown is not None
    for line in (
        "### `python <b>train</b>.py`", "*Main &lt;table&gt;*", "| `void f<int>(int*)` |",
        "ValueError: &lt;nothing&gt;", "lost &amp; counted",
    ):  # fmt: skip
        assert line in markdown, markdown
    outside = re.sub("`[^`]*`", "", markdown)  # of code spans
    assert "<script>" not in outside and "<b>train" not in outside
    assert markdown.count("<details>") == markdown.count("</details>") >= 1


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a_b *c* [d](e) `f` <g> & h", r"a\_b \*c\* \[d\](e) \`f\` &lt;g&gt; &amp; h"),
        ("- item", r"\- item"), ("# heading", r"\# heading"), ("12. item", r"12\. item"),
        ("12.5 ms", "12.5 ms"), ("by @user in #12", "by @<!-- -->user in #<!-- -->12"),
        ("two\nlines", r"two\\nlines"),
    ],
)  # fmt: skip
def test_text_in_markdown(text: str, shown: str) -> None:
    assert escaped(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a|b", r"`a\|b`"), ("a`b", "``a`b``"), ("`a`", "`` `a` ``"), (" ", ""), ("@x #1", "`@x #1`")],
)
def test_code_in_markdown(text: str, shown: str) -> None:
    assert code(text) == shown


def test_notebooks_get_every_representation(directory: Path) -> None:
    run = pasta.load(directory)
    bundle = run._repr_mimebundle_()
    assert bundle == {
        "text/plain": str(run),
        "text/html": run._repr_html_(),
        "text/markdown": run._repr_markdown_(),
    }
    assert set(run._repr_mimebundle_(include={"text/html"})) == {"text/html"}
    assert "text/html" not in run._repr_mimebundle_(exclude={"text/html"})
    diff = run.diff(run)
    assert "<table" in diff._repr_html_() or "unchanged" in diff._repr_html_()
    assert "unchanged" in diff._repr_markdown_()


def test_findings_are_shown_as_a_list() -> None:
    finding = Finding("slow <loop>", "a_b.py:3", "9 of 10 s", "use *one* call", 0.5)
    other = replace(finding)
    found = Findings([("my_tool", finding), ("other", other)])
    assert found == [finding, other] and found.tools == ["my_tool", "other"]
    assert "1. slow <loop>: a_b.py:3" in str(found)
    html, markdown = found._repr_html_(), found._repr_markdown_()
    assert html.count("<li>") == 2 and "slow &lt;loop&gt;" in html and "up to 50%" in html
    assert r"2. **slow &lt;loop&gt;**: a\_b.py:3" in markdown and r"use \*one\* call" in markdown
    found.reverse()
    assert found.tools == ["other", "my_tool"]
    assert set(Findings()._repr_mimebundle_().values()) == {"no findings", "<p>no findings</p>"}


def test_unfinished_block(tmp_path: Path) -> None:
    run = pasta.Run(tmp_path, pending="it has not ended")
    for ask in (run.tables, lambda: run.arrow("x"), lambda: run.manifest, lambda: "x" in run):
        with pytest.raises(RunError, match="it has not ended"):
            ask()
    assert repr(run) == "<pasta.Run it has not ended>"
    assert run._repr_mimebundle_() == {"text/plain": "it has not ended"}
