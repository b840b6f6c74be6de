"""`pasta attach` to a training with PyTorch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.debuggers import debugger  # noqa: F401
from tests.support.preload import TIMEOUT, RunDirectory, base_environment, cli

pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("debugger"),
]

TRAINING = """
import os, sys, time, torch
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step():
    optimizer.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()

step()
print("ready", flush=True)
while not os.path.exists("stop"):
    step()
    time.sleep(0.005)
sys.exit(3)
"""


@pytest.mark.main
@pytest.mark.timeout(400)  # the hooks may be built
def test_training(tmp_path: Path) -> None:
    """Modules and lines are known though the model was made before; and again a second time."""
    (tmp_path / "train.py").write_text(TRAINING)
    program = subprocess.Popen(
        [sys.executable, "train.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=base_environment(), cwd=tmp_path,
    )  # fmt: skip
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        for name in ("first", "second"):
            profile(program.pid, tmp_path, name)
        (tmp_path / "stop").touch()
        assert program.communicate(timeout=TIMEOUT) == ("", "")
        assert program.returncode == 3
    finally:
        program.kill()


def profile(pid: int, directory: Path, name: str) -> None:
    done = subprocess.run(
        [*cli("pasta"), "attach", str(pid), "--duration", "1s", "-o", name],
        capture_output=True, text=True, timeout=3 * TIMEOUT, env=base_environment(), cwd=directory,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = RunDirectory(directory / name)
    assert run.manifest["tools"] == ["operators", "tensors"]
    assert run.manifest["failures"] == {}
    tables = directory / name / "results" / "operators"
    lines = pq.read_table(tables / "lines.parquet").column("line").to_pylist()
    assert any("train.py:8 step" in str(line) for line in lines), lines
    modules = pq.read_table(tables / "modules.parquet").column("module").to_pylist()
    assert "Sequential.0 (Linear)" in modules
