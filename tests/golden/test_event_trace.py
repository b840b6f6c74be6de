"""The trace against the rules of the Trace Event Format, and against the events."""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from typing import Any

import pytest
from streams import STEPS, training_run

from pasta.plugins import find_tools
from pasta.testing import Events, run_tool

(EventTrace,) = find_tools("event_trace")

#: Fields that each phase must have, with their types.
NUMBER = (int, float)
TIMED = {"pid": int, "ts": NUMBER}
PLACED = {**TIMED, "tid": int}
PHASES: dict[str, dict[str, Any]] = {
    "B": {**PLACED, "name": str},
    "E": PLACED,
    "X": {**PLACED, "name": str, "dur": NUMBER},
    "i": {**PLACED, "name": str, "s": str},
    "C": {**TIMED, "name": str, "args": dict},
    "M": {"pid": int, "name": str, "args": dict},
    "s": {**PLACED, "name": str, "cat": str, "id": str},
    "f": {**PLACED, "name": str, "cat": str, "id": str, "bp": str},
    "b": {**TIMED, "name": str, "cat": str, "id": str},
    "e": {**TIMED, "name": str, "cat": str, "id": str},
}


def validated(text: bytes) -> list[dict[str, Any]]:
    """Events of a trace. Raises AssertionError where it breaks a rule of the format."""
    document = json.loads(text)
    events: list[dict[str, Any]] = document["traceEvents"]
    stacks: dict[tuple[int, int], list[tuple[str, float]]] = {}
    whole: dict[tuple[int, int], float] = {}
    flows, nested = set(), Counter()
    named = {(e["pid"], e.get("tid")) for e in events if e["ph"] == "M"}
    for event in events:
        for field, type_ in PHASES[event["ph"]].items():
            assert isinstance(event[field], type_), (field, event)
            assert not isinstance(event[field], bool)
        place = (event["pid"], event.get("tid", 0))
        if event["ph"] in "BEXisf":
            assert place in named, f"an unnamed track: {event}"
        if event["ph"] == "B":
            stacks.setdefault(place, []).append((event["name"], event["ts"]))
        elif event["ph"] == "E":
            _, began = stacks[place].pop()
            assert event["ts"] >= began
        elif event["ph"] == "X" and event["name"] != "wait for stream":
            assert event["ts"] >= whole.get(place, float("-inf")), f"overlap: {event}"
            whole[place] = event["ts"] + event["dur"]
            assert event["dur"] >= 0
        elif event["ph"] == "i":
            assert event["s"] in ("t", "p", "g")
        elif event["ph"] == "C":
            assert all(isinstance(value, NUMBER) and value >= 0 for value in event["args"].values())
        elif event["ph"] == "s":
            assert event["id"] not in flows
            flows.add(event["id"])
            assert stacks[place], "a flow must start in a slice"
        elif event["ph"] == "f":
            assert event["id"] in flows
        elif event["ph"] in "be":
            nested[event["cat"], event["id"], event["name"]] += 1 if event["ph"] == "b" else -1
            assert nested[event["cat"], event["id"], event["name"]] in (0, 1)
    assert not any(stacks.values()), "slices left open"
    assert not any(nested.values())
    return events


def trace(events: Events, **arguments: Any) -> list[dict[str, Any]]:
    result = run_tool(EventTrace, events, options={"compress": False}, **arguments)
    file = io.BytesIO()
    result.files["trace.json"](file)
    return validated(file.getvalue())


def test_a_training_run_is_a_valid_trace_with_all_its_events() -> None:
    events = trace(training_run())
    count = Counter((event["ph"], event.get("name")) for event in events)
    launches = 4 * STEPS
    assert count["B", "launch"] == launches
    assert count["s", "launch"] == launches
    assert count["f", "launch"] == launches - 4
    kernels = ("vadd", "at::native::kernel", "triton_&_fused", "nöyau")
    assert [count["X", kernel] for kernel in kernels] == [STEPS - 1] * 4
    assert [count["B", f"step {step}"] for step in range(STEPS)] == [1] * STEPS
    assert count["b", "data"] == count["e", "data"] == STEPS
    assert count["i", "copy host to device"] == count["i", "copy device to host"] == STEPS
    assert count["X", "wait for stream"] == STEPS
    assert count["i", "events dropped"] == 1
    # launches, the operators around them, inside those, and of their gradients
    assert count["E", None] == launches * 4 + STEPS


