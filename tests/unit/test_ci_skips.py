"""CI accepts skipped tests only if hardware is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.places import ROOT

TESTS = """
import pytest
def test_runs(): pass
@pytest.mark.skip(reason="no NVIDIA GPU: nvidia-smi was not found")
@pytest.mark.parametrize("n", range(3))
def test_gpu(n): pass
@pytest.mark.xfail(reason="not yet")
def test_later(): assert 0
"""
MISSING = 'import pytest\npytest.importorskip("a_module_nobody_has")\ndef test_x(): pass\n'
EACH = "import pytest\n@pytest.mark.parametrize('n', {})\ndef test_each(n): pass\n"


def junit(directory: Path, name: str, **files: str) -> Path:
    place = directory / name
    place.mkdir()
    for file, text in files.items():
        (place / f"{file}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null"]
    output = directory / f"{name}.xml"
    subprocess.run(
        [*command, f"--rootdir={place}", f"--junitxml={output}", place],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, capture_output=True,
    )  # fmt: skip
    return output


def skips(*paths: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, ROOT / "ci" / "skips", *paths], capture_output=True, text=True
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_hardware_is_accepted_and_what_can_be_installed_is_not(tmp_path: Path) -> None:
    hardware = junit(tmp_path, "hardware", test_a=TESTS)
    gpu = "     3 skipped: no NVIDIA GPU: nvidia-smi was not found\n"
    assert skips(hardware) == (0, gpu)
    missing = junit(tmp_path, "missing", test_b=MISSING)
    status, said = skips(hardware, missing)
    assert status == 1
    assert said.count("\n") == 3
    assert "     1 skipped: could not import 'a_module_nobody_has'" in said
    there = junit(tmp_path, "there", test_b=MISSING.replace("a_module_nobody_has", "json"))
    assert skips(hardware, missing, there) == (0, gpu)
    reason = "no NVIDIA GPU: nvidia-smi was not found"
    skip = MISSING.replace("a_module_nobody_has", "json").replace(
        "pass", f"pytest.skip({reason!r})"
    )
    other = junit(tmp_path, "other", test_b=skip)
    assert skips(missing, other) == (0, gpu.replace("3", "1"))
    none = junit(tmp_path, "none", test_c=EACH.format([]))
    assert skips(none)[0] == 1
    assert skips(none, junit(tmp_path, "some", test_c=EACH.format([1]))) == (0, "")
