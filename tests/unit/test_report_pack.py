"""Packed columns of reports: packing round-trips and is compact."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta.report.cells import cell
from pasta.report.pack import Packer
from pasta.report.page import render_page
from pasta.run.directory import RunDirectory
from pasta.run.results import write_result
from pasta.table import Table, absent_where, visible
from pasta.tool import Result
from tests.support.examples import examples
from tests.support.runs import MANIFEST


def inflated(packed: str) -> bytes:
    return zlib.decompress(base64.b64decode(packed))


def unpacked(packer: Packer, block: dict[str, Any]) -> dict[str, list[Any]]:
    """Columns of a block, as the format is described."""
    data, rows = inflated(block["data"]), block["rows"]
    strings = json.loads(inflated(packer.strings()))
    columns: list[list[Any]] = []
    for about in block["columns"]:
        if "same" in about:
            columns.append(columns[about["same"]])
            continue
        missing = [False] * rows
        if about.get("missing"):
            length = (rows + 7) // 8
            bits, data = data[:length], data[length:]
            missing = [bool(bits[row >> 3] >> (row & 7) & 1) for row in range(rows)]
        width = about["width"]
        cut, data = data[: width * rows], data[width * rows :]
        numbers = [sum(cut[p * rows + row] << (8 * p) for p in range(width)) for row in range(rows)]
        values: list[Any] = numbers
        if about.get("bits"):
            values = np.asarray(numbers, np.uint64).view(np.float64).tolist()
        elif about.get("delta"):
            values, now = [], int(about["low"])
            for number in numbers:
                now += -(number + 1) // 2 if number & 1 else number // 2
                values.append(now)
        elif "low" in about:
            values = [number + int(about["low"]) for number in numbers]
        if about["type"] == "text":
            values = [None if m else strings[v] for v, m in zip(values, missing, strict=True)]
        values = [None if m else v for v, m in zip(values, missing, strict=True)]
        columns.append(values)
    assert not data
    return {about["name"]: each for about, each in zip(block["columns"], columns, strict=True)}


def round_trip(columns: dict[str, Any]) -> dict[str, list[Any]]:
    packer = Packer()
    return unpacked(packer, packer.block(columns))


@examples(40)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
            st.integers(0, 2**64 - 1),
            st.one_of(st.none(), st.text(st.characters(codec="utf-8"), max_size=5)),
            st.integers(0, 2**20),
        ),
        max_size=40,
    )
)
def test_packing_round_trips(rows: list[tuple[Any, ...]]) -> None:
    signed, unsigned, texts, small = ([row[at] for row in rows] for at in range(4))
    columns = {
        "signed": signed,
        "unsigned": np.asarray(unsigned, np.uint64),
        "text": texts,
        "rising": np.cumsum(np.asarray(small, np.int64)),
        "again": np.cumsum(np.asarray(small, np.int64)),
        "half": absent_where(np.asarray(small, np.int32), np.asarray(small, np.int32) % 2 == 0),
        "truth": np.asarray(small, np.int64) % 3 == 0,
    }
    found = round_trip(columns)
    assert found["signed"] == signed
    assert found["unsigned"] == unsigned
    assert found["text"] == [None if text is None else visible(text) for text in texts]
    assert found["rising"] == found["again"] == np.cumsum(small).tolist()
    assert found["half"] == [each if each % 2 else None for each in small]
    assert found["truth"] == [int(each % 3 == 0) for each in small]


def test_floats_are_exact_and_keep_nine_digits_in_long_columns() -> None:
    given = [1 / 3, -2e-300, 6.02214076e23, float("inf"), 0.0, None, 12345.678912]
    assert round_trip({"x": given})["x"] == given
    many = round_trip({"x": given * 2000})["x"][-len(given) :]
    assert [None if x is None else f"{x:.9g}" for x in many] == [
        None if x is None else f"{x:.9g}" for x in given
    ]
    nan = round_trip({"x": [float("nan"), 0.5]})["x"]
    assert nan[0] != nan[0] and nan[1] == 0.5
    whole = [3.0, float(2**52), -7.0]  # exact, as integers
    assert round_trip({"x": whole}) == {"x": whole}


def test_empty_lists_and_columns() -> None:
    found = round_trip({"grid": [(4, 2, 1), None], "nothing": [None, None]})
    assert found == {"grid": ["4x2x1", None], "nothing": [None, None]}


def test_invisible_characters_are_escaped() -> None:
    assert visible("a\x1b[31mred\x1b[0m\nb\tc\u202ed\ud800") == (
        "a\\x1b[31mred\\x1b[0m\\nb\\tc\\u202ed\\ud800"
    )
    assert visible("gemm<float, 4>(ü)") == "gemm<float, 4>(ü)"
    assert cell("two\nlines") == "two\\nlines" and cell(1536, "bytes") == "1.50 KiB"


def kernels(count: int) -> Table:
    """A table as of kernel_freq, with this many different kernels, launched up to four times."""
    random = np.random.default_rng(1)
    launches = random.integers(1, 5, count)
    first = np.cumsum(random.integers(1, 4, count))
    mean = np.exp(random.normal(10, 1.5, count))
    total = (mean * launches).astype(np.int64)
    order = np.argsort(-total)
    longest = (mean * random.uniform(1, 2, count)).astype(np.int64)
    least = (mean * random.uniform(0.5, 1, count)).astype(np.int64)
    names = [
        f"void at::native::vectorized_elementwise_kernel<{n % 16}, at::native::FillFunctor"
        f"<{('float', 'double', 'c10::Half')[n % 3]}>, std::array<char*, {n}ul> >(int, T0, T1)"
        for n in order.tolist()
    ]
    columns = {
        "kernel": names,
        "launches": launches,
        "share": launches / launches.sum(),
        "first_launch": first,
        "last_launch": first + 3 * (launches - 1),
        "registers": random.integers(16, 256, count),
        "shared_static": np.zeros(count, np.int64),
        "total_time": total,
        "share_of_time": total / total.sum(),
        "mean_time": total / launches,
        "min_time": np.where(launches == 1, total, least),
        "p50_time": np.where(launches == 1, total, mean.astype(np.int64)),
        "p99_time": np.where(launches == 1, total, longest),
        "max_time": np.where(launches == 1, total, longest),
    }
    numbers = {name: column[order] for name, column in columns.items() if name != "kernel"}
    return Table({"kernel": names, **numbers, "demangled": names}, units={"total_time": "ns"})


@pytest.mark.slow
def test_a_hundred_thousand_kernels_are_at_most_five_mebibytes(tmp_path: Path) -> None:
    count = 100_000
    table = kernels(count)
    assert len(set(table.columns["kernel"])) == count
    sizes = [(n % 5000 + 1, n % 3 + 1, 1) for n in range(count)]
    shapes = Table(
        {"kernel": table.columns["kernel"], "grid": sizes, "block": [(64, 1, 1)] * count}
    )
    run = RunDirectory.create(tmp_path / "run")
    run.write_manifest(MANIFEST)
    result = Result("many", {"kernels": table, "configurations": shapes})
    write_result(run.results, "kernel_freq", result)
    page = render_page(run)
    assert len(page.encode("utf-8")) <= 5 << 20
    rows = sum(map(int, re.findall(r'"rows":(\d+)', page)))
    assert rows == 2 * count


@pytest.mark.parametrize(
    "name", ["</script><img src=x onerror=alert(1)>", "<!-- <script>", "a&b\"'"]
)
def test_names_remain_text(name: str, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.write_manifest({**MANIFEST, "command": [name], "warnings": [name]})
    table = Table({name: [name]}, labels={name: name}, title=name)
    write_result(run.results, "tool", Result(name, {"table": table}))
    page = render_page(run)
    assert name not in page
    assert "<img" not in page
    assert page.count("<script") == page.count("</script>") == 2 + 1 + 3
