"""Bytes, bandwidth, overlap and arrival of collectives, where arithmetic gives them."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta.plugins import find_tools
from pasta.processors.arrivals import OF_ALL, Arrivals, Thresholds, arrival
from pasta.processors.filter import Filter
from pasta.run.merge import merge
from pasta.run.results import read_findings, read_results, write_result
from pasta.run.root import Root
from pasta.runtime.pipeline import Pipeline
from pasta.testing import Events, run_tool
from pasta.tool import Result
from tests.support.examples import examples
from tests.support.runs import made_up

(Collectives,) = find_tools("collectives")

US, MS = 1_000, 1_000_000
BEGIN = 1 * MS
MIB = 1 << 20
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


class Job(Events):
    """One process with the ranks of a communicator, each on a device of its own."""

    def __init__(self, size: int = 4, ranks: int = 1, first: int = 0) -> None:
        super().__init__(start_time=BEGIN, step=0)
        self.later: list[tuple[int, str, dict[str, Any]]] = []
        self.add("process_start", executable="/bin/program", command="program", time=BEGIN)
        for rank in range(ranks):
            self.communicator(1 + rank, 0xABC, first + rank, size, device=rank, time=BEGIN)
        self.ended = BEGIN

    def add(self, kind: str, **fields: Any) -> None:
        self.later.append((fields.setdefault("time", BEGIN), kind, fields))

    def finished(self) -> Job:
        """With all events, in the order of their times."""
        self.add("process_end", last_launch=0, time=self.ended)
        for _, kind, fields in sorted(self.later, key=itemgetter(0)):
            super().add(kind, **fields)
        return self

    def kernel(self, name: str, start: int, time: int, device: int = 0, stream: int = 0) -> int:
        """A kernel that starts and takes so long, ns since the begin."""
        begin, end = BEGIN + start, BEGIN + start + time
        ordinal = self.launch(name, time=begin - 1, device=device, stream=stream)
        self.complete(ordinal, begin, end, time=end, device=device, stream=stream)
        self.ended = max(self.ended, end)
        return ordinal

    def call(
        self, operation: str, count: int, start: int, time: int, rank: int = 0, **fields: Any
    ) -> None:
        """A call whose kernel starts and takes so long."""
        ordinal = self.kernel(ALL_REDUCE, start, time, rank, 7)
        began = BEGIN + start - 2
        self.collective(
            operation, 1 + rank, count, device=rank, launch=ordinal, launches=1, stream=7,
            **{"time": began, **fields},
        )  # fmt: skip

    def result(self, **how: Any) -> Result:
        return run_tool(Collectives, self.finished(), **how)


def rows(result: Result, name: str = "collectives") -> list[dict[str, Any]]:
    return list(result.tables[name].rows())


@pytest.mark.parametrize(
    ("operation", "ranks_of_bytes", "factor"),
    [
        ("all_reduce", 1, 2 * 3 / 4),
        ("reduce", 1, 1),
        ("broadcast", 1, 1),
        ("all_gather", 4, 3 / 4),
        ("reduce_scatter", 4, 3 / 4),
        ("all_to_all", 4, 3 / 4),
        ("gather", 4, 3 / 4),
        ("scatter", 4, 3 / 4),
        ("send", 1, 1),
        ("recv", 1, 1),
    ],
)
def test_bandwidth_of_operations(operation: str, ranks_of_bytes: int, factor: float) -> None:
    """One MiB of each rank, in 100 us."""
    job = Job()
    job.call(operation, MIB // 4, 0, 100 * US, order=0, peer=1)
    (row,) = rows(job.result(options={"link_bandwidth": 100}))
    bytes = ranks_of_bytes * MIB
    assert (row["calls"], row["bytes"], row["time"], row["size"]) == (1, bytes, 100 * US, bytes)
    assert row["algorithm"] == pytest.approx(bytes / (100 * US))
    assert row["bus"] == pytest.approx(bytes / (100 * US) * factor)
    assert row["link"] == pytest.approx(row["bus"] / 100)


def test_time_in_which_nothing_else_ran() -> None:
    job = Job()
    job.call("all_reduce", 1000, 0, 100 * US, order=0)
    job.kernel("gemm", 20 * US, 30 * US)
    job.kernel("gemm", 90 * US, 30 * US)
    job.copy("host_to_device", 1, 2, 4096, correlation=9, time=BEGIN, device=0)
    job.copy_complete(9, BEGIN + 55 * US, BEGIN + 60 * US, "host_to_device", time=BEGIN + 60 * US)
    result = job.result()
    (row,) = rows(result)
    assert (row["time"], row["alone"]) == (100 * US, (100 - 30 - 10 - 5) * US)
    hidden = result.figures["hidden"].series
    assert (hidden["nothing else ran"], hidden["overlapped with other work"]) == (
        [55 * US],
        [45 * US],
    )


def test_groups() -> None:
    """Calls of a group on one communicator are one kernel; a group on two has one for each."""
    job = Job(size=2, ranks=2)
    one = job.kernel("ncclDevKernel_SendRecv", 0, 10 * US, device=0, stream=5)
    job.kernel("ncclDevKernel_SendRecv", 0, 20 * US, device=1, stream=6)
    for rank, stream in ((0, 5), (1, 6)):
        other = 1 - rank
        fields = {"group": 3, "order": 0, "device": rank, "stream": stream, "time": BEGIN}
        job.collective("send", 1 + rank, 250, peer=other, **fields)
        job.collective("recv", 1 + rank, 100 + 150 * rank, peer=other, **fields)
    job.add("collective", operation=1, count=4, group=3, launch=one, launches=2, result=0, type=0)
    result = job.result()
    (row,) = rows(result)
    assert (row["operation"], row["calls"], row["bytes"]) == ("exchange", 4, 2 * 1000)
    assert row["time"] == 30 * US
    assert [call["end"] for call in rows(result, "calls")] == [10 * US] * 2 + [20 * US] * 2
    (row,) = rows(result, "arrivals")
    assert (row["operation"], row["joined"], row["skew"]) == ("send and recv", 2, 0)
    (row,) = rows(result, "mismatches")
    assert (row["differs"], row["one"], row["other"]) == (
        "size", "rank 0: recv of 400 B", "rank 1: send of 1,000 B",
    )  # fmt: skip


def test_kernels_whose_calls_were_not_seen() -> None:
    job = Job()
    job.kernel("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", 0, 5 * US)
    job.kernel("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", 9 * US, 6 * US)
    job.collective("all_reduce", 1, 8, order=0, time=BEGIN)  # captured: no launch in the call
    job.collective("all_reduce", 9, 8, order=0, time=BEGIN, result=5)
    result = job.result()
    (row,) = rows(result, "kernels")
    assert (row["operation"], row["launches"], row["time"]) == ("reduce_scatter", 2, 11 * US)
    (row,) = rows(result)
    assert (row["bytes"], row["time"], row["bus"]) == (32, None, None)
    assert result.notes == [
        "1 call failed, and left out",
        "1 operation without a recorded kernel: captured into a graph, or launched by a thread of"
        " the library",
    ]


def test_operators_of_the_framework() -> None:
    job = Job()
    job.frames(7, ("/my/train.py", "step", 31))
    job.operator("c10d::allreduce_", stack=7, time=BEGIN)
    job.call("all_reduce", 1000, 10 * US, 100 * US, order=0)
    job.operator_end(time=BEGIN + 200 * US)
    result = job.result()
    (row,) = rows(result, "operators")
    assert (row["operator"], row["operation"], row["bytes"]) == (
        "c10d::allreduce_", "all_reduce", 4000,
    )  # fmt: skip
    assert row["line"].startswith("train.py:31")
    (row,) = rows(result, "framework")
    assert (row["operator"], row["calls"], row["host_time"]) == ("c10d::allreduce_", 1, 200 * US)


# ---- findings ----


def late_rank(late: int = 3, ranks: int = 4, first: int = 0, steps: int = 20) -> Job:
    """Each step has an all-reduce every 10 ms, for which one rank comes 3 ms late."""
    job = Job(4, ranks, first)
    for step in range(steps):
        for rank in range(ranks):
            begin = 10 * MS * step + 5 * MS
            delay = 3 * MS * (first + rank == late)
            # it ends for all when the last one has come
            job.call("all_reduce", 4 * MIB, begin + delay, 4 * MS - delay, rank, order=step)
    return job


def test_planted_late_rank() -> None:
    result = late_rank().result()
    found = result.findings[0]
    assert (found.what, found.where) == (
        "other ranks wait for a late rank", "rank 3",
    )  # fmt: skip
    assert "rank 3 is last in 100.0 % of 20 operations all_reduce" in found.evidence
    assert "waits 3.00 ms for it each time, 60.00 ms in total" in found.evidence
    assert found.gain == pytest.approx(60 / 194)
    (row,) = rows(result, "arrivals")
    assert (row["joined"], row["skew"], row["longest_skew"]) == (20, 3 * MS, 3 * MS)
    assert row["waits"] == 3 * 20 * 3 * MS
    assert (row["transfer"], row["algorithm"]) == (1 * MS, pytest.approx(16 * MIB / (1 * MS)))
    members = {row["member"]: row for row in rows(result, "members")}
    assert (members["rank 3"]["last"], members["rank 3"]["caused"]) == (20, 180 * MS)
    assert (members["rank 0"]["last"], members["rank 0"]["waited"]) == (0, 60 * MS)
    (row,) = rows(result)
    assert row["communicator"] == "#1, 4 ranks", "the ranks of one communicator are one"


def test_even_ranks_give_no_finding() -> None:
    assert late_rank(late=9).result().findings == []


def test_planted_late_rank_of_merged_runs(tmp_path: Path) -> None:
    """Four processes, each with its own clock's origin, of which rank 2 is late."""
    root = tmp_path / "job"
    for rank in range(4):
        path = made_up(root, rank, of=4, start=BEGIN, observed_ns=200 * MS)
        job = late_rank(late=2, ranks=1, first=rank)
        write_result(path / "results", "collectives", job.result(), title="Collectives")
    out = tmp_path / "merged"
    merge(Root.open(root), out, finish=lambda run: None)
    (result,) = (each for each in read_results(out / "results") if each.name == "arrivals")
    (row,) = result.tables["arrivals"].rows()
    assert (row["operation"], row["communicator"], row["joined"]) == ("all_reduce", "ranks 0-3", 20)
    assert (row["skew"], row["last"], row["last_share"]) == (3 * MS, "rank 2", 1.0)
    found = [finding for tool, finding in read_findings(out / "results") if tool == "arrivals"]
    assert [each.where for each in found] == ["rank 2"]
    assert found[0].gain == pytest.approx(60 / 194), "the start-up of the ranks does not count"


