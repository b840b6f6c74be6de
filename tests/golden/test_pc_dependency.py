"""Instruction dependencies: counts from arithmetic, and from the accesses one by one."""

from __future__ import annotations

import random
from collections import Counter as Tally
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from pasta.backends.nvidia.patches import write
from pasta.backends.nvidia.plan import instances_of, layout_of
from pasta.errors import ProbeError
from pasta.plugins import find_tools, load_tools
from pasta.probes import Shadow, TopK, probe
from pasta.testing import Events, run_tool
from pasta.tool import Result, Tool

TOOL = find_tools("pc_dependency")[0]
A, ENTRY = 0x10_0000, 0x7000
WORDS = [A + 4 * lane for lane in range(32)]


def edges(result: Result) -> dict[tuple[int, int, str, str], int]:
    """Granules by pc, pc before, distance and kind."""
    return {
        (row["pc"], row["previous_pc"], row["distance"], row["kind"]): row["granules"]
        for row in result.tables["edges"].rows()
    }


def launched(entry: int = ENTRY) -> Events:
    events = Events()
    events.alloc(A, 1 << 16)
    events.launch("kernel", entry_pc=entry)
    return events


def test_every_distance_and_kind() -> None:
    events = launched()
    write_, read, later = ENTRY, ENTRY + 16, ENTRY + 32
    events.access("global", WORDS, write=True, pc=write_)
    events.access("global", WORDS, pc=read)  # by the same threads
    events.access("global", WORDS[::-1], pc=read)  # by the same warp
    events.access("global", WORDS, pc=read, warp=1)
    events.access("global", WORDS, write=True, pc=later, block=1)
    events.launch("kernel", entry_pc=ENTRY)
    events.access("global", WORDS, write=True, pc=write_, block=1)
    result = run_tool(TOOL, events)
    assert edges(result) == {
        (read, write_, "thread", "RAW"): 32,
        (read, read, "warp", "RAR"): 32,
        (read, read, "block", "RAR"): 32,
        (later, read, "grid", "WAR"): 32,
        (write_, later, "launch", "WAW"): 32,
    }
    (thing,) = result.tables["objects"].rows()
    found = {name: thing[name] for name in thing if name.startswith("after_")}
    assert found == dict.fromkeys(found, 32) and len(found) == 5
    assert (thing["cold"], thing["granules"]) == (32, 192)


@pytest.mark.slow
def test_a_wide_access_after_narrow_ones_has_an_edge_for_each_granule() -> None:
    events = launched()
    events.access("global", WORDS, write=True, pc=ENTRY)
    events.access("global", [A, A + 16], bytes=16, pc=ENTRY + 16)
    assert edges(run_tool(TOOL, events)) == {
        (ENTRY + 16, ENTRY, "thread", "RAW"): 1,  # lane 0 read its own word
        (ENTRY + 16, ENTRY, "warp", "RAW"): 7,
    }
    assert edges(run_tool(TOOL, events, options={"granule": 64})) == {
        (ENTRY, ENTRY, "warp", "WAW"): 30,  # in two granules
        (ENTRY + 16, ENTRY, "warp", "RAW"): 1,
        (ENTRY + 16, ENTRY + 16, "warp", "RAR"): 1,
    }


def test_rows_of_a_transfer() -> None:
    """Three rows of eight bytes, 32 apart; the words between them stay cold."""
    events = launched()
    events.access("bulk_load", [A], bytes=8, rows=3, stride=32, pc=ENTRY, form=3)
    events.access("global", WORDS, pc=ENTRY + 16)
    result = run_tool(TOOL, events)
    assert sum(edges(result).values()) == 6
    second = next(each for each in result.tables["instructions"].rows() if each["pc"] != ENTRY)
    assert (second["granules"], second["cold"]) == (32, 26)


PATTERNS = {
    "bytes are read again by the same thread": [{}, {}, {}],
    "bytes are read again by other warps of the block": [{"warp": warp} for warp in range(4)],
    "bytes are read again by other blocks": [{"block": block} for block in range(4)],
    "bytes are touched once": [{}],
}


@pytest.mark.parametrize("what", PATTERNS)
def test_findings(what: str) -> None:
    events = launched()
    for fields in PATTERNS[what]:
        events.access("global", WORDS, pc=ENTRY, **fields)
    assert [each.what for each in run_tool(TOOL, events).findings] == [what]


def test_findings_within_a_warp() -> None:
    events = launched()
    events.access("global", [A] * 32, pc=ENTRY)
    events.access("global", [A + 4] * 32, atomic=True, pc=ENTRY + 16)
    broadcast, contended = sorted(run_tool(TOOL, events).findings, key=lambda each: each.where)
    assert broadcast.what == "bytes are read again by other lanes of the warp"
    assert "96.9 % of its 32" in broadcast.evidence  # all but the first
    assert contended.what == "many threads contend for the same bytes with atomics"


# ---- the same from the accesses, without a shadow ----------------------------------------------


@dataclass(frozen=True)
class Touch:
    """A granule's access, as a trace has it."""

    launch: int
    block: int
    warp: int
    lane: int
    pc: int
    reads: bool
    writes: bool


