"""Power, energy, clocks and their reasons, where arithmetic gives them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pasta import abi
from pasta.plugins import find_tools
from pasta.testing import Events, run_tool
from pasta.tool import Result

(Telemetry,) = find_tools("telemetry")

MS = 10**6
GIB = 1 << 30
POWER, THERMAL, IDLE = (abi.THROTTLE[name] for name in ("power", "thermal", "idle"))
UUID = "GPU-0"
USUAL: dict[str, Any] = {
    "power": 300_000, "power_limit": 700_000, "clock": 1980, "max_clock": 1980,
    "memory_clock": 2619, "throttle": 0, "temperature": 50, "utilization": 100,
    "memory_activity": 10, "others": 0, "memory_used": 10 * GIB, "memory_others": 0,
    "memory_total": 80 * GIB,
}  # fmt: skip


def run_of(*, device: int | None = 0) -> Events:
    """A run from 1 ms on; with a context on a device."""
    events = Events(start_time=MS, step=0)
    events.add("process_start", executable="/bin/program", command="program", time=MS)
    if device is not None:
        events.add("context_create", device=device, time=MS)
    return events


def sample(events: Events, time: int, *, uuid: str = UUID, device: int = 0, **fields: Any) -> None:
    """A sample at a time in ms; None is absent."""
    given = {name: value for name, value in {**USUAL, **fields}.items() if value is not None}
    events.add("device_sample", uuid=uuid, device=device, time=time * MS, thread=0, **given)


def kernel(events: Events, start: int, end: int, **fields: Any) -> None:
    """A kernel from `start` to `end`, ms, submitted at its start."""
    ordinal = events.launch("vadd", time=start * MS, **fields)
    events.complete(ordinal, start * MS, end * MS, time=end * MS, **fields)


def device(result: Result, number: int | None = 0) -> dict[str, Any]:
    return {row["device"]: row for row in result.tables["devices"].rows()}[number]


def reasons(result: Result) -> dict[tuple[str, str], dict[str, Any]]:
    rows = result.tables["throttling"].rows()
    return {(row["device"], row["reason"]): row for row in rows}


def test_values_over_time() -> None:
    events = run_of()
    for time, power, clock, heat, used in (
        (100, 100_000, 1000, 40, 10), (200, 300_000, 2000, 50, 20), (400, 200_000, 1500, 60, 15)
    ):  # fmt: skip
        sample(events, time, power=power, clock=clock, temperature=heat, memory_used=used * GIB)
    row = device(run_tool(Telemetry, events))
    assert (row["uuid"], row["samples"], row["time"]) == (UUID, 3, 300 * MS)
    # 200 W for 0.1 s, 250 W for 0.2 s
    assert row["energy"] == pytest.approx(20 + 50)
    assert row["power"] == pytest.approx(70 / 0.3)
    assert (row["min_power"], row["max_power"], row["power_limit"]) == (100, 300, 700)
    assert row["clock"] == pytest.approx((1500 * 0.1 + 1750 * 0.2) / 0.3)
    assert (row["min_clock"], row["max_clock"], row["highest_clock"]) == (1000, 2000, 1980)
    assert (row["min_temperature"], row["temperature"], row["max_temperature"]) == (40, 50, 60)
    assert (row["min_memory"], row["max_memory"]) == (10 * GIB, 20 * GIB)
    assert row["utilization"] == 1


@pytest.mark.parametrize("split", [False, True])
def test_reasons_count_in_busy_time_only(split: bool) -> None:
    events = run_of()
    # busy from 250 to 450 (two kernels overlap), and from 550 to 1000; all reported at 1020
    kernels = {250: (400, 1), 350: (450, 2), 550: (1000, 1)}
    ordinals = {}
    for time in range(50, 1050, 50):
        if time in kernels:
            ordinals[time] = events.launch("vadd", time=time * MS, stream=kernels[time][1])
        if time % 100 == 0:
            reason = POWER if 300 <= time < 700 else IDLE
            clock = {300: 1000, 400: 1200, 500: 1400, 600: 1600}.get(time, 1980)
            sample(events, time, throttle=reason, clock=clock)
    for start, (end, _) in kernels.items():
        events.complete(ordinals[start], start * MS, end * MS, time=1020 * MS)
    splits = range(1, 18) if split else ()
    result = run_tool(Telemetry, events, splits=splits)
    row = device(result)
    assert (row["busy"], row["throttled"]) == (650 * MS, 300 * MS)
    (found,) = reasons(result).values()
    assert (found["device"], found["reason"]) == ("device 0", "power limit")
    assert found["time"] == 300 * MS
    assert found["share"] == pytest.approx(300 / 650)
    # 100 ms at 1000 MHz, 50 at 1200, 50 at 1400, 100 at 1600
    mean = (100 * 1000 + 50 * 1200 + 50 * 1400 + 100 * 1600) / 300
    assert found["clock"] == pytest.approx(mean)
    assert found["loss"] == pytest.approx(1 - mean / 1980)
    (finding,) = result.findings
    assert finding.what == "clocks are lowered: power limit"
    assert finding.where == "device 0"
    assert finding.evidence == (
        "46.2 % of 650.00 ms of busy time of device 0 (power limit of 700 W): 1,300 MHz on"
        " average instead of 1,980 MHz"
    )
    assert finding.gain == pytest.approx(300 / 650 * (1 - mean / 1980))


def test_without_device_times_the_utilization_decides() -> None:
    events = run_of()
    for time in range(100, 1100, 100):
        busy = time < 600
        sample(events, time, utilization=80 if busy else 0, throttle=THERMAL, clock=990)
    result = run_tool(Telemetry, events)
    assert device(result)["busy"] == device(result)["throttled"] == 500 * MS
    (finding,) = result.findings
    assert finding.what == "clocks are lowered: temperature limit"
    assert "(temperature limit, at up to 50 °C): 990 MHz" in finding.evidence
    assert finding.gain == pytest.approx(0.5)
    assert (
        "busy time is the time in which the driver reported a utilization above 0" in result.notes
    )


def test_balanced_device_has_no_finding() -> None:
    events = run_of()
    for time in range(100, 2000, 100):
        # idle, or for 5 % of the time, or without a loss
        odd = {300: (POWER, 1200), 500: (IDLE, 300)}.get(time, (POWER, 1970))
        sample(events, time, throttle=odd[0], clock=odd[1], utilization=0 if time == 500 else 100)
    assert run_tool(Telemetry, events).findings == []


def test_thresholds_are_options() -> None:
    events = run_of()
    for time in range(100, 600, 100):
        sample(events, time, throttle=POWER, clock=1782)  # 10 % less
    assert len(run_tool(Telemetry, events).findings) == 1
    for options in ({"least_loss": 0.2}, {"least_busy": "1s"}, {"least_share": 1.1}):
        assert run_tool(Telemetry, events, options=options).findings == []


def test_another_process() -> None:
    events = run_of()
    for time in range(100, 500, 100):
        others = 2 if time == 200 else 1 if time > 200 else 0
        sample(events, time, others=others, memory_others=others * 2 * GIB)
    result = run_tool(Telemetry, events)
    assert (device(result)["memory_of_others"], device(result)["other_processes"]) == (4 * GIB, 2)
    (finding,) = result.findings
    assert (finding.what, finding.where) == ("another process uses the device", "device 0")
    assert finding.evidence == (
        "up to 2 other processes held up to 4.00 GiB of 80.00 GiB, in 75.0 % of 4 samples"
    )
    assert run_tool(Telemetry, events, options={"others_memory": "5GiB"}).findings == []


def test_devices_that_the_program_does_not_use_have_no_findings() -> None:
    events = run_of(device=1)
    for time in range(100, 600, 100):
        for number in (0, 1):
            low = {"throttle": POWER, "clock": 990} if number == 0 else {}
            sample(events, time, uuid=f"GPU-{number}", device=number, others=1 - number,
                   memory_others=(1 - number) * 9 * GIB, **low)  # fmt: skip
    result = run_tool(Telemetry, events)
    assert len(result.tables["devices"]) == 2
    assert result.findings == []
    events = run_of(device=0)
    for time in range(100, 600, 100):
        sample(events, time, throttle=POWER, clock=990, device=-1)  # the only one
    assert len(run_tool(Telemetry, events).findings) == 1


def test_absent_values_are_absent() -> None:
    events = run_of()
    nothing = dict.fromkeys(USUAL)
    for time in (100, 200):
        sample(events, time, **nothing)
    result = run_tool(Telemetry, events)
    row = device(result)
    numbers = {name for name, value in row.items() if value is not None}
    assert numbers == {"device", "uuid", "samples", "time", "busy", "throttled"}
    assert result.figures == {} and result.findings == []


def test_events_of_devices_give_the_ordinals() -> None:
    events = run_of(device=3)
    sample(events, 100, device=-1)
    events.add("device", device=3, uuid=UUID, time=150 * MS)
    sample(events, 200, device=-1)
    assert device(run_tool(Telemetry, events), 3)["samples"] == 2


def test_charts_show_means_over_time() -> None:
    width = 1 << 14
    events = Events(start_time=1 << 30, step=0)
    for bin, watts in ((2, 100), (3, 300), (4, 300)):
        events.add("device_sample", uuid=UUID, device=0, thread=0, power=watts * 1000,
                   time=(1 << 30) + bin * width)  # fmt: skip
    (figure,) = run_tool(Telemetry, events).figures.values()
    assert list(figure.x) == [bin * width for bin in range(5)]
    series = figure.series["device 0"]
    assert np.isnan(series[:2]).all() and np.isnan(series[4])
    assert list(series[2:4]) == pytest.approx([200, 300])


def test_run_without_samples() -> None:
    events = run_of()
    kernel(events, 10, 20)
    result = run_tool(Telemetry, events)
    assert result.summary == "no device samples were taken"
    assert "run.telemetry-interval" in result.notes[0]


def test_state_can_be_pickled() -> None:
    import pickle

    tool = Telemetry()
    events = run_of()
    tool.context = events.context()
    tool.start()
    sample(events, 100)
    kernel(events, 150, 180)
    tool.on_batch(events.batch())
    restored = Telemetry()
    restored.__setstate__(pickle.loads(pickle.dumps(tool.__getstate__())))
    restored.context = tool.context
    assert restored.result().summary == "device 0: 0.0 J at 300 W on average, 1,980 MHz"
