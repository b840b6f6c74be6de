"""Totals of a sample are those of all launches, where the launches of a shape are alike."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pasta import abi
from pasta.lazy import np
from pasta.plugins import built_in_names, find_tools
from pasta.probes import Counter as CounterMap
from pasta.probes import PerPC, probe
from pasta.probes.declare import count_by_launch, maps_of
from pasta.run.diff import Comparison
from pasta.run.directory import RunDirectory
from pasta.run.results import write_result
from pasta.table import formatted
from pasta.testing import Events, run_tool
from pasta.tool import Result, Tool

A, B, ENTRY = 0x10_0000, 0x20_0000, 0x7000
#: Probed launches of each shape in a sample.
ENOUGH = 3
#: Kernel and blocks of launches. Both shapes of `often` execute the same instructions differently,
#: so that no weight of a kernel or of an instruction would be right.
LAUNCHES = [("often", 1)] * 5 + [("rare", 2)] + [("often", 8), ("often", 1)] * 20 + [("rare", 2)]
LANES = range(32)


def program(*, sampled: bool) -> Events:
    """The launches, of which a sample probes the first of each shape."""
    events, seen = Events(), Counter[tuple[str, int]]()
    events.alloc(A, 1 << 16)
    events.alloc(B, 1 << 16)
    for name, blocks in LAUNCHES:
        seen[name, blocks] += 1
        probed = not sampled or seen[name, blocks] <= ENOUGH
        events.launch(
            name, grid=(blocks, 1, 1), entry_pc=ENTRY, flags=abi.FLAG_PROBED if probed else 0
        )
        if probed:
            run(events, name, blocks)
    return events


def run(events: Events, name: str, blocks: int) -> None:
    """Blocks of `often` in a grid of 8 access every other word, and conflict in shared memory."""
    step = 2 if blocks == 8 else 1
    for block in range(blocks):
        words = [(A if name == "often" else B) + 4 * step * lane + 1024 * block for lane in LANES]
        values = [lane % 2 for lane in LANES]
        events.access("global", words, pc=ENTRY + 16, block=block, values=values)
        half = {"mask": 0xFFFF, "values": values[:16], "pc": ENTRY + 32, "block": block}
        events.access("global", words[:16], write=True, **half)
        banks = [4 * step * lane for lane in LANES]
        events.access("shared", banks, pc=ENTRY + 48, block=block)


#: Columns of tables that are of all launches; none: all of them. What an element follows is known
#: for probed launches only, so shares of repeated values are of those.
ESTIMATED: dict[str, dict[str, tuple[str, ...]]] = {
    "access_count": {
        "kernels": ("kernel", "launches", "estimate"),
        "kinds": ("kernel", "kind", "estimate", "share"),
        "objects": ("kernel", "object_id", "estimate", "share"),
    },
    "bank_conflicts": {"instructions": ()},
    "coalescing": {"instructions": ()},
    "divergence": {"instructions": ()},
    "roofline": {"kernels": ()},
    "tensor_stalls": {},  # its table `accessed` takes a framework, and its summary is compared
    "values": {
        name: (key, "elements", "stored", "zeros", "narrow_int", "narrow_float", "redundant")
        for name, key in (("objects", "object_id"), ("instructions", "offset"))
    },
    "working_set": {"run": (), "kernels": (), "objects": ()},
}


def test_every_tool_that_estimates_is_tested() -> None:
    estimating = {name for name in built_in_names() if find_tools(name)[0].estimates}
    assert estimating == set(ESTIMATED)


@pytest.mark.parametrize("name", sorted(ESTIMATED))
def test_estimates_of_alike_launches_are_exact(name: str) -> None:
    kind = find_tools(name)[0]
    exact, found = (run_tool(kind, program(sampled=each)) for each in (False, True))
    assert "counted in 8 of 47 launches" in found.summary
    assert "cover the probed launches only" not in found.summary
    for table, columns in ESTIMATED[name].items():
        expected = list(exact.tables[table].rows())
        assert expected
        for row, other in zip(expected, found.tables[table].rows(), strict=True):
            for column in columns or row:
                assert _alike(other[column], row[column]), (table, column, other, row)


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, str) or one is None or other is None:
        return bool(one == other)
    return bool(np.allclose(one, other, rtol=1e-12, atol=0))


@pytest.mark.parametrize("name", sorted(built_in_names()))
def test_samples_are_compared_by_their_estimates(name: str, tmp_path: Path) -> None:
    """Of alike launches, all that is compared is equal: nothing counts the probed ones only."""
    tool = find_tools(name)[0]
    if not maps_of(tool()):
        return
    runs = []
    for sampled in (False, True):
        runs.append(RunDirectory.create(tmp_path / f"{sampled}"))
        write_result(runs[-1].results, name, run_tool(tool, program(sampled=sampled)))
    comparison = Comparison(*runs)
    for table in comparison.tables[name]:
        columns = comparison.table(name, table).columns.values()
        assert [each.name for each in columns if each.total and each.total.difference] == []


def test_totals_in_summaries() -> None:
    """20 * 8 + 25 warps of `often` and 2 * 2 of `rare`, each two instructions of global memory."""
    warps = 20 * 8 + 25 + 2 * 2
    result = run_tool(find_tools("coalescing")[0], program(sampled=True))
    alike = "all launches; probed launches of one shape, or place, were alike"
    assert f"totals are estimated for {alike}" in result.summary
    assert sum(result.tables["instructions"].columns["instructions"]) == 2 * warps
    text = run_tool(find_tools("bank_conflicts")[0], program(sampled=True)).summary
    assert f"takes {warps + 20 * 8} wavefronts" in text
    text = run_tool(find_tools("roofline")[0], program(sampled=True)).summary
    assert f"bytes are estimated for {alike}" in text
    bytes = warps * (32 + 16) * 4
    assert f"{formatted(bytes, 'bytes')} requested" in text
    text = run_tool(find_tools("tensor_stalls")[0], program(sampled=True)).summary
    read = formatted(warps * 32 * 4, "bytes")
    assert f"read {read} of 2 objects, estimated for {alike}" in text


def test_errors_are_of_what_is_reported() -> None:
    """Launches make equally many accesses, to 4 or to 32 sectors."""
    events = Events()
    events.alloc(0x1000, 4096)
    for number in range(100):
        events.launch("gather", flags=abi.FLAG_PROBED if number % 10 == 0 else 0)
        if number % 10 == 0:
            apart = 32 if number % 20 else 4
            events.access("global", [0x1000 + apart * lane for lane in range(32)])
    summary = run_tool(find_tools("coalescing")[0], events).summary
    assert "of 1,800 sectors" in summary and "estimated for all launches, ± 25 %" in summary


class Mixed(Tool):
    """Maps over the run, by kernel, and by launch."""

    estimates = True
    whole = CounterMap(fields=("lanes", "bytes"))
    by_kernel = CounterMap(by=("kernel", "object"))
    by_pair = CounterMap(by=("object", "pc"))
    by_launch = CounterMap(by="launch")
    pcs = PerPC("lanes")

    @probe.global_memory
    def count(access: Any, maps: Any) -> None:
        maps.whole.add(lanes=1, bytes=access.bytes)
        maps.by_kernel.add(access.object)
        maps.by_pair.add(access.object, access.pc)
        maps.by_launch.add()
        maps.pcs.add(access.pc, lanes=1)

    def result(self) -> Result:
        self.found = {
            name: getattr(self, name).rows().tolist()
            for name in ("whole", "by_kernel", "by_pair", "pcs")
        }
        self.of_probed = self.pcs.probed_rows()["lanes"].sum(), self.by_launch.total()
        return Result("")


def rows_of(events: Events, splits: Any = ()) -> Mixed:
    made: list[Mixed] = []

    class Kept(Mixed):
        name = "mixed"

        def start(self) -> None:
            made.append(self)

    run_tool(Kept, events, splits=splits)
    return made[0]


@pytest.mark.parametrize("splits", [(), range(3, 40, 5)])
def test_maps_without_launches_are_weighted(splits: Any) -> None:
    exact, found = rows_of(program(sampled=False)), rows_of(program(sampled=True), splits)
    assert found.found == exact.found
    probed = (3 + 3 * 8 + 2 * 2) * (32 + 16)
    assert found.of_probed == (probed, probed)


def test_devices_count_by_launch_only_for_samples() -> None:
    tool = Mixed()
    before = {name: type(each.placement).__name__ for name, each in maps_of(tool).items()}
    count_by_launch(tool)
    after = {name: type(each.placement).__name__ for name, each in maps_of(tool).items()}
    assert before == {**after, "pcs": "PerPc"} and after["pcs"] == "PerLaunchPc"
