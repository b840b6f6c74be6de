"""States of a caching allocator, categories over time and failures, known from arithmetic."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from pasta import abi
from pasta.plugins import find_tools
from pasta.processors.conventions import Conventions
from pasta.processors.stacks import Stacks
from pasta.report.exports.memory_snapshot import Snapshot
from pasta.testing import Events, run_tool

(Allocator,) = find_tools("allocator")
A, B = 0x1000_0000, 0x2000_0000
KIB = 1024
FRAMEWORK = next(number for number, name in abi.enums()["origin"].items() if name == "framework")


def run_of() -> Events:
    """Two segments; blocks of 4, 2 and 8 KiB; the one in the middle of the first is freed; 6 KiB
    are requested and fail, though 8 KiB are free."""
    events = Events(start_time=0, step=1000)
    events.frames(5, ("/home/me/train.py", "step", 12), ("/home/me/train.py", "main", 30))
    events.alloc(A, 10 * KIB)
    events.tensor_alloc(A, 4 * KIB, stack=5)
    events.tensor_alloc(A + 4 * KIB, 2 * KIB, stack=5)
    events.tensor_alloc(A + 6 * KIB, 2 * KIB, stack=5)
    events.alloc(B, 12 * KIB)
    events.operator("aten::mm", stack=5)
    events.tensor_alloc(B, 8 * KIB, stack=5)
    events.operator_end()
    events.tensor_free(A + 4 * KIB)
    events.operator("aten::cat", stack=5)
    events.add("mark", device=0, name="out of memory: 6144 bytes", domain="torch", origin=FRAMEWORK)
    events.operator_end()
    events.add("mark", device=0, name="out of memory: 6144 bytes", origin=FRAMEWORK + 1)
    events.tensor_free(B)
    events.free(B)
    return events


def test_state_of_the_allocator() -> None:
    result = run_tool(Allocator, run_of(), splits=[4, 9])
    rows = {row["time"]: row for row in result.tables["states"].rows()}
    # each change is a moment of its own
    assert [(row["allocated"], row["reserved"], row["segments"], row["blocks"], row["largest"])
            for row in rows.values()] == [
        (4 * KIB, 10 * KIB, 1, 1, 6 * KIB),
        (6 * KIB, 10 * KIB, 1, 2, 4 * KIB),
        (8 * KIB, 10 * KIB, 1, 3, 2 * KIB),
        (16 * KIB, 22 * KIB, 2, 4, 4 * KIB),
        (14 * KIB, 22 * KIB, 2, 3, 4 * KIB),
        (6 * KIB, 22 * KIB, 2, 2, 12 * KIB),
    ]  # fmt: skip
    assert [row["fragmentation"] for row in rows.values()] == pytest.approx(
        [0, 0, 0, 1 / 3, 1 / 2, 1 / 4]
    )
    segments = list(result.tables["segments"].rows())
    assert [(row["address"], row["used"], row["blocks"], row["largest"]) for row in segments] == [
        (B, 8 * KIB, 1, 4 * KIB), (A, 8 * KIB, 3, 2 * KIB),
    ]  # fmt: skip
    assert "peak of tensors 16.00 KiB, 22.00 KiB reserved in 2 segments" in result.summary


def test_what_was_live_when_an_allocation_failed() -> None:
    result = run_tool(Allocator, run_of(), splits=[4, 9])
    rows = list(result.tables["out_of_memory"].rows())
    assert sum(row["bytes"] for row in rows) == 14 * KIB
    assert (rows[0]["bytes"], rows[0]["operator"], rows[0]["line"]) == (
        8 * KIB, "aten::mm", "train.py:12 step",
    )  # fmt: skip
    (finding,) = result.findings  # the other mark is the program's own
    assert finding.where == "device 0, in aten::cat train.py:12 step"
    assert "6.00 KiB requested; 14.00 KiB were live in 3 tensors" in finding.evidence
    assert "of which 8.00 KiB were free, the largest block 4.00 KiB" in finding.evidence
    assert finding.remedy.endswith("enough memory is free, but it is fragmented")


def test_tensors_of_unknown_size_are_no_device() -> None:
    events = Events()
    events.tensor_alloc(A, (1 << 64) - 1)
    assert run_tool(Allocator, events).summary == "no framework tensors were recorded"


def test_categories_add_up_at_every_moment() -> None:
    events = Events(start_time=0, step=1000)
    for number in range(50):
        events.tensor_alloc(A + number * KIB, KIB)
        if number == 3:
            events.role(A, "parameter", "weight")
    for number in range(50):
        events.tensor_free(A + number * KIB)
    result = run_tool(Allocator, events, options={"bars": 10})
    rows = list(result.tables["categories"].rows())
    assert {row["category"] for row in rows} >= {"parameter"}
    totals: dict[int, int] = {}
    for row in rows:
        totals[row["time"]] = totals.get(row["time"], 0) + row["bytes"]
    assert len(totals) == 10 and max(totals.values()) == 50 * KIB
    assert all(row["bytes"] == KIB for row in rows if row["category"] == "parameter"
               and row["time"] < 51_000)  # fmt: skip
    figure = result.figures["categories_0"]
    assert [sum(column) for column in zip(*figure.series.values(), strict=True)] == list(
        totals.values()
    )


def snapshot_of(events: Events, *splits: int) -> dict[str, Any]:
    found = Snapshot(events.process, events.strings, Stacks(Conventions()))
    for batch in events.batches(splits):
        found.feed(batch)
    made: dict[str, Any] = pickle.loads(pickle.dumps(found.document()))
    return made


def test_snapshot_has_traces_and_the_segments_at_the_end() -> None:
    found = snapshot_of(run_of(), 5, 12)
    assert [each["action"] for each in found["device_traces"][0]] == [
        "segment_alloc", "alloc", "alloc", "alloc", "segment_alloc", "alloc", "free_requested",
        "free_completed", "oom", "free_requested", "free_completed", "segment_free",
    ]  # fmt: skip
    (segment,) = found["segments"]
    assert [(each["size"], each["state"]) for each in segment["blocks"]] == [
        (4 * KIB, "active_allocated"), (2 * KIB, "inactive"), (2 * KIB, "active_allocated"),
        (2 * KIB, "inactive"),
    ]  # fmt: skip
    assert [frame["line"] for frame in segment["blocks"][0]["frames"]] == [12, 30]


def test_free_memory_of_a_device_of_unknown_size() -> None:
    events = run_of()
    events.device(0, memory=(1 << 64) - 1)
    events.add("mark", device=0, name="out of memory: 1 bytes", origin=FRAMEWORK)
    (*_, failure) = snapshot_of(events)["device_traces"][0]
    assert failure["action"] == "oom" and failure["device_free"] == 0


@pytest.mark.torch
def test_torch_reads_the_snapshot() -> None:
    viz = pytest.importorskip("torch.cuda._memory_viz", reason="PyTorch is not installed")
    events = run_of()
    events.tensor_alloc(0x9000, 64, "host", device=-1)
    found = snapshot_of(events)
    text = viz.segsum(found)  # checks that segments are the sum of their blocks
    assert "segments: 2" in text and "total_reserved: 10.1KiB" in text
    assert "OutOfMemoryError # 6.0KiB requested" in viz.trace(found)
    assert "Device 1" in viz.trace(found)
    viz.trace_plot(found)