def test_many_small_collectives() -> None:
    """Each takes 164 us, four could carry as much; those beside other work cost nothing."""
    job = Job()
    for at in range(200):
        job.call("all_reduce", 4096, at * MS, 164 * US, order=at)
    job.kernel("gemm", 199 * MS, 164 * US)  # hides the last one
    job.call("all_reduce", 25_000_000, 200 * MS, 10 * MS, order=200)
    (found,) = job.result().findings
    saved = (200 - 4) * 164 * US * 199 / 200
    assert (found.what, found.where) == ("many small collectives", "all_reduce of #1, 4 ranks")
    assert found.gain == pytest.approx(saved / (210 * MS))
    assert "200 all_reduces of at most 16.00 KiB" in found.evidence


def test_little_of_the_links_bandwidth() -> None:
    job = Job()
    job.call("all_reduce", 25_000_000, 0, 20 * MS, order=0)  # 5 GB/s, 7.5 on the bus
    (found,) = job.result(options={"link_bandwidth": 25}).findings
    assert found.what == "collectives use little of the links' bandwidth"
    assert found.gain == pytest.approx(1 - 7.5 / 25)


@pytest.mark.parametrize(("given", "expected"), [(0, 450), (100, 100)])
def test_bandwidth_of_links_that_the_driver_tells(given: float, expected: float) -> None:
    """That of the slowest device with a communicator; the option goes first."""
    job = Job()
    job.call("all_reduce", 25_000_000, 0, 20 * MS, order=0)
    for device, bandwidth in ((0, 450_000), (5, 63_008)):
        job.add("device_sample", uuid=f"GPU-{device}", device=device, link_bandwidth=bandwidth)
    job.add("device_sample", uuid="GPU-6", device=6)
    result = job.result(options={"link_bandwidth": given})
    assert rows(result)[0]["link"] == pytest.approx(7.5 / expected)
    assert f"of {expected} GB/s bus bandwidth" in result.findings[0].evidence
    notes = ["links have 450 GB/s in one direction, as the driver reports"]
    assert [each for each in result.notes if "links" in each] == ([] if given else notes)


