"""ci/gpu-suite on a machine where it cannot run: one line says why, and the status is not 0."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.places import ROOT

SUITE = ROOT / "ci" / "gpu-suite"


@pytest.mark.parametrize(
    ("option", "device", "line"),
    [
        ("--amd", Path("/dev/kfd"), "gpu-suite: no AMD GPU here: /dev/kfd does not exist"),
        ("", Path("/dev/nvidiactl"), "gpu-suite: no NVIDIA GPU here: "),
    ],
)
def test_no_device(tmp_path: Path, option: str, device: Path, line: str) -> None:
    if device.exists() or (not option and shutil.which("nvidia-smi")):
        pytest.skip(f"there is {device}")
    done = subprocess.run(
        ["bash", SUITE, *([option] if option else [])],
        env={**os.environ, "OUT": str(tmp_path / "out")},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (2, "")
    (printed,) = done.stdout.splitlines()
    assert printed.startswith(line)