def kind_of(now: Touch, before: Touch) -> str:
    if now.reads and before.writes:
        return "RAW"
    if before.writes:
        return "WAW"
    return "WAR" if now.writes else "RAR"


def distance_of(now: Touch, before: Touch) -> str:
    scopes = (("launch", "launch"), ("block", "grid"), ("warp", "block"), ("lane", "warp"))
    for name, distance in scopes:
        if getattr(now, name) != getattr(before, name):
            return distance
    return "thread"


def test_random_accesses_match_a_trace() -> None:
    random_ = random.Random(5)
    events, last, wanted, cold = launched(), dict[int, Touch](), Tally[Any](), 0
    for launch in range(3):
        if launch:
            events.launch("kernel", entry_pc=ENTRY)
        for _ in range(60):
            bytes = random_.choice((2, 4, 8, 16))
            at = [A + bytes * random_.randrange(64) for _ in range(random_.choice((1, 7, 32)))]
            what = random_.choice(("read", "write", "atomic"))
            where = {"block": random_.randrange(3), "warp": random_.randrange(3)}
            pc = ENTRY + 16 * random_.randrange(5)
            events.access(
                "global", at, bytes=bytes, write=what == "write", atomic=what == "atomic", pc=pc,
                **where,
            )  # fmt: skip
            for lane, address in enumerate(at):
                touch = Touch(launch, lane=lane, pc=pc, reads=what != "write",
                              writes=what != "read", **where)  # fmt: skip
                for granule in range(address // 4, (address + bytes - 1) // 4 + 1):
                    before = last.get(granule)
                    last[granule] = touch
                    if before is None:
                        cold += 1
                    else:
                        place = distance_of(touch, before), kind_of(touch, before)
                        wanted[(pc, before.pc, *place)] += 1
    result = run_tool(TOOL, events)
    assert edges(result) == wanted
    assert sum(row["cold"] for row in result.tables["instructions"].rows()) == cold == len(last)
    assert "did not fit" not in result.summary


# ---- the map -----------------------------------------------------------------------------------


class Lossy(Tool):
    """Exchanges with room for four granules."""

    last = Shadow(granularity=8, capacity=4)
    previous = TopK(64)

    @probe.global_memory
    def touch(access: Any, maps: Any) -> None:
        previous = maps.last.exchange(access.address, access.lane + 1)
        maps.previous.add(previous)

    def result(self) -> Result:
        return Result(summary="exchanged")


def test_edges_of_instructions_that_are_not_known() -> None:
    """A program that was killed may have delivered edges, but not the counts of an instruction."""
    from tools.pc_dependency import _with_tags

    pcs, known = _with_tags(np.array([2, 5, 3], np.uint64), np.array([0x20, 0x30], np.uint64))
    assert pcs[known].tolist() == [0x20, 0x30] and known.tolist() == [True, False, True]
    assert not _with_tags(np.array([2], np.uint64), np.zeros(0, np.uint64))[1].any()


@pytest.mark.slow
def test_granules_without_room_are_counted() -> None:
    events = launched()
    events.access("global", WORDS[:16])  # eight granules of two words
    result = run_tool(Lossy, events)
    # four granules with the lane before, plus one; 0 for their first touch and for the others
    assert "8 of last did not fit" in result.summary


def test_a_shadow_is_pairs_on_a_gpu() -> None:
    (tool,) = load_tools(["pc_dependency"])
    layout = layout_of([tool])
    pcs, shadow, keys = layout.hashes
    assert (shadow.rows, shadow.words, shadow.stripes) == (1 << 21, 1, 0)
    assert pcs.stripes and keys.stripes
    text, _ = write(layout, instances_of([tool]), "13.5")
    call = "shadow_exchange(table, lshr(address, 2), 2097152, table + 33554432, 1048576, value)"
    assert call in text
    assert "epoch = load_u64(user + L_EPOCH)" in text


def wrong(body: str) -> str:
    """The error of a probe with this statement."""
    source = (
        "from pasta.probes import Counter, Shadow, probe\nfrom pasta.tool import Tool\n"
        "class Wrong(Tool):\n    'Wrong.'\n    last = Shadow()\n    total = Counter()\n"
        "    @probe.global_memory\n    def touch(access, maps):\n"
        f"        {body}\n    def result(self): ...\n"
    )
    import linecache

    linecache.cache["wrong.py"] = (len(source), None, source.splitlines(True), "wrong.py")
    with pytest.raises(ProbeError) as raised:
        exec(compile(source, "wrong.py", "exec"), {"__name__": "wrong"})
    return str(raised.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("a = maps.last.exchange(access.address, 1) + 1", "assign its result first: name ="),
        ("a = maps.total.add(1)", "returns no value: write it as a statement"),
        ("a = maps.last.exchange(access.address)", "last needs value"),
        ("maps.last.add(1)", "the map last has no method add"),
    ],
)
def test_errors_name_the_remedy(body: str, message: str) -> None:
    assert message in wrong(body)
