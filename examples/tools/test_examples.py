"""How to test a tool: events made by hand, results from arithmetic."""

from __future__ import annotations

from pathlib import Path

from pasta.plugins import find_tools
from pasta.testing import Events, run_tool

HERE = Path(__file__).parent
(LaunchGaps,) = find_tools(str(HERE / "launch_gaps.py"))
(DeviceWaits,) = find_tools(str(HERE / "device_waits.py"))
(RangeLaunches,) = find_tools(str(HERE / "range_launches.py"))


def test_gaps_are_per_stream_and_reach_across_batches() -> None:
    events = Events(start_time=0)
    events.launch("a", time=0, stream=1)
    events.launch("b", time=400_000, stream=1)
    events.launch("a", time=450_000, stream=2)
    events.launch("c", time=460_000, stream=1)
    events.launch("c", time=950_000, stream=2)
    result = run_tool(LaunchGaps, events, splits=[1, 4])
    assert list(result.tables["gaps"].rows()) == [
        {"gap": 500_000, "stream": 2, "after": "a", "before": "c"},
        {"gap": 400_000, "stream": 1, "after": "a", "before": "b"},
    ]


def test_launches_count_for_the_path_of_their_ranges() -> None:
    events = Events()
    events.launch("a")
    events.push("step")
    events.push("forward")
    events.launch("a")
    events.launch("b")
    events.pop()
    events.launch("c")
    result = run_tool(RangeLaunches, events, splits=[3])
    counts = {row["range"]: row["launches"] for row in result.tables["ranges"].rows()}
    assert counts == {"step/forward": 2, "step": 1, "(no range)": 1}


def test_waits_for_a_device_with_several_streams() -> None:
    events = Events()
    for number in range(20):
        events.launch("a", stream=number % 2)
        events.add("sync", device=0, what=3)
    events.add("sync", device=0, what=1)
    (finding,) = run_tool(DeviceWaits, events).findings
    assert finding.evidence == "20 waits for work of 2 streams"
    assert not run_tool(DeviceWaits, events, options={"least": 21}).findings
