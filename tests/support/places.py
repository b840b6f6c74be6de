"""Folders of the checkout that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: C, CUDA and Python programs that tests compile or run.
PROGRAMS = ROOT / "tests" / "programs"
#: Recorded runs, event streams and listings.
DATA = ROOT / "tests" / "data"
#: The environment variable with the directory of objects of PASTA's files that a test run compiled;
#: conftest.py sets it.
OBJECTS = "PASTA_TEST_OBJECTS"
