"""Probes in part of a run on the reference accelerator: the probed launches, and estimates for
all."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from pasta import abi
from tests.support.preload import RunDirectory

#: Every launch of the kernel scale on 32 floats loads and stores each of them.
ACCESSES = 64

MANY = "int main(void) { launch(300); return 0; }"
STEPS = """
#include "pasta.h"
int main(void) {
    for (int i = 0; i < 12; i++) {
        launch(5);
        pasta_step();
    }
    return 0;
}"""
RANGES = """
#include "pasta.h"
int main(void) {
    launch(1);
    for (int i = 0; i < 6; i++) {
        uint64_t other = pasta_range_start("data");
        pasta_range_push(i % 2 ? "step" : "step of another kind");
        launch(1);
        pasta_range_push("step's part");
        launch(1);
        pasta_range_pop();
        pasta_range_pop();
        pasta_range_end(other);
    }
    return 0;
}"""
#: Loads both kernels, and allocates memory.
KERNELS = """
static ra_function add, scale;
static void *load(size_t floats) {
    ra_module module;
    void *x;
    RA(ra_module_load_builtin(&module));
    RA(ra_module_function(&add, module, "_Z4vaddPKfS0_Pfi"));
    RA(ra_module_function(&scale, module, "_Z5scalePfffi"));
    RA(ra_alloc(&x, floats * sizeof(float)));
    return x;
}"""
TWO_KERNELS = (
    KERNELS
    + """
int main(void) {
    int n = 32;
    uint32_t grid[3] = {1, 1, 1}, block[3] = {32, 1, 1};
    launch(3);
    void *x = load(32);
    for (int i = 0; i < 10; i++)
        RA(ra_launch(add, grid, block, 0, NULL, (void *[]){&x, &x, &x, &n}));
    RA(ra_context_synchronize());
    return 0;
}"""
)

#: Two threads; what a launch accesses depends on its place in a step.
PLACES = (
    KERNELS
    + """
