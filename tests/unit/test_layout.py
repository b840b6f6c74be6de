"""Tables as text: fitting to a width, and properties independent of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from pasta.plugins import load_tools
from pasta.report.layout import MIN_TEXT, UNLIMITED, columns_of, lay_out, shortened
from pasta.report.numbers import column_texts
from pasta.table import Table, counted
from pasta.testing import run_tools
from tests.support.streams import training_run
from tests.support.widths import WIDTHS, check, left_out, printed

KERNEL = "at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, int>"


words = st.text("abcdefg_", min_size=1, max_size=11)
headings = st.lists(words, min_size=1, max_size=4).map(" ".join)
texts = st.text(st.sampled_from("abcxyz::<>/._ 漢🙂\x1b\n"), max_size=90)
numbers = st.one_of(
    st.tuples(st.none(), st.integers(0, 2**53)),
    st.tuples(st.sampled_from(["bytes", "ns"]), st.integers(-(2**40), 2**50)),
    st.tuples(st.just("share"), st.floats(0, 1)),
    st.tuples(st.just("address"), st.integers(0, 2**64 - 1)),
    st.tuples(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    rows = draw(st.integers(1, 4))
    columns: dict[str, Any] = {}
    units: dict[str, Any] = {}
    labels: dict[str, str] = {}
    for at in range(draw(st.integers(1, 9))):
        name = f"c{at}"
        labels[name] = f"{draw(headings)} {at}"
        if draw(st.booleans()):
            columns[name] = draw(st.lists(texts, min_size=rows, max_size=rows))
            continue
        each = draw(st.lists(numbers, min_size=1, max_size=1))[0]
        values = [each[1] * (row + 1) // 2 if isinstance(each[1], int) else each[1] / (row + 1)
                  for row in range(rows)]  # fmt: skip
        columns[name] = values
        if each[0]:
            units[name] = each[0]
    important = draw(st.none() | st.lists(st.sampled_from(sorted(columns)), max_size=3))
    return Table(columns, units, labels, important=important)


@given(tables(), st.integers(60, 250))
def test_numbers_are_never_cut_and_names_never_vanish(table: Table, width: int) -> None:
    check(table, width)


@given(tables(), st.integers(20, 250))
def test_text_columns_keep_a_minimum_width(table: Table, width: int) -> None:
    columns = columns_of(table, 10)
    key = next((each.name for each in columns if not each.numeric), columns[0].name)
    found = lay_out(columns, key, width, table.important or ())
    assert found.width <= width or len(found.columns) == 1
    for column, given_width in zip(found.columns, found.widths, strict=True):
        assert column.numeric or given_width >= min(column.widest, MIN_TEXT, width - 2)
        assert not column.numeric or given_width >= column.widest
    names = [each.name for each in found.columns]
    assert [each.name for each in columns if each.name in names] == names  # in the tool's order


@given(tables())
def test_piped_output_is_not_truncated(table: Table) -> None:
    text = printed(table, UNLIMITED)
    assert not left_out(text) and len(text.splitlines()) <= 3 + 3 + len(table)
    for column in columns_of(table, 10):
        assert all(cell.rstrip() in text for cell in column.cells)


@given(st.text(max_size=300), st.integers(0, 260))
def test_shortened_fits(text: str, width: int) -> None:
    found = shortened(text, width)
    assert cell_len(found) <= width
    assert found == text if cell_len(text) <= width else "…" in found or not width


@pytest.mark.parametrize(
    ("text", "width", "short"),
    [
        (KERNEL, len(KERNEL), KERNEL),
        (KERNEL, 40, "…vectorized_elementwise…tor<float>, int>"),
        ("at::native::(anonymous namespace)::layer_norm_kernel", 24, "…layer_norm_kernel"),
        ("/usr/lib/python3/site-packages/torch/nn/linear.py:125", 24, "/usr/lib/…/linear.py:125"),
        ("a" * 40, 5, "aa…aa"),
        ("漢" * 20, 12, "漢漢漢…漢漢"),
    ],
)
def test_shortened_names(text: str, width: int, short: str) -> None:
    assert shortened(text, width) == short


@pytest.mark.parametrize(
    ("unit", "values", "wanted"),
    [
        ("bytes", [5 << 30, 300 << 10], ["5,120.00 MiB", "0.29 MiB"]),
        ("bytes", [32 << 20, 1 << 20], ["32 MiB", "1 MiB"]),
        ("bytes", [1 << 40, 5, 0], ["1,024.00 GiB", "<0.01 GiB", "0.00 GiB"]),
        ("bytes", [40 << 10, 864, 32], ["40,960 B", "864 B", "32 B"]),
        ("bytes", [12, None, -4], ["12 B", "-", "-4 B"]),
        ("ns", [40_140_000, 829_760, -29_860], ["40.140 ms", "0.830 ms", "-0.030 ms"]),
        ("ns", [1.5, 2.0], ["2 ns", "2 ns"]),
        ("share", [0.125, 1.0], ["12.5 %", "100.0 %"]),
        (None, [12345.6, 12.0, float("nan")], ["12,345.6", "12.0", "nan"]),
        (None, [1.33, 0.987], ["1.330", "0.987"]),
        (None, [2.0, 40.0], ["2", "40"]),
        (None, [6e23, 1.0], ["6e+23", "1"]),
        (None, [1e-5, 2e-7], ["0.00001000", "0.00000020"]),
        (None, [1e-7, 2e-7, 0.0], ["1e-07", "2e-07", "0"]),
        (None, [1_000_000, 12, True], ["1,000,000", "12", "True"]),
        (None, [[4, 1, 1], "text", None], ["4x1x1", "text", "-"]),
        ("address", [0x7F00], ["0x7f00"]),
    ],
)  # fmt: skip
def test_column_has_one_unit_and_notation(unit: Any, values: list[Any], wanted: list[str]) -> None:
    assert column_texts(values, unit) == wanted


def test_key_figures_are_omitted_last() -> None:
    columns = {
        "kernel": ["k" * 70, "j" * 70],
        "module": ["m" * 70, "n" * 70],
        **{f"count_{at}": [10**11, 10**11 + at] for at in range(8)},
    }
    text = printed(Table(columns, important=("count_7",)), 60)
    assert "count 7" in text and "100,000,000,007" in text
    assert left_out(text)[:2] == ["module", "count 0"]
    assert printed(Table({"a": ["x"], "b": [1]}, shown=0), 80, 1).count("\n") == 5


@pytest.mark.parametrize(
    ("count", "words", "text"),
    [
        (1, ("launch",), "1 launch"), (2, ("launch",), "2 launches"),
        (1200, ("copy",), "1,200 copies"), (0, ("access",), "0 accesses"),
        (2, ("array",), "2 arrays"), (3, ("index", "indices"), "3 indices"),
    ],
)  # fmt: skip
def test_plurals(count: int, words: tuple[str, ...], text: str) -> None:
    assert counted(count, *words) == text


def test_tables_of_tools_with_device_times_counters_and_samples() -> None:
    """Columns that the recorded run of an H200 does not have."""
    events = training_run()
    for launch in range(4):
        for name in ("SQ_WAVES", "GRBM_GUI_ACTIVE_and_a_long_name_of_a_counter"):
            events.add("counter", ordinal=launch, name=name, value=1e9 / (launch + 1))
        events.add("pc_sample", ordinal=launch, pc=16 * launch, samples=launch + 1, reason="wait")
    tools = load_tools(["kernel_freq", "operators", "copies", "counters", "pc_samples"], {}, [])
    for result in run_tools(tools, events).values():
        for table in result.tables.values():
            if table.shown and len(table):
                for width in WIDTHS:
                    check(table, width)


def test_layout_time_is_linear_in_the_table_size() -> None:
    """Thousands of columns, and a heading of a million words."""
    columns = {f"column {at}": [at] for at in range(3000)}
    wide = Table(columns, labels={"column 0": "word " * 200_000})
    for width in (80, UNLIMITED):
        assert "column 1" in printed(wide, width)
    assert printed(Table({"a": [1]}, hidden=frozenset("a")), 80) == ""
