"""Busy and idle time of devices by cause, where arithmetic gives them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta import abi
from pasta.plugins import find_tools
from pasta.testing import Events, run_tool
from pasta.tool import Result
from tests.support.examples import examples

(Utilization,) = find_tools("utilization")

CAUSES = (
    "start_up",
    "host_waits",
    "host_copies",
    "data_loading",
    "host_behind",
    "launch_latency",
    "work_waits",
    "unknown_submission",
    "after_last",
)
PROGRAM = ("/my/train.py", "step", 31)


def device(result: Result, number: int = 0) -> dict[str, Any]:
    rows = {row["device"]: row for row in result.tables["devices"].rows()}
    return rows[number]


def idle(result: Result, number: int = 0) -> dict[str, int]:
    row = device(result, number)
    return {cause: row[cause] for cause in CAUSES if row[cause]}


def gaps(result: Result) -> dict[tuple[str, str | None], int]:
    return {(row["cause"], row["where"]): row["time"] for row in result.tables["gaps"].rows()}


def run_of(*, begin: int = 1000) -> Events:
    events = Events(start_time=begin, step=0)
    events.add("process_start", executable="/bin/program", command="program", time=begin)
    return events


def kernel(events: Events, submitted: int, start: int, end: int, **fields: Any) -> None:
    """A launch and its completion."""
    name = fields.pop("name", "vadd")
    ordinal = events.launch(name, time=submitted, **fields)
    given = {key: value for key, value in fields.items() if key in ("device", "stream")}
    events.complete(ordinal, start, end, time=end, **given)


def copy(events: Events, submitted: int, start: int, end: int, **fields: Any) -> None:
    """A copy to the host, and its completion."""
    number = fields.pop("correlation")
    flags = fields.pop("flags", 0)
    events.copy(
        "device_to_host", 1 << 20, 1 << 30, 4096, time=submitted, correlation=number, device=0,
        flags=flags, **fields,
    )  # fmt: skip
    events.add(
        "copy_complete", correlation=number, start=start, end=end, bytes=4096, device=0, time=end
    )


def test_work_and_gaps_by_cause() -> None:
    events = run_of()
    kernel(events, 3000, 3500, 5000)  # start-up to 3000, latency of 500
    kernel(events, 3100, 5000, 6000)  # waited for the one before: no gap
    events.add("sync", what=1, duration=2900, time=6200)
    kernel(events, 7000, 7100, 8000)  # the host waited from 3300 to 6200, while the gap began
    kernel(events, 9000, 9000, 9500)  # nobody waited: the host is behind from 8000 to 9000
    events.add("process_end", last_launch=4, time=10_000)
    result = run_tool(Utilization, events)
    assert device(result)["busy"] == 1500 + 1000 + 900 + 500
    assert idle(result) == {
        "start_up": 2000,
        "host_waits": 1000,
        "host_behind": 1000,
        "launch_latency": 500 + 100,
        "after_last": 500,
    }
    assert (device(result)["observed"], device(result)["span"]) == (9000, 6500)
    assert gaps(result)["host had submitted no work", "before vadd"] == 1000


def test_a_wait_causes_no_more_idle_time_than_it_lasted() -> None:
    events = run_of()
    kernel(events, 1000, 1000, 2000)
    events.add("sync", what=1, duration=700, time=2200)  # from 1500
    kernel(events, 9000, 9000, 9500)
    copy(events, 9100, 9500, 9900, correlation=3)  # blocks from 9100 to 9900
    kernel(events, 20_000, 20_000, 21_000)
    events.add("process_end", last_launch=3, time=21_000)
    assert idle(run_tool(Utilization, events)) == {
        "host_waits": 700,
        "host_copies": 800,
        "host_behind": (7000 - 700) + (20_000 - 9900 - 800),
    }


def test_busy_share_over_time() -> None:
    events = run_of(begin=0x10_0000)
    for start in (0, 4, 5):  # of bins of 16,384 ns
        begin = 0x10_0000 + (start << 14)
        kernel(events, begin, begin, begin + (1 << 13))
    events.add("process_end", last_launch=3, time=0x10_0000 + (6 << 14))
    figure = run_tool(Utilization, events).figures["busy"]
    assert list(figure.x) == [bin << 14 for bin in range(6)]
    assert figure.series["device 0"] == pytest.approx([0.5, 0, 0, 0, 0.5, 0.5])


def test_submitted_work_that_waits_is_no_latency() -> None:
    events = run_of()
    kernel(events, 1000, 1000, 2000)
    kernel(events, 1500, 200_000, 201_000)  # 198 us after the device became free
    events.add("process_end", last_launch=2, time=201_000)
    assert idle(run_tool(Utilization, events)) == {"work_waits": 198_000}
    result = run_tool(Utilization, events, options={"latency": "1ms"})
    assert idle(result) == {"launch_latency": 198_000}


def test_the_earliest_submission_ends_the_hosts_part() -> None:
    """Work that was submitted first may start last, on another stream."""
    events = run_of()
    kernel(events, 1000, 1000, 2000)
    kernel(events, 3000, 6000, 7000, stream=2)
    kernel(events, 4000, 5000, 5500, stream=3)
    events.add("process_end", last_launch=3, time=7000)
    assert idle(run_tool(Utilization, events)) == {
        "host_behind": 1000,
        "launch_latency": 2000 + 500,
    }


def test_a_blocking_copy_is_a_cause_and_an_asynchronous_one_is_not() -> None:
    for flags, cause in ((0, "host_copies"), (abi.FLAG_ASYNC, "host_behind")):
        events = run_of()
        kernel(events, 1000, 1000, 2000)
        copy(events, 1000, 2000, 3000, correlation=77, flags=flags)
        kernel(events, 5000, 5000, 6000)
        events.add("process_end", last_launch=2, time=6000)
        result = run_tool(Utilization, events)
        assert idle(result) == {cause: 2000}
        assert (device(result)["kernels"], device(result)["copies"]) == (2000, 1000)


def test_overlap_of_kernels_copies_and_communication() -> None:
    events = run_of()
    kernel(events, 1000, 1000, 5000)
    kernel(events, 1000, 3000, 8000, stream=2, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)")
    copy(events, 1000, 4000, 9000, correlation=5)
    events.add("process_end", last_launch=2, time=9000)
    result = run_tool(Utilization, events)
    assert {row["running"]: row["time"] for row in result.tables["overlap"].rows()} == {
        "kernels": 2000,
        "kernels + communication": 1000,
        "kernels + copies + communication": 1000,
        "copies + communication": 3000,
        "copies": 1000,
    }
    row = device(result)
    assert (row["kernels"], row["copies"], row["communication"]) == (4000, 5000, 5000)


def with_operators() -> Events:
    """A gap of which 1000 ns are before an operator, and 2000 ns in it until it launches."""
    events = run_of()
    events.frames(1, PROGRAM)
    events.operator("aten::mm", stack=1, time=1000)
    kernel(events, 1000, 1000, 4000)
    events.operator_end(time=1100)
    events.operator("aten::cat", stack=1, time=5000)
    events.operator("aten::copy_", 2, stack=1, time=5100)
    kernel(events, 7000, 7000, 8000)
    events.operator_end(2, time=7100)
    events.operator_end(time=7200)
    events.add("process_end", last_launch=2, time=8000)
    return events


def test_the_hosts_part_has_operators_and_lines() -> None:
    result = run_tool(Utilization, with_operators())
    assert gaps(result) == {
        ("host had submitted no work", "aten::copy_ at train.py:31 step"): 2000,
        ("host had submitted no work", "at train.py:31 step"): 1000,
    }


def loading(steps: int) -> Result:
    """Steps of a kernel of 1 ms, before which data loads: 50 ms at first, then 3 ms."""
    loader = ("/site-packages/torch/utils/data/dataloader.py", "__next__", 5)
    events = run_of()
    events.frames(1, PROGRAM)
    events.frames(2, loader, PROGRAM)
    now = 1000
    for step in range(steps + 1):
        events.operator("aten::to", stack=2 if step else 1, time=now)
        kernel(events, now, now, now + 1_000_000)
        events.operator_end(time=now + 500)
        now += 1_000_000 + (3_000_000 if step else 50_000_000)
    events.add("process_end", last_launch=steps + 1, time=now)
    return run_tool(Utilization, events)


def test_loading_data_is_a_cause_of_its_own() -> None:
    result = loading(11)
    assert idle(result)["data_loading"] == 50_000_000 + 10 * 3_000_000
    (finding,) = result.findings
    assert finding.what == "the device is idle while data loads"
    assert finding.where == "train.py:31 step"
    assert finding.remedy.startswith("train.py:31 step: use more DataLoader workers")
    assert finding.gain == pytest.approx(30 / (30 + 12))  # without the first one


def test_few_gaps_are_no_finding() -> None:
    assert not loading(5).findings


def test_a_busy_device_has_no_finding() -> None:
    events = run_of()
    for step in range(100):
        kernel(events, 1000 + 900_000 * step, 1000 + 1_000_000 * step, 990_000 + 1_000_000 * step)
    events.add("process_end", last_launch=100, time=100_000_000)
    result = run_tool(Utilization, events)
    assert not result.findings
    assert "busy for 98.9 %" in result.summary


def test_devices_are_apart_and_one_without_work_is_shown() -> None:
    events = run_of()
    events.add("context_create", device=0, time=1000)
    events.add("context_create", device=1, time=1000)
    events.add("context_create", device=2, time=1000)
    kernel(events, 2000, 2000, 3000)
    kernel(events, 2000, 2500, 4000, device=1)
    events.add("process_end", last_launch=2, time=5000)
    result = run_tool(Utilization, events)
    assert [device(result, number)["busy"] for number in (0, 1, 2)] == [1000, 1500, 0]
    assert idle(result, 2) == {"start_up": 4000}


def test_time_without_profiling_is_no_gap() -> None:
    events = run_of()
    kernel(events, 1000, 1000, 2000)
    events.add("profiling_stop", time=3000)
    events.add("profiling_start", time=9000)
    kernel(events, 9500, 9500, 10_000)
    events.add("process_end", last_launch=2, time=10_000)
    result = run_tool(Utilization, events)
    assert device(result)["observed"] == 3000
    assert idle(result) == {"host_behind": 1000 + 500}


def test_a_source_without_device_times() -> None:
    events = run_of()
    events.launch("vadd", time=2000)
    events.add("process_end", last_launch=1, time=3000)
    result = run_tool(Utilization, events)
    assert result.summary == "no device work has times"
    assert not result.findings and not result.tables  # it is not known to be idle


def test_waves_and_short_kernels_by_kernel() -> None:
    events = run_of()
    events.device(architecture="sm_90", multiprocessors=100, warp=32, time=1000)
    full = {"block": (256, 1, 1), "registers": 32, "shared_static": 0, "shared_dynamic": 0}
    kernel(events, 1000, 1000, 11_000, grid=(1000, 1, 1), **full)  # 1.25 waves of 800 blocks
    kernel(events, 1000, 11_000, 21_000, grid=(2000, 1, 1), **full)  # 2.5
    kernel(events, 1000, 21_000, 31_000, grid=(80, 1, 1), **full)  # a tenth of one
    kernel(events, 1000, 31_000, 35_999, grid=(80, 1, 1))  # without registers
    kernel(events, 1000, 36_000, 37_000, name="small", grid=(80, 1, 1))
    events.add("process_end", last_launch=5, time=40_000)
    result = run_tool(Utilization, events, splits=[4])
    vadd, small = result.tables["kernels"].rows()
    assert (vadd["kernel"], vadd["launches"], vadd["time"]) == ("vadd", 4, 34_999)
    assert vadd["waves"] == pytest.approx((1.25 + 2.5 + 0.1) / 3)
    # 0.75 of two waves, and a half of three: in one wave there is no last one
    assert vadd["tail_time"] == int(10_000 * 0.75 / 2) + int(10_000 * 0.5 / 3)
    assert (vadd["short"], vadd["short_time"]) == (1, 4999)
    assert (small["short"], small["waves"], small["tail_time"]) == (1, None, None)


def test_time_from_submission_to_start_of_all_work() -> None:
    events = run_of()
    kernel(events, 1000, 1500, 5000)
    kernel(events, 1100, 5000, 6000)  # found the device busy
    events.add("process_end", last_launch=2, time=6000)
    row = device(run_tool(Utilization, events))
    assert row["p50_latency"] == row["p99_latency"] == 500
    assert (row["p50_start"], row["p99_start"]) == pytest.approx((500, 3900), rel=0.008)


def path(result: Result) -> dict[str, tuple[int | None, int, int]]:
    return {
        row["what"]: (row["device"], row["intervals"], row["time"])
        for row in result.tables["critical_path"].rows()
    }


def test_the_critical_path_has_work_waits_and_the_host() -> None:
    events = run_of()
    kernel(events, 2000, 2500, 5000, name="first", stream=1)
    copy(events, 2100, 5000, 9000, correlation=7, stream=1, flags=abi.FLAG_ASYNC)
    events.add("event_record", handle=77, stream=1, device=0, time=2200)
    events.add("event_wait", handle=77, stream=2, device=0, time=2300)
    kernel(events, 2400, 9100, 10_000, name="second", stream=2)
    kernel(events, 2500, 3000, 4000, name="beside", stream=3)
    events.add("sync", what=1, handle=2, device=0, duration=7500, time=10_400)
    events.add("process_end", last_launch=3, time=12_000)
    result = run_tool(Utilization, events)
    assert path(result) == {
        "copies": (0, 1, 4000),
        "host": (None, 2, 1000 + 1600),
        "first": (0, 1, 2500),
        "second": (0, 1, 900),
        "launch latency": (None, 1, 500),
        "between work and the host wait for it": (None, 1, 400),
        "between consecutive work": (None, 1, 100),
    }
    assert "critical path: 36.4 % copies" in result.summary
    waits = {
        (row["stream"], row["how"], row["waits_for"], row["work"]): (row["waits"], row["time"])
        for row in result.tables["waits"].rows()
    }
    assert waits == {
        ("stream 1", "earlier work in its stream", "stream 1", "first"): (1, 2900),
        ("stream 2", "event", "stream 1", "copies"): (1, 6600),
    }


def test_work_of_unknown_submission_is_on_the_critical_path() -> None:
    events = run_of()
    events.complete(5, 3000, 4000, time=4000)
    events.add("process_end", last_launch=6, time=5000)
    result = run_tool(Utilization, events)
    assert sum(time for _, _, time in path(result).values()) == 4000


PIECES = st.lists(
    st.tuples(
        st.integers(0, 5000),  # submission after the one before
        st.integers(0, 3000),  # start after its submission
        st.integers(0, 4000),  # duration
        st.integers(0, 1),  # device
        st.booleans(),  # the host waits for it
    ),
    max_size=20,
)


@examples(40)
@given(PIECES, st.sets(st.integers(0, 60)))
def test_busy_and_idle_time_add_up_to_the_run(
    pieces: list[tuple[int, int, int, int, bool]], splits: set[int]
) -> None:
    made: list[tuple[int, Callable[[Events], object]]] = []
    now, end = 1000, 1000
    for ordinal, (step, delay, duration, number, waits) in enumerate(pieces):
        now += step
        start = now + delay
        stop = start + duration
        end = max(end, stop)
        made.append((now, partial(Events.launch, name="k", time=now, device=number)))
        given = {"start": start, "end": stop, "time": stop, "device": number}
        made.append((stop, partial(Events.complete, ordinal=ordinal, **given)))
        if waits:
            given = {"what": 1, "duration": end - now, "time": end, "device": number}
            made.append((end, partial(Events.add, kind="sync", **given)))
            now = end
    events = run_of()
    for _, add in sorted(made, key=itemgetter(0)):
        add(events)
    events.add("process_end", last_launch=len(pieces), time=end)
    at = [split for split in sorted(splits) if split < len(events)]
    result = run_tool(Utilization, events, splits=at)
    for name, table in run_tool(Utilization, events).tables.items():
        assert list(result.tables[name].rows()) == list(table.rows()), name
    if not any(duration for _, _, duration, *_ in pieces):  # nothing was busy
        assert not result.tables
        return
    for row in result.tables["devices"].rows():
        assert row["busy"] + sum(row[cause] for cause in CAUSES) == row["observed"] == end - 1000
        assert row["busy"] <= row["span"] <= row["observed"]
    causes = result.figures["causes"].series.values() if "causes" in result.figures else ()
    assert sum(sum(each) for each in causes) == sum(result.tables["devices"].columns["observed"])
    path = [row["time"] for row in result.tables["critical_path"].rows()]
    assert sum(path) == end - 1000 and all(time > 0 for time in path)
    rows = [*result.tables["gaps"].rows()]
    assert sum(row["time"] for row in rows) == sum(
        row["observed"] - row["busy"] for row in result.tables["devices"].rows()
    )
    assert np.all([row["gaps"] > 0 and row["longest"] <= row["time"] for row in rows])


def test_the_error_of_device_times_is_stated() -> None:
    """No work starts before it is submitted."""
    events = run_of()
    kernel(events, 3000, 3500, 5000)
    kernel(events, 9000, 8500, 9500)  # half a microsecond: conversions have such errors
    assert not any("before it was submitted" in n for n in run_tool(Utilization, events).notes)
    kernel(events, 20_000, 16_000, 21_000)
    notes = run_tool(Utilization, events).notes
    (note,) = (note for note in notes if "before it was submitted" in note)
    assert note == (
        "work started up to 4.00 us before it was submitted: device times on the host's clock are"
        " off by at least that much"
    )


SECOND = 1_000_000_000


@pytest.mark.parametrize("pieces", [1, 7, 200])
def test_times_that_come_in_buffers(pieces: int) -> None:
    """Up to 1.5 s later, with the nodes of graphs: as if they had come at once."""

    def run(*, buffered: bool) -> Events:
        events = Events(start_time=1000, step=0)
        source = "nvidia_cupti" if buffered else "refacc"
        events.add("process_start", executable="/bin/program", source=source, time=1000)
        told: list[tuple[int, Callable[[], None]]] = []  # what a buffer tells, and when

        def tell(at: int, what: Callable[[], None]) -> None:
            told.append((at, what)) if buffered else what()

        for step in range(40):
            begin = step * SECOND // 5 + 2000
            while told and told[0][0] <= begin:
                told.pop(0)[1]()
            later = begin + 3 * SECOND // 2
            ordinal = events.launch("vadd", time=begin)
            span = begin + 100, begin + 50_000
            tell(later, partial(events.complete, ordinal, *span, time=later))
            number = step + 1
            events.copy(
                "device_to_host", 1, 2, 4096, time=begin + 60_000, correlation=number, device=0,
                flags=0,
            )  # fmt: skip
            span = begin + 61_000, begin + 70_000
            tell(later, partial(events.copy_complete, number, *span, time=later, bytes=4096))
            launched = begin + 80_000
            events.add("graph_launch", graph=9, time=launched, thread=1, device=0)

            def node(launched: int = launched, later: int = later) -> None:
                of_graph = events.launch("node", time=launched, flags=abi.FLAG_GRAPH)
                span = launched + 1000, launched + 20_000
                events.complete(of_graph, *span, time=later if buffered else launched)

            tell(later, node)
            events.push("work", time=begin + 150_000)
            events.pop(time=begin + 160_000)
        for _, what in told:
            what()
        events.add("process_end", last_launch=80, time=10 * SECOND)
        return events

    late, at_once = run(buffered=True), run(buffered=False)
    splits = range(0, len(late), max(1, len(late) // pieces))
    found = run_tool(Utilization, late, splits=splits)
    expected = run_tool(Utilization, at_once)
    assert device(found) == device(expected)
    assert device(found)["busy"] == 40 * (49_900 + 9000 + 19_000)
    assert gaps(found) == gaps(expected)
    assert found.notes == expected.notes
