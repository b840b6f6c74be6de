"""The first finding of a program with a planted fault is that fault, with its line; clean programs
have no finding above low confidence.

A program is a file in tests/programs/pytorch, in `faults` or `clean`; the line at fault ends with a
comment `# FAULT`. To add one, write the file and state its first finding in `FAULTS`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.places import PROGRAMS
from tests.support.preload import base_environment, cli

FAULTY = PROGRAMS / "pytorch" / "faults"
FAULTLESS = PROGRAMS / "pytorch" / "clean"
#: Runs programs one after the other in one process.
DRIVER = PROGRAMS / "pytorch" / "profile_each.py"
CLEAN = sorted(path.stem for path in FAULTLESS.glob("*.py"))
#: Programs with their expected first finding: the tool, and words of `what`.
FAULTS = {
    "batches_of_one": ("operators", "many short operators"),
    "checkpoint_every_step": ("operators", "time is spent outside operators"),
    "created_on_host": ("copies|operators", "many s"),  # small copies, short operators
    "gradients_in_evaluation": ("tensors", "gradients are prepared but never computed"),
    "growing_sizes": ("memory_timeline", "reserves memory that it never uses"),
    "item_every_step": ("operators", "waits for the device repeatedly"),
    "kept_graph": ("tensors", "memory grows every step: results are kept with their graph"),
    "kept_graph_in_training": ("tensors", "memory grows every step: results are kept with their"),
    "kept_on_device": ("tensors", "memory grows every step: results are kept"),
    "kept_outputs": ("tensors", "memory grows every step: results are kept"),
    "loader_without_workers": ("operators", "waits for data loading"),
    "logging_every_step": ("operators", "time is spent outside operators"),
    "mask_every_step": ("operators", "waits for the device repeatedly"),
    "optimizer_every_step": ("operators", "a module is built repeatedly"),
    "pageable_copies": ("copies", "pageable host memory"),
    "ping_pong": ("copies", "from the device to the host and back"),
    "pinned_every_step": ("memory_timeline", "allocations accumulate until the end of the work"),
    "print_every_step": ("operators", "waits for the device repeatedly"),
    "retained_graph": ("tensors", "memory grows every step: results are kept with their graph"),
    "same_copy_every_step": ("copies", "the same tensors are sent"),
    "slow_decoding": ("operators", "time is spent outside operators"),
    "slow_loading": ("operators", "time is spent outside operators"),
    "synchronize_every_step": ("operators", "waits for the device repeatedly"),
    "tiny_kernels": ("operators", "many short operators"),
    "tiny_kernels_on_device": ("operators", "many short operators"),
    "transposed_every_step": ("operators", "converted or copied repeatedly"),
    "type_every_step": ("operators", "converted or copied repeatedly"),
}
#: The extension of the device may have to be built first; all programs run once, for all tests.
pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("faults")]

Finding = dict[str, Any]


def program(name: str) -> Path:
    return (FAULTLESS if name in CLEAN else FAULTY) / f"{name}.py"


@pytest.fixture(scope="session")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Finding]]:
    """Findings of each program, the first one first."""
    directory = tmp_path_factory.mktemp("faults")
    options = ["-c", "torch", "-q", "--profile-from-start", "off", "-o", str(directory / "run")]
    programs = [str(program(name)) for name in [*FAULTS, *CLEAN]]
    done = subprocess.run(
        [*cli("pasta-preload"), *options, "--", sys.executable, str(DRIVER), *programs],
        cwd=directory, env=base_environment(), capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reported = [json.loads(line) for line in done.stdout.splitlines()]
    return {Path(each["program"]).stem: each["findings"] for each in reported}


def fault_line(name: str) -> int:
    lines = program(name).read_text().splitlines()
    (line,) = (number for number, text in enumerate(lines, 1) if "# FAULT" in text)
    return line


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_the_first_finding_with_its_line(
    findings: dict[str, list[Finding]], name: str
) -> None:
    tools, what = FAULTS[name]
    assert findings[name], "nothing was found"
    first = findings[name][0]
    assert first["tool"] in tools.split("|"), first
    assert what in first["what"], first
    lines = [int(each) for each in re.findall(rf"{name}\.py:(\d+)", first["where"])]
    assert lines, first
    # the line itself, or the gap between the operators before and after it
    assert fault_line(name) in lines or min(lines) <= fault_line(name) <= max(lines), first
    assert re.search(rf"{name}\.py:\d+", first["remedy"]), first


STOPPED = """
import time, torch, pasta, threading
x = torch.ones(1)
x + x
pasta.stop()
time.sleep(0.3)
pasta.start()
time.sleep(0.1)
x + x
print(threading.active_count())
"""


def test_no_samples_while_profiling_is_stopped(pasta_preload, tmp_path: Path) -> None:
    path = tmp_path / "stopped.py"
    path.write_text(STOPPED)
    done = pasta_preload(sys.executable, path, options=("-c", "operators"))
    assert (done.exit_status, done.stdout) == (0, "1\n")
    assert done.run.count("python_sample") <= 1


@pytest.mark.parametrize("name", CLEAN)
def test_clean_programs_have_only_low_confidence_findings(
    findings: dict[str, list[Finding]], name: str
) -> None:
    assert [each for each in findings[name] if each["confidence"] != "low"] == []


def test_every_program_is_tested() -> None:
    assert {path.stem for path in FAULTY.glob("*.py")} == set(FAULTS)
