"""Copies whose directions, memories and sizes are known."""

from __future__ import annotations

import numpy as np
import pytest

from pasta.plugins import find_tools
from pasta.processors.batch import ABSENT_U64
from pasta.testing import Events, run_tool, run_tools
from pasta.tool import Finding, Result, Tool
from tests.support.streams import STEPS, training_run

(Copies,) = find_tools("copies")
DEVICE, PINNED, MANAGED, HOST = 0x1000_0000, 0x2000_0000, 0x3000_0000, 0x4000_0000


@pytest.fixture
def events() -> Events:
    events = Events()
    events.alloc(DEVICE, 1 << 20)
    events.alloc(PINNED, 1 << 20, "pinned")
    events.alloc(MANAGED, 1 << 20, "managed")
    return events


def directions(events: Events) -> dict[tuple[str, str, str, bool], tuple[int, int]]:
    table = run_tool(Copies, events).tables["directions"]
    return {
        (r["direction"], r["source_memory"], r["destination_memory"], r["asynchronous"]): (
            r["copies"],
            r["bytes"],
        )
        for r in table.rows()
    }


def test_memory_kinds_of_source_and_destination(events: Events) -> None:
    events.copy("host_to_device", PINNED, DEVICE, 100, flags=2)
    events.copy("host_to_device", PINNED + 8, DEVICE, 50, flags=2)
    events.copy("host_to_device", HOST, DEVICE, 7)
    events.copy("device_to_host", DEVICE, HOST, 8, flags=2)
    events.copy("device_to_device", MANAGED, DEVICE, 9)
    events.copy("device_to_device", DEVICE, DEVICE + (1 << 20), 10)
    assert directions(events) == {
        ("host_to_device", "pinned", "device", True): (2, 150),
        ("host_to_device", "pageable", "device", False): (1, 7),
        ("device_to_host", "device", "pageable", True): (1, 8),
        ("device_to_device", "managed", "device", False): (1, 9),
        ("device_to_device", "device", "unknown", False): (1, 10),
    }


def test_memory_is_looked_up_at_copy_time(events: Events) -> None:
    events.copy("host_to_device", PINNED, DEVICE, 1)
    events.free(PINNED, "pinned")
    events.copy("host_to_device", PINNED, DEVICE, 1)
    events.alloc(PINNED, 16, "managed")
    events.copy("host_to_device", PINNED, DEVICE, 1)
    assert {source for _, source, _, _ in directions(events)} == {"pinned", "pageable", "managed"}


def test_sizes_are_grouped_by_powers_of_two(events: Events) -> None:
    sizes = [0, 1, 2, 3, 4, 1023, 1024, (1 << 32) - 1, 1 << 32, (1 << 53) + 1]
    for size in sizes:
        events.copy("host_to_device", HOST, DEVICE, size)
    result = run_tool(Copies, events)
    found = {
        (r["from_bytes"], r["below_bytes"]): r["copies"] for r in result.tables["sizes"].rows()
    }
    assert found == {
        (0, 1): 1, (1, 2): 1, (2, 4): 2, (4, 8): 1, (512, 1024): 1, (1024, 2048): 1,
        (1 << 31, 1 << 32): 1, (1 << 32, 1 << 33): 1, (1 << 53, 1 << 54): 1,
    }  # fmt: skip
    assert next(result.tables["directions"].rows())["bytes"] == sum(sizes)


def test_repeats_have_the_same_addresses_and_size(events: Events) -> None:
    for _ in range(3):
        events.copy("host_to_device", HOST, DEVICE, 100)
    events.copy("host_to_device", HOST, DEVICE, 101)
    events.copy("host_to_device", HOST, DEVICE + 1, 100)
    result = run_tool(Copies, events)
    (row,) = result.tables["repeats"].rows()
    assert (row["source"], row["destination"], row["bytes"]) == (HOST, DEVICE, 100)
    assert (row["copies"], row["bytes_again"]) == (3, 200)
    assert row["share"] == pytest.approx(200 / 501)
    assert "200 B copied again between the same addresses" in result.summary


def test_repeats_beyond_the_limit_are_reported(events: Events) -> None:
    for at in range(5):
        events.copy("host_to_device", HOST + at, DEVICE, 100)
    assert (
        "2 further copies not checked" in run_tool(Copies, events, options={"transfers": 3}).summary
    )


def test_pairs_of_devices(events: Events) -> None:
    events.copy("peer_to_peer", DEVICE, DEVICE, 10, source_device=0, destination_device=1)
    events.copy("peer_to_peer", DEVICE, DEVICE, 20, source_device=0, destination_device=1)
    events.copy("host_to_device", HOST, DEVICE, 5, destination_device=1)
    table = run_tool(Copies, events).tables["devices"]
    found = [tuple(row.values())[:4] for row in table.rows()]
    assert found == [(0, 1, 2, 30), (None, 1, 1, 5)]


