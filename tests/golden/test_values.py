"""Values of accesses: patterns with counts known from arithmetic."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from pasta.backends.nvidia.patches import write
from pasta.backends.nvidia.plan import instances_of, layout_of
from pasta.errors import ToolError
from pasta.plugins import find_tools
from pasta.probes import Trace, probe
from pasta.runtime.probe_plan import needs_values
from pasta.testing import Events, run_tool
from pasta.tool import Result, Tool

TOOL = find_tools("values")[0]
A, B, ENTRY = 0x10_0000, 0x20_0000, 0x7000
WORDS = [A + 4 * lane for lane in range(32)]
PATTERNS = ("zeros", "repeated", "narrow_int", "narrow_float", "redundant")


def f32(value: float) -> int:
    return int.from_bytes(struct.pack("<f", value), "little")


def f64(value: float) -> int:
    return int.from_bytes(struct.pack("<d", value), "little")


def launched() -> Events:
    events = Events()
    events.alloc(A, 1 << 16)
    events.alloc(B, 1 << 16)
    events.launch("kernel", entry_pc=ENTRY)
    return events


def counts(result: Result, table: str = "objects", at: int = 0) -> dict[str, int]:
    """Elements with each pattern, of one row of a table."""
    row = list(result.tables[table].rows())[at]
    found = {name: round(row[name] * row["elements"]) for name in PATTERNS}
    return {"elements": row["elements"], **found}


def test_zeros_and_equal_values() -> None:
    events = launched()
    events.access("global", WORDS, values=[0] * 12 + [7] * 20, write=True)
    result = run_tool(TOOL, events)
    assert counts(result) == {
        "elements": 32, "zeros": 12, "repeated": 30, "narrow_int": 32, "narrow_float": 12,
        "redundant": 0,
    }  # fmt: skip
    (row,) = result.tables["instructions"].rows()
    assert (row["op"], row["frequent"], row["frequent_share"]) == ("store", "7", 0.625)


#: Bytes, value, and whether half as many bytes hold it as an integer, and as a float.
NARROW = [
    (2, 0x00FF, 1, 0), (2, 0x0100, 0, 0), (2, 0xFF80, 1, 0), (2, 0xFF7F, 0, 0), (1, 1, 0, 0),
    (4, 0xFFFF, 1, 0), (4, 0x1_0000, 0, 0), (4, 0xFFFF_8000, 1, 0), (4, 0xFFFF_7FFF, 0, 0),
    (4, f32(1.5), 0, 1), (4, f32(0.1), 0, 0), (4, f32(65504.0), 0, 1), (4, f32(65536.0), 0, 0),
    (4, f32(-2.0**-14), 0, 1), (4, f32(2.0**-15), 0, 0), (4, f32(-0.0), 0, 1),
    (8, 1 << 31, 1, 0), (8, 1 << 32, 0, 0), (8, (1 << 64) - 1, 1, 0),
    (8, (1 << 64) - (1 << 31) - 1, 0, 0),
    (8, f64(0.1), 0, 0), (8, f64(1.0), 0, 1), (8, f64(1e300), 0, 0), (8, f64(-0.0), 0, 1),
]  # fmt: skip


@pytest.mark.parametrize(("bytes", "value", "as_int", "as_float"), NARROW)
def test_narrower_types(bytes: int, value: int, as_int: int, as_float: int) -> None:
    events = launched()
    events.access("global", [A], values=[value], bytes=bytes)
    found = counts(run_tool(TOOL, events))
    assert (found["narrow_int"], found["narrow_float"]) == (as_int, as_float)


@pytest.mark.slow
def test_a_wide_access_has_elements() -> None:
    """16 bytes are four words, or two of eight bytes."""
    value = 5 | 6 << 32 | 0 << 64 | f32(1.0) << 96
    events = launched()
    events.access("global", [A, A + 16], values=[value, value], bytes=16)
    found = counts(run_tool(TOOL, events))
    assert (found["elements"], found["zeros"], found["narrow_int"]) == (8, 2, 6)
    found = counts(run_tool(TOOL, events, options={"vector": 8}))
    assert (found["elements"], found["zeros"], found["narrow_int"]) == (4, 0, 0)


def test_redundant_stores_and_loads() -> None:
    events = launched()
    values = list(range(1, 33))
    events.access("global", WORDS, values=values, write=True, pc=ENTRY)
    events.access("global", WORDS, values=values, write=True, pc=ENTRY + 16, warp=1)  # the same
    events.access("global", WORDS, values=values, pc=ENTRY + 32, warp=2)  # by others: news
    events.access("global", WORDS, values=values, pc=ENTRY + 48, warp=2)  # again
    events.access("global", WORDS, values=values[::-1], write=True, pc=ENTRY + 64, warp=2)
    events.access("global", WORDS, values=values[::-1], pc=ENTRY + 80, warp=2)  # they stored it
    result = run_tool(TOOL, events)
    redundant = {
        row["pc"]: round(row["redundant"] * 32) for row in result.tables["instructions"].rows()
    }
    first, same, news, again, changed, own = (redundant[ENTRY + 16 * i] for i in range(6))
    assert (first, same, news, again, changed, own) == (0, 32, 0, 32, 0, 32)
    events.launch("kernel", entry_pc=ENTRY)
    events.access("global", WORDS, values=values[::-1], pc=ENTRY + 96, warp=2)  # another thread
    rows = run_tool(TOOL, events).tables["instructions"].rows()
    assert [row["redundant"] for row in rows if row["pc"] == ENTRY + 96] == [0]


def test_elements_of_eight_bytes_with_exchanged_halves_differ() -> None:
    low = 0x3FF0_0000
    values = [low, low << 32, 1, 1 << 32, 0x5_0000_0007, 0x7_0000_0005, 3 << 62 | 9, 1 << 62 | 9]
    events = launched()
    for value in values:
        events.access("global", [A], values=[value], bytes=8, write=True)
    found = counts(run_tool(TOOL, events))
    assert (found["repeated"], found["redundant"]) == (0, 0)
    events.access("global", [A], values=[values[-1]], bytes=8, write=True)
    found = counts(run_tool(TOOL, events))
    assert (found["repeated"], found["redundant"]) == (1, 1)


def test_no_frequent_value_where_instructions_cannot_be_told_apart() -> None:
    """Their addresses are equal in the bits that a key has: 16 MiB apart."""
    events = launched()
    for pc, value in ((ENTRY, 1), (ENTRY + (1 << 24), 2), (ENTRY + 16, 3)):
        events.access("global", WORDS, values=[value] * 32, pc=pc)
    rows = run_tool(TOOL, events).tables["instructions"].rows()
    assert {row["pc"] - ENTRY: row["frequent"] for row in rows} == {0: None, 1 << 24: None, 16: "3"}


def test_atomics_find_values() -> None:
    events = launched()
    events.access("global", WORDS, values=[3] * 32, atomic=True)
    result = run_tool(TOOL, events)
    (row,) = result.tables["instructions"].rows()
    assert (row["op"], row["frequent"], row["redundant"]) == ("load", "3", 0)


@pytest.mark.slow
def test_sampled_blocks_and_lines() -> None:
    """A quarter of the lines, each in a quarter of the blocks; which ones depends on the line."""
    events = launched()
    lines = 128
    for block in range(8):
        for line in range(lines):
            for word in range(4):  # four warps access a line
                first = 512 * line + 128 * word
                where = [WORDS[0] + first + 4 * lane for lane in range(32)]
                events.access("global", where, values=[block] * 32, block=block)
    result = run_tool(TOOL, events, options={"every": 16})
    elements = counts(result)["elements"]
    assert "from one in 16 accesses" in result.summary
    assert elements % (2 * 128) == 0  # whole lines, each in two blocks
    assert 0.04 < elements / (8 * 128 * lines) < 0.1
    (row,) = result.tables["instructions"].rows()
    assert 0.125 <= row["frequent_share"] < 0.25  # every block has about as many


@pytest.mark.slow
@pytest.mark.parametrize(("every", "confidence"), [(1, "medium"), (4, "low")])
def test_zeros_in_a_sample_of_blocks_are_less_certain(every: int, confidence: str) -> None:
    events = launched()
    for block in range(8):
        for line in range(16):
            where = [word + 512 * line for word in WORDS]
            events.access("global", where, values=[0] * 32, block=block)
    (found,) = run_tool(TOOL, events, options={"every": every, "at_least": 1}).findings
    assert found.confidence == confidence
    assert ("from one in 4 accesses" in found.evidence) == (every == 4)


def test_random_values_match_a_walk() -> None:
    random_ = random.Random(7)
    events, last, wanted = launched(), dict[int, tuple[int, Any]](), dict.fromkeys(PATTERNS, 0)
    before: dict[int, int] = {}
    for _ in range(100):
        base, store = random_.choice((A, B)), random_.random() < 0.5
        at = [base + 4 * random_.randrange(32) for _ in range(32)]
        values = [random_.choice((0, 0, 1, f32(0.3), 0x12345678)) for _ in at]
        where = {"block": random_.randrange(2), "warp": random_.randrange(2)}
        events.access("global", at, values=values, write=store, pc=ENTRY + 16 * store, **where)
        for lane, (address, value) in enumerate(zip(at, values, strict=True)):
            thread = (lane, *where.values())
            had, by = last.get(address, (None, None))
            wanted["redundant"] += had == value and (store or by == thread)
            wanted["repeated"] += before.get(base) == value
            wanted["zeros"] += value == 0
            wanted["narrow_int"] += value < 1 << 15
            last[address], before[base] = (value, thread), value
    result = run_tool(TOOL, events)
    rows = [counts(result, at=number) for number in range(2)]
    for name in ("zeros", "repeated", "narrow_int", "redundant"):
        assert sum(row[name] for row in rows) == wanted[name], name


def finding(values: list[int], bytes: int = 4, **fields: Any) -> list[str]:
    events = launched()
    for number in range(40):
        at = [A + bytes * (32 * number + lane) for lane in range(32)]
        events.access("global", at, values=values, bytes=bytes, **fields)
    return [each.what for each in run_tool(TOOL, events).findings]


def test_findings() -> None:
    distinct = [0x0123_4567 * (lane + 3) % (1 << 32) for lane in range(32)]
    assert finding(distinct) == []
    assert finding([0] * 32) == ["all values of an object are zero"]
    assert finding([f32(0.1)] * 32) == [
        "all values of an object are equal", "an instruction loads or stores mostly one value",
    ]  # fmt: skip
    assert finding([0] * 20 + distinct[:12]) == [
        "most values of an object are zero", "an instruction loads or stores mostly one value",
    ]  # fmt: skip
    assert finding(list(range(100, 132))) == ["a narrower type can hold the values of an object"]
    events = launched()
    for number in range(40):
        events.access("global", WORDS, values=distinct, write=True, warp=number % 2)
    (found,) = run_tool(TOOL, events).findings
    assert (
        found.what == "stores write values that memory already holds" and "97.5 %" in found.evidence
    )


def test_texts_of_values() -> None:
    events = launched()
    for number, (bytes, value) in enumerate(
        ((4, f32(1.0)), (8, f64(1.0)), (8, 1 << 33 | 5), (2, 0x3C00), (8, 9))
    ):
        events.access("global", [A], values=[value], bytes=bytes, pc=ENTRY + 16 * number)
    rows = sorted(run_tool(TOOL, events).tables["instructions"].rows(), key=lambda row: row["pc"])
    assert [row["frequent"] for row in rows] == [
        "0x3f800000 (1)", "0x3ff0000000000000 (1)", "a value of 8 bytes", "15360", "9",
    ]  # fmt: skip


def test_records_without_values() -> None:
    events = launched()
    events.access("global", WORDS)
    assert run_tool(TOOL, events).summary.startswith("no access values were recorded")


# ---- records, and patches ----------------------------------------------------------------------


class Recorded(Tool):
    """Records with values."""

    records = Trace(values=True)

    @probe.on("global")
    def touch(access: Any, maps: Any) -> None:
        maps.records.write(access)

    def on_accesses(self, accesses: Any) -> None:
        self.found = accesses.values

    def result(self) -> Result:
        return Result("")


def test_sources_are_told_what_to_record() -> None:
    assert needs_values([TOOL()]) and needs_values([Recorded()])
    (mem_trace,) = find_tools("mem_trace")
    assert not needs_values([mem_trace()]) and needs_values([mem_trace({"values": True})])
    with pytest.raises(ToolError, match="use them in a probe"):
        layout_of([Recorded()])


def test_accesses_that_are_not_sampled_leave_a_patch_before_its_lookups() -> None:
    tool = TOOL({"every": 64})
    text, _ = write(layout_of([tool]), instances_of([tool]), "13.5")
    patch = text[text.index("def pasta_global(") :].split("\n\n")[0]
    left = patch.index(" != 0):\n        return 0\n    user = launch_of(user)\n")
    assert left < patch.index("value_at(from_, bytes)")
    assert left < patch.index("find_offset(user, address)")
    assert "    from_ = data" in patch
    copy = text[text.index("def pasta_async_copy(") :].split("\n\n")[0]
    assert "from_ = data" not in copy
