"""A program with a CUPTI tool of its own, such as a framework's profiler, under the CUPTI source:
both get all of it, whatever comes first."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fake_cupti import play_cupti
from tests.support.played import Played

WINDOW = ("guest:start", "step", "step", "guest:stop")


Play = Callable[..., Played]


@pytest.fixture
def play(cupti: Path, tmp_path: Path) -> Play:
    def run(*scripts: str, settings: str = "", **environment: str) -> Played:
        return play_cupti(
            cupti, tmp_path, *scripts, "guest:report", settings=settings, **environment
        )

    return run


def without_pasta(cupti: Path, *scripts: str) -> str:
    environment = {
        "FAKE_GUEST": str(cupti / "libguest.so"), "FAKE_CUPTI": str(cupti / "libcupti.so.13"),
        "FAKE_DRIVER": str(cupti / "libcuda.so.1"),
    }  # fmt: skip
    done = subprocess.run(
        [cupti / "program", *scripts, "guest:report"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 7
    return done.stdout


def test_errors_of_cupti_reach_the_tool(play: Play) -> None:
    script = ("context", "guest:start", "guest:more", "step", "guest:less", "guest:stop")
    played = play(*script, FAKE_CUPTI_FAIL="ActivityDisable=15")
    assert (played.status, played.stderr) == (7, "")
    assert "guest less: 15\n" in played.stdout
    assert "kernels 1, copies 1, others 0" in played.stdout


ORDERS = {
    "after us": ("context", "step", "guest:subscribe", *WINDOW, "step"),
    "before cuInit": ("guest:subscribe", "context", "step", *WINDOW, "step"),
    "only records": ("context", "step", *WINDOW, "step"),
    "only callbacks": ("guest:subscribe", "context", "step"),
    "records before callbacks": ("context", "guest:start", "guest:subscribe", "step", "guest:stop"),
    "twice": ("context", "guest:subscribe", *WINDOW, "step", *WINDOW, "step"),
    "another clock": ("context", "step", "guest:subscribe", "guest:clock", *WINDOW, "step"),
    "unsubscribes in the middle": (
        "context", "guest:subscribe", "guest:start", "step", "guest:unsubscribe", "step",
        "guest:stop", "step",
    ),
    "never stops": ("context", "guest:subscribe", "guest:start", "step"),
    "finalizes": ("context", "guest:subscribe", *WINDOW, "guest:finalize", "step"),
    "a whole domain": (
        "guest:subscribe", "guest:domain", "context", "guest:undomain", "step", "end",
    ),
}  # fmt: skip


@pytest.mark.main
@pytest.mark.parametrize("order", ORDERS.values(), ids=list(ORDERS))
def test_both_get_all_of_it(cupti: Path, play: Play, order: tuple[str, ...]) -> None:
    """The program's tool gets what it gets without PASTA, and PASTA as much as without the tool."""
    expected = without_pasta(cupti, *order)
    assert ", outside 0" in expected
    played = play(*order)
    assert (played.status, played.stderr) == (7, "")
    assert played.stdout == expected
    steps = order.count("step")
    assert len(played["kernel_launch"]) == len(played["kernel_complete"]) == steps
    assert len(played["memory_copy"]) == len(played["copy_complete"]) == steps
    launched = dict(played.rows("kernel_launch", "ordinal", "time"))
    assert played.rows("clock_error", "observed") == [(0,)]
    for ordinal, start, end in played.rows("kernel_complete", "ordinal", "start", "end"):
        assert 0 <= start - launched[ordinal] < 100_000_000  # on our clock, whatever theirs is
        assert 300 <= end - start <= 3100  # the fake device's 1000, in ns or ticks
    assert len(played["stream_create"]) == 1
    assert len(played["stream_destroy"]) == order.count("end")


def test_second_tool_is_told_that_there_is_one(play: Play) -> None:
    played = play("context", "guest:subscribe", "guest:subscribe")
    assert "guest subscribe: 39" in played.stdout


def test_tool_first_and_the_sanitizer(cupti: Path, play: Play) -> None:
    """With probes CUPTI is not ours: the program's calls go to the library."""
    order = ("guest:subscribe", "context", *WINDOW)
    played = play(*order, settings="nvidia.source=sanitizer\nsanitizer_lib=/no/such.so\n")
    assert played.stdout == without_pasta(cupti, *order)
    assert "CUDA is not recorded: /no/such.so" in played.stderr


def test_tool_in_a_process_that_is_not_profiled(cupti: Path, tmp_path: Path) -> None:
    order = ("guest:subscribe", "context", *WINDOW, "guest:report")
    played = play_cupti(cupti, tmp_path, *order, PASTA_SHIM="")
    assert (played.status, played.stderr) == (7, "")
    assert played.stdout == without_pasta(cupti, *order[:-1])
