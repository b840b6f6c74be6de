"""Thresholds of `pasta diff`: grammar and evaluation."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta.cli.diff import _chosen
from pasta.errors import ConfigError, RunError
from pasta.run.diff import Comparison
from pasta.run.directory import RunDirectory
from pasta.run.results import write_result
from pasta.run.thresholds import Threshold
from pasta.table import Table, absent_where
from pasta.tool import Result

NAMES = st.text(st.characters(exclude_characters="[]<>.", exclude_categories=("Cs",)), min_size=1)
REGEXES = st.one_of(
    st.just(None), st.text().map(re.escape), st.sampled_from(["a|b", "[a-z]+", r"^x\]>+5%", ""])
)
AMOUNTS = st.decimals(allow_nan=False, allow_infinity=False, min_value=-1e9, max_value=1e9)


@given(
    path=st.lists(NAMES.map(str.strip).filter(bool), min_size=1, max_size=3).map(tuple),
    rows=REGEXES,
    comparison=st.sampled_from("<>"),
    amount=AMOUNTS,
    unit=st.sampled_from(["", "%", "B", "MiB", "KB", "ns", "us", "µs", "ms", "s", "min"]),
)
def test_thresholds_are_parsed(
    path: tuple[str, ...], rows: str | None, comparison: str, amount: Decimal, unit: str
) -> None:
    threshold = Threshold(path, rows, comparison, amount, unit)  # type: ignore[arg-type]
    assert Threshold.parse(str(threshold)) == threshold
    assert Threshold.parse(f"  {threshold} ") == threshold


@given(text=st.one_of(st.text(), st.text("ab.[]()<>+-0.5%M\n ")))
def test_any_text_is_a_threshold_or_a_clear_error(text: str) -> None:
    try:
        threshold = Threshold.parse(text)
    except ConfigError as error:
        assert error.message.startswith(f"--fail-on {text!r}: ") and error.remedy
    else:
        assert Threshold.parse(str(threshold)) == threshold


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the comparison, > or <, is missing"),
        ("bytes+5%", "the comparison, > or <, is missing"),
        ("bytes>5%", "must begin with + or -"),
        ("bytes>+5parsec", "unknown unit 'parsec'"),
        ("bytes>", "is not an amount"),
        ("bytes>+five", "is not an amount"),
        (">+5%", "a name before the comparison is empty"),
        ("copies..bytes>+5%", "a name before the comparison is empty"),
        ("a.b.c.d>+5%", "4 names"),
        ("bytes[a>+5%", "a bracket is unmatched"),
        ("bytes[(]>+5%", "is not a regular expression"),
        ("bytes>+5%>+6%", "expected a column"),
    ],
)
def test_errors_have_reasons(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        Threshold.parse(text)


def test_names_brackets_and_amounts() -> None:
    assert Threshold.parse("kernel_freq.launches[gemm] > +0") == Threshold(
        ("kernel_freq", "launches"), "gemm", ">", Decimal(0)
    )
    assert Threshold.parse("x[a[0-9]]<-1.5 MiB") == Threshold(
        ("x",), "a[0-9]", "<", Decimal("-1.5"), "MiB"
    )


# ---- what exceeds them -------------------------------------------------------------------------


def run_of(path: Path, kernels: dict[str, tuple[int, int, float | None]]) -> RunDirectory:
    """A run with the launches, bytes and mean (ns) of kernels."""
    run = RunDirectory.create(path)
    columns = list(zip(*kernels.values(), strict=True)) or [(), (), ()]
    table = Table(
        {
            "kernel": list(kernels),
            "launches": list(columns[0]),
            "bytes": list(columns[1]),
            "mean": list(columns[2]),
            "clock": absent_where([0] * len(kernels), [True] * len(kernels)),
        },
        units={"bytes": "bytes", "mean": "ns"},
        keys=("kernel",),
        sums=("launches", "bytes", "clock"),
        levels=("mean",),
    )
    other = Table({"what": ["x"], "launches": [5]})
    write_result(run.results, "freq", Result("", {"kernels": table, "others": other}))
    write_result(run.results, "second", Result("", {"others": other}))
    return run


@pytest.fixture
def runs(tmp_path: Path) -> Comparison:
    before = {"gemm": (10, 1 << 20, 500.0), "scale": (30, 4096, 80.0), "gone": (1, 0, 3.0)}
    after = {"gemm": (11, 3 << 20, 520.0), "scale": (20, 4096, None), "new": (4, 0, 9.0)}
    return Comparison(run_of(tmp_path / "a", before), run_of(tmp_path / "b", after))


def exceeded(runs: Comparison, text: str) -> list[str | None]:
    return [each.row for each in Threshold.parse(text).check(runs, [])]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("freq.launches<-14.63%", [None]),  # 41 to 35
        ("freq.launches<-14.64%", []),
        ("freq.launches<-5", [None]),
        ("freq.launches<-6", []),
        ("freq.launches>-7", [None]),
        ("bytes>+2MiB", []),
        ("bytes>+2097151", [None]),
        ("freq.kernels.bytes>+199%", [None]),
        ("freq.kernels.launches[gemm]>+0", ["gemm"]),
        ("freq.kernels.launches[gemm]>+10%", []),
        ("launches[.]>+0", ["gemm", "new"]),
        ("launches[new]>+1000%", ["new"]),  # of nothing
        ("launches[gone]<-99%", ["gone"]),
        ("launches[gone]<-100%", []),
        ("mean>+19ns", ["gemm"]),
        ("mean>+0.02us", []),
        ("others.launches>+0", []),
        ("second.others.launches<-0%", []),
    ],
)
def test_totals_rows_and_amounts(runs: Comparison, text: str, rows: list[str | None]) -> None:
    assert exceeded(runs, text) == rows


def test_exceeded_thresholds_are_one_line_each(runs: Comparison) -> None:
    (found,) = Threshold.parse("bytes>+5%").check(runs, [])
    assert str(found) == (
        "freq.kernels.bytes: 1.00 MiB before, 3.00 MiB after (+199.22%): exceeds bytes>+5%"
    )


def test_omitted_rows_are_reported(runs: Comparison) -> None:
    notes: list[str] = []
    list(Threshold.parse("mean>+5%").check(runs, notes))
    list(Threshold.parse("launches[nobody]>+5%").check(runs, notes))
    assert "3 of 4 rows of freq.kernels.mean cannot be compared" in notes[0]
    assert "no row of freq.kernels.launches matches" in notes[1]


@pytest.mark.parametrize(
    ("text", "error", "why"),
    [
        ("launchs>+0", ConfigError, "did you mean"),
        ("first.launches>+0", ConfigError, "no column 'first.launches'"),
        ("kernel>+0", ConfigError, "no column 'kernel'"),
        ("launches>+5ms", ConfigError, "launches is not in ms"),
        ("bytes>+5ms", ConfigError, "bytes is not in ms"),
        ("clock>+0", RunError, "has no values in one of the runs"),
    ],
)
def test_uncheckable_thresholds_are_errors(
    runs: Comparison, text: str, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=re.escape(why)):
        exceeded(runs, text)


def test_run_without_rows_has_a_total_of_zero(tmp_path: Path) -> None:
    some = {"gemm": (10, 1, 5.0)}
    runs = Comparison(run_of(tmp_path / "a", {}), run_of(tmp_path / "b", some))
    assert exceeded(runs, "freq.launches>+9") == [None]
    assert exceeded(runs, "freq.launches[gemm]>+9") == ["gemm"]


# ---- sampled runs ------------------------------------------------------------------------------


def sampled_run(path: Path, accesses: int, estimate: float, *, exact: bool) -> RunDirectory:
    """A run with accesses to probed launches and their estimate, as a tool with probes has them;
    `exact`: all launches were probed."""
    run = RunDirectory.create(path)
    kernels = Table(
        {"kernel": ["gemm"], "launches": [9], "accesses": [accesses], "estimate": [estimate]},
        keys=("kernel",),
        sums=("launches", "accesses"),
        probed={"accesses": "estimate"},
    )
    parts = Table({"part": ["x"], "hits": [accesses]}, probed={"hits": None})
    probed = {} if exact else {"probed": Table({"kernel": ["gemm"], "launches": [9]})}
    tables = {"kernels": kernels, "parts": parts, **probed}
    write_result(run.results, "counts", Result("", tables))
    return run


def test_estimates_are_compared_where_launches_were_not_probed(tmp_path: Path) -> None:
    exact = sampled_run(tmp_path / "exact", 900, 900.0, exact=True)
    some = sampled_run(tmp_path / "some", 300, 910.0, exact=False)
    runs = Comparison(exact, some)
    table = runs.table("counts", "kernels")
    assert [(each.name, each.shown) for each in table.columns.values()] == [
        ("launches", True), ("estimate", True),
    ]  # fmt: skip
    assert exceeded(runs, "estimate>+1%") == [None]
    assert exceeded(runs, "estimate>+2%") == []
    (note,) = (each for each in runs.notes if "unfinished" not in each)
    assert note == (
        f"not all launches were probed in {some.path}: estimates for all launches are compared, "
        "and no counts of the probed launches (counts)"
    )
    sampled = f"counts the probed launches only, which are not all launches in {some.path}"
    for text, remedy in (
        ("counts.accesses>+1%", "use counts.kernels.estimate"),
        ("hits>+1%", "compare runs in which all launches were probed"),
    ):
        with pytest.raises(ConfigError, match=f"{re.escape(sampled)}: {re.escape(remedy)}"):
            exceeded(runs, text)
    with pytest.raises(ConfigError, match=re.escape(sampled)):
        _chosen(runs, ["counts"], ["accesses"])


def test_counts_are_compared_where_all_launches_were_probed(tmp_path: Path) -> None:
    before = sampled_run(tmp_path / "before", 900, 900.0, exact=True)
    runs = Comparison(before, sampled_run(tmp_path / "after", 910, 910.0, exact=True))
    table = runs.table("counts", "kernels")
    assert [name for name, each in table.columns.items() if each.shown] == ["launches", "accesses"]
    assert exceeded(runs, "accesses>+1%") == exceeded(runs, "estimate>+1%") == [None]
