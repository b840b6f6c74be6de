"""Hardware counters on a real GPU: those of ncu, and programs unharmed."""

from __future__ import annotations

import subprocess

import pytest

from pasta.backends.nvidia import DEFAULT_COUNTERS
from tests.support.ncu import profile

from .conftest import TIMEOUT, Build, Ran, Run, script

pytestmark = pytest.mark.counters  # one process can count at a time
N, LAUNCHES = 1 << 26, 5
VADD = ("--n", str(N), "--launches", str(LAUNCHES))
EXECUTED, WARPS = "sm__inst_executed.sum", "sm__warps_launched.sum"
READ, HITS = "dram__bytes_read.sum", "lts__t_sector_hit_rate.pct"  # HITS needs two passes
CANNOT = 77


def counting(*counters: str, mode: str = "kernel") -> tuple[str, ...]:
    settings = (f"nvidia.counters={','.join(counters)}", f"nvidia.counters_mode={mode}")
    return ("-t", "counters,kernel_freq", "--record", "--set", settings[0], "--set", settings[1])


def by_launch(run: Ran) -> dict[int | None, dict[str, float]]:
    found: dict[int | None, dict[str, float]] = {}
    for row in run.rows("counter"):
        found.setdefault(row["ordinal"], {})[row["name"]] = row["value"]
    return found


def test_counters_of_vadd_match_ncu(example: Build, profiled: Run) -> None:
    """Exactly where they are deterministic, bytes of memory within 1 %."""
    # PASTA does not flush caches between passes
    command = ["--cache-control", "none", example("vadd"), *VADD]
    theirs = profile(command, (EXECUTED, WARPS, READ), CANNOT)
    run = profiled(example("vadd"), *VADD, options=counting(EXECUTED, WARPS, READ))
    ours = by_launch(run)
    assert sorted(ours) == list(range(LAUNCHES)), run.stderr
    assert len(theirs) == LAUNCHES
    for name in (EXECUTED, WARPS):
        counted = [ours[launch][name] for launch in range(LAUNCHES)]
        assert counted == [kernel.values[name] for kernel in theirs]
    for launch, kernel in enumerate(theirs):
        if launch:  # the caches before the first one differ
            assert ours[launch][READ] == pytest.approx(kernel.values[READ], rel=0.01)
            assert ours[launch][READ] == pytest.approx(2 * 4 * N, rel=0.05)


def test_replayed_kernels_are_one_launch(example: Build, native: Run, profiled: Run) -> None:
    """Their results are those of one run, and so are the records of launches and times."""
    alone = native(example("vadd"), *VADD, "--expect")
    run = profiled(example("vadd"), *VADD, "--expect", options=counting(EXECUTED, READ, HITS))
    assert (run.status, run.stdout) == (alone.status, alone.stdout), run.stderr
    assert "each selected kernel runs 2 times" in run.stderr
    for kind in ("kernel_launch", "kernel_complete"):
        assert run.counts[kind] == run.expected["kernel_launch"], kind
    values = by_launch(run)
    assert len(values) == LAUNCHES
    assert all(0 <= of[HITS] <= 100 for of in values.values())
    assert len({of[EXECUTED] for of in values.values()}) == 1


def test_selected_launches(example: Build, profiled: Run) -> None:
    options = (*counting(EXECUTED), "--launch-skip", "1", "--launch-count", "2")
    assert sorted(by_launch(profiled(example("vadd"), *VADD, options=options))) == [1, 2]


def test_a_range_is_the_sum_of_its_launches(example: Build, profiled: Run) -> None:
    """And of the instructions that CUPTI adds to each warp for the times of kernels, of which a
    counted kernel has none."""
    kernels = by_launch(profiled(example("vadd"), *VADD, options=counting(EXECUTED)))
    run = profiled(example("vadd"), *VADD, options=counting(EXECUTED, mode="range"))
    (row,) = run.rows("counter")
    assert (row["ordinal"], row["instance"]) == (None, f"launches 0 to {LAUNCHES - 1}")
    added = (row["value"] - sum(of[EXECUTED] for of in kernels.values())) / (LAUNCHES * N / 32)
    assert added == pytest.approx(8, abs=0.01)


@pytest.mark.parametrize("program", ["graph", "contexts", "two_streams", "cudnn_app"])
def test_programs_are_unharmed(example: Build, native: Run, profiled: Run, program: str) -> None:
    """With the default counters: graphs, several contexts, closed libraries."""
    alone = native(example(program))
    run = profiled(example(program), options=("-t", "counters", "--record"))
    assert (run.status, run.stdout) == (alone.status, alone.stdout), run.stderr
    assert "counters are not recorded" not in run.stderr
    assert run.counts["counter"] > 0


def test_list_of_counters() -> None:
    command = [script("pasta"), "doctor", "--counters"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    listed = {line.split()[1].partition(".")[0] for line in done.stdout.splitlines()}
    assert {name.partition(".")[0] for name in DEFAULT_COUNTERS.split(",")} <= listed