def test_the_same_when_compressed() -> None:
    result = run_tool(EventTrace, training_run())
    file = io.BytesIO()
    result.files["trace.json.gz"](file)
    assert len(validated(gzip.decompress(file.getvalue()))) > 100


def test_times_keep_their_nanoseconds() -> None:
    events = Events(start_time=5_000_000_000_000_000_000)
    events.add("mark", name="late", time=5_000_000_000_000_000_000 + 86_400_000_000_123)
    events.add("mark", name="early", time=5_000_000_000_000_000_000 - 1)
    file = io.BytesIO()
    run_tool(EventTrace, events, options={"compress": False}).files["trace.json"](file)
    assert b'"ts":86400000000.123' in file.getvalue()
    assert b'"ts":-0.001' in file.getvalue()


def test_kernels_that_overlap_on_a_stream_are_all_shown() -> None:
    events = Events()
    for start, end in ((0, 100), (50, 80), (60, 200), (210, 220)):
        ordinal = events.launch("k")
        events.launch_end(ordinal)
        events.complete(ordinal, 2_000_000 + start, 2_000_000 + end)
    kernels = [event for event in trace(events) if event["ph"] == "X"]
    lanes = [event["tid"] for event in kernels]
    assert len(set(lanes)) == 3
    assert lanes[0] == lanes[3]


def test_without_clocks_launches_are_instants_on_their_stream() -> None:
    events = Events()
    events.launch("k", stream=5)
    found = trace(events)
    (instant,) = [event for event in found if event["ph"] == "i"]
    assert instant["name"] == "k"
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in found if e["ph"] == "M"}
    assert names[instant["pid"], instant["tid"]] == "stream 0x5"
    assert "s" not in {event["ph"] for event in found}


@pytest.mark.parametrize(
    "build",
    [
        lambda e: (e.push("a"), e.launch("k")),  # never closed
        lambda e: (e.pop(), e.pop(domain="d")),  # never opened
        lambda e: (e.push("a"), e.add("operator_begin", name="op"), e.pop()),  # crossed
        lambda e: (e.push("a"), e.push("b", domain="d"), e.pop(), e.pop(domain="d")),
        lambda e: (e.launch("k"), e.launch("k", thread=2), e.launch_end(0), e.launch_end(1)),
        lambda e: (e.add("range_start", name="r", id=1), e.add("range_start", name="r", id=1)),
        lambda e: e.add("range_end", id=9),
        lambda e: e.complete(3, 100, 200),
        lambda e: (e.push('quote " and \\ and </script> and \u2028'), e.pop()),
    ],
)
def test_crooked_streams_give_valid_traces(build: Any) -> None:
    events = Events()
    build(events)
    assert trace(events)


def test_every_kind_of_event_can_be_drawn() -> None:
    from pasta import abi

    events = Events()
    for kind in abi.KINDS:
        if kind != "pad":
            events.add(kind)
    assert trace(events)


def test_memory_counters_follow_the_live_bytes() -> None:
    events = Events()
    events.alloc(0x1000, 100)
    events.alloc(0x1000, 60)  # the first one's free was missed
    events.alloc(0x3000, 5, device=1)
    events.free(0x1000)
    counters = [event for event in trace(events) if event["ph"] == "C"]
    told = [(event["name"], event["args"]["bytes"]) for event in counters]
    assert told == [
        ("device 0: device", 100), ("device 0: device", 0), ("device 0: device", 60),
        ("device 1: device", 5), ("device 0: device", 0),
    ]  # fmt: skip