def test_one_rank_alone_has_no_finding_about_links() -> None:
    job = Job(ranks=1, size=1)
    job.call("all_reduce", 25_000_000, 0, 20 * MS, order=0)
    assert job.result(options={"link_bandwidth": 25}).findings == []


# ---- ranks ----


def arrivals_of(calls: list[tuple[Any, ...]], **fields: Any) -> Arrivals:
    """Of (member, order, start, end) and, if given, (operation, bytes)."""
    found = np.zeros(len(calls), arrival())
    for at, (member, order, start, end, *more) in enumerate(calls):
        operation, bytes = more or (0, 64)
        found[at] = (1, OF_ALL, order, member, 3, operation, 0, -1, bytes, start, end)
    return Arrivals(
        found, ["all_reduce", "broadcast"], group=lambda _: "all",
        rank=lambda _, member: f"rank {member}", **fields,
    )  # fmt: skip


@examples(40)
@given(st.data())
def test_arrivals_equal_a_simple_count(data: Any) -> None:
    """Waits and last ranks of any arrivals, by a loop."""
    count = data.draw(st.integers(0, 6))
    starts = data.draw(
        st.lists(st.tuples(*[st.integers(0, 50)] * 3), min_size=count, max_size=count)
    )
    missing = data.draw(st.sets(st.integers(0, max(0, count - 1))))
    calls = [
        (member, order, each, each + 20)
        for order, of_all in enumerate(starts)
        for member, each in enumerate(of_all)
        if not (order in missing and member == 1)
    ]
    order = data.draw(st.permutations(range(len(calls))))
    found = arrivals_of([calls[at] for at in order])
    whole = [each for at, each in enumerate(starts) if at not in missing]
    assert (len(found), found.incomplete) == (len(whole), count - len(whole))
    last, waited, caused = [0] * 3, [0] * 3, [0] * 3
    for of_all in whole:
        latest = max(of_all)
        member = of_all.index(latest)
        last[member] += 1
        for at, each in enumerate(of_all):
            waited[at] += min(20, latest - each)
            caused[member] += min(20, latest - each)
    rows = {row["member"]: row for row in found.tables()["members"].rows()}
    for member in range(3 if whole else 0):
        row = rows[f"rank {member}"]
        assert (row["last"], row["waited"], row["caused"]) == (
            last[member], waited[member], caused[member],
        )  # fmt: skip