def test_device_times_and_bandwidth_of_copies_that_completed(events: Events) -> None:
    events.copy("host_to_device", PINNED, DEVICE, 3000, correlation=1, flags=2)
    events.copy("host_to_device", PINNED, DEVICE, 1000, correlation=2, flags=2)
    events.copy("host_to_device", PINNED, DEVICE, 500, correlation=3, flags=2)  # without one
    events.copy("host_to_device", HOST, DEVICE, 800, correlation=4, destination_device=1)
    events.copy("device_to_host", DEVICE, HOST, 900)
    events.add("memory_set", address=DEVICE, bytes=64, correlation=5)
    events.copy_complete(1, 1000, 1300, "host_to_device", bytes=2000)  # in two parts
    events.copy_complete(1, 1300, 1400, "host_to_device", bytes=1000)
    events.copy_complete(2, 2000, 2100, "host_to_device", bytes=1000)
    events.copy_complete(4, 2000, 2200, "host_to_device", bytes=ABSENT_U64)
    events.copy_complete(5, 2500, 2600, bytes=64)  # of a set
    events.copy_complete(9, 2500, 2600, bytes=64)  # of a copy that was dropped
    result = run_tool(Copies, events)
    pinned, pageable, back = result.tables["directions"].rows()
    times = ("device_time", "timed_bytes", "bandwidth")
    assert [pinned[name] for name in times] == [500, 4000, 8e9]
    assert [pageable[name] for name in times] == [200, 0, None]
    assert [back[name] for name in times] == [None] * 3
    assert result.tables["directions"].hidden == {"timed_bytes"}
    unknown, one = result.tables["devices"].rows()
    assert [unknown[name] for name in times] == [500, 4000, 8e9]
    assert [one[name] for name in times] == [200, 0, None]


def test_device_times_are_those_of_copies_of_earlier_batches(events: Events) -> None:
    for number in range(1, 9):
        events.copy("host_to_device", PINNED, DEVICE, 100, correlation=number)
    for number in range(8, 0, -1):
        events.copy_complete(number, 1000, 1000 + number, "host_to_device", bytes=100)
    result = run_tool(Copies, events, splits=[3, 5, 13, 17])
    (row,) = result.tables["directions"].rows()
    assert (row["device_time"], row["bandwidth"]) == (36, pytest.approx(800 / 36 * 1e9))


def test_without_device_times_their_columns_are_empty_and_not_shown(events: Events) -> None:
    events.copy("host_to_device", PINNED, DEVICE, 3000)
    for name in ("directions", "devices"):
        table = run_tool(Copies, events).tables[name]
        (row,) = table.rows()
        assert row["device_time"] is row["bandwidth"] is None
        assert table.hidden == {"device_time", "timed_bytes", "bandwidth"}


def test_copies_of_unknown_size_are_omitted_and_reported(events: Events) -> None:
    events.copy("host_to_device", HOST, DEVICE, ABSENT_U64)
    events.copy("host_to_device", HOST, DEVICE, 3)
    result = run_tool(Copies, events)
    assert result.summary.startswith("1 copy, 3 B in total")
    assert "1 copy of unknown size left out" in result.summary


def test_a_training_run() -> None:
    result = run_tool(Copies, training_run())
    up, down = result.tables["directions"].rows()
    assert (up["source_memory"], up["destination_memory"], up["asynchronous"]) == (
        "pinned", "device", True,
    )  # fmt: skip
    assert (up["copies"], up["bytes"]) == (STEPS, 4096 * STEPS)
    assert (down["destination_memory"], down["bytes"]) == ("pageable", (1 << STEPS) - 1)
    assert np.sum(result.figures["sizes"].series["device_to_host"]) == STEPS


# ---- findings -------------------------------------------------------------------------------


def test_repeated_transfers_are_a_finding(events: Events) -> None:
    for _ in range(3):
        events.copy("host_to_device", HOST, DEVICE, 1000)
        events.copy("host_to_device", HOST, DEVICE, 100)
    events.copy("host_to_device", HOST + 8, DEVICE, 100)
    events.copy("device_to_host", DEVICE, HOST, 600)
    options = {"repeated": "2200B", "bandwidth": 1_000_000_000}
    (found,) = run_tool(Copies, events, options=options).findings
    assert found.gain == pytest.approx(2200 / 7000)  # a byte takes 1 ns; copies are 1 us apart
    assert found.where == "host_to_device: 1,000 B from 0x40000000 to 0x10000000, 3 times"
    assert found.confidence == "low"  # whether the bytes were equal is not checked
    assert not run_tool(Copies, events, options={"repeated": "2201B"}).findings


def test_staging_buffers_are_no_repeated_transfers(events: Events) -> None:
    """The program fills pinned memory anew for each copy, as good loaders do."""
    for _ in range(10):
        events.copy("host_to_device", PINNED, DEVICE, 1000, flags=2)
        events.copy("device_to_host", DEVICE + 4096, PINNED + 4096, 1000, flags=2)
    result = run_tool(Copies, events, options={"repeated": 1})
    assert not any("repeatedly" in finding.what for finding in result.findings)
    assert len(list(result.tables["repeats"].rows())) == 2