#include <pthread.h>
static void row(ra_function function, void *x, const int *sizes, int count) {
    float a = 1, b = 0;
    uint32_t grid[3] = {1, 1, 1}, block[3] = {32, 1, 1};
    for (int i = 0; i < count; i++) {
        void *of_add[] = {&x, &x, &x, (void *)&sizes[i]};
        void *of_scale[] = {&x, &a, &b, (void *)&sizes[i]};
        RA(ra_launch(function, grid, block, 0, NULL, function == add ? of_add : of_scale));
    }
}
static void *steps(void *x) {
    for (int i = 0; i < 200; i++) {
        row(scale, x, (const int[]){32}, 1);
        row(add, x, (const int[]){32, 24, 16, 8, 4}, 5);
        row(scale, x, (const int[]){32, 32}, 2);
        row(add, x, (const int[]){8, 16}, 2);
        RA(ra_context_synchronize());
    }
    return NULL;
}
int main(void) {
    pthread_t other;
    void *x = load(32);
    pthread_create(&other, NULL, steps, x);
    steps(x);
    return pthread_join(other, NULL);
}"""
)


def launches(run: RunDirectory) -> list[dict[str, Any]]:
    parts = [str(part) for part in sorted((run.path / "events").glob("kernel_launch-*.parquet"))]
    return ds.dataset(parts).to_table(["ordinal", "flags", "name"]).to_pylist()


def probed(run: RunDirectory) -> list[int]:
    """Ordinals of the launches that were probed."""
    return [row["ordinal"] for row in launches(run) if row["flags"] & abi.FLAG_PROBED]


def kernels(run: RunDirectory) -> list[dict[str, Any]]:
    file = run.path / "results" / "access_count" / "kernels.parquet"
    rows: list[dict[str, Any]] = ds.dataset(str(file)).to_table().to_pylist()
    return rows


def options(*assignments: str) -> tuple[str, ...]:
    return ("-t", "access_count", *(word for each in assignments for word in ("--set", each)))


def test_all_launches_without_windows(pasta_preload, compile_c) -> None:
    run = pasta_preload(compile_c(MANY), options=options()).run
    assert probed(run) == list(range(300))
    (row,) = kernels(run)
    assert (row["probed"], row["accesses"], row["error"]) == (300, 300 * ACCESSES, 0)
    assert "estimated" not in run.report


def test_no_launch_is_probed_without_probes(pasta_preload, compile_c) -> None:
    run = pasta_preload(compile_c(MANY), options=("-t", "kernel_freq")).run
    assert probed(run) == []


@pytest.mark.main
def test_windows_by_launches(pasta_preload, compile_c) -> None:
    run = pasta_preload(compile_c(MANY), options=options("probes.window=launches 10/100")).run
    assert probed(run) == [first + i for first in (0, 100, 200) for i in range(10)]
    (row,) = kernels(run)
    assert (row["launches"], row["probed"], row["accesses"]) == (300, 30, 30 * ACCESSES)
    assert (row["estimate"], row["error"]) == (300 * ACCESSES, 0)
    text = f"about {300 * ACCESSES:,} in all launches; probed launches of one shape, or place, were"
    assert f"{text} alike; counted in 30 of 300 launches" in " ".join(run.report.split())


def test_totals_exclude_kernels_outside_windows(pasta_preload, compile_c) -> None:
    """One of two kernels is probed: its total equals that of a run without windows."""
    given = options("probes.window=launches 2/1000")
    run = pasta_preload(compile_c(TWO_KERNELS), options=given).run
    by_name = {row["kernel"]: row for row in kernels(run)}
    assert by_name["scale"]["estimate"] == 3 * ACCESSES
    assert (by_name["vadd"]["launches"], by_name["vadd"]["accesses"]) == (10, None)
    report = " ".join(run.report.split())
    assert f"about {3 * ACCESSES} in all launches of the 1 of 2 kernels that were probed" in report
    assert (
        "never probed: 1 kernel, 77 % of launches (--sample, or --set probes.every=6, instead"
        in report
    )
    given = (*options("probes.every=6"), "-f", "-o", "pasta-out/every")
    (run,) = (
        each
        for each in pasta_preload(compile_c(TWO_KERNELS), options=given).runs
        if each.path.name == "every"
    )
    by_name = {row["kernel"]: row for row in kernels(run)}
    assert (by_name["vadd"]["probed"], by_name["vadd"]["estimate"]) == (2, 10 * 3 * 32)
    assert "never probed" not in run.report


def test_counts_of_the_run_are_estimated(pasta_preload, compile_c) -> None:
    """Two of three launches with two instructions of one warp, and of ten with three."""
    given = ("-t", "coalescing", "--sample", "--set", "probes.enough=2")
    run = pasta_preload(compile_c(TWO_KERNELS), options=given).run
    file = run.path / "results" / "coalescing" / "instructions.parquet"
    rows = ds.dataset(str(file)).to_table(["kernel", "instructions"]).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [("scale", 3)] * 2 + [("vadd", 10)] * 3
    report = " ".join(run.report.split())
    assert "counted in 4 of 13 launches; totals are estimated for all launches; probed" in report


@pytest.mark.main
def test_launches_are_estimated_by_their_place_in_a_step(pasta_preload, compile_c) -> None:
    run = pasta_preload(compile_c(PLACES), options=(*options(), "--sample")).run
    by_name = {row["kernel"]: row for row in kernels(run)}
    vadd = by_name["vadd"]
    assert vadd["launches"] == 2 * 200 * 7 and vadd["probed"] < 60
    exact = 2 * 200 * 3 * (32 + 24 + 16 + 8 + 4 + 8 + 16)
    assert vadd["estimate"] == pytest.approx(exact, rel=0.005)  # both threads begin without a row
    assert vadd["error"] < 0.005 * exact


@pytest.mark.main
def test_every_nth_launch(pasta_preload, compile_c) -> None:
    given = options("probes.window=launches 50/100", "probes.every=20")
    run = pasta_preload(compile_c(MANY), options=given).run
    assert probed(run) == [0, 20, 40, 110, 130, 200, 220, 240]


def test_windows_by_steps(pasta_preload, compile_c) -> None:
    run = pasta_preload(compile_c(STEPS), options=options("probes.window=steps 1/4")).run
    assert probed(run) == [5 * step + i for step in (0, 4, 8) for i in range(5)]


def test_steps_of_a_python_program(pasta_preload, python_program) -> None:
    program = python_program("import pasta\nfor _ in range(6):\n    launch(2)\n    pasta.step()\n")
    given = options("probes.window=steps 1/3")
    run = pasta_preload(sys.executable, program, options=given).run
    assert probed(run) == [0, 1, 6, 7]


@pytest.mark.parametrize(
    ("regex", "ordinals"),
    [
        ("step.*", [0, 3, 4, 7, 8, 11, 12]),  # of ranges that nest the outermost
        ("step", [0, 1, 2, 7, 8, 9, 10]),  # steps begin at launches 0, 3, 7 and 11
        ("ste", [*range(13)]),  # not the full name
    ],
)
def test_ranges_begin_steps(pasta_preload, compile_c, regex: str, ordinals: list[int]) -> None:
    given = options("probes.window=steps 1/2", f"probes.step-range={regex}")
    run = pasta_preload(compile_c(RANGES), options=given).run
    assert probed(run) == ordinals
    begun = run.manifest["steps"]["steps"]
    assert begun == {"step.*": 6, "step": 3, "ste": 0}[regex]
    said = [each for each in run.manifest["warnings"] if "probes.step-range" in each]
    assert bool(said) == (regex != "step")
    if regex == "step.*":
        assert "6 of them nested: the 6 outermost are the steps" in said[0]


def test_windows_by_time(pasta_preload, compile_c) -> None:
    given = options("probes.window=seconds 100/200")
    assert len(probed(pasta_preload(compile_c(MANY), options=given).run)) == 300


def test_overhead_budget(pasta_preload, compile_c) -> None:
    """Nothing is probed before the program's own speed is known, and no more than is enough."""
    program = compile_c("int main(void) { launch(20000); return 0; }")
    given = ("--overhead-budget", "100%", *options("probes.spot-check=0"))
    run = pasta_preload(program, options=given).run
    found = probed(run)
    assert len(found) == 3 and found[0] >= 9 * 2048 and found[2] == found[0] + 2
    (row,) = kernels(run)
    assert (row["estimate"], row["error"]) == (20000 * ACCESSES, 0)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (options("probes.window=steps 1/4"), "no call of pasta.step() was recorded"),
        (("--overhead-budget", "1%", *options()), "no launches were probed: the program was too"),
        (("--profile-from-start", "off", *options()), "profiling was never on (run.start = false)"),
    ],
)
def test_windows_without_effect_have_a_reason(
    pasta_preload, compile_c, given: tuple[str, ...], reason: str
) -> None:
    run = pasta_preload(compile_c(MANY), options=given).run
    (note,) = run.manifest["warnings"]
    assert note.startswith(reason)


