"""Launch counts and device times known from arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pasta import abi
from pasta.plugins import find_tools
from pasta.processors.batch import Batch
from pasta.processors.filter import Filter
from pasta.processors.histogram import DurationSummary
from pasta.testing import Events, run_tool, run_tools
from pasta.tool import Context
from tests.support.streams import STEPS, training_run

(KernelFreq,) = find_tools("kernel_freq")


def rows(result: Any, table: str = "kernels") -> dict[str, dict[str, Any]]:
    return {row["kernel"]: row for row in result.tables[table].rows()}


def test_a_training_run() -> None:
    result = run_tool(KernelFreq, training_run())
    kernels = rows(result)
    assert set(kernels) == {"vadd", "at::native::kernel", "triton_&_fused", "nöyau"}
    for number, name in enumerate(("vadd", "at::native::kernel", "triton_&_fused", "nöyau")):
        row = kernels[name]
        assert row["launches"] == STEPS
        assert row["share"] == 0.25
        assert (row["first_launch"], row["last_launch"]) == (number, 4 * (STEPS - 1) + number)
        assert (row["grids"], row["blocks"]) == (STEPS, 1)
        assert row["registers"] is None
        assert row["completions"] == STEPS - 1
        assert row["total_time"] == (STEPS - 1) * 100 * (number + 1)
        for column in ("mean_time", "min_time", "p50_time", "p99_time", "max_time"):
            assert row[column] == 100 * (number + 1)
        assert row["share_of_time"] == pytest.approx((number + 1) / 10)
    assert sum(result.tables["timeline"].columns["launches"]) == 4 * STEPS
    assert kernels["at::native::kernel"]["demangled"] == "void at::native::kernel<float>(float)"


def test_shapes_registers_and_shared_memory() -> None:
    events = Events()
    events.launch("k", grid=(2, 1, 1), block=(64, 1, 1), registers=32, shared_dynamic=0)
    events.launch("k", grid=(1, 2, 1), block=(64, 1, 1), registers=32, shared_dynamic=4096)
    events.launch("k", grid=(1, 2, 1), block=(64, 1, 1), registers=32, shared_dynamic=4096)
    events.launch("k", grid=(1, 2, 1), block=(8, 8, 1), cluster=(2, 1, 1))
    result = run_tool(KernelFreq, events)
    (kernel,) = result.tables["kernels"].rows()
    assert (kernel["grids"], kernel["blocks"]) == (2, 2)
    assert (kernel["registers"], kernel["shared_dynamic"]) == (32, 4096)
    assert kernel["shared_static"] is None
    configurations = list(result.tables["configurations"].rows())
    assert [each["launches"] for each in configurations] == [2, 1, 1]
    assert configurations[0]["grid"] == [1, 2, 1]
    assert configurations[0]["cluster"] is None
    assert configurations[2]["cluster"] == [2, 1, 1]


def test_times_are_absent_without_device_timestamps() -> None:
    events = Events()
    events.launch("k")
    result = run_tool(KernelFreq, events)
    (kernel,) = result.tables["kernels"].rows()
    assert kernel["total_time"] is None
    assert kernel["p99_time"] is None
    assert result.tables["kernels"].to_arrow().column("mean_time").null_count == 1
    assert "kernel time" not in result.summary


def test_completions_without_a_launch_are_counted_and_omitted() -> None:
    events = Events()
    ordinal = events.launch("k")
    events.complete(ordinal, 100, 300)
    events.complete(77, 100, 900)
    events.complete(ordinal, 500, 400)
    result = run_tool(KernelFreq, events)
    (kernel,) = result.tables["kernels"].rows()
    assert kernel["total_time"] == 200
    assert "2 completions dropped: the launch is unknown" in result.summary


def test_completions_follow_the_filter() -> None:
    result = run_tool(KernelFreq, training_run(), filter=Filter(kernel="vadd", launch_skip=2))
    (kernel,) = result.tables["kernels"].rows()
    assert (kernel["launches"], kernel["completions"]) == (STEPS - 2, STEPS - 3)


def test_sums_exceed_32_bits() -> None:
    events = Events()
    ordinal = events.launch("k", ordinal=(1 << 40) + 1, grid=(2**31 - 1, 65535, 65535))
    events.complete(ordinal, 0, 1 << 41)
    events.complete(ordinal, 0, 1 << 41)
    (kernel,) = run_tool(KernelFreq, events).tables["kernels"].rows()
    assert kernel["last_launch"] == (1 << 40) + 1
    assert kernel["total_time"] == 1 << 42


def test_configurations_beyond_the_limit_are_reported() -> None:
    events = Events()
    for size in range(1, 6):
        events.launch("k", grid=(size, 1, 1))
    result = run_tool(KernelFreq, events, options={"configurations": 3})
    (kernel,) = result.tables["kernels"].rows()
    assert (kernel["launches"], kernel["grids"]) == (5, 3)
    assert "2 launches had configurations beyond the first 3" in result.summary


def test_quantiles_are_within_the_documented_error() -> None:
    rng = np.random.default_rng(3)
    durations = np.exp(rng.uniform(0, 30, 20_000)).astype(np.int64)
    codes = rng.integers(0, 3, len(durations))
    summary = DurationSummary()
    for part in np.array_split(np.arange(len(durations)), 7):
        summary.add(codes[part], durations[part])
    for share, found in zip((0.5, 0.99), summary.quantiles(3, 0.5, 0.99), strict=True):
        for code in range(3):
            ordered = np.sort(durations[codes == code])
            exact = ordered[int(np.ceil(share * len(ordered))) - 1]
            assert found[code] == pytest.approx(exact, rel=0.008, abs=1)
    assert summary.total[1] == durations[codes == 1].sum()


def test_random_launches_match_a_reference_count() -> None:
    rng = np.random.default_rng(11)
    events = Events()
    ids = np.asarray([events.string(f"kernel_{i}") for i in range(40)], np.uint32)
    names = ids[rng.integers(0, 40, 30_000)]
    grids = rng.integers(1, 30, 30_000)
    launches = np.zeros(len(names), abi.dtype("kernel_launch"))
    launches["index"] = 2 * np.arange(len(names))
    launches["name"], launches["ordinal"] = names, np.arange(len(names))
    launches["grid"][:, 0], launches["time"] = grids, 1_000_000 + 777 * np.arange(len(names))
    tool = KernelFreq()
    tool.context = Context(events.strings, events.process)
    tool.start()
    for part in np.array_split(launches, 9):
        tool.on_launches(Batch(0, {"kernel_launch": part})["kernel_launch"])
    kernels = rows(tool.result())
    for code, id in enumerate(ids.tolist()):
        row, mine = kernels[f"kernel_{code}"], names == id
        assert row["launches"] == mine.sum()
        assert row["first_launch"] == np.flatnonzero(mine)[0]
        assert row["last_launch"] == np.flatnonzero(mine)[-1]
        assert row["grids"] == len(set(grids[mine].tolist()))
    assert tool.result().tables["timeline"].columns["launches"].sum() == len(names)


# ---- findings -------------------------------------------------------------------------------


def timed(*durations: tuple[str, int], **fields: Any) -> Events:
    """Launches 10 us apart with these kernel durations in ns."""
    events = Events(start_time=0, step=0)
    for number, (name, duration) in enumerate(durations):
        now = 10_000 * number
        ordinal = events.launch(name, time=now, **fields)
        events.complete(ordinal, now, now + duration, time=now)
    return events


def test_dominant_kernel_is_a_finding() -> None:
    events = timed(("gemm", 30_000_000), ("gemm", 30_000_000), ("scale", 20_000_000))
    (found,) = run_tool(KernelFreq, events).findings
    # the possible speedup is unknown
    assert (found.where, found.gain, found.confidence) == ("gemm", None, "low")
    assert found.remedy.endswith("pasta-preload -t coalescing -k gemm -- PROGRAM")
    assert found.evidence == "75.0 % of 80.00 ms, in 2 launches of 30.00 ms on average"
    both = run_tools([KernelFreq(), find_tools("coalescing")[0]()], events)["kernel_freq"]
    assert both.findings[0].remedy == "see its instructions in the tables of coalescing"
    assert not run_tool(KernelFreq, events, options={"dominant": 0.76}).findings
    assert not run_tool(KernelFreq, events, options={"least_time": "81ms"}).findings


def test_kernels_shorter_than_the_launch_call_are_a_finding() -> None:
    durations = [("tiny", 2000), ("small", 4000), ("tiny", 2000), ("long", 5000)]
    options = {"tiny_launches": 3}
    (found,) = run_tool(
        KernelFreq, timed(*durations * 100), options={"tiny_launches": 300}
    ).findings
    assert (found.where, found.of) == ("tiny, small", "the time from first to last launch")
    # 300 launches of 5 us, of which the device needs 200 of 2 and 100 of 4, in 3,990 us
    assert found.gain == pytest.approx((300 * 5000 - 800_000) / 3_990_000)
    assert "300 launches of 2 kernels take 2.67 us each on the device" in found.evidence
    slow = timed(*durations)
    slow.launch("long", time=100_000)
    assert not run_tool(KernelFreq, slow, options=options).findings
    (found,) = run_tool(KernelFreq, slow, options={**options, "tiny_share": 0.07}).findings
    assert found.gain == pytest.approx((3 * 5000 - 8000) / 100_000)
    assert not run_tool(KernelFreq, slow, options={**options, "launch_cost": "2us"}).findings
    assert not run_tool(KernelFreq, slow, options={"tiny_launches": 4}).findings
    busy = timed(*durations, ("other", 29_000))  # the device is hardly idle
    assert not run_tool(KernelFreq, busy, options=options).findings
    graph = timed(*durations, flags=abi.FLAG_GRAPH)  # one launch for all of them
    assert not run_tool(KernelFreq, graph, options=options).findings


def test_first_launches_are_separated() -> None:
    """The first launch of a kernel may load its code, for milliseconds."""
    events = timed(("scale", 5_000_000), ("once", 300), *[("scale", 2000)] * 4)
    for splits in ([], range(1, len(events))):
        table = run_tool(KernelFreq, events, splits=splits).tables["kernels"]
        scale, once = table.rows()
        assert (scale["first_time"], scale["steady_time"]) == (5_000_000, 2000)
        assert (once["first_time"], once["steady_time"]) == (300, 300)


def test_synchronizing_after_every_launch_is_a_finding() -> None:
    events = Events(start_time=0, step=0)
    for number in range(101):
        events.launch("step", time=10_000 * number)
        events.add("sync", what=1, duration=7000, time=10_000 * number + 9000)
    (found,) = run_tool(KernelFreq, events).findings
    assert found.what == "the host waits after nearly every launch"
    assert found.gain == pytest.approx((1_000_000 - 707_000) / 1_000_000)
    for options in ({"waits_of": 102}, {"wait_share": 1.1}, {"tiny_share": 0.3}):
        assert not run_tool(KernelFreq, events, options=options).findings


def with_device(**fields: Any) -> Events:
    """Events of an H100 with 100 multiprocessors."""
    events = Events()
    events.device(architecture="sm_90", warp=32, **{"multiprocessors": 100, **fields})
    return events


FULL = {"registers": 32, "shared_static": 0, "shared_dynamic": 0, "block": (256, 1, 1)}


def test_occupancy_and_waves_are_weighted_by_launches() -> None:
    events = with_device()
    for _ in range(3):  # 8 blocks of a multiprocessor, all its warps: 800 blocks are a wave
        events.launch("k", grid=(800, 1, 1), **FULL)
    events.launch("k", grid=(900, 1, 1), **{**FULL, "registers": 64})  # 4 blocks: 2.25 waves
    events.launch("unknown", grid=(900, 1, 1), block=(256, 1, 1))
    result = run_tool(KernelFreq, events, splits=[3])
    kernel = rows(result)["k"]
    assert kernel["occupancy"] == (3 * 1 + 0.5) / 4
    assert kernel["waves"] == pytest.approx((3 * 1 + 2.25) / 4)
    assert kernel["tail"] == pytest.approx(0.75 / 4)
    assert kernel["limiter"] == "threads"
    for name in ("occupancy", "limiter", "waves", "tail"):
        assert rows(result)["unknown"][name] is None
    both = [row for row in result.tables["configurations"].rows() if row["kernel"] == "k"]
    assert [(row["occupancy"], row["limiter"], row["waves"]) for row in both] == [
        (1, "threads", 1),
        (0.5, "registers", 2.25),
    ]


def test_occupancy_is_absent_where_devices_differ_or_are_unknown() -> None:
    different = with_device()
    different.device(1, architecture="sm_80", warp=32, multiprocessors=100)
    for events in (Events(), different, with_device(multiprocessors=0)):
        events.launch("k", **FULL)
        result = run_tool(KernelFreq, events)
        assert rows(result)["k"]["occupancy"] is None
        assert result.tables["kernels"].hidden >= {"occupancy", "limiter", "waves", "tail"}


def test_kernels_and_configurations_are_ranked_by_device_time() -> None:
    events = Events()
    for name, grid, time in (("often", 1, 10), ("often", 1, 10), ("long", 1, 5), ("long", 2, 500)):
        events.complete(events.launch(name, grid=(grid, 1, 1)), 1000, 1000 + time)
    result = run_tool(KernelFreq, events, splits=[1])
    assert list(rows(result)) == ["long", "often"]
    found = result.tables["configurations"].rows()
    assert [(row["kernel"], row["grid"][0], row["total_time"]) for row in found] == [
        ("long", 2, 500),
        ("often", 1, 20),
        ("long", 1, 5),
    ]
