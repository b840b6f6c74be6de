"""Results are independent of how a stream is split into batches and moved between processes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta.plugins import load_tools
from pasta.processors.filter import Filter
from pasta.runtime.pipeline import Pipeline
from pasta.testing import Events
from pasta.tool import Result
from tests.support.examples import examples
from tests.support.streams import training_run

TOOLS = ["kernel_freq", "copies", "memory_timeline", "event_trace", "operators", "tensors"]
OPTIONS: dict[str, dict[str, object]] = {
    "event_trace": {"compress": False},
    "memory_timeline": {"points": 16, "keep": 2, "leaked": 1, "gap": 1},
    "kernel_freq": {
        "configurations": 20,
        "dominant": 0.1,
        "least_time": "1ns",
        "tiny_launches": 1,
    },
    "copies": {"transfers": 5, "repeated": 1, "pageable": 1, "small_copies": 1},
    "operators": {
        "least_time": "1ns",
        "outside_share": 0.0,
        "outside_gap": 0,
        "outside_gaps": 1,
        "waits": 1,
        "wait_share": 0.0,
    },
    "tensors": {"grown": 1},
}
FILTERS = [Filter(), Filter(kernel="vadd|triton", launch_skip=2), Filter(range="step [0-5]|data")]


def growing_run() -> Events:
    """The training run, and 80 calls of a model whose results are kept."""
    events = training_run()
    for step in range(80):
        events.operator("aten::randn")
        events.operator_end()
        events.operator("aten::op", module="Net", stack=2)
        events.tensor_alloc(0x9_0000_0000 + step * 4096, 4096)
        events.operator_end()
    return events


EVENTS = growing_run()


def comparable(results: dict[str, Result]) -> dict[str, Any]:
    """All comparable parts of results."""
    out: dict[str, Any] = {}
    for name, result in results.items():
        out[name] = result.summary
        out[f"{name}/findings"] = list(result.findings)
        for title, table in result.tables.items():
            out[f"{name}/{title}"] = table.to_arrow().to_pydict()
        for title, figure in result.figures.items():
            series = {key: list(values) for key, values in figure.series.items()}
            out[f"{name}/{title}"] = (list(figure.x), series)
        for title, write in result.files.items():
            assert not isinstance(write, Path)
            file = io.BytesIO()
            write(file)
            out[f"{name}/{title}"] = sorted(
                line.strip(b",") for line in file.getvalue().splitlines()
            )
    return out


def run(events: Events, filter: Filter, splits: list[int], moves: list[int]) -> dict[str, Any]:
    pipeline = Pipeline(filter, load_tools(TOOLS, OPTIONS), events.context())
    recorded = []
    for number, batch in enumerate(events.batches(splits)):
        recorded.append(pipeline.feed(batch))
        if number in moves:
            state = pipeline.state()
            pipeline = Pipeline.restore(state, load_tools(TOOLS, OPTIONS), events.context())
    pipeline.context.recorded = lambda: iter(recorded)
    results = pipeline.finish()
    assert not pipeline.failures, pipeline.failures
    return comparable(results)


WHOLE = [run(EVENTS, filter, [], []) for filter in FILTERS]


def test_events_produce_findings() -> None:
    found = {name for name, each in WHOLE[0].items() if name.endswith("/findings") and each}
    assert found == {f"{name}/findings" for name in TOOLS if name != "event_trace"}


@pytest.mark.parametrize("which", range(len(FILTERS)))
@examples(25)
@given(
    splits=st.lists(st.integers(0, len(EVENTS)), max_size=6),
    moves=st.lists(st.integers(0, 6), max_size=3),
)
def test_results_are_independent_of_batches(
    which: int, splits: list[int], moves: list[int]
) -> None:
    assert run(EVENTS, FILTERS[which], splits, moves) == WHOLE[which]


def test_results_are_equal_with_one_event_per_batch() -> None:
    assert run(EVENTS, FILTERS[0], list(range(len(EVENTS))), [5, 50]) == WHOLE[0]


def test_no_events() -> None:
    results = run(Events(), Filter(), [], [])
    assert results["kernel_freq"] == "no launches were recorded"
    assert results["copies"] == "no copies were recorded"
    assert results["memory_timeline"] == "no memory was allocated"
    assert results["event_trace/events"]["event"] == []
