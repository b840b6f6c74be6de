"""Results of tools on memory and calls do not depend on batches and processes."""

from __future__ import annotations

from typing import Any

from pasta.plugins import load_tools
from pasta.processors.filter import Filter
from pasta.runtime.pipeline import Pipeline
from pasta.testing import Events
from tests.golden.test_allocator import run_of

TOOLS = ["allocator", "object_lifetimes", "code_check"]
OPTIONS: dict[str, dict[str, object]] = {
    "object_lifetimes": {"least": 1},
    "code_check": {"allocations": 2, "least_share": 0.0},
}


def events_of() -> Events:
    events = run_of()
    for _ in range(12):
        events.alloc(0x9000_0000, 4096)
        events.launch("k", stream=1)
        events.access("global", [0x9000_0000])
        events.launch("k")
        events.free(0x9000_0000)
    return events


def result_of(splits: list[int], moves: list[int]) -> dict[str, Any]:
    events = events_of()
    pipeline = Pipeline(Filter(), load_tools(TOOLS, OPTIONS), events.context())
    for number, (batch, accesses) in enumerate(events.stretches(splits)):
        pipeline.feed(batch)
        pipeline.feed_accesses(accesses)
        if number in moves:
            state = pipeline.state()
            pipeline = Pipeline.restore(state, load_tools(TOOLS, OPTIONS), events.context())
    results = pipeline.finish()
    assert not pipeline.failures, pipeline.failures
    return {
        name: (
            each.summary,
            list(each.findings),
            {title: table.to_arrow().to_pydict() for title, table in each.tables.items()},
        )
        for name, each in results.items()
    }


def test_results_are_independent_of_batches_and_processes() -> None:
    whole = result_of([], [])
    assert all(findings for _, findings, _ in whole.values())
    assert result_of(list(range(len(events_of()))), [9, 30]) == whole
