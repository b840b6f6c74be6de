"""Ranges, marks and profiling on and off, from the program to the run directory and its report."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.support.preload import EMBED_NOW, RunDirectory

PHASES = """
#include "pasta.h"
int main(void) {
    pasta_range_push("setup");
    launch(2);
    pasta_range_pop();
    pasta_range_push("train");
    pasta_range_push("step");
    launch(3);
    pasta_range_pop();
    launch(4);
    pasta_range_pop();
    pasta_mark("done");
    launch(5);
    return 0;
}"""


def column(run: RunDirectory, kind: str, name: str) -> list[str]:
    parts = [str(part) for part in sorted((run.path / "events").glob(f"{kind}-*.parquet"))]
    return ds.dataset(parts).to_table([name])[name].to_pylist() if parts else []


@pytest.mark.main
def test_c_program(pasta_preload, compile_c) -> None:
    run = pasta_preload(compile_c(PHASES)).run
    assert column(run, "range_push", "name") == ["setup", "train", "step"]
    assert column(run, "mark", "name") == ["done"]
    assert run.count("range_pop") == 3
    assert run.launches == 14


def test_range_filter(pasta_preload, compile_c) -> None:
    """Only launches inside ranges that match, nested ones included."""
    for regex, launches in (("train", 7), ("step", 3), ("^setup$", 2), ("setup|step", 5)):
        options = ("--range", regex, "-f", "-o", "pasta-out/r")
        run = pasta_preload(compile_c(PHASES), options=options).run
        assert run.count("kernel_launch") == launches
        assert run.manifest["launches"] == {"seen": 14, "selected": launches}
        assert f"kernel_freq: {launches} launches" in run.report


def test_range_that_never_occurs(pasta_preload, compile_c) -> None:
    done = pasta_preload(compile_c(PHASES), options=("--range", "evaluate"))
    assert "the filter selected none of 14 launches" in " ".join(done.lines)


SWITCHED = """
#include "pasta.h"
int main(void) {
    launch(2);
    pasta_start();
    launch(3);
    pasta_stop();
    launch(4);
    pasta_start();
    launch(5);
    return 0;
}"""


def test_start_and_stop(pasta_preload, compile_c) -> None:
    assert pasta_preload(compile_c(SWITCHED)).run.launches == 2 + 3 + 5
    options = ("--profile-from-start", "off", "-f", "-o", "pasta-out/r")
    done = pasta_preload(compile_c(SWITCHED), options=options)
    run = next(run for run in done.runs if run.path.name == "r")
    assert run.launches == 3 + 5
    # Earlier allocations must be known nevertheless.
    assert run.count("memory_alloc") == 4


def test_profiler_control_of_the_accelerator(pasta_preload, compile_c) -> None:
    program = compile_c(
        "int main(void) { launch(2); RA(ra_profiler_start()); launch(3); RA(ra_profiler_stop());"
        " launch(4); return 0; }"
    )
    assert pasta_preload(program, options=("--profile-from-start", "off")).run.launches == 3


def test_in_a_child_process(pasta_preload, compile_c) -> None:
    """Ranges belong to their process: a child's run has none of its parent's."""
    program = compile_c(
        """
        #include "pasta.h"
        int main(void) {
            pasta_range_push("parent");
            launch(1);
            if (!fork()) { pasta_range_push("child"); launch(2); pasta_range_pop(); return 0; }
            wait(NULL);
            pasta_range_pop();
            return 0;
        }"""
    )
    names = {run.launches: column(run, "range_push", "name") for run in pasta_preload(program).runs}
    assert names == {1: ["parent"], 2: ["child"]}


PYTHON = """
import sys
{before}
import time
import pasta

@pasta.range("decorated")
def work(count):
    launch(count)

with pasta.range("epoch"):
    work(2)
    launch(3)
pasta.mark("saved")
pasta.stop()
launch(4)
pasta.start()
launch(5)
until = time.monotonic() + {seconds}  # the consumer imports NumPy
while time.monotonic() < until and "numpy" not in sys.modules:
    time.sleep(0.02)
print(sorted(m for m in ("numpy", "pyarrow") if m in sys.modules))
"""


@pytest.mark.main
def test_python_program(pasta_preload, python_program) -> None:
    program = python_program(PYTHON.format(before="", seconds=0))
    done = pasta_preload(sys.executable, program)
    assert (done.exit_status, done.stdout, done.target_stderr) == (0, "[]\n", "")
    assert column(done.run, "range_push", "name") == ["epoch", "decorated"]
    assert column(done.run, "mark", "name") == ["saved"]
    assert done.run.launches == 2 + 3 + 5


def test_python_program_with_embedded_consumer(pasta_preload, python_program) -> None:
    program = python_program(PYTHON.format(before="", seconds=30))
    done = pasta_preload(sys.executable, program, options=(*EMBED_NOW, "--range", "epoch"))
    assert (done.exit_status, done.target_stderr) == (0, "")
    assert done.run.consumer == "embedded"
    assert done.run.count("kernel_launch") == 5


def test_program_without_pasta_preload(compile_c, tmp_path: Path) -> None:
    """The header alone does nothing."""
    import subprocess

    assert subprocess.run([compile_c(PHASES)], cwd=tmp_path).returncode == 0
    assert list(tmp_path.iterdir()) == []
