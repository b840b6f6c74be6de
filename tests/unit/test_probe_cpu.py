"""Probes on the CPU against a model without tables: every field and every kind of map."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from pasta.compiled import Compiled, building
from pasta.compiled.building import declared
from pasta.probes import (
    Bitmap,
    Counter,
    Histogram,
    PerPC,
    Shadow,
    TopK,
    Trace,
    cpu,
    maps_of,
    probe,
    tables,
)
from pasta.probes.kinds import DELTAS, FULL, KIND, ROWS, STRIDE, TIMED, VALUED
from pasta.probes.maps import accumulators_of
from pasta.probes.maps.bitmap import BitmapSpec
from pasta.probes.maps.shadow import ShadowSpec
from pasta.probes.maps.top_k import TopKSpec
from pasta.probes.records import ACCESS, Accesses
from pasta.processors.batch import ABSENT_U64
from pasta.processors.filter import Filter
from pasta.runtime.pipeline import Pipeline
from pasta.testing import Events, run_tool
from pasta.tool import Result, Tool, option
from tests.support.examples import examples
from tests.support.probe_model import Made, Model

ROUNDS = 3


@probe.function
def clamped(value: int, most: int) -> int:
    if value > most:
        return most
    return value


class Everything(Tool):
    """Uses every field and every kind of map."""

    bin = option(16, help="bytes per bin")
    step = option(3, help="of a loop")

    total = Counter(fields=("accesses", "bytes", "atomics", "at"))
    by_launch = Counter(by="launch")
    by_kernel = Counter(by=("kernel", "object"), fields=("reads", "writes"))
    both = Counter(by=("launch", "kernel"))
    objects = Counter(by=("object", "launch"))
    pairs = Counter(by=("launch", "pc", "object"), fields=("seen", "bytes"))
    pcs = Counter(by=("pc", 4), fields="seen")
    blocks = Counter(by=("launch", "block"), blocks=4)
    multiprocessors = Counter(by="sm")
    heat = Histogram(by="object", bin=bin)
    windows = Histogram(by=("launch", "object"), bin="64B", window=50)
    kernels = Histogram(by=("object", "kernel"), bin=100)
    metrics = PerPC("requests", "sectors", "ideal")
    lanes = PerPC(bins=8)
    banks = PerPC("ways", "ideal")
    touched = Bitmap(by="launch", granularity=4)
    of_objects = Bitmap(by=("object", "launch"), granularity=24)
    ever = Bitmap(by="object", granularity="32B")
    whole = Bitmap(by=(), granularity=1)
    top = TopK(5, capacity=4096)
    last = Shadow(granularity=16)
    followed = TopK(4096)
    times = TopK(4096)
    values = TopK(4096)
    some = Trace()
    warps = Trace()

    @probe.global_memory
    def every_lane(access: Any, maps: Any, options: Any) -> None:
        """Everything that is counted for each lane."""
        maps.total.add(accesses=1, bytes=access.bytes, atomics=access.is_atomic, at=access.lane)
        maps.by_kernel.add(access.object, reads=access.is_read, writes=access.is_write)
        maps.objects.add(access.object)
        maps.pairs.add(access.pc, access.object, seen=1, bytes=access.bytes)
        maps.heat.add(access.object, access.offset)
        maps.windows.add(access.object, access.offset, access.lane)
        maps.kernels.add(access.object, access.offset, amount=access.kind)
        maps.touched.touch(access)
        maps.of_objects.touch(access)
        maps.ever.touch(access)
        maps.whole.touch(access)
        maps.top.add(access.address // 64, 1 + access.leader)
        previous = maps.last.exchange(access.address, access.pc << 8 | access.lane + 1)
        if previous != 0:
            maps.followed.add(previous << 16 | access.epoch, 1 + access.is_write)
            again = maps.last.exchange(-access.address, previous)
            maps.followed.add(again)
        if access.known and access.lane & 1:
            maps.some.write(access)
        for i in range(options.step):
            if access.lane % options.step == i:
                maps.pcs.add(access.pc, i - 1 + access.is_write, seen=clamped(access.lane, 7))

    @probe.memory(per="warp")
    def every_warp(access: Any, maps: Any) -> None:
        maps.by_launch.add(access.warp)
        maps.both.add()
        maps.metrics.add(access.pc, requests=1, sectors=access.sectors, ideal=access.ideal_sectors)
        maps.lanes.add(access.pc, access.lanes // 4)
        if access.mask & 2:
            maps.warps.write(access)

    @probe.shared_memory(per="warp")
    def shared(access: Any, maps: Any) -> None:
        maps.banks.add(access.pc, ways=access.ways, ideal=access.ideal_ways)

    @probe.on("global", "async_copy")
    def valued(access: Any, maps: Any) -> None:
        if access.has_value:
            maps.values.add(access.value)
            maps.values.add(access.value_high ^ 5, 2)

    @probe.on("barrier", "block_enter", per="warp")
    def timed(access: Any, maps: Any) -> None:
        maps.times.add(access.time)

    @probe.on("barrier", "block_enter", "call")
    def others(access: Any, maps: Any) -> None:
        maps.blocks.add(access.block)
        maps.multiprocessors.add(access.sm, access.launch + 1)

    def start(self) -> None:
        self.given: list[tuple[str, Any, Any]] = []

    def on_accesses(self, accesses: Accesses) -> None:
        lanes, records, columns = accesses.lanes, accesses.records, accesses.columns
        objects = accesses.objects(lanes)
        self.given.append((accesses.map, records, (lanes, objects)))
        self.found = accesses.values
        assert len(self.found) == len(lanes)
        first = np.flatnonzero(np.diff(lanes["access"], prepend=-1))
        for name in set(ACCESS.names or ()) - {"address"}:
            assert columns[name].tolist() == records[name].tolist(), name
        assert columns["address"].tolist() == lanes["address"][first].tolist()
        assert columns["lanes"].tolist() == np.bincount(lanes["access"]).tolist()
        assert accesses.first_objects.tolist() == objects[first].tolist()

    def result(self) -> Result:
        return Result(summary="")


# ---- programs of events and accesses

SPACE = 1024
ADDRESS = st.integers(0, SPACE)
KINDS = [name for name in KIND if name != "block_exit"]


@st.composite
def addresses(draw: st.DrawFn, lanes: int, bytes: int) -> list[int]:
    how = draw(st.sampled_from(("linear", "random", "same", "far")))
    start = draw(ADDRESS)
    if how == "linear":
        stride = draw(st.sampled_from([bytes, 4, 1, 0, -bytes, 33, 128, -7]))
        start += 32 * abs(stride)
        return [start + stride * lane for lane in range(lanes)]
    if how == "same":
        return [start] * lanes
    found = [draw(ADDRESS) for _ in range(lanes)]
    return [each + (each % 3 << 40) for each in found] if how == "far" else found


@st.composite
def values_of(draw: st.DrawFn, lanes: int, bytes: int) -> list[int] | None:
    most = (1 << (8 * bytes)) - 1
    some = st.lists(st.sampled_from([0, 1, most, most // 3]), min_size=lanes, max_size=lanes)
    return draw(st.none() | some)


@st.composite
def access_of(draw: st.DrawFn, launches: int) -> Made:
    kind = draw(st.sampled_from(KINDS))
    has_memory = KIND[kind].space != "none"
    bytes = draw(st.sampled_from([1, 2, 4, 8, 16, 32, 100, 0])) if has_memory else 0
    mask = draw(st.sampled_from([0xFFFF_FFFF, 1, 0x8000_0000, 0xFFFF, 0xAAAA_5555, 0b1110]))
    rows, stride, form = 1, 0, None
    if kind.startswith(("bulk", "tensor")):
        mask = 1 << draw(st.integers(0, 31))
        rows, stride = draw(st.integers(1, 5)), draw(st.sampled_from([0, 8, 100, 300, -60]))
        form = ROWS
    count = bin(mask).count("1")
    flags = draw(st.sampled_from([1, 2, 7, 8])) if has_memory else 0
    found = draw(addresses(count, bytes)) if has_memory else []
    if form == ROWS:
        found = [found[0] + 300]
    elif found:
        form = draw(st.sampled_from([None, FULL]))
    return Made(
        kind=kind,
        launch=draw(st.integers(max(0, launches - 3), launches - 1)),
        mask=mask,
        addresses=found,
        bytes=bytes,
        flags=flags,
        pc=16 * draw(st.integers(0, 3)),
        block=draw(st.integers(0, 6)),
        warp=draw(st.integers(0, 2)),
        sm=draw(st.sampled_from([0, 7, 255])),
        rows=rows,
        stride=stride,
        form=form,
        time=draw(st.integers(0, 1 << 62)) if kind in TIMED else 0,
        values=draw(values_of(count, bytes)) if kind in VALUED and 0 < bytes <= 16 else None,
    )


@st.composite
def programs(draw: st.DrawFn) -> list[Any]:
    steps: list[Any] = []
    launches = 0
    live: list[tuple[str, int]] = []
    for _ in range(draw(st.integers(8, 40))):
        what = draw(st.sampled_from(["alloc", "free", "launch", "access", "access"]))
        if what == "alloc":
            layer = draw(st.sampled_from(("tensor", "memory", "virtual")))
            size = draw(st.sampled_from([1, 7, 64, 300, 700, ABSENT_U64]))
            step = ("alloc", layer, draw(ADDRESS), size)
            live.append(step[1:3])
            steps.append(step)
        elif what == "free" and live:
            steps.append(("free", *draw(st.sampled_from(live))))
        elif what == "launch" or not launches:
            steps.append(("launch", draw(st.sampled_from(["one", "two"]))))
            launches += 1
        else:
            steps.append(draw(access_of(launches)))
    return steps


def play(steps: list[Any], tool: Tool) -> tuple[Events, Model]:
    events, model = Events(), Model(tool)
    memory = {"memory": "device", "virtual": "virtual"}
    for step in steps:
        if isinstance(step, Made):
            fields = {
                name: value
                for name, value in vars(step).items()
                if name not in ("kind", "addresses", "flags")
            }
            add_access(events, step, fields)
            model.access(step)
        elif step[0] == "launch":
            events.launch(step[1])
            model.launch(step[1])
        elif step[1] == "tensor":
            {"alloc": events.tensor_alloc, "free": events.tensor_free}[step[0]](*step[2:])
        elif step[0] == "alloc":
            events.alloc(step[2], step[3], memory[step[1]])
        else:
            events.free(step[2], memory[step[1]])
        if not isinstance(step, Made) and step[0] in ("alloc", "free"):
            {"alloc": model.alloc, "free": model.free}[step[0]](*step[1:])
    return events, model


def add_access(events: Events, made: Made, fields: dict[str, Any]) -> None:
    read, write, atomic = made.flags & 1, made.flags & 2, made.flags & 4
    events.access(
        made.kind,
        made.addresses,
        read=bool(read),
        write=bool(write),
        atomic=bool(atomic),
        **fields,
    )


def rows_of(tool: Tool, name: str) -> dict[tuple[int, ...], tuple[int, ...]]:
    rows = accumulators_of(tool)[name].rows()
    spec = maps_of(tool)[name]
    fields = 2 if isinstance(spec, BitmapSpec) else len(spec.fields)
    found = {tuple(row[:-fields]): tuple(row[-fields:]) for row in map(tuple, rows.tolist())}
    assert len(found) == len(rows), f"{name}: rows of equal keys"
    return found


def check(tool: Tool, model: Model, events: Events) -> None:
    for name, expected in model.maps.items():
        spec = expected.spec
        if spec.hands_on:
            assert isinstance(tool, Everything)
            check_trace(tool, name, expected.written, model)
        elif isinstance(spec, ShadowSpec):
            assert accumulators_of(tool)[name].total() == 0
        elif isinstance(spec, TopKSpec):
            everything = {key[0]: count for (key, _), count in expected.sums.items()}
            best = sorted(everything.items(), key=lambda each: (-each[1], each[0]))
            assert accumulators_of(tool)[name].rows().tolist() == best[: spec.k]
            assert accumulators_of(tool)[name].total() == sum(everything.values())
        else:
            assert rows_of(tool, name) == expected.rows(events.string), name


def check_trace(tool: Everything, name: str, written: list[tuple[Made, int]], model: Model) -> None:
    given = [(records, lanes) for map_name, records, lanes in tool.given if map_name == name]
    records = [record for some, _ in given for record in some.tolist()]
    assert [(each[0], each[1], each[5], each[9 + 1]) for each in records] == [
        (mask, KIND[made.kind].number, made.bytes, made.pc) for made, mask in written
    ]
    found = [
        (int(lane["lane"]), int(lane["address"]), int(object))
        for _, (lanes, objects) in given
        for lane, object in zip(lanes, objects, strict=True)
    ]
    expected = []
    for made, mask in written:
        for lane, address in zip(made.lanes, made.addresses, strict=True):
            if mask >> lane & 1:
                thing = model.object_at(made.launch, address)
                known = thing is not None and KIND[made.kind].space == "global"
                expected.append((lane, address, thing.id if known and thing else -1))
    assert found == expected


EXAMPLES = examples(300, suppress_health_check=[HealthCheck.too_slow])


def run_and_check(steps: list[Any], splits: list[int]) -> None:
    tool = Everything({"step": ROUNDS})
    events, model = play(steps, tool)
    pipeline = Pipeline(Filter(), [tool], events.context())
    inside = [each for each in splits if each < len(events)]
    for batch, accesses in events.stretches(inside):
        pipeline.feed(batch)
        pipeline.feed_accesses(accesses)
    pipeline.finish()
    assert not pipeline.failures, pipeline.failures["everything"].traceback
    check(tool, model, events)


@pytest.mark.slow
@EXAMPLES
@given(programs(), st.lists(st.integers(1, 30), max_size=3, unique=True))
def test_probes_match_the_model(steps: list[Any], splits: list[int]) -> None:
    run_and_check(steps, splits)


@pytest.mark.slow
@pytest.mark.parametrize("delivered", [4, 1 << 20], ids=["delivering", "growing"])
def test_full_maps(monkeypatch: Any, delivered: int) -> None:
    """If a map becomes full within a record, nothing is lost or counted twice."""
    monkeypatch.setattr(tables, "_MIN_SLOTS", 2)
    monkeypatch.setattr(cpu, "_MAX_KEYS", delivered)

    @examples(60, suppress_health_check=[HealthCheck.too_slow])
    @given(programs())
    def run(steps: list[Any]) -> None:
        run_and_check(steps, [])

    run()


@pytest.mark.slow
@pytest.mark.parametrize("objects", [1, 2, 7, 8, 9, 100])
def test_lanes_scattered_over_many_objects(objects: int) -> None:
    """In every layer, and in gaps; with a few active lanes, and with all."""
    random = np.random.default_rng(objects)
    steps: list[Any] = []
    for layer, size in (("virtual", 300), ("memory", 100), ("tensor", 20)):
        steps += [("alloc", layer, 400 * i + size, size) for i in range(objects)]
    steps.append(("launch", "kernel"))
    for mask in (0xFFFF_FFFF, 0b1010_0110, 0x8000_0000):
        for form in (None, FULL):
            lanes = bin(mask).count("1")
            found = random.integers(0, 400 * objects + 800, lanes).tolist()
            steps.append(Made("global", launch=0, mask=mask, addresses=found, bytes=4, form=form))
    run_and_check(steps, [])


# ---- single cases


class Sums(Tool):
    """One counter and one bitmap."""

    count = Counter(by="launch")
    bytes = Bitmap(by=(), granularity=1)

    @probe.global_memory
    def each(access: Any, maps: Any) -> None:
        maps.count.add()
        maps.bytes.touch(access)

    def result(self) -> Result:
        return Result(summary=f"{self.count.total()} {self.bytes.total()}")


class Estimated(Tool):
    """A counter by launch, and its estimate for all launches."""

    count = Counter(by="launch")
    estimates = True

    @probe.global_memory
    def each(access: Any, maps: Any) -> None:
        maps.count.add()

    def result(self) -> Result:
        rows, (total,) = self.count.rows(), self.count.estimates().values()
        counts = rows["launch"].tolist(), rows["count"].tolist(), round(total.total)
        return Result(summary=" ".join(map(str, counts)))


@pytest.mark.slow
def test_filtered_launches_are_not_counted() -> None:
    events = Events()
    events.alloc(0, 4096)
    for name in ("wanted", "other", "wanted"):
        events.launch(name)
        events.access(addresses=range(0, 128, 4))
    assert run_tool(Sums, events, filter=Filter(kernel="wanted")).summary == "64 128"


@pytest.mark.slow
def test_accesses_are_buffered_until_their_launch_event() -> None:
    events = Events()
    events.alloc(0, 4096)
    for _ in range(3):
        events.launch("kernel")
        events.access(addresses=[0])
    tool = Sums()
    pipeline = Pipeline(Filter(), [tool], events.context())
    batches = list(events.batches([1, 2]))
    pipeline.feed_accesses(events.accesses(0, 2))
    pipeline.feed(batches[0])
    pipeline.feed_accesses(events.accesses(2, 3))
    for batch in batches[1:]:
        pipeline.feed(batch)
    pipeline.feed_accesses(events.accesses(3, 4))
    assert pipeline.finish()["sums"].summary == "3 4"
    probes = pipeline.probes
    assert probes is not None and probes.orphans == 0


@pytest.mark.slow
def test_launches_with_lost_accesses_are_not_probed() -> None:
    """The loss is known after part of launch 0 was read, and before the event of launch 2."""
    events = Events()
    for _ in range(5):
        events.launch("kernel")
        for _ in range(2):
            events.access(addresses=[0, 8])
    tool = Estimated()
    pipeline = Pipeline(Filter(), [tool], events.context())
    batches = list(events.batches([2]))
    pipeline.feed(batches[0])
    accesses = events.accesses()
    one = len(accesses) // 10
    pipeline.feed_accesses(accesses[:one])
    assert pipeline.probes is not None
    for _ in range(2):
        pipeline.probes.leave_out(np.array([0, 2], np.uint64))
    pipeline.feed_accesses(accesses[one : 6 * one])
    pipeline.feed(batches[1])
    pipeline.feed_accesses(accesses[6 * one :])
    summary = pipeline.finish()["estimated"].summary
    assert not pipeline.failures
    assert summary.startswith("[1, 3, 4] [4, 4, 4] 20; counted in 3 of 5 launches; ")
    why = "accesses of them were lost: the trace buffer stayed full"
    assert f"2 launches not counted because {why}" in summary


@pytest.mark.slow
def test_accesses_without_a_launch_event_are_reported() -> None:
    events = Events()
    events.launch("kernel")
    events.access(addresses=[0], launch=77)
    events.access(addresses=[0])
    tool = Sums()
    pipeline = Pipeline(Filter(), [tool], events.context())
    pipeline.feed(events.batch())
    pipeline.feed_accesses(events.accesses())
    left_out = "accesses of unseen launches are left out"
    assert pipeline.finish()["sums"].summary == f"1 0; {left_out}"
    assert pipeline.probes is not None
    assert pipeline.probes.orphans == 1


def test_truncated_record_is_an_error_and_others_count() -> None:
    events = Events()
    events.launch("kernel")
    events.access(addresses=[0, 8])
    events.access(addresses=[0, 8, 32, 40, 48])
    pipeline = Pipeline(Filter(), [Sums()], events.context())
    pipeline.feed(events.batch())
    for cut in (8, 72):
        with pytest.raises(ValueError, match="beyond the end"):
            pipeline.feed_accesses(events.accesses()[:-cut])
    assert pipeline.finish()["sums"].summary == "4 0"


@pytest.mark.slow
def test_addresses_up_to_the_end_of_the_address_space() -> None:
    top = (1 << 64) - 4096
    events = Events()
    events.launch("kernel")
    for form in (STRIDE, FULL):
        events.access(addresses=[top + 4 * lane for lane in range(32)], form=form)
    seen: list[Any] = []

    class Addresses(Tool):
        """Every address."""

        seen = TopK(100)

        @probe.global_memory
        def each(access: Any, maps: Any) -> None:
            maps.seen.add(access.address, access.sectors)

        def result(self) -> Result:
            seen.extend(self.seen.rows().tolist())
            return Result(summary="")

    run_tool(Addresses, events)
    assert seen == [(top + 4 * lane, 8) for lane in range(32)]


@pytest.mark.slow
def test_counts_exceed_32_bits() -> None:
    class Large(Tool):
        """64-bit sums, and a large object."""

        sums = Counter(by="object")
        heat = Histogram(by="object", bin="1GiB")

        @probe.global_memory
        def each(access: Any, maps: Any) -> None:
            maps.sums.add(access.object, access.bytes << 30)
            maps.heat.add(access.object, access.offset)

        def result(self) -> Result:
            return Result(summary=f"{self.sums.rows().tolist()} {self.heat.rows().tolist()}")

    events = Events()
    events.alloc(1 << 40, 80 << 30)
    events.launch("kernel")
    events.access(addresses=[(1 << 40) + (79 << 30) + 4 * lane for lane in range(32)])
    assert run_tool(Large, events).summary == f"[(0, {128 << 30})] [(0, 79, 32)]"


@pytest.mark.slow
def test_bitmaps_of_completed_launches_keep_only_sums(monkeypatch: Any) -> None:
    class Launches(Tool):
        """Unique bytes of launches."""

        bytes = Bitmap(by="launch", granularity=1)

        @probe.global_memory
        def each(access: Any, maps: Any) -> None:
            maps.bytes.touch(access)

        def result(self) -> Result:
            return Result(summary=str(self.bytes.rows().tolist()))

    monkeypatch.setattr("pasta.probes.maps.bitmap._MAX_WORDS", -1)
    events = Events()
    events.alloc(0, 4096)
    tool = Launches()
    pipeline = Pipeline(Filter(), [tool], events.context())
    for launch in range(3):
        events.launch("kernel")
        events.access(addresses=range(0, 4000, 128), bytes=4 * (launch + 1))
    for batch, accesses in events.stretches():
        pipeline.feed(batch)
        pipeline.feed_accesses(accesses)
    probes = pipeline.probes
    assert probes is not None
    probes.close(2)
    assert len(tool.bytes._sums) == 32  # words of launch 2
    assert pipeline.finish()["launches"].summary == str(
        [(launch, 128 * (launch + 1), 0) for launch in range(3)]
    )


@pytest.mark.slow
def test_full_top_k_counts_the_rest_as_other() -> None:
    class Few(Tool):
        """Two keys at most."""

        top = TopK(5, capacity=2)

        @probe.global_memory
        def each(access: Any, maps: Any) -> None:
            maps.top.add(access.lane, 1 + access.lane)

        def result(self) -> Result:
            return Result(summary=f"{self.top.rows().tolist()} {self.top.other}")

    events = Events()
    events.launch("kernel")
    for _ in range(2):
        events.access(addresses=[0, 4, 8, 12])
    assert run_tool(Few, events).summary == "[(1, 4), (0, 2)] 14; 14 of top did not fit"


def test_state_handover_keeps_buffered_accesses() -> None:
    events = Events()
    events.alloc(0, 4096)
    events.launch("kernel")
    events.access(addresses=[0, 4])
    events.access(addresses=[64], launch=1)
    events.launch("kernel")
    first, second = events.batches([2])
    pipeline = Pipeline(Filter(), [Sums()], events.context())
    pipeline.feed(first)
    pipeline.feed_accesses(events.accesses())
    again = Pipeline.restore(pipeline.state(), [Sums()], events.context())
    again.feed(second)
    assert again.finish()["sums"].summary == "3 12"


@pytest.mark.slow
def test_code_is_compiled_once_for_all_processes(tmp_path: Path) -> None:
    code = """
