"""Executed instructions on a real GPU."""

from __future__ import annotations

import pytest

from .conftest import Build, Run

pytestmark = pytest.mark.counters  # one process can count at a time
N, LAUNCHES = 1 << 26, 3
VADD = ("--n", str(N), "--launches", str(LAUNCHES), "--expect")
OPTIONS = ("-t", "kernel_freq", "--record", "--set", "nvidia.instructions=true")


def test_instructions_of_vadd(example: Build, native: Run, profiled: Run) -> None:
    """As many as `sm__inst_executed.sum` counts, and the program is unharmed."""
    alone = native(example("vadd"), *VADD)
    run = profiled(example("vadd"), *VADD, options=OPTIONS)
    assert (run.status, run.stdout) == (alone.status, alone.stdout), run.stderr
    warps: dict[int, int] = {}
    for row in run.rows("instruction_count"):
        warps[row["ordinal"]] = warps.get(row["ordinal"], 0) + row["warps"]
        assert 0 <= row["threads"] <= 32 * row["warps"]
    assert warps == dict.fromkeys(range(LAUNCHES), 27 << 21), run.stderr
