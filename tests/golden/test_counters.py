"""Counters with known sums."""

from __future__ import annotations

from typing import Any

import pytest

from pasta.plugins import find_tools
from pasta.testing import Events, run_tool
from pasta.tool import Result

(Counters,) = find_tools("counters")
INSTANCES = ("xcc=0", "xcc=1")


@pytest.fixture
def events() -> Events:
    events = Events()
    for launch in range(4):
        ordinal = events.launch("_Z4vaddPf" if launch % 2 == 0 else "_Z4gemmPf")
        for at, instance in enumerate(INSTANCES):
            events.add(
                "counter", ordinal=ordinal, name="SQ_WAVES", instance=instance,
                value=float(10 * (launch + 1) + at),
            )  # fmt: skip
        events.add("counter", ordinal=ordinal, name="busy", value=0.25 * (launch + 1))
    events.add("counter", ordinal=999, name="SQ_WAVES", value=1.0)
    return events


def rows(result: Result, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in columns) for row in result.tables[table].rows()]


def test_sums_and_means_of_a_launch(events: Events) -> None:
    result = run_tool(Counters, events)
    columns = ("kernel", "counter", "launches", "instances", "sum", "mean")
    assert rows(result, "kernels", *columns) == [
        ("gemm", "SQ_WAVES", 2, 2, 20 + 21 + 40 + 41, 61.0),
        ("gemm", "busy", 2, 1, 1.5, 0.75),
        ("vadd", "SQ_WAVES", 2, 2, 10 + 11 + 30 + 31, 41.0),
        ("vadd", "busy", 2, 1, 1.0, 0.5),
    ]
    assert result.summary == "2 counters of 2 kernels; 1 value dropped: the launch is unknown"


def test_instances_are_listed(events: Events) -> None:
    result = run_tool(Counters, events)
    columns = ("counter", "instance", "launches", "sum", "mean", "min", "max")
    assert rows(result, "instances", *columns)[:3] == [
        ("SQ_WAVES", "xcc=0", 2, 60, 30.0, 20, 40),
        ("SQ_WAVES", "xcc=1", 2, 62, 31.0, 21, 41),
        ("busy", None, 2, 1.5, 0.75, 0.5, 1.0),
    ]


def test_integer_values_are_printed_as_integers() -> None:
    events = Events()
    ordinal = events.launch("_Z1kv")
    for _ in range(3):
        events.add("counter", ordinal=ordinal, name="SQ_WAVES", value=2.0**40)
    (row,) = run_tool(Counters, events).tables["kernels"].rows()
    assert (row["sum"], type(row["sum"])) == (3 * 2**40, int)


def test_counters_that_are_no_sums_have_none() -> None:
    events = Events()
    for value in (0.5, 1.0):
        ordinal = events.launch("_Z1kv")
        for name in ("l2.sum", "l2.hits.pct", "l2.sum.per_second"):
            events.add("counter", ordinal=ordinal, name=name, value=value)
    result = run_tool(Counters, events)
    assert rows(result, "kernels", "counter", "sum", "mean") == [("l2.sum", 1.5, 0.75)]
    assert rows(result, "rates", "counter", "launches", "mean") == [
        ("l2.hits.pct", 2, 0.75), ("l2.sum.per_second", 2, 0.75),
    ]  # fmt: skip
    assert rows(result, "instances", "counter", "sum", "mean") == [
        ("l2.hits.pct", None, 0.75), ("l2.sum", 1.5, 0.75), ("l2.sum.per_second", None, 0.75),
    ]  # fmt: skip
    assert result.summary == "3 counters of 1 kernel"


@pytest.mark.parametrize("split", [0, 2, 5])
def test_ranges_of_launches(split: int) -> None:
    events = Events()
    for first in range(3):
        for name, value in (("bytes.sum", 100 * first), ("hits.pct", 12.5)):
            events.add(
                "counter", ordinal=2**64 - 1, name=name, value=float(value),
                instance=f"launches {first} to {first + 1}",
            )  # fmt: skip
    result = run_tool(Counters, events, splits=[split])
    assert result.summary == "2 counters of 3 ranges"
    columns = ("range", "counter", "value")
    assert rows(result, "ranges", *columns)[1] == ("launches 1 to 2", "bytes.sum", 100)
    assert rows(result, "range_rates", *columns)[1] == ("launches 1 to 2", "hits.pct", 12.5)
    assert len(result.tables["kernels"]) == 0


def test_instances_beyond_the_limit(events: Events) -> None:
    result = run_tool(Counters, events, options={"instances": 3})
    assert len(result.tables["instances"]) == 3
    assert "6 values dropped: more instances than the limit" in result.summary


def test_no_counter_records() -> None:
    assert run_tool(Counters, Events()).summary.startswith("no counters were collected")


@pytest.mark.parametrize("split", range(0, 16, 3))
def test_results_are_independent_of_batches(events: Events, split: int) -> None:
    columns = ("kernel", "counter", "instance", "launches", "sum", "min", "max")
    whole, cut = run_tool(Counters, events), run_tool(Counters, events, splits=[split])
    assert rows(whole, "instances", *columns) == rows(cut, "instances", *columns)
