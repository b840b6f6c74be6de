"""The critical path against programs whose chain is known, and against a search from the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta.processors.critical_path import (
    BEFORE,
    DEFAULT,
    EVENT,
    EVENT_WAIT,
    HOST,
    HOSTS,
    LATENCY,
    NEXT,
    OF_DEVICE,
    OF_EVENT,
    OF_STREAM,
    RECORD,
    RETURN,
    SYNC,
    WAITED,
    WORK,
    WORKS,
    CriticalPath,
)

BEGIN = 1000
LIMIT = 50_000


@dataclass
class Program:
    """Work and operations of the host in the order of submission."""

    works: list[dict[str, Any]] = field(default_factory=list)
    hosts: list[dict[str, Any]] = field(default_factory=list)
    order: int = 0

    def work(self, submitted: int, start: int, end: int, **fields: Any) -> None:
        self.order += 1
        usual = {"stream": 1, "thread": 1, "what": len(self.works), "blocking": False, "device": 0}
        times = {"submitted": submitted, "start": start, "end": end, "order": self.order}
        self.works.append({**usual, **times, **fields})

    def host(self, kind: int, time: int, **fields: Any) -> None:
        self.order += 1
        usual = {"target": OF_DEVICE, "begin": 0, "thread": 1, "stream": 1, "device": 0, "event": 0}
        self.hosts.append({**usual, "kind": kind, "time": time, "order": self.order, **fields})

    def path(self, end: int, thread: int = 1, cuts: Any = ()) -> CriticalPath:
        """Followed, with sweeps up to the times `cuts`; work is known when it is over."""
        found = CriticalPath(BEGIN, LIMIT)
        hosts = np.zeros(len(self.hosts), HOSTS)
        works = np.zeros(len(self.works), WORKS)
        for rows, made in ((hosts, self.hosts), (works, self.works)):
            for at, each in enumerate(made):
                for name, value in each.items():
                    rows[name][at] = value
        added = BEGIN
        for cut in (*sorted(cuts), end + 1):
            now = (works["submitted"] >= added) & (works["submitted"] < cut)
            found.add(works[now], works["device"][now], works["what"][now])
            found.add_host(hosts[(hosts["time"] >= added) & (hosts["time"] < cut)])
            found.sweep(cut)
            added = cut
        return found

    def times(self, end: int, thread: int = 1, cuts: Any = ()) -> dict[int, int]:
        """Time by kind; works by WORK and their number."""
        rows = self.path(end, cuts=cuts).path(end, thread)
        assert int(rows["time"].sum()) == end - BEGIN
        return {int(row["what"]): int(row["time"]) for row in rows}


def test_the_host_submits_too_late() -> None:
    program = Program()
    program.work(3000, 3500, 5000)
    program.work(9000, 9600, 10_000)
    assert program.times(10_000) == {HOST: 8000, LATENCY: 600, WORK + 1: 400}
    # the run's end is the host's
    assert program.times(12_000) == {HOST: 11_000}


def test_work_waits_for_the_work_before_it() -> None:
    program = Program()
    program.work(1500, 2000, 5000)
    program.work(1600, 5100, 7000)
    program.work(1700, 70_000, 80_000)
    found = program.path(80_000)
    assert program.times(80_000) == {
        HOST: 500, LATENCY: 500, WORK: 3000, NEXT: 100, WORK + 1: 1900, WAITED: 63_000,
        WORK + 2: 10_000,
    }  # fmt: skip
    assert found.waits == {(0, 0, BEFORE, 0): [1, 3400], (0, 0, BEFORE, 1): [1, 5300]}


@pytest.mark.parametrize("target", [OF_STREAM, OF_DEVICE])
def test_the_host_waits_for_work(target: int) -> None:
    program = Program()
    program.work(1500, 2000, 5000)
    program.work(1600, 1700, 9000, stream=2)
    program.host(SYNC, 9700, begin=1700, stream=2, target=target)
    program.host(SYNC, 9900, begin=9800, target=target)  # for nothing
    program.work(10_000, 10_100, 11_000)
    assert program.times(11_000) == {
        HOST: 600 + 300, LATENCY: 100 + 100, WORK + 1: 7300, RETURN: 700, WORK + 2: 900,
    }  # fmt: skip


def test_a_wait_for_another_device_or_stream_is_none() -> None:
    program = Program()
    program.work(1500, 2000, 5000, device=1)
    program.work(1500, 2000, 5000, stream=3)
    program.host(SYNC, 5200, begin=1700, device=0, stream=4, target=OF_STREAM)
    program.work(6000, 6100, 7000)
    assert program.times(7000) == {HOST: 5000, LATENCY: 100, WORK + 2: 900}
    program.hosts[0].update(target=OF_DEVICE, device=-1)  # of any device
    assert program.times(7000)[RETURN] == 200


def test_a_blocking_copy_is_a_wait_unless_the_host_went_on() -> None:
    program = Program()
    program.work(2000, 2500, 6000, blocking=True)
    program.work(6500, 6600, 7000, stream=2)
    assert program.times(7000) == {
        HOST: 1000 + 500, LATENCY: 500 + 100, WORK: 3500, WORK + 1: 400,
    }  # fmt: skip
    program.works[1].update(submitted=5900)
    assert program.times(7000) == {HOST: 4900, LATENCY: 700, WORK + 1: 400}


def test_streams_wait_for_events() -> None:
    program = Program()
    program.work(1500, 2000, 5000)
    program.host(RECORD, 1600, event=9)
    program.work(1700, 5000, 8000)  # not what the event stands for
    program.host(EVENT_WAIT, 1800, event=9, stream=2)
    program.work(1900, 5200, 9000, stream=2)
    assert program.times(9000) == {
        HOST: 500, LATENCY: 500, WORK: 3000, NEXT: 200, WORK + 2: 3800
    }  # fmt: skip
    assert program.path(9000).waits[1, 0, EVENT, 0] == [1, 5000 - 1900]
    # the host waits for the event that a later record moved
    program.host(RECORD, 1950, event=9)
    program.host(SYNC, 8500, begin=2000, event=9, target=OF_EVENT)
    program.work(8600, 8700, 9500, stream=3)
    assert program.times(9500)[WORK + 1] == 3000
    assert program.times(9500)[RETURN] == 500


def test_streams_wait_for_the_default_stream_and_it_for_them() -> None:
    program = Program()
    program.work(1500, 2000, 5000, stream=7)
    program.work(1600, 5100, 8000, stream=0)
    program.work(1700, 8100, 9000, stream=8)
    assert program.times(9000) == {
        HOST: 500, LATENCY: 500, WORK: 3000, NEXT: 200, WORK + 1: 2900, WORK + 2: 900,
    }  # fmt: skip
    assert program.path(9000).waits == {
        (1, 0, DEFAULT, 0): [1, 3400],
        (2, 1, DEFAULT, 1): [1, 6300],
    }
    program.works[1]["start"] = 4000  # they overlapped: they do not wait for each other
    program.works[2]["start"] = 7000
    assert program.path(9000).waits == {}


@pytest.mark.parametrize(("start", "waits"), [(4000, False), (5000, True)])
def test_a_stream_that_overlapped_with_the_default_stream_never_waits_for_it(
    start: int, waits: bool
) -> None:
    program = Program()
    program.work(1500, 2000, 5000, stream=0)
    program.work(1600, start, 5500, stream=8)
    program.work(1700, 5600, 8000, stream=0)
    program.work(1800, 8100, 9000, stream=8)  # after it, perhaps by chance
    assert ((1, 0, DEFAULT, 2) in program.path(9000).waits) == waits


def test_a_thread_goes_on_where_another_one_waited() -> None:
    program = Program()
    program.work(1500, 2000, 5000)
    program.host(SYNC, 5500, begin=1600)
    program.work(6000, 6100, 9000, thread=2)
    assert program.times(9000) == {
        HOST: 500 + 500, LATENCY: 500 + 100, WORK: 3000, RETURN: 500, WORK + 1: 2900,
    }  # fmt: skip
    program.works[1]["submitted"] = 5400  # it worked while the other one waited
    assert program.times(9000)[HOST] == 4400


def test_overlap_of_streams() -> None:
    program = Program()
    program.work(1500, 2000, 5000)
    program.work(1500, 4000, 6000, stream=2)
    program.work(1500, 5500, 7000, stream=3)
    program.work(1500, 7000, 8000)
    found = program.path(8000)
    assert found.overlap(0) == 1000 + 500
    assert [time for _, _, time in found.streams()] == [4000, 2000, 1500]
    assert found.overlap(5) == 0


def test_memory_does_not_grow_with_the_run() -> None:
    """Neither of chains of work, nor of a host that is behind."""
    for late in (0, 2000):
        found = CriticalPath(BEGIN, LIMIT)
        sizes = []
        for batch in range(6):
            works = np.zeros(1000, WORKS)
            number = 1000 * batch + np.arange(1000)
            works["submitted"] = BEGIN + 1000 * number
            works["start"], works["order"] = BEGIN + 1000 * number + 100 + late, number
            works["end"] = works["start"] + 1000 - late // 4
            works["stream"], works["thread"] = number % 3, 1 + number % 2
            found.add(works, np.zeros(1000, np.int64), number % 7)
            found.sweep(int(works["submitted"][-1]))
            sizes.append((len(found._nodes), len(found._sums), len(found._works)))
        assert len(found._nodes) < 100 and len(found._sums) < 1000
        assert all(last <= 2 * first for first, last in zip(sizes[0], sizes[-1], strict=True))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["work", "work", "work", "copy", "record", "wait", "sync", "event"]),
        st.integers(1, 3),  # stream
        st.integers(0, 1),  # event
        st.integers(1, 10**6),  # of the host, before it
        st.integers(1, 10**6),  # work
        st.integers(1, 1000),  # latency
    ),
    max_size=40,
)


@dataclass
class Played:
    """What a machine with streams and events does with steps, and the chain to its end."""

    program: Program = field(default_factory=Program)
    now: int = BEGIN
    times: dict[int, int] = field(default_factory=dict)

    def play(self, steps: list[Any]) -> int:
        last: dict[int, int] = {}  # work by stream
        recorded: dict[int, int | None] = {}
        waiting: dict[int, list[int]] = {}
        #: Of each work: what bound its start (None: the host), and the chain of the host then.
        self.bound: list[tuple[int | None, int]] = []
        chain: list[tuple[int, int | None]] = [(BEGIN, None)]  # waits of the host
        works = self.program.works
        for what, stream, event, host, time, latency in steps:
            self.now += host
            if what in ("work", "copy"):
                before = [*waiting.pop(stream, []), *([last[stream]] if stream in last else [])]
                self.bound.append((None, len(chain) - 1))
                start = self.now + latency
                for each in before:
                    if works[each]["end"] > self.now:
                        start = max(start, works[each]["end"])
                latest = max(before, key=lambda each: works[each]["end"], default=None)
                if latest is not None and works[latest]["end"] > self.now:
                    self.bound[-1] = (latest, 0)
                self.program.work(
                    self.now, start, start + time, stream=stream, blocking=what == "copy"
                )
                last[stream] = len(works) - 1
                if what == "copy":
                    self.now = start + time
                    chain.append((self.now, len(works) - 1))
            elif what == "record":
                self.program.host(RECORD, self.now, stream=stream, event=event)
                recorded[event] = last.get(stream)
            elif what == "wait":
                self.program.host(EVENT_WAIT, self.now, stream=stream, event=event)
                waited = recorded.get(event)
                if waited is not None and len(waiting.get(stream, [])) < 4:
                    waiting.setdefault(stream, []).append(waited)
            else:
                begin = self.now
                waited = last.get(stream) if what == "sync" else recorded.get(event)
                if waited is not None and works[waited]["end"] > begin:
                    self.now = works[waited]["end"] + latency
                    chain.append((self.now, waited))
                target = OF_STREAM if what == "sync" else OF_EVENT
                self.program.host(
                    SYNC, self.now, begin=begin, stream=stream, event=event, target=target
                )
        end = max([self.now, *(work["end"] for work in works)])
        self._search(end, chain)
        return end

    def _search(self, end: int, chain: list[tuple[int, int | None]]) -> None:
        """Follows the chain back from the end."""

        def add(what: int, time: int) -> None:
            if time:
                self.times[what] = self.times.get(what, 0) + time

        works = self.program.works
        work = next((n for n, each in enumerate(works) if each["end"] == end), None)
        now, wait = end, len(chain) - 1
        while True:
            if work is None:
                since, work = chain[wait]
                add(HOST, now - since)
                if work is None:
                    return
                add(RETURN, since - works[work]["end"])
            add(WORK + works[work]["what"], works[work]["end"] - works[work]["start"])
            before, wait = self.bound[work]
            if before is None:
                now = works[work]["submitted"]
                add(LATENCY, works[work]["start"] - now)
            else:
                add(NEXT, works[work]["start"] - works[before]["end"])
            work = before


@given(STEPS, st.sets(st.integers(BEGIN, 4 * 10**7), max_size=6))
def test_the_chain_is_that_of_a_search_from_the_end(steps: list[Any], cuts: set[int]) -> None:
    played = Played()
    end = played.play(steps)
    times = sorted(each["end"] for each in played.program.works)
    if len(set(times)) < len(times):
        return  # equal ends: several chains are right
    assert played.program.times(end) == played.times
    assert played.program.times(end, cuts=cuts) == played.times
