"""Stacks and modules that the hooks in PyTorch find: as Python's own, in each version of Python on
this machine, without PyTorch (tests/programs/pytorch/locations.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.places import PROGRAMS, ROOT
from tests.support.pythons import other_pythons

LOCATIONS = PROGRAMS / "pytorch" / "locations.py"
#: Flags of the compiler by how frames are read.
FLAGS: dict[str, tuple[str, ...]] = {
    "without the lock": (),
    "with the lock": ("-DWITH_THE_LOCK",),
}
#: How, by Python's version; 3.11 has no function that finds modules with the lock.
WAYS = {
    "3.10": tuple(FLAGS),
    "3.11": ("without the lock",),
    "3.12": tuple(FLAGS),
    "3.13": tuple(FLAGS),
    "3.14": ("with the lock",),
}
_ABOUT = (
    "import sys, sysconfig; print('%d.%d' % sys.version_info[:2], sysconfig.get_paths()['include'])"
)


def output(command: list[str | Path]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.process
def test_locations_are_pythons_own(tmp_path: Path) -> None:
    compared = 0
    for python in (sys.executable, *other_pythons()):
        version, include = output([python, "-c", _ABOUT]).split()
        if not Path(include, "Python.h").exists():
            continue
        for way in WAYS.get(version, ()):
            directory = tmp_path / version / way
            directory.mkdir(parents=True)
            output([
                "c++", "-O1", "-fPIC", "-shared", "-std=c++17", "-fvisibility=hidden", *FLAGS[way],
                "-I", include, "-I", ROOT / "shim" / "include",
                "-I", ROOT / "pasta" / "frameworks" / "torch" / "cpp" / "hooks",
                PROGRAMS / "pytorch" / "location.cpp", "-o", directory / "location.so",
            ])  # fmt: skip
            assert output([python, LOCATIONS, directory]) == way + "\n", version
            compared += 1
    assert compared
