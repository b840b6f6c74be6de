"""Executed instructions with known sums; tensor stores of code that is written by hand."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pasta.plugins import find_tools
from pasta.sass.disassembler import Code
from pasta.sass.operations import opcode_of, operations
from pasta.testing import Events, run_tool
from pasta.tool import Result
from tests.support.sass import code_of

(Instructions,) = find_tools("instructions")


def count(events: Events, ordinal: int, pc: int, warps: int, threads: int, **more: Any) -> None:
    events.add(
        "instruction_count", ordinal=ordinal, pc=pc, warps=warps, threads=threads,
        **{"symbol": 7, **more},
    )  # fmt: skip


@pytest.fixture
def events() -> Events:
    events = Events()
    for _ in range(3):
        ordinal = events.launch("_Z4vaddPf")
        count(events, ordinal, 0, 10, 320)
        count(events, ordinal, 16, 10, 80)
    ordinal = events.launch("_Z4gemmPf")
    count(events, ordinal, 0, 5, 160)
    count(events, ordinal, 0, 2, 2, name="_Z6helperv", symbol=8)
    events.launch("_Z4vaddPf")  # not selected
    return events


def rows(result: Result, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in columns) for row in result.tables[table].rows()]


def test_sums_by_kernel(events: Events) -> None:
    result = run_tool(Instructions, events)
    columns = ("kernel", "launches", "warps", "threads", "lanes", "share")
    assert rows(result, "kernels", *columns) == [
        ("vadd", 3, 60, 1200, 20.0, pytest.approx(60 / 67)),
        ("gemm", 1, 7, 162, pytest.approx(162 / 7), pytest.approx(7 / 67)),
    ]
    assert (
        result.summary == "67 warp instructions in 4 launches, with 20.3 active threads on average"
    )
    assert "recorded modules (--record)" in result.notes[0]


def test_instructions_of_called_functions_are_their_own(events: Events) -> None:
    result = run_tool(Instructions, events)
    found = rows(result, "instructions", "kernel", "function", "offset", "warps", "threads")
    assert found == [
        ("vadd", None, 0, 30, 960),
        ("vadd", None, 16, 30, 240),
        ("gemm", None, 0, 5, 160),
        ("gemm", "_Z6helperv", 0, 2, 2),
    ]


def test_instructions_beyond_the_limit(events: Events) -> None:
    result = run_tool(Instructions, events, options={"places": 2})
    assert rows(result, "kernels", "kernel", "warps") == [("vadd", 60)]
    assert "2 counts beyond the limit left out" in result.summary


def test_nothing_was_counted() -> None:
    assert run_tool(Instructions, Events()).summary.startswith("no instructions were counted")


@pytest.mark.parametrize("split", range(6))
def test_results_are_independent_of_batches(events: Events, split: int) -> None:
    whole, parts = (
        run_tool(Instructions, events),
        run_tool(Instructions, events, splits=[3 * split]),
    )
    assert rows(parts, "instructions", "kernel", "offset", "warps", "threads") == rows(
        whole, "instructions", "kernel", "offset", "warps", "threads"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FADD R1, R2, R3", 32),
        ("@!P0 FFMA.FTZ R1, R2, R3, R4", 64),
        ("HFMA2.BF16_V2 R1, R2, R3, R4", 128),
        ("DFMA R2, R4, R6, R8", 64),
        ("HMMA.16816.F32.BF16 R4, R8, R12, R4", 2 * 16 * 8 * 16),
        ("DMMA.884 R4, R8, R12, R4", 2 * 8 * 8 * 4),
        # four warps compute it together
        ("HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24", 2 * 64 * 128 * 16 // 4),
        ("QGMMA.64x256x32.F32.E4M3.E4M3 R24, gdesc[UR8], R24", 2 * 64 * 256 * 32 // 4),
        ("IMAD R1, R2, R3, R4", 0),
        ("EXIT", 0),
        ("", 0),
    ],
)
def test_operations_of_a_warp(text: str, expected: int) -> None:
    assert operations(opcode_of(text)) == expected


STORING = (
    "ULDC.64 UR10, c[0x0][0x198]",
    "UIADD3 UR8, UP1, UR10, 0x40, URZ",
    "UTMASTG.2D [UR4], [UR8]",
    "@UP3 UTMASTG.2D [UR4], [UR8]",
    "UTMASTG.2D [UR4], [UR6]",  # of a map in memory
    "EXIT",
)


def test_tensor_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executions times the box, by the object that the map names at the launch."""

    class Modules:
        def __init__(self, *_: object) -> None:
            self.cubins: dict[int, Any] = {}

        def module_of(self, *_: object) -> int:
            return 0

        def read(self, functions: list[tuple[str, int]]) -> list[Code]:
            return [code_of(*STORING) for _ in functions]

    monkeypatch.setattr(sys.modules[Instructions.__module__], "_Modules", Modules)
    events = Events()
    for launch in range(2):
        address = 0x10000 * (launch + 1)
        events.add("memory_alloc", address=address, bytes=0x4000, memory="device")
        ordinal = events.launch("_Z4gemmPf")
        for offset, to, box in ((0, 0x80000, 64), (0x40, address, 4096)):
            events.add(
                "tensor_map", ordinal=ordinal, address=to, bytes=0x4000, offset=offset, box=box
            )
        for number in range(len(STORING)):  # one thread of each warp; half of the predicates hold
            count(events, ordinal, 16 * number, 4, 2 if number == 3 else 4)
        events.add("memory_free", address=address, bytes=0x4000, memory="device")
    result = run_tool(Instructions, events)
    assert rows(result, "launch_tensor_stores", "launch", "address", "stores", "bytes") == [
        (0, 0x10000, 6, 6 * 4096), (1, 0x20000, 6, 6 * 4096),
    ]  # fmt: skip
    assert rows(result, "tensor_stores", "kernel", "stores", "bytes") == [
        ("gemm", 6, 6 * 4096), ("gemm", 6, 6 * 4096),
    ]  # fmt: skip
    assert "tensor stores wrote 48.00 KiB" in result.summary
    assert any(
        "8 tensor stores with a tensor map that is not a kernel" in note for note in result.notes
    )