SHAPES = (
    KERNELS
    + """
int main(void) {
    void *x = load(256);
    for (int i = 0; i < 2000; i++) { /* two grids, and a kernel whose work depends on a value */
        float a = 1, b = 0;
        int depends = i % 4 == 3, n = depends ? 1 + i * 7919 % 64 : 64;
        uint32_t grid[3] = {depends ? 3 : 1 + i % 2, 1, 1}, block[3] = {32, 1, 1};
        RA(ra_launch(scale, grid, block, 0, NULL, (void *[]){&x, &a, &b, &n}));
        RA(ra_context_synchronize());
    }
    return 0;
}"""
)


@pytest.mark.main
def test_enough_of_each_shape(pasta_preload, compile_c) -> None:
    program = compile_c(SHAPES)
    run = pasta_preload(program, options=(*options("probes.spot-check=200"), "--sample")).run
    file = run.path / "results" / "access_count" / "probed.parquet"
    shapes = {row["grid"]: row for row in ds.dataset(str(file)).to_table().to_pylist()}
    # 3, one soon after, another one after 200 launches per shape, and perhaps one after 400 more
    assert shapes["1x1x1"]["launches"] == 1000 and 5 <= shapes["1x1x1"]["probed"] <= 6
    assert shapes["2x1x1"]["launches"] == 500 and 5 <= shapes["2x1x1"]["probed"] <= 6
    # launches that differ are probed at growing distances
    assert shapes["3x1x1"]["launches"] == 500 and 10 < shapes["3x1x1"]["probed"] < 40
    (row,) = kernels(run)
    exact = 2 * (1000 * 32 + 500 * 64 + sum(1 + i * 7919 % 64 for i in range(3, 2000, 4)))
    assert abs(row["estimate"] - exact) <= 3 * row["error"] > 0
    assert row["error"] < 0.05 * exact