def test_pageable_memory_is_a_finding(events: Events) -> None:
    events.copy("host_to_device", HOST, DEVICE, 300, flags=2)
    events.copy("host_to_device", HOST, DEVICE, 200)
    events.copy("host_to_device", PINNED, DEVICE, 500)
    options = {"pageable": 500, "bandwidth": 1_000_000_000}
    (found,) = run_tool(Copies, events, options=options).findings
    assert found.gain == pytest.approx(500 / 2000)  # each is moved twice
    assert "2 copies, 500 B in total, are staged" in found.evidence
    assert not run_tool(Copies, events, options={"pageable": 501}).findings


def test_pageable_copies_at_startup_are_not_a_finding(events: Events) -> None:
    """Copies of `model.cuda()`: pinning memory that is copied once gains nothing."""
    for _ in range(10):
        events.copy("host_to_device", HOST, DEVICE, 500)
    for _ in range(20):
        events.copy("device_to_device", DEVICE, DEVICE, 10)
    assert not run_tool(Copies, events, options={"pageable": 100}).findings


def test_many_small_copies_are_a_finding(events: Events) -> None:
    for number in range(6):
        events.copy("host_to_device", PINNED + 8 * number, DEVICE, 8)
    events.copy("host_to_device", PINNED, DEVICE, 16 << 10)
    events.copy("device_to_host", DEVICE, PINNED, 8)
    options = {"small_copies": 6, "copy_cost": "1us"}
    (found,) = run_tool(Copies, events, options=options).findings
    assert (found.where, found.gain) == ("host_to_device, below 16.00 KiB", 5 / 7)
    assert found.evidence == "6 of 8 copies move 8 B each, 48 B in total"
    assert not run_tool(Copies, events, options={"small_copies": 7}).findings
    assert not run_tool(Copies, events).findings


class Lines(Tool):
    """Stands for the line lookup of copies."""

    needs = ("operators",)

    def result(self) -> Result:
        return Result(summary="")


def findings(events: Events, **options: object) -> list[Finding]:
    return list(run_tools([Copies(options), Lines()], events)["copies"].findings)


def test_repeated_tensor_copies_are_a_finding_with_their_line(events: Events) -> None:
    """Repeats are of objects, not of addresses: a new tensor may reuse a freed one's address."""
    events.frames(1, ("/my/train.py", "step", 7))
    for number in range(4):
        if number == 2:
            events.tensor_free(HOST, "host")
        if number in (0, 2):
            events.tensor_alloc(HOST, 1000, "host")
        events.operator("aten::to", stack=1)
        events.copy("host_to_device", HOST, DEVICE + 1000 * number, 1000)
        events.operator_end()
    (found,) = findings(events, repeated=2000)
    assert found.what == "the same tensors are sent to the device repeatedly"
    assert found.where == "train.py:7 step"
    assert found.evidence.startswith("2 tensors in host memory were sent 4 times; 1.95")
    assert not findings(events, repeated=2001)


def test_round_trips_are_a_finding_with_their_line(events: Events) -> None:
    events.frames(1, ("/my/train.py", "step", 7))
    for _ in range(10):
        events.operator("aten::to", stack=1)
        events.copy("device_to_host", DEVICE, HOST, 20 << 10)
        events.operator_end()
        events.copy("host_to_device", HOST, DEVICE, 20 << 10)
        events.copy("host_to_device", HOST, DEVICE, 30 << 10)
    (found,) = findings(events, repeated=400 << 10, pageable="1GB")[:1]
    assert found.what == "data goes from the device to the host and back"
    assert found.where == "train.py:7 step"
    assert found.evidence.startswith("10 round trips")
    (other, *_) = findings(events, repeated=(400 << 10) + 1, pageable="1GB")
    assert other.what != found.what


def test_directions_are_ranked_by_device_time(events: Events) -> None:
    """The one with fewer bytes takes longer."""
    events.copy("host_to_device", HOST, DEVICE, 1 << 20, correlation=1, destination_device=0)
    events.copy("device_to_host", DEVICE, HOST, 1 << 10, correlation=2, source_device=0)
    without = run_tool(Copies, events)
    events.copy_complete(1, 0, 100, bytes=1 << 20)
    events.copy_complete(2, 0, 700, bytes=1 << 10)
    result = run_tool(Copies, events)
    for found, first in ((without, "host_to_device"), (result, "device_to_host")):
        assert next(found.tables["directions"].rows())["direction"] == first
    (first, *_) = result.tables["devices"].rows()
    assert (first["source_device"], first["device_time"]) == (0, 700)


@pytest.mark.parametrize("measured", [None, 1.0])
def test_gains_are_of_the_measured_rate(events: Events, measured: float | None) -> None:
    """1 MiB once more in 2 ms: at 10 bytes per ns unless it was measured."""
    for number in (1, 2):
        at = 10_000_000 + number * 2_000_000
        events.copy("host_to_device", HOST, DEVICE, 1 << 20, correlation=number, time=at)
        if measured is not None:
            events.copy_complete(number, at, at + int((1 << 20) / measured), bytes=1 << 20)
    options = {"repeated": 1, "pageable": "1GiB"}
    (finding,) = run_tool(Copies, events, options=options).findings
    assert finding.gain == pytest.approx((1 << 20) / (measured or 10) / 2_000_000)