import sys
from pasta.testing import Events, run_tool
from tests.unit.test_probe_cpu import Sums
events = Events()
events.launch("kernel")
events.access(addresses=[0])
print(run_tool(Sums, events).summary, "numba" in sys.modules)
"""
    answers = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        )
        answers.append(done.stdout)
    assert answers == ["1 0 True\n", "1 0 False\n"]


def test_accumulators_survive_pickling() -> None:
    events = Events()
    events.launch("kernel")
    events.access(addresses=[0])
    tool = Sums()
    pipeline = Pipeline(Filter(), [tool], events.context())
    pipeline.feed(events.batch())
    pipeline.feed_accesses(events.accesses())
    pipeline.finish()
    assert pickle.loads(pickle.dumps(tool)).count.total() == 1


@pytest.mark.slow
def test_deltas_are_signed() -> None:
    events = Events()
    events.launch("kernel")
    events.access(addresses=[1 << 33, (1 << 33) - 5, (1 << 33) + 9], form=DELTAS)

    class Where(Tool):
        """Addresses in the order of lanes."""

        at = Trace()

        @probe.global_memory
        def each(access: Any, maps: Any) -> None:
            maps.at.write(access)

        def start(self) -> None:
            self.seen: list[int] = []

        def on_accesses(self, accesses: Accesses) -> None:
            self.seen.extend(accesses.lanes["address"].tolist())

        def result(self) -> Result:
            return Result(summary=str([each - (1 << 33) for each in self.seen]))

    assert run_tool(Where, events).summary == "[0, -5, 9]"


def test_record_layouts_match_the_header() -> None:
    from pasta._native import ffi, lib
    from pasta.probes.kinds import ATOMIC, KINDS, PREFETCH, READ, WRITE
    from pasta.probes.records import ACCESS

    fields = ffi.typeof("pasta_access").fields
    assert ACCESS.fields is not None
    assert {name: field.offset for name, field in fields} == {
        name: each[1] for name, each in ACCESS.fields.items()
    }
    assert {
        name: (ffi.sizeof(field.type), field.type.cname.startswith("int")) for name, field in fields
    } == {name: (each[0].itemsize, each[0].kind == "i") for name, each in ACCESS.fields.items()}
    assert ACCESS.itemsize == ffi.sizeof("pasta_access")
    assert {kind.name: kind.number for kind in KINDS} == {
        name: getattr(lib, f"PASTA_ACCESS_{name}") for name in KIND
    }
    assert len(KINDS) == lib.PASTA_ACCESS_count - 1
    assert [
        getattr(lib, f"PASTA_ACCESS_{name}") for name in ("READ", "WRITE", "ATOMIC", "PREFETCH")
    ] == [READ, WRITE, ATOMIC, PREFETCH]
    assert [
        getattr(lib, f"PASTA_FORM_{name}") for name in ("STRIDE", "DELTAS", "FULL", "ROWS")
    ] == [STRIDE, DELTAS, FULL, ROWS]
    assert np.dtype("u8").byteorder in ("=", "<")


@pytest.mark.slow
def test_missing_code_is_compiled_by_other_processes(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    loaded = [cpu.CpuExecutor([Sums()]).loop, *declared("pasta.probes.warp")]
    functions = [Compiled(each.function, each.parameters) for each in loaded]
    for function, each in zip(functions, loaded, strict=True):
        function.text = each.text
    assert building.build_missing(functions) == 3
    assert all(each.is_stored() for each in functions)
    assert building.build_missing(functions) == 0