def test_returns_of_sampled_launches_are_recorded_for_tools_that_may_read_them(
    pasta_preload, compile_c, tmp_path: Path
) -> None:
    tool = tmp_path / "returns.py"
    handler = "    def on_launch_ends(self, ends): pass\n"
    tool.write_text(f"from pasta.tool import Tool\nclass Returns(Tool):\n{handler}")
    program = compile_c(MANY)
    for given, count in (
        (("--sample",), 0),
        (("--sample", "-t", "kernel_freq"), 0),
        (("--sample", "-t", str(tool)), 300),
        (("--sample", "--call-paths", "launches"), 300),
        ((), 300),
    ):
        done = pasta_preload(program, options=(*options(), *given, "-f", "-o", "pasta-out/run"))
        assert done.exit_status == 0, done.stderr
        events = done.run.manifest["events"]
        assert (events["kernel_launch"], events.get("kernel_launch_end", 0)) == (300, count), given


@pytest.mark.parametrize(
    ("filter", "count", "names"),
    [
        (("-k", r"^vadd\("), 10, {"_Z4vaddPKfS0_Pfi"}),
        (("-k", "_Z5scale"), 3, {"_Z5scalePfffi"}),
        (("--exclude", r"float const\*"), 3, {"_Z5scalePfffi"}),
        (("-k", r"(?:v)add|\d\d\d"), 10, {"_Z4vaddPKfS0_Pfi"}),
        (("-s", "2", "--launch-count", "4"), 4, {"_Z5scalePfffi", "_Z4vaddPKfS0_Pfi"}),
        (("-k", "vadd", "-s", "2", "--launch-count", "4"), 4, {"_Z4vaddPKfS0_Pfi"}),
    ],
)
def test_filters(
    pasta_preload, compile_c, filter: tuple[str, ...], count: int, names: set[str]
) -> None:
    """C probes exactly the launches that Python selects."""
    run = pasta_preload(compile_c(TWO_KERNELS), options=(*options(), *filter)).run
    recorded = launches(run)
    assert len(recorded) == len(probed(run)) == count
    assert {row["name"] for row in recorded} == names
    assert sum(row["probed"] for row in kernels(run)) == count


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("-k", r"\bvadd"), r"filter.kernel = '\\bvadd' cannot be used with probes: \b"),
        (("--set", "probes.window=often"), "probes.window = 'often' is not \"launches 100/1000\""),
        (("--overhead-budget", "lots"), "probes.overhead-budget = 'lots' is not a share"),
        (
            ("--overhead-budget", "5%", "--set", "probes.window=steps 1/2"),
            "probes.window and probes.overhead-budget both set when probes run",
        ),
    ],
)
def test_invalid_combinations(pasta_preload, compile_c, given: tuple[str, ...], says: str) -> None:
    done = pasta_preload(compile_c(MANY), options=(*options(), *given))
    assert done.exit_status == 2
    assert says in " ".join(done.lines)
    assert not done.runs


def test_python_only_expression_without_probes(pasta_preload, compile_c) -> None:
    run = pasta_preload(compile_c(MANY), options=("-t", "kernel_freq", "-k", r"\bscale")).run
    assert run.launches == 300
