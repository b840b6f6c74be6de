"""Long runs: live view, limited duration, limited recording size."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.preload import base_environment, cli

LOOP = """
#include "pasta.h"
int main(void) {
    launch(1);
    for (int i = 0; i < 60; i++) {
        usleep(10000);
        launch(1);
    }
    pasta_start();
    launch(5);
    puts("done");
    return 3;
}
"""
#: Launches until a part with launches was written, then five times; prints the number of launches.
UNTIL_RECORDED = """
#include <glob.h>
int main(void) {
    int launched = 0;
    glob_t found;
    while (glob("pasta-out/.pasta-*/events/kernel_launch-00000.parquet", 0, NULL, &found)) {
        launch(1);
        launched++;
        usleep(1000);
    }
    launch(5);
    printf("%d\\n", launched + 5);
    return 0;
}
"""
#: Launches until the file `stop` is there.
UNTIL_STOPPED = """
int main(void) {
    while (access("stop", F_OK)) {
        launch(1);
        usleep(10000);
    }
    puts("done");
    return 3;
}
"""


@pytest.mark.main
def test_profiling_ends_after_its_duration(pasta_preload: Any, compile_c: Any) -> None:
    program = compile_c(LOOP, "-DACCELERATED", name="loop")
    done = pasta_preload(program, options=("--duration", "150ms"))
    assert (done.exit_status, done.stdout) == (3, "done\n")
    assert 2 <= done.run.launches <= 40  # a start after it changes nothing
    (stop,) = stops(done.run)
    assert stop["origin"] == "limit"
    (note,) = done.run.manifest["warnings"]
    assert re.fullmatch(r"profiling was on for .* \(run.duration = 150.00 ms\): .*", note)


#: Steps of one launch each; a range is open in each; the program stops profiling for some.
STEPS = """
#include "pasta.h"
int main(void) {
    for (int i = 0; i < 30; i++) {
        if (i == 10) pasta_stop();
        if (i == 20) pasta_start();
        pasta_range_push("iteration");
        launch(1);
        pasta_range_pop();
        pasta_step();
    }
    return 0;
}
"""


def stops(run: Any) -> list[dict[str, Any]]:
    """Records of the ends of profiling."""
    found = run.path.glob("events/profiling_stop-*")
    return [row for path in found for row in pq.read_table(path).to_pylist()]


@pytest.mark.main
def test_windows_of_seconds(pasta_preload: Any, compile_c: Any) -> None:
    program = compile_c(LOOP, "-DACCELERATED", name="loop")
    done = pasta_preload(program, options=("--window", "seconds 0.1/0.2"))
    assert (done.exit_status, done.stdout) == (3, "done\n")
    assert 5 <= done.run.launches <= 60  # of 66
    ends = stops(done.run)
    assert len(ends) >= 3 and {each["origin"] for each in ends} == {"window"}
    assert any(
        re.fullmatch(r"profiling was on for .* \(run.window = 'seconds 0.1/0.2'\): .*", line)
        for line in done.run.manifest["warnings"]
    )


def test_a_window_ends_with_the_duration(pasta_preload: Any, compile_c: Any) -> None:
    program = compile_c(LOOP, "-DACCELERATED", name="loop")
    options = ("--window", "seconds 0.05/0.1", "--duration", "230ms")
    origins = [each["origin"] for each in stops(pasta_preload(program, options=options).run)]
    assert origins == ["window", "window", "limit"]


@pytest.mark.main
def test_windows_of_steps(pasta_preload: Any, compile_c: Any) -> None:
    program = compile_c(STEPS)
    done = pasta_preload(program, options=("--window", "steps 2/6"))
    # steps 0, 1, 6, 7, 24 and 25, not the stopped 12, 13, 18 and 19
    assert done.run.launches == 6


def test_windows_of_ranges_that_are_steps(pasta_preload: Any, compile_c: Any) -> None:
    program = compile_c(STEPS.replace("pasta_step();", ""))
    options = ("--window", "steps 2/6", "--set", "probes.step-range=iter.*")
    done = pasta_preload(program, options=options)
    # the first range begins step 1: ranges 0, 5, 6, 23, 24 and 29
    assert done.run.launches == 6


@pytest.mark.main
def test_recording_stays_below_max_size(pasta_preload: Any, compile_c: Any) -> None:
    program = compile_c(UNTIL_RECORDED)
    done = pasta_preload(program, options=("--max-size", "1KiB"))
    launched = int(done.stdout)
    manifest = done.run.manifest
    recorded, left_out = manifest["recorded"], manifest["left_out"]
    assert recorded["kernel_launch"] + left_out["kernel_launch"] == launched
    assert recorded["kernel_launch"] > 0 and left_out["kernel_launch"] >= 5
    assert manifest["launches"]["seen"] == launched  # results include all events
    assert any("events were not kept (run.max-size)" in line for line in manifest["warnings"])


def test_live_view_keeps_the_programs_output(
    pasta_preload: Any, compile_c: Any, tmp_path: Path
) -> None:
    program = compile_c(UNTIL_STOPPED)
    status, shown = on_terminal(
        [*cli("pasta-preload"), "--live", "-q", str(program)],
        tmp_path,
        lambda shown: b" launches, " in shown and b" live, peak " in shown,
    )
    assert status == 3
    plain = re.sub(rb"\x1b7.*?\x1b8", b"", shown, flags=re.DOTALL)
    assert plain.replace(b"\r", b"").replace(b"\n", b"").endswith(b"done")


def on_terminal(
    command: list[str], directory: Path, enough: Callable[[bytes], bool]
) -> tuple[int, bytes]:
    """Exit status of a command on a terminal of 24 lines, and its output there; the file `stop` is
    made in its directory once that is enough."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        command, env=base_environment(), cwd=directory, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 1 << 16):
            shown += piece
            if enough(shown):
                (directory / "stop").touch()
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    return process.wait(30), shown