def test_calls_that_differ_between_ranks() -> None:
    """Rank 2 makes another call first, and never the last one."""
    calls = [(rank, order, 10 * order, 10 * order + 5) for rank in (0, 1) for order in (0, 1, 2)]
    calls += [(2, 0, 0, 5, 1, 64), (2, 1, 10, 15, 0, 128)]
    found = arrivals_of(calls)
    assert [row[1:] for row in found.mismatches] == [
        ("operation", 0, "rank 0: all_reduce of 64 B", "rank 2: broadcast of 64 B"),
        ("size", 1, "rank 0: all_reduce of 64 B", "rank 2: all_reduce of 128 B"),
        ("number of calls", 2, "rank 2: 2 calls", "another rank: 3 calls"),
    ]
    assert [each.confidence for each in found.findings()] == ["high", "high", "medium"]


def test_skew_below_the_error_of_clocks_is_no_finding() -> None:
    calls = [(rank, order, order * MS * 10 + 3 * MS * (rank == 1), -1)
             for rank in range(3) for order in range(20)]  # fmt: skip
    assert len(list(arrivals_of(calls, error=2 * MS).findings())) == 1
    assert list(arrivals_of(calls, error=4 * MS).findings()) == []
    assert list(arrivals_of(calls).findings(Thresholds(wait=61 * MS))) == []


# ---- batches ----


@examples(10)
@given(st.data())
def test_results_are_independent_of_batches_and_moves(data: Any) -> None:
    job = late_rank(steps=3).finished()
    expected = run_tool(Collectives, job)
    splits = sorted(data.draw(st.lists(st.integers(0, len(job)), max_size=6)))
    moved = data.draw(st.integers(0, len(splits)))
    pipeline = Pipeline(Filter(), [Collectives()], job.context())
    for at, batch in enumerate(job.batches(splits)):
        pipeline.feed(batch)
        if at == moved:
            state = pipeline.state()
            pipeline = Pipeline.restore(state, [Collectives()], job.context())
    result = pipeline.finish()["collectives"]
    assert result.summary == expected.summary and result.findings == expected.findings
    for name, table in expected.tables.items():
        assert result.tables[name].to_arrow().to_pydict() == table.to_arrow().to_pydict()
