"""`pasta doctor`: its JSON document, and the requirements of probes on NVIDIA GPUs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pasta.backends.nvidia import checks as nvidia_checks
from pasta.backends.nvidia.libraries import find_ptxas
from pasta.backends.nvidia.signatures import VERSIONS
from pasta.cli import doctor
from pasta.cli.main import parse
from pasta.errors import MissingDependency
from pasta.extensions import BAD, GOOD, NOTE, Check
from pasta.version import VERSION

Checks = Callable[[], dict[str, Check]]


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Checks:
    """Checks by name, in an environment without NVIDIA software; tests add to it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PASTA_SANITIZER_LIB", str(tmp_path / "none.so"))
    monkeypatch.setenv("PASTA_PTXAS", str(program(tmp_path / "ptxas", "release 13.0, V13.0.88")))
    monkeypatch.setenv("PASTA_NVDISASM", str(program(tmp_path / "nvdisasm", "release 13.5, V13")))
    monkeypatch.delenv("PASTA_SANITIZER_VERSION", raising=False)

    def found() -> dict[str, Check]:
        find_ptxas.cache_clear()
        try:
            return {each.name: each for each in nvidia_checks._probes()}
        finally:
            find_ptxas.cache_clear()

    return found


def test_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The keys that docs/command-line.md documents; the exit status says whether a check failed."""
    options = parse(["doctor", "--json", "--no-run"])
    for state, status in ((GOOD, 0), (NOTE, 0), (BAD, 1)):
        found = [Check("libpasta", state, "here", "install it")]
        monkeypatch.setattr(doctor, "_checks", lambda _, found=found: iter(found))
        assert doctor.run(options) == status
        assert json.loads(capsys.readouterr().out) == {
            "schema": 1, "version": VERSION, "ok": not status, "checks": [
                {"check": "libpasta", "state": state, "found": "here", "remedy": "install it"}
            ],
        }  # fmt: skip


def program(path: Path, text: str, status: int = 0) -> Path:
    path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, {text}'\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_complete_installation(
    checks: Checks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "libsanitizer-public.so"
    library.touch()
    monkeypatch.setenv("PASTA_SANITIZER_LIB", str(library))
    monkeypatch.setenv("PASTA_SANITIZER_VERSION", VERSIONS[-1])
    found = checks()
    assert {each.state for each in found.values()} == {"ok"}
    assert found["ptxas"].found == f"13.0 at {tmp_path}/ptxas"
    assert found["nvdisasm"].found == f"13.5 at {tmp_path}/nvdisasm"
    assert found["Sanitizer for probes"].found == f"{VERSIONS[-1]} of {library}"
    assert found["probe cache"].found == f"{tmp_path}/cache/pasta/probes is writable"


def test_old_ptxas(checks: Checks, tmp_path: Path) -> None:
    program(tmp_path / "ptxas", "release 11.8, V11.8.89")
    found = checks()["ptxas"]
    assert (found.state, found.remedy) == ("note", "pip install nvidia-cuda-nvcc, or PASTA_PTXAS")
    assert found.found.endswith("probes need 12.0 or newer")


@pytest.mark.parametrize("name", ["ptxas", "nvdisasm"])
def test_failing_program(checks: Checks, tmp_path: Path, name: str) -> None:
    program(tmp_path / name, "release 13.0", status=1)
    found = checks()[name]
    assert found.state == "missing"
    assert found.remedy.endswith(f"PASTA_{name.upper()}")


@pytest.mark.parametrize("name", ["ptxas", "nvdisasm"])
def test_non_executable_file(checks: Checks, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x7fELF")
    found = checks()[name]
    assert found.state == "missing"
    assert "cannot be run" in found.found


def test_missing_named_ptxas(checks: Checks, tmp_path: Path) -> None:
    (tmp_path / "ptxas").unlink()
    found = checks()["ptxas"]
    assert found.state == "note"
    assert found.found == f"PASTA_PTXAS names {tmp_path}/ptxas, which is not executable"
    assert found.remedy == "pip install nvidia-cuda-nvcc, or PASTA_PTXAS"


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("12.9", "12.9, which does not see tensor_load"),
        (
            "99.0",
            "probes do not run: probes do not support version 99.0 of NVIDIA's Sanitizer library",
        ),
    ],
)
def test_sanitizer_without_matching_probes(
    checks: Checks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, found: str
) -> None:
    (tmp_path / "none.so").touch()
    monkeypatch.setenv("PASTA_SANITIZER_VERSION", version)
    check = checks()["Sanitizer for probes"]
    assert check.state == "note"
    assert check.found.startswith(found)
    assert "nvidia-cuda-sanitizer-api" in check.remedy


def test_sanitizer_of_unknown_version(checks: Checks, tmp_path: Path) -> None:
    (tmp_path / "none.so").touch()
    check = checks()["Sanitizer for probes"]
    assert check.state == "note"
    assert check.remedy == f"set PASTA_SANITIZER_VERSION={VERSIONS[-1]}"


def test_unwritable_cache(checks: Checks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usable = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path) != tmp_path and usable(path, mode)
    )
    assert checks()["probe cache"].state == "note"


def test_cache_path_under_a_file(
    checks: Checks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    found = checks()["probe cache"]
    assert (found.state, found.remedy) == ("note", "set XDG_CACHE_HOME")
    assert found.found.startswith(f"{tmp_path}/file/pasta/probes is not writable")


# ---- PC sampling and counters ----

Sampling = Callable[..., Check]
WHOLE: tuple[list[str], list[str]] = ([], ["0 (A GPU)"])
ONE = ["0 (A GPU)"]


@pytest.fixture(params=["pc_sampling", "counting"])
def sampling(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Sampling:
    def check(
        library: bytes = b"\0cuptiPCSamplingEnable\0cuptiRangeProfilerEnable\0",
        parameters: str = "RmProfilingAdminOnly: 1\n",
        administrator: bool = False,
        mig: tuple[list[str], list[str]] = WHOLE,
    ) -> Check:
        (tmp_path / "libcupti.so").write_bytes(library)
        (tmp_path / "params").write_text(f"ResmanDebugLevel: 4294967295\n{parameters}")
        monkeypatch.setattr(nvidia_checks, "PARAMETERS", tmp_path / "params")
        monkeypatch.setattr(nvidia_checks, "_is_administrator", lambda: administrator)
        monkeypatch.setattr(nvidia_checks, "_mig_devices", lambda: mig)
        found = getattr(nvidia_checks, request.param)(tmp_path / "libcupti.so")
        assert isinstance(found, Check)
        return found

    return check


def test_sampling_that_the_driver_restricts(sampling: Sampling) -> None:
    check = sampling()
    assert check.state == NOTE
    assert "ERR_NVGPUCTRPERM" in check.found
    assert "NVreg_RestrictProfilingToAdminUsers=0" in check.remedy
    assert sampling(administrator=True).state == GOOD
    assert sampling(parameters="RmProfilingAdminOnly: 0\n").state == GOOD


def test_sampling_of_partitioned_devices(sampling: Sampling) -> None:
    check = sampling(administrator=True, mig=(ONE, ONE))
    assert check[1:] == (NOTE, "not available on MIG devices: 0 (A GPU)", "use a whole GPU")
    assert sampling(administrator=True, mig=(ONE, [*ONE, "1 (B)"])).remedy == ""


def test_library_without_sampling(sampling: Sampling) -> None:
    check = sampling(library=b"cuptiSubscribe\0")
    assert (check.state, check.remedy) == (NOTE, "pip install -U nvidia-cuda-cupti")


@pytest.mark.parametrize("devices", [0, 3])
def test_the_first_call_compiles_for_devices(
    devices: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built: list[int] = []
    monkeypatch.setattr("pasta.runtime.preparation.compile_probes", lambda *_: devices)
    monkeypatch.setattr("pasta.compiled.building.build_missing", lambda all: built.append(len(all)))
    (check,) = doctor._prepared()
    assert len(built) == (devices > 0)  # without a device the check names pasta prepare
    assert (check.state, check.remedy) == (NOTE, "pasta prepare")


def test_probes_that_cannot_be_compiled_are_one_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise MissingDependency("no ptxas", remedy="install it")

    monkeypatch.setattr("pasta.runtime.preparation.compile_probes", fail)
    first, _ = doctor._prepared()
    assert first == Check("probes for devices", NOTE, "no ptxas", "install it")
