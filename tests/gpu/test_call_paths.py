"""Call paths on a GPU: the functions of the program down to the runtime's call, and no other
behaviour. Without libunwind they begin at the caller of the first frame without a frame pointer.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from .conftest import Build, Run
from .test_examples import assert_same

RUNTIME = re.compile(r" > cu(da|dnn)\w+$")
OPTIONS = ("--call-paths", "all", "-t", "kernel_freq,memory_timeline")


def paths(run: Path, tool: str) -> list[str]:
    table = pq.read_table(run / "results" / tool / "call_paths.parquet")
    return [path or "" for path in table["call_path"].to_pylist()]


def has_libunwind() -> bool:
    try:
        ctypes.CDLL("libunwind-x86_64.so.8")
    except OSError:
        return False
    return True


@pytest.mark.parametrize("cudart", ["shared", "static"])
@pytest.mark.parametrize("name", ["vadd", "cudnn_app"])
def test_launches_and_allocations(
    example: Build, native: Run, profiled: Run, name: str, cudart: str
) -> None:
    program = example(name, cudart)
    alone, run = native(program), profiled(program, options=OPTIONS)
    assert_same(alone, run)
    for tool in ("kernel_freq", "memory_timeline"):
        found = paths(run.directory, tool)
        assert found
        assert all(RUNTIME.search(path) for path in found), found
        if has_libunwind():
            assert all(path.startswith("main") for path in found), found
    launches = run.table("kernel_launch")
    stacks = run.table("host_stack")
    kernel_launch = 9
    mine = [work == kernel_launch for work in stacks["work"].to_pylist()]
    assert sum(mine) == launches.num_rows
