"""Hand-written results of devices against the CPU executor on the same accesses."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pasta.backends.nvidia.places import LaunchWords
from pasta.backends.nvidia.plan import layout_of
from pasta.plugins import find_tools
from pasta.probes import Bitmap, Counter, Histogram, PerPC, TopK, probe
from pasta.processors.filter import Filter
from pasta.runtime.pipeline import Pipeline
from pasta.testing import Events
from pasta.tool import Result, Tool

LAUNCH, HASH, BINS, PIECES, PAIRS, MISSED = 1, 2, 3, 4, 5, 6
OTHER_OBJECT, OTHER_KEY = 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF
A, B = 0x1000, 0x200000
MIB = 1 << 20


class Counted(Tool):
    """One map per placement."""

    total = Counter(by="launch", fields=("seen", "bytes"))
    objects = Counter(by=("object", "launch"))
    pairs = Counter(by=("launch", "object", "pc"), fields=("seen", "bytes"))
    blocks = Counter(by="block", blocks=4)
    heat = Histogram(by="object", bin="4KiB")
    pcs = PerPC("requests")
    touched = Bitmap(by="launch", granularity=32)
    of_objects = Bitmap(by=("object", "launch"), granularity=32)
    top = TopK(2, capacity=64)

    @probe.global_memory
    def count(access: Any, maps: Any) -> None:
        maps.total.add(seen=1, bytes=access.bytes)
        maps.objects.add(access.object)
        maps.pairs.add(access.object, access.pc, seen=1, bytes=access.bytes)
        maps.blocks.add(access.block)
        maps.heat.add(access.object, access.offset)
        maps.pcs.add(access.pc, requests=1)
        maps.touched.touch(access)
        maps.of_objects.touch(access)
        maps.top.add(access.address // 4096)

    def result(self) -> Result:
        return Result(summary="")


MAPS = ("total", "objects", "pairs", "blocks", "heat", "pcs", "touched", "of_objects", "top")


def made() -> tuple[Events, Pipeline, Counted]:
    """Two objects, with the source's numbers 1 and 2, and two launches."""
    events = Events()
    events.add("process_start", source="nvidia_sanitizer", version="13.5")
    for number, (address, size) in enumerate(((A, 0x5000), (B, 64)), 1):
        events.add(
            "memory_alloc", address=address, bytes=size, memory=1, correlation=number, device=0
        )
    events.launch("k")
    events.launch("k")
    tool = Counted()
    return events, Pipeline(Filter(), [tool], events.context()), tool


def rows(tool: Counted) -> dict[str, list[tuple[Any, ...]]]:
    return {name: sorted(getattr(tool, name).rows().tolist()) for name in MAPS}


def entry(kind: int, payload: list[int], **header: int) -> bytes:
    fields = ("words", "rows", "row_words", "ordinal", "generation", "index", "device", "context")
    values = [header.pop(name, 0) for name in fields]
    assert not header
    return struct.pack(f"<IIIIQQIhH{len(payload)}Q", kind, *values, *payload)


class Launch:
    """Words of one launch, placed as the layout says."""

    def __init__(self, tool: Tool, ordinal: int) -> None:
        self.layout, self.ordinal, self.name = layout_of([tool]), ordinal, tool.name
        self.slot = [0] * (self.layout.plain_words + self.layout.slot_words)
        self.objects: dict[int, list[int]] = {}

    def put(self, map: str, value: int, at: int = 0, object: int | None = None) -> None:
        place: Any = self.layout.place_of(self.name, map)
        if object is not None:
            row = self.objects.setdefault(object, [0] * self.layout.object_words)
            row[place.offset + at] = value
        else:
            striped = not isinstance(place, LaunchWords) or place.request.contended
            begin = self.layout.plain_words if striped else 0
            self.slot[begin + place.offset + at] = value

    def encoded(self) -> bytes:
        rows = [word for number, row in self.objects.items() for word in (number, *row)]
        header = {"words": len(self.slot), "rows": len(self.objects)}
        header |= {"row_words": self.layout.object_words, "ordinal": self.ordinal}
        return entry(LAUNCH, [*self.slot, *rows], **header)


