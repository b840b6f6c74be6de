"""A plan for managed memory in a program of CUDA, with a driver that prints the calls it gets."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pasta.uvm_plan import Allocation, Entry, LaunchKey, written
from tests.support.places import PROGRAMS

SOURCE = PROGRAMS / "nvidia" / "fake_managed.c"
KEY, K = Allocation(4096), "_Z1kv"
PLAN = written(
    [
        Entry("read_mostly", KEY, 0, 4096),
        Entry("prefetch", KEY, 1024, 2048, LaunchKey(K, (4, 1, 1), 0)),
        Entry("evict", KEY, 0, 4096, LaunchKey(K, (4, 1, 1), 1)),
        Entry("pin", KEY, 0, 4096),
    ]
)
CALLS = """\
alloc 4096 1
advise 0x7000000 4096 1 for 2
advise 0x7000000 4096 3 for 2
{thread}prefetch 0x7000400 2048 to 2 in 0x51
{thread}launch 0x1 4 1 1 in 0x51
{thread}launch 0x2 4 1 1 in 0x51
launch ex 0x1 4 1 1 in 0x51
prefetch 0x7000000 4096 to -1 in 0x51
free 0x7000000
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cuda")
    compiler = [*shlex.split(os.environ.get("CC", "cc")), "-std=gnu11", "-Wall", "-Wextra"]
    driver = directory / "libcuda.so.1"
    subprocess.run(
        [*compiler, "-Werror", "-shared", "-fPIC", "-DFAKE_DRIVER", SOURCE, "-o", driver,
         "-Wl,-soname,libcuda.so.1,-Bsymbolic", "-ldl"],
        check=True,
    )  # fmt: skip
    found = directory / "program"
    subprocess.run([*compiler, "-Werror", SOURCE, "-o", found, "-ldl"], check=True)
    return found


def run(pasta_preload: Any, program: Path, how: str, plan: Path | None = None) -> Any:
    options = ("-t", "kernel_freq", *(("--apply-uvm-plan", str(plan)) if plan else ()))
    where = {"LD_LIBRARY_PATH": str(program.parent)}
    done = pasta_preload(program, how, options=options, environment=where)
    assert done.exit_status == 0, done.stderr
    return done


@pytest.mark.parametrize("how", [pytest.param("dlsym", marks=pytest.mark.main), "address", "thread"])
def test_calls_around_launches(pasta_preload: Any, program: Path, tmp_path: Path, how: str) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    done = run(pasta_preload, program, how, plan)
    expected = CALLS.format(thread="per thread " if how == "thread" else "")
    assert done.stdout == expected
    assert any("4 of 4 entries carried out, 4 calls" in line for line in done.lines)


def test_a_stream_that_is_captured_is_left_alone(
    pasta_preload: Any, program: Path, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    done = run(pasta_preload, program, "capture", plan)
    alone = run(pasta_preload, program, "capture")
    without = [line for line in done.stdout.splitlines() if not line.startswith("advise")]
    assert "\n".join(without) + "\n" == alone.stdout and "prefetch" not in done.stdout
    assert any("2 of 4 entries carried out" in line for line in done.lines)
    assert sum("the first with error 900" in line for line in done.lines) == 2
