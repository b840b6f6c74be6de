"""Programs with one planted fault each: it is the first finding."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta import abi
from pasta.plugins import load_tools
from pasta.processors.filter import Filter
from pasta.runtime.pipeline import Pipeline
from pasta.testing import Events, run_tools
from pasta.tool import Finding
from tests.support.examples import examples

US, MS = 1_000, 1_000_000
BEGIN = 1 * MS
#: Eight blocks of a multiprocessor at full occupancy.
FULL = {"block": (256, 1, 1), "registers": 32, "shared_static": 0, "shared_dynamic": 0}
PROGRAM = ("/my/train.py", "step", 31)
LOADER = ("/site-packages/torch/utils/data/dataloader.py", "__next__", 5)


class Run(Events):
    """A run on one H100, whose events are sorted by time when it has `ended`."""

    def __init__(self) -> None:
        super().__init__(start_time=BEGIN, step=0)
        self.later: list[tuple[int, str, dict[str, Any]]] = []
        self.add("process_start", executable="/bin/program", command="program", time=BEGIN)
        self.device(architecture="sm_90", multiprocessors=132, warp=32, time=BEGIN)
        self.copies = 0

    def add(self, kind: str, **fields: Any) -> None:
        self.later.append((fields.setdefault("time", BEGIN), kind, fields))

    def kernel(self, submitted: int, start: int, time: int, name: str = "k", **fields: Any) -> int:
        """A kernel; returns when it ends."""
        ordinal = self.launch(name, time=submitted, **{"grid": (132 * 8, 1, 1), **FULL, **fields})
        end, stream = start + time, fields.get("stream", 0)
        self.complete(ordinal, start, end, time=end, stream=stream)
        return end

    def moved(
        self, submitted: int, start: int, time: int, *, source: int, bytes: int = 4 << 20,
        **fields: Any,
    ) -> int:  # fmt: skip
        """A copy to the device; returns when it ends."""
        self.copies += 1
        self.copy(
            "host_to_device", source, 1 << 40, bytes, time=submitted, device=0,
            correlation=self.copies, **fields,
        )  # fmt: skip
        end, stream = start + time, fields.get("stream", 0)
        self.copy_complete(self.copies, start, end, bytes=bytes, time=end, stream=stream)
        return end

    def ended(self, time: int) -> Run:
        self.add("process_end", last_launch=0, time=time)
        for _, kind, fields in sorted(self.later, key=itemgetter(0)):
            super().add(kind, **fields)
        return self


def host_bound() -> Run:
    """A kernel of 20 us every 100 us."""
    run, now = Run(), BEGIN
    for _ in range(300):
        run.kernel(now, now + 5 * US, 20 * US)
        now += 100 * US
    return run.ended(now)


def sync_in_a_loop() -> Run:
    """The host waits for each kernel, and then takes 60 us to submit the next one."""
    run, now = Run(), BEGIN
    for _ in range(300):
        end = run.kernel(now, now + 5 * US, 100 * US)
        run.add("sync", what=3, duration=end - now - 5 * US, time=end + 2 * US)
        now = end + 60 * US
    return run.ended(now)


def pageable_copies() -> Run:
    """Copies of 400 us for which the host waits, and kernels of 300 us."""
    run, now, free = Run(), BEGIN, BEGIN
    run.alloc(1 << 40, 64 << 20, time=BEGIN)
    for _ in range(100):
        free = run.moved(now, max(free, now + 5 * US), 400 * US, source=1 << 30)
        now = free + 2 * US
        free = run.kernel(now, now + 5 * US, 300 * US)
        now += 10 * US
    return run.ended(free)


def slow_loader() -> Run:
    """1 ms of a kernel, 3 ms of waiting for data."""
    run, now = Run(), BEGIN
    run.frames(1, PROGRAM)
    run.frames(2, LOADER, PROGRAM)
    for step in range(20):
        run.operator("aten::to", stack=2 if step else 1, time=now)
        run.kernel(now, now, MS)
        run.operator_end(time=now + US)
        now += 4 * MS
    return run.ended(now)


def tiny_kernels() -> Run:
    """2 us of a kernel every 8 us."""
    run, now = Run(), BEGIN
    for _ in range(2500):
        run.kernel(now, now + 3 * US, 2 * US, "tiny")
        now += 8 * US
    return run.ended(now)


def tail_wave() -> Run:
    """Of 1.25 waves, three quarters of the second one are idle; the device is always busy."""
    run, now = Run(), BEGIN
    for number in range(100):
        now = run.kernel(BEGIN + number * US, now, MS, "tail", grid=(1320, 1, 1))
    return run.ended(now)


def serialised_streams() -> Run:
    """Two streams that take turns, as each of their kernels is followed by one in the default
    stream."""
    run, now = Run(), BEGIN + 500 * US
    for number in range(50):
        for stream in (7, 8):
            at = BEGIN + number * 4 * US
            now = run.kernel(at, now, MS, f"of_{stream}", stream=stream)
            now = run.kernel(at + US, now, 6 * US, "small", stream=0)
    return run.ended(now)


def communication_alone() -> Run:
    """Kernels of 1 ms and the sums of their gradients of 0.8 ms, one after the other."""
    run, now = Run(), BEGIN + 500 * US
    for number in range(50):
        at = BEGIN + number * 9 * US
        now = run.kernel(at, now, MS, "gemm", stream=7)
        run.add("event_record", handle=1, stream=7, device=0, time=at + US)
        run.add("event_wait", handle=1, stream=8, device=0, time=at + 2 * US)
        now = run.kernel(at + 3 * US, now, 800 * US, "ncclDevKernel_AllReduce", stream=8)
        run.add("event_record", handle=2, stream=8, device=0, time=at + 4 * US)
        run.add("event_wait", handle=2, stream=7, device=0, time=at + 5 * US)
    return run.ended(now)


def copies_alone() -> Run:
    """Copies from pinned memory that the kernels wait for, each in its turn."""
    run, now = Run(), BEGIN + 500 * US
    run.alloc(1 << 30, 64 << 20, "pinned", time=BEGIN)
    run.alloc(1 << 40, 64 << 20, time=BEGIN)
    for number in range(50):
        at = BEGIN + number * 9 * US
        now = run.moved(
            at, now, 700 * US, source=(1 << 30) + number, stream=8, flags=abi.FLAG_ASYNC
        )
        run.add("event_record", handle=1, stream=8, device=0, time=at + US)
        run.add("event_wait", handle=1, stream=7, device=0, time=at + 2 * US)
        now = run.kernel(at + 3 * US, now, MS, "gemm", stream=7)
        run.add("event_record", handle=2, stream=7, device=0, time=at + 4 * US)
        run.add("event_wait", handle=2, stream=8, device=0, time=at + 5 * US)
    return run.ended(now)


def balanced_and_busy() -> Run:
    """Full waves one after the other, with copies and communication beside them; the host waits
    once in ten steps, and 10 us of a step are idle."""
    run, free = Run(), BEGIN + 500 * US
    run.alloc(1 << 30, 64 << 20, "pinned", time=BEGIN)
    run.alloc(1 << 40, 64 << 20, time=BEGIN)
    for number in range(100):
        at = BEGIN + 50 * US * number if number < 10 else free - 9 * MS
        begin = free + 10 * US
        free = run.kernel(at, begin, MS, "gemm", stream=7)
        run.kernel(at + US, begin + 100 * US, 600 * US, "ncclDevKernel_AllReduce", stream=8)
        run.moved(
            at + 2 * US, begin + 200 * US, 500 * US, source=(1 << 30) + number, stream=9,
            flags=abi.FLAG_ASYNC,
        )  # fmt: skip
        if number % 10 == 9:
            run.add("sync", what=3, duration=MS, time=at + 2 * MS)
    return run.ended(free)


def findings(run: Run, *tools: str) -> list[Finding]:
    """Findings of tools in the order of reports."""
    results = run_tools(load_tools(["utilization", *tools]), run)
    found = [finding for result in results.values() for finding in result.findings]
    return sorted(found, key=lambda each: -each.rank)


@pytest.mark.parametrize(
    ("program", "tools", "first", "gain"),
    [
        (host_bound, (), "the device waits for the host to submit work", 75 / 100),
        (sync_in_a_loop, (), "the device is idle while the host waits for it", 60 / 165),
        (
            pageable_copies,
            ("copies",),
            "copies between pageable host memory and devices",
            400 / 712,
        ),
        (slow_loader, (), "the device is idle while data loads", 3 / 4),
        (tiny_kernels, (), "the device waits for launches of tiny kernels", 6 / 8),
        (
            tail_wave,
            (),
            "the last wave of blocks leaves much of the device idle",
            0.75 / 2,
        ),
        (serialised_streams, (), "streams wait for each other and never overlap", 1 / 2),
        (communication_alone, (), "communication does not overlap with kernels", 0.8 / 1.8),
        (copies_alone, ("copies",), "copies do not overlap with kernels", 0.7 / 1.7),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_planted_fault_is_the_first_finding(
    program: Callable[[], Run], tools: tuple[str, ...], first: str, gain: float
) -> None:
    found = findings(program(), *tools)
    assert found[0].what == first
    assert found[0].gain == pytest.approx(gain, rel=0.05)


def test_a_balanced_and_busy_program_has_no_finding() -> None:
    assert findings(balanced_and_busy(), "copies", "operators") == []
    (low,) = findings(balanced_and_busy(), "kernel_freq")  # the kernel to look into
    assert (low.gain, low.confidence) == (None, "low")


def test_findings_are_in_the_order_of_what_they_may_gain() -> None:
    """Tiny kernels, and twice as long a wait."""
    run = Run()
    now = BEGIN
    for _ in range(2500):
        run.kernel(now, now + 3 * US, 2 * US, "tiny")
        now += 8 * US
    for _ in range(100):
        end = run.kernel(now, now, 400 * US)
        run.add("sync", what=3, duration=end - now, time=end)
        now = end + 300 * US
    (result,) = run_tools(load_tools(["utilization"]), run.ended(now)).values()
    assert [each.what for each in result.findings] == [
        "the device is idle while the host waits for it",
        "the device waits for launches of tiny kernels",
    ]


@pytest.mark.parametrize(
    "program", [pageable_copies, slow_loader, communication_alone, serialised_streams, tail_wave]
)
@examples(10)
@given(
    splits=st.lists(st.integers(0, 700), max_size=6), moves=st.sets(st.integers(0, 6), max_size=3)
)
def test_results_are_independent_of_batches_and_processes(
    program: Callable[[], Run], splits: list[int], moves: set[int]
) -> None:
    run = program()
    (whole,) = run_tools(load_tools(["utilization"]), run).values()
    pipeline = Pipeline(Filter(), load_tools(["utilization"]), run.context())
    for number, batch in enumerate(run.batches(at for at in splits if at < len(run))):
        pipeline.feed(batch)
        if number in moves:
            state = pipeline.state()
            pipeline = Pipeline.restore(state, load_tools(["utilization"]), run.context())
    (result,) = pipeline.finish().values()
    assert not pipeline.failures
    for name, table in whole.tables.items():
        assert list(result.tables[name].rows()) == list(table.rows()), name
    assert result.findings == whole.findings