@pytest.mark.slow
def test_results_match_the_cpu_executor() -> None:
    events, pipeline, tool = made()
    events.access("global", [A, A + 4, A + 0x2000, B], pc=0x10, block=0, launch=0)
    events.access("global", [B + 32, B + 36], pc=0x20, block=3, launch=1)
    pipeline.feed(events.batch())
    pipeline.feed_accesses(events.accesses())
    pipeline.finish()
    expected = rows(tool)

    events, pipeline, tool = made()
    pipeline.feed(events.batch())
    first, second = Launch(tool, 0), Launch(tool, 1)
    first.put("total", 4)
    first.put("total", 16, 1)
    first.put("objects", 3, object=1)
    first.put("objects", 1, object=2)
    first.put("blocks", 4)
    first.put("touched", 96)
    first.put("of_objects", 64, object=1)
    first.put("of_objects", 32, object=2)
    second.put("total", 2)
    second.put("total", 8, 1)
    second.put("objects", 2, object=2)
    second.put("blocks", 2, 3)
    second.put("touched", 32)
    second.put("of_objects", 32, object=2)
    tables: dict[str, Any] = {name: first.layout.place_of(tool.name, name) for name in MAPS}
    index = {name: tables[name].index for name in ("pcs", "top")}
    early = entry(HASH, [0x11, 1], words=1, rows=1, index=index["pcs"])  # an older total
    pcs = [0x11, 4, 0x21, 2, OTHER_KEY, 0]
    top = [A // 4096 + 1, 2, A // 4096 + 3, 1, B // 4096 + 1, 3]
    pipeline.feed_device(first.encoded() + early)
    pipeline.feed_device(
        second.encoded()
        + entry(HASH, pcs, words=1, rows=3, index=index["pcs"])
        + entry(HASH, top, words=1, rows=3, index=index["top"])
        + entry(PAIRS, [1, 0x10, 3, 12, 2, 0x10, 1, 4], words=2, rows=2, ordinal=0)
        + entry(PAIRS, [2, 0x20, 2, 8, OTHER_OBJECT, 0, 0, 0], words=2, rows=2, ordinal=1)
        + entry(BINS, [2, 0, 1, 0, 0], words=1, rows=5, row_words=12, ordinal=1)
        + entry(BINS, [3], words=1, rows=1, row_words=12, ordinal=2)
    )
    pipeline.finish()
    assert rows(tool) == expected


def test_unattributed_accesses_are_counted_separately() -> None:
    events, pipeline, tool = made()
    pipeline.feed(events.batch())
    launch = Launch(tool, 0)
    launch.put("objects", 5, object=0)
    launch.put("objects", 7, object=OTHER_OBJECT)
    launch.put("objects", 2, object=99)  # without a record
    heat: Any = launch.layout.place_of(tool.name, "heat")
    launch.slot[launch.layout.plain_words + heat.unknown] = 6
    launch.slot[launch.layout.plain_words + heat.unknown + 1] = 9
    pairs = entry(PAIRS, [0, 0x10, 6, 24, OTHER_OBJECT, 0, 8, 32], words=2, rows=2, ordinal=0)
    pipeline.feed_device(launch.encoded() + pairs)
    assert pipeline.probes is not None
    device = pipeline.probes.device
    pipeline.finish()
    counted = tool.objects.rows()
    assert counted["object"].tolist() == [-1] and counted["count"].tolist() == [14]
    assert tool.heat.rows()["count"].tolist() == [6]
    assert device.other_objects == 1
    assert device.no_room == {(tool.name, "heat"): 9, (tool.name, "pairs"): 8}
    assert tool.pairs.rows().tolist() == [(0, -1, 0x10, 6, 24)]


def test_pairs_of_which_none_lacked_room() -> None:
    events, pipeline, tool = made()
    pipeline.feed(events.batch())
    launch = Launch(tool, 0).encoded()
    pipeline.feed_device(launch + entry(PAIRS, [], words=2, rows=0, ordinal=0))
    pipeline.feed_device(entry(PAIRS, [1, 0x10, 3, 12], words=2, rows=1, ordinal=0))
    pipeline.finish()
    assert pipeline.failures == {}
    assert tool.pairs.rows()["seen"].tolist() == [3]


def test_pieces_map_to_tensors() -> None:
    """Pieces of one allocation, parts of which are reused."""
    events, _, tool = made()
    pipeline = Pipeline(Filter(), [tool], events.context())
    events.tensor_alloc(A, 0x1000)  # 2
    events.tensor_alloc(A + 0x1000, 0x1000)  # 3
    launches = [events.launch("k")]
    events.tensor_free(A)
    launches.append(events.launch("k"))
    events.tensor_alloc(A, 0x1000)  # 4
    events.tensor_alloc(A + 0x2000, 0x1000)  # 5: in the middle of a piece
    launches.append(events.launch("k"))
    pipeline.feed(events.batch())
    pieces = [
        *(7, A, 0x1000, 1), *(8, A + 0x1000, 0x1000, 1), *(9, A + 0x2000, 0x3000, 1),
    ]  # fmt: skip
    pipeline.feed_device(entry(PIECES, pieces, words=4, rows=3))
    for at in (2, 0, 1):
        launch = Launch(tool, launches[at])
        for piece in (7, 8, 9):
            launch.put("objects", 10 ** (3 * at) * piece, object=piece)
        pipeline.feed_device(launch.encoded())
    for piece in (7, 8, 9):
        bins = entry(BINS, [0, piece], words=1, rows=2, row_words=11, ordinal=piece)
        pipeline.feed_device(bins)
    pipeline.finish()
    counted: dict[int, int] = {}
    for row in tool.objects.rows().tolist():
        counted[row[0]] = counted.get(row[0], 0) + row[-1]
    assert counted == {0: 9_016_009, 2: 7, 3: 8_008_008, 4: 7_000_000}
    # bins count all launches: for a piece held by several tensors they belong to the allocation
    heat = tool.heat.rows()[["object", "bin", "count"]].tolist()
    assert heat == [(0, 0, 7), (0, 2, 9), (3, 0, 8)]


def reallocating(tool: Tool) -> tuple[Pipeline, list[int]]:
    """A framework returns an allocation of 20 MiB, and gets two of 2 MiB at its addresses. Returns
    the launches in the first one, and delivers a count in the last bin of each piece."""
    events = Events()
    events.add("process_start", source="nvidia_sanitizer", version="13.5")
    pipeline = Pipeline(Filter(), [tool], events.context())

    def allocate(address: int, bytes: int, number: int) -> None:
        events.add(
            "memory_alloc", address=address, bytes=bytes, memory=1, correlation=number, device=0
        )

    allocate(A, 20 * MIB, 1)  # object 0
    launches = []
    for bytes in (8 * MIB, 8 * MIB, 6 * MIB):  # 1, 2, 3
        events.tensor_alloc(A, bytes)
        launches.append(events.launch("k"))
        events.tensor_free(A)
    events.tensor_alloc(A + 8 * MIB, MIB)  # 4: alone in its piece
    events.tensor_free(A + 8 * MIB)
    events.add("memory_free", address=A, memory=1, correlation=1, device=0)
    allocate(A, 2 * MIB, 10)  # 5
    events.tensor_alloc(A, 2 * MIB)  # 6: alone in its piece
    allocate(A + 8 * MIB, 2 * MIB, 12)  # 7
    events.tensor_alloc(A + 8 * MIB, MIB)  # 8: alone in its piece
    events.tensor_alloc(A + 31 * MIB, 2 * MIB)  # 9
    pipeline.feed(events.batch())
    pieces = [
        (2, A, 6 * MIB, 1), (3, A + 6 * MIB, 2 * MIB, 1), (4, A + 8 * MIB, MIB, 1),
        (5, A + 9 * MIB, 11 * MIB, 1), (11, A, 2 * MIB, 10), (13, A + 8 * MIB, MIB, 12),
        (14, A + 64 * MIB, MIB, 99), (15, A + 32 * MIB, MIB, 99),  # of one without a record
    ]  # fmt: skip
    words = [word for piece in pieces for word in piece]
    pipeline.feed_device(entry(PIECES, words, words=4, rows=len(pieces)))
    for number, _, bytes, _ in pieces:
        bins = bytes // 4096
        counts = [0] * (bins - 1) + [number]
        pipeline.feed_device(entry(BINS, counts, words=1, rows=bins, row_words=12, ordinal=number))
    return pipeline, launches


def test_pieces_belong_to_allocations_that_were_freed() -> None:
    tool = Counted()
    pipeline, launches = reallocating(tool)
    launch = Launch(tool, launches[2])
    for number in (2, 3, 14):
        launch.put("objects", number, object=number)
    pipeline.feed_device(launch.encoded())
    pipeline.finish()
    assert pipeline.failures == {}
    counted = tool.objects.rows()[["object", "count"]].tolist()
    assert counted == [(-1, 14), (0, 3), (3, 2)]
    last = {mib: mib * MIB // 4096 - 1 for mib in (1, 2, 6, 8, 20)}
    assert tool.heat.rows()[["object", "bin", "count"]].tolist() == [
        (-1, 0, 14), (0, last[6], 2), (0, last[8], 3), (0, last[20], 5), (4, last[1], 4),
        (6, last[2], 11), (8, last[1], 13), (9, last[2], 15),
    ]  # fmt: skip


def test_heat_maps_of_freed_allocations() -> None:
    """They had counts behind the ends of smaller ones, and no result."""
    pipeline, _ = reallocating(find_tools("hotness")[0]())
    result = pipeline.finish()["hotness"]
    heat = [figure.series["accesses"].sum() for figure in result.figures.values()]
    assert sorted(heat) == [4, 2 + 3 + 5, 11, 13, 15]


def test_filtered_launch_is_omitted() -> None:
    events, _, tool = made()
    pipeline = Pipeline(Filter(launch_skip=1), [tool], events.context())
    pipeline.feed(events.batch())
    for ordinal in (0, 1):
        launch = Launch(tool, ordinal)
        launch.put("total", 1 + ordinal)
        pipeline.feed_device(launch.encoded())
    pipeline.finish()
    assert tool.total.rows()["seen"].tolist() == [2]


class Estimated(Tool):
    """Counts over all launches."""

    estimates = True
    total = Counter(by="kernel")

    @probe.global_memory
    def count(access: Any, maps: Any) -> None:
        maps.total.add()

    def result(self) -> Result:
        counted = self.total.rows()["count"].sum()
        return Result(summary=f"{counted} accesses")


def missed(*launches: int, why: int = 0) -> bytes:
    return entry(MISSED, [w for each in launches for w in (each, why)], words=2, rows=len(launches))


@pytest.mark.parametrize("early", [False, True], ids=["after", "before"])
def test_missed_launches_are_estimated(early: bool) -> None:
    """Whether their entries are read before or after their events."""
    events = Events()
    events.add("process_start", source="nvidia_sanitizer", version="13.5")
    for _ in range(10):
        events.launch("k")
    tool = Estimated()
    pipeline = Pipeline(Filter(), [tool], events.context())
    # the source is known from the first event
    start, first_half, rest = (batch for batch, _ in events.stretches([1, 6]))
    pipeline.feed(start)
    steps: list[Callable[[], object]] = [
        partial(pipeline.feed, first_half),
        partial(pipeline.feed, rest),
        partial(pipeline.feed_device, missed(*range(3, 9)) + missed(8, 9)),
        partial(pipeline.feed_device, missed(2, why=1)),
    ]
    for step in reversed(steps) if early else steps:
        step()
    for ordinal in range(2):
        launch = Launch(tool, ordinal)
        launch.put("total", 5)
        pipeline.feed_device(launch.encoded())
    result = pipeline.finish()[tool.name]
    assert pipeline.failures == {}
    assert result.summary.startswith(
        "50 accesses; counted in 2 of 10 launches; totals are estimated for all launches;"
        " probed launches of one shape, or place, were alike;"
        " 1 launch not counted after an error, see log.txt;"
        " 7 launches not counted for lack of device memory: raise probes.memory"
    )
    assert result.tables["probed"].columns["probed"] == [2]


def test_missed_launches_are_listed() -> None:
    events = Events()
    events.add("process_start", source="nvidia_sanitizer", version="13.5")
    for _ in range(3):
        events.launch("k")
    (kind,) = find_tools("access_count")
    tool = kind()
    pipeline = Pipeline(Filter(), [tool], events.context())
    for batch, _ in events.stretches([]):
        pipeline.feed(batch)
    pipeline.feed_device(missed(1))
    tables = pipeline.finish()["access_count"].tables
    assert tables["missed"].columns["launch"].tolist() == [1]


def test_working_sets_of_missed_launches_are_unknown() -> None:
    events = Events()
    events.add("process_start", source="nvidia_sanitizer", version="13.5")
    events.alloc(A, 4096)
    for _ in range(3):
        events.launch("k")
        events.access("global", [A, A + 64])
    tool = find_tools("working_set")[0]()
    pipeline = Pipeline(Filter(), [tool], events.context())
    pipeline.feed(events.batch())
    pipeline.feed_device(missed(1))
    pipeline.feed_accesses(events.accesses())
    result = pipeline.finish()["working_set"]
    assert result.tables["launches"].columns["working_set"].tolist() == [64, None, 64]


def test_missed_launches_that_the_filter_drops_do_not_count() -> None:
    events = Events()
    events.add("process_start", source="nvidia_sanitizer", version="13.5")
    for _ in range(4):
        events.launch("k")
    tool = Estimated()
    pipeline = Pipeline(Filter(launch_skip=2), [tool], events.context())
    pipeline.feed(events.batch())
    pipeline.feed_device(missed(0, 1, 2))
    summary = pipeline.finish()[tool.name].summary
    assert "counted in 1 of 2 launches" in summary and "1 launch not counted for lack" in summary


def test_invalid_entry_disables_tools_with_probes() -> None:
    events, pipeline, tool = made()
    pipeline.feed(events.batch())
    pipeline.feed_device(entry(77, []))
    failure = pipeline.failures[tool.name]
    assert failure.where == "PASTA's own probes"
    assert failure.reason.startswith("ValueError") and "kind 77" in failure.reason
