"""What the CUPTI source remembers and shares: programs/test_cupti.c, case by case."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.c_builds import Build
from tests.support.places import PROGRAMS, ROOT
from tests.support.session import compile_c


@pytest.fixture(scope="module")
def program(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    nvidia = ROOT / "shim" / "backends" / "nvidia"
    sources = [nvidia / "cupti_submitted.c", nvidia / "cupti_guest.c", PROGRAMS / "test_cupti.c"]
    output = tmp_path_factory.mktemp(build.name) / "test_cupti"
    return compile_c(output, sources, *build.flags)


@pytest.fixture(scope="module")
def samples(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [
        ROOT / "shim" / "backends" / "nvidia" / "cupti_samples.c",
        PROGRAMS / "test_cupti_samples.c",
    ]
    output = tmp_path_factory.mktemp(build.name) / "test_cupti_samples"
    return compile_c(output, sources, *build.flags)


@pytest.mark.parametrize("mode", ["continuous", "serialized", "refused"])
def test_every_sample_is_published_once(build: Build, samples: Path, mode: str) -> None:
    done = build.run(samples, mode)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def counters(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [
        ROOT / "shim" / "backends" / "nvidia" / "cupti_counters.c",
        PROGRAMS / "nvidia" / "fake_cupti_counters.c",
        PROGRAMS / "nvidia" / "fake_cupti_instructions.c",
        PROGRAMS / "test_cupti_counters.c",
    ]
    output = tmp_path_factory.mktemp(build.name) / "test_cupti_counters"
    return compile_c(output, sources, *build.flags)


@pytest.mark.parametrize("mode", ["kernel", "range"])
def test_every_launch_has_its_own_counters(build: Build, counters: Path, mode: str) -> None:
    done = build.run(counters, mode)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "case", ["submitted", "replaced", "polled", "buffers", "too_small", "subscribers", "clocks"]
)
def test_cupti(build: Build, program: Path, case: str, seed: int) -> None:
    done = build.run(program, case, seed)
    assert (done.returncode, done.stderr) == (0, "")
