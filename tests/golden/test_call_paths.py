"""Call paths in kernel_freq and memory_timeline, of events with known counts."""

from __future__ import annotations

import pytest
from pasta.tools.kernel_freq import KernelFreq
from pasta.tools.memory_timeline import MemoryTimeline

from pasta.testing import Events, run_tool

FIRST, SECOND = 0x8000_0001, 0x8000_0002
APP, RUNTIME = "/home/user/app", "/opt/refacc/librefacc.so"


def events() -> Events:
    """Path FIRST: train.py:7 step > app+0x10 > librefacc.so+0x20; SECOND: app+0x30, and generated
    code."""
    found = Events()
    found.native_frames(FIRST, (0, RUNTIME, 0x28), (1, RUNTIME, 0x20), (2, APP, 0x10))
    found.add(
        "python_frame", stack=FIRST, depth=3, line=7, first_line=1,
        file=found.string("/home/user/train.py"), function=found.string("step"),
    )  # fmt: skip
    found.native_frames(SECOND, (0, "", 0x7000), (1, APP, 0x30))
    return found


def work(found: Events, launches: int) -> None:
    for ordinal in range(launches):
        stack = FIRST if ordinal % 3 else SECOND
        found.launch("gemm")
        if ordinal % 5:  # others are not sampled
            found.host_stack(stack, "kernel_launch", ordinal)
        found.complete(ordinal, 1000 * ordinal, 1000 * ordinal + (100 if stack == FIRST else 10))


@pytest.mark.parametrize("splits", [(), range(1, 80, 7)])
def test_kernels_by_call_path(splits: range) -> None:
    found = events()
    work(found, 30)
    result = run_tool(KernelFreq, found, splits=splits)
    table = result.tables["call_paths"]
    of_first = [each for each in range(30) if each % 3 and each % 5]
    of_second = [each for each in range(30) if not each % 3 and each % 5]
    assert list(table.columns["launches"]) == [len(of_first), len(of_second)]
    assert list(table.columns["total_time"]) == [100 * len(of_first), 10 * len(of_second)]
    assert list(table.columns["call_path"]) == [
        "step:7 > app+0x10 > librefacc.so+0x20",
        "app+0x30 > generated code",
    ]
    assert list(table.columns["line"]) == ["train.py:7 step", "app+0x30"]
    kernels = result.tables["kernels"]
    assert list(kernels.columns["line"]) == ["train.py:7 step"]
    assert list(kernels.columns["launches"]) == [30]


def test_finding_names_the_line() -> None:
    found = events()
    found.launch("gemm")
    found.host_stack(FIRST, "kernel_launch", 0)
    found.complete(0, 0, 10**9)
    [finding] = run_tool(KernelFreq, found).findings
    assert finding.where == "gemm, launched at train.py:7 step"


def test_without_call_paths_tables_are_as_before() -> None:
    found = Events()
    found.launch("gemm")
    found.alloc(0x1000, 64)
    kernels = run_tool(KernelFreq, found)
    assert "call_paths" not in kernels.tables
    assert "line" not in kernels.tables["kernels"].columns
    assert "call_path" not in run_tool(MemoryTimeline, found).tables["never_freed"].columns


@pytest.mark.parametrize("splits", [(), (9,), range(1, 25)])
def test_allocations_by_call_path(splits: range) -> None:
    found = events()
    for number in range(8):
        address = 0x1000 * (1 + number % 4)  # addresses are used again
        found.alloc(address, 100 + number)
        found.host_stack(FIRST if number % 2 else SECOND, "memory_alloc", address)
        if number < 4:
            found.free(address)
    table = run_tool(MemoryTimeline, found, splits=splits).tables["call_paths"]
    assert list(table.columns["bytes"]) == [101 + 103 + 105 + 107, 100 + 102 + 104 + 106]
    assert list(table.columns["allocations"]) == [4, 4]
