"""What a plan for managed memory does at which call: programs/test_plan.c, which prints it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pasta.processors.managed_plan import Allocation, Entry, LaunchKey, parsed, written
from tests.support.c_builds import Build
from tests.support.places import PROGRAMS, ROOT
from tests.support.session import compile_c

#: Longer than any buffer that a line might be read into.
LONG = "k" * 10_000


@pytest.fixture(scope="module")
def program(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [ROOT / "shim" / "managed" / "plan.c", PROGRAMS / "test_plan.c"]
    return compile_c(tmp_path_factory.mktemp(build.name) / "test_plan", sources, *build.flags)


@pytest.fixture
def carried_out(build: Build, program: Path, tmp_path: Path) -> Any:
    def run(entries: list[Entry], *calls: str) -> list[str]:
        plan = tmp_path / "plan"
        plan.write_text("".join(entry.native() for entry in parsed(written(entries))))
        done = build.run(program, *calls, PLAN=str(plan))
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    return run


def launch(occurrence: int | None = None, kernel: str = LONG) -> LaunchKey:
    return LaunchKey(kernel, (1, 1, 1), occurrence)


def test_steps_in_the_order_of_the_plan(carried_out: Any) -> None:
    entries = [
        Entry("evict", Allocation(64), 0, 1, launch()),
        Entry("prefetch", Allocation(64), 1, 2, launch(1)),
        Entry("prefetch", Allocation(64), 2, 3, launch()),
        Entry("prefetch", Allocation(64, 1), 3, 4, launch(1)),
        Entry("pin", Allocation(64), 4, 5),
        Entry("prefetch", Allocation(64), 5, 6, launch(kernel="l")),
        Entry("pin", Allocation(64), 6, 7),
    ]
    calls = ("a 64 1000", f"l {LONG}", "a 64 2000", f"l {LONG}", "l other")
    steps = [
        "a 4 1004 5", "a 6 1006 7", "b 2 1002 3", "e 0 1000 1",
        "b 1 1001 2", "b 2 1002 3", "b 3 2003 4", "e 0 1000 1",
    ]  # fmt: skip
    *found, summary, missing = carried_out(entries, *calls)
    assert found == steps
    assert summary == "managed memory plan: 6 of 7 entries applied, 8 calls"
    assert missing.startswith(
        "managed memory plan: entry 6 matched nothing: prefetch of 6 bytes of"
    )


def test_a_launch_may_have_any_number_of_steps(carried_out: Any) -> None:
    count = 300
    entries = [Entry("prefetch", Allocation(4096), at, 1, launch(0)) for at in range(count)]
    *found, summary = carried_out(entries, "a 4096 10000", f"l {LONG}", f"l {LONG}")
    assert found == [f"b {at} {10000 + at} 1" for at in range(count)]
    assert summary.endswith("300 of 300 entries applied, 300 calls")


def test_only_live_allocations_and_each_process_by_itself(carried_out: Any) -> None:
    entries = [
        Entry("prefetch", Allocation(8), 0, 1, launch(kernel="k")),
        Entry("prefetch", Allocation(9), 0, 2, launch(kernel="k")),
    ]
    reused = ("a 8 500", "f 500", "l k", "a 9 500", "l k")
    assert carried_out(entries, *reused)[:-2] == ["b 1 500 2"]
    # freed in a way that is not followed
    assert carried_out(entries, "a 8 500", "a 9 500", "l k")[:-2] == ["b 1 500 2"]
    forked = carried_out(
        entries, "a 8 500", "a 9 600", "l k", "n", "f 500", "l k", "a 8 700", "l k"
    )
    assert forked[:-2] == ["b 0 500 1", "b 1 600 2", "b 0 700 1"]
    assert forked[-2] == "managed memory plan: 1 of 2 entries applied, 1 calls"
