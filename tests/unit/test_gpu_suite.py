"""ci/gpu-suite where it cannot run, and with commands that stand for a GPU and for Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.places import ROOT

SUITE = ROOT / "ci" / "gpu-suite"


def run_suite(directory: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    """Exit status and output."""
    done = subprocess.run(
        ["bash", SUITE, *arguments],
        env={**os.environ, "OUT": str(directory / "out"), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=directory,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("options", "device", "line"),
    [
        (["--amd"], Path("/dev/kfd"), "gpu-suite: no AMD GPU here: /dev/kfd does not exist"),
        ([], Path("/dev/nvidiactl"), "gpu-suite: no NVIDIA GPU here: "),
    ],
)
def test_no_device(tmp_path: Path, options: list[str], device: Path, line: str) -> None:
    if device.exists() or (not options and shutil.which("nvidia-smi")):
        pytest.skip(f"there is {device}")
    status, output = run_suite(tmp_path, *options)
    assert (status, output.count("\n")) == (2, 1)
    assert output.startswith(line)


@pytest.fixture
def stand_ins(tmp_path: Path) -> dict[str, str]:
    """Variables with which `nvidia-smi` has a GPU, and Python prints its arguments; it fails for
    pytest."""
    commands = {
        "nvidia-smi": "echo GPU 0: none",
        "nvcc": "echo nvcc",
        "python": 'echo "$@"; case "$*" in "-m pytest"*) exit 1 ;; esac',
        "pasta": "",
        "pasta-preload": 'echo "$@"',
    }
    for name, text in commands.items():
        file = tmp_path / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    return {"PATH": path, "PYTHON": str(tmp_path / "python"), "WHEELS": str(tmp_path)}


def test_parts_run_in_their_order_and_tables_are_printed(
    tmp_path: Path, stand_ins: dict[str, str]
) -> None:
    status, output = run_suite(tmp_path, "small", "derived", "tests", **stand_ins)
    (failed,) = re.findall(r"^tests +failed \(1\) ", output, re.MULTILINE)
    assert failed
    assert (status, "gpu-suite: FAILED" in output) == (1, True)
    shown = re.findall(r"^(\w+)\n(\S*/bench/gpu\S*) ", output, re.MULTILINE)
    assert [(part, Path(file).stem) for part, file in shown] == [
        ("small", "gpu"),
        ("derived", "derived"),
    ]
    assert "--only inference" in (tmp_path / "out" / "small.txt").read_text()
    status, output = run_suite(tmp_path, "small", **stand_ins)
    assert (status, "gpu-suite: passed" in output) == (0, True)


def test_parts_that_do_not_fit_are_not_run(tmp_path: Path, stand_ins: dict[str, str]) -> None:
    status, output = run_suite(tmp_path, "small", "sample", LIMIT="9", **stand_ins)
    assert status == 1
    assert re.search(r"^install +not run: \d s are left$", output, re.MULTILINE)
    assert not (tmp_path / "out" / "small.txt").exists()


def test_wheels_are_found_from_where_the_suite_is_started(
    tmp_path: Path, stand_ins: dict[str, str]
) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "some-1.whl").touch()
    status, _ = run_suite(tmp_path, "small", **{**stand_ins, "WHEELS": "wheels"})
    installed = (tmp_path / "out" / "install.log").read_text()
    assert (status, f"{tmp_path}/wheels/some-1.whl" in installed) == (0, True)
    status, output = run_suite(tmp_path, "small", **{**stand_ins, "WHEELS": "wheel"})
    assert (status, output) == (2, "gpu-suite: no directory wheel: see WHEELS\n")


def test_unknown_part(tmp_path: Path, stand_ins: dict[str, str]) -> None:
    status, output = run_suite(tmp_path, "small", "smaller", **stand_ins)
    assert (status, output) == (2, "gpu-suite: there is no part smaller: see ci/gpu-suite --list\n")


def test_all_parts_are_known_to_the_suite() -> None:
    listed = subprocess.run(["bash", SUITE, "--list"], capture_output=True, text=True, check=True)
    parts = {line.split()[0] for line in listed.stdout.splitlines()}
    assert len(parts) > 5
    run = re.findall(r"^    ([\w |-]+)\)", SUITE.read_text(), re.MULTILINE)
    assert parts <= set(" | ".join(run).split(" | "))
