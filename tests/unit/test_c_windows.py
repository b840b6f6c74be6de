"""When probes run, decided in C: tests/programs/test_windows.c, plain and under the sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.c_builds import Build, Case
from tests.support.places import PROGRAMS
from tests.support.session import RING_SOURCES, compile_c

SECOND = 10**9


BUDGET = {"probe_budget": 200_000, "probe_factor": 3000}
SAMPLE = {"probe_enough": 3, "probe_spot_check": 1000}
KEPT = {"probe_budget": 100_000, "probe_factor": 1200, **SAMPLE}
CASES = (
    Case("always"),
    Case("launches", {"probe_window": "launches 100 1000"}),
    Case("steps", {"probe_window": "steps 1 3"}),
    Case("seconds", {"probe_window": f"seconds {SECOND} {60 * SECOND}"}),
    Case("every", {"probe_window": "launches 4 8", "probe_every": 3}),
    Case("counted", {"probe_window": "launches 4 8", "probe_skip": 5, "probe_count": 10}),
    Case("forked", {"probe_window": "steps 1 2", "probe_skip": 1}),
    *(
        Case(f"budget_{program}", KEPT)
        for program in (
            *("host_bound", "device_bound", "waits", "without_waits", "slow_start", "unsampled"),
            *("long_launches", "cheap"),
        )
    ),
    Case("budget_then_steps", BUDGET),
    Case("enough", SAMPLE),
    Case("modules", SAMPLE),
    Case("by_operator", SAMPLE),
    Case("pauses", {**SAMPLE, "probe_pause": 1}),
    Case("budget_pauses", {**KEPT, "probe_pause": 1}),
    Case("differing_pauses", {**SAMPLE, "probe_spot_check": 4000, "probe_pause": 1}),
    Case("pausing_threads", {**SAMPLE, "probe_pause": 1}),
    Case("selected_modules", {"probe_kernel": "."}),
    Case("spot_checks", SAMPLE),
    Case("unlike_launches", SAMPLE),
    *(Case(name, {**SAMPLE, "probe_spot_check": 10000}) for name in ("begins_of_rows", "growing")),
    Case("every_sampled", {**SAMPLE, "probe_every": 7}),
    Case("launches_in_a_row", {**SAMPLE, "probe_spot_check": 4000}),
    Case("launches_in_a_row", {**SAMPLE, "probe_spot_check": 4000, "probe_pause": 1}),
    *(Case(name, {**SAMPLE, "probe_spot_check": 0}) for name in ("places", "many_places")),
    *(Case(name, {**SAMPLE, "probe_returns": 0}) for name in ("put_off", "put_off_and_fork")),
    Case("never_rests", SAMPLE),
    *(
        Case("never_rests", {**SAMPLE, "probe_returns": 0, **option})
        for option in (
            {"probe_every": 2},
            {"probe_count": 9},
            {"probe_range": "a"},
            {"probe_budget": 1000},
            {"probe_window": "steps 1 3"},
            {"probe_enough": 0},
        )
    ),
    Case("unimportant_launches", SAMPLE),
    Case("many_shapes", SAMPLE, says="pasta: probes: more than 32768 launch shapes"),
    Case("select", {"probe_kernel": "^void gemm|vadd", "probe_exclude": "<double>"}),
    Case("step_ranges", {"probe_window": "steps 1 2", "probe_step_range": "^iteration$"}),
    Case("nested_ranges", {"probe_window": "steps 1 2", "probe_step_range": "^(step.*)$"}),
    Case("ranges", {"probe_range": "epoch"}),
    Case("operators", {"probe_operator": "addmm|Backward", "probe_module": "fc1"}),
    Case("wrong_expression", {"probe_kernel": "("}, says="pasta: probe_kernel = (: "),
    Case("threads", {"probe_window": "launches 1 2", "probe_every": 5}),
    Case("budget_threads", {**BUDGET, "probe_factor": 200, "probe_kernel": "vadd"}),
    Case("speed", {**BUDGET, "probe_kernel": "vadd", "probe_every": 2}),
)


@pytest.fixture(scope="module")
def program(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp(build.name) / "test_windows"
    included = ("budget.c", "windows.c")  # by the test, with a simulated clock
    sources = [source for source in RING_SOURCES if source.name not in included]
    return compile_c(output, [*sources, PROGRAMS / "test_windows.c"], *build.flags)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_windows(build: Build, program: Path, tmp_path: Path, case: Case) -> None:
    case.check(build, program, tmp_path, 100_000 // build.events)
