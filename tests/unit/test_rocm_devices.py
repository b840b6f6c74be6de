"""`pasta doctor` on AMD: with the driver's files, and a library that replaces the SDK."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pasta.backends.amd import checks as amd_checks
from pasta.backends.amd import devices as rocm_devices
from pasta.backends.amd import rocprofiler as rocm
from pasta.backends.amd.devices import Device, Offer, devices, offers
from pasta.cli import doctor
from pasta.errors import MissingDependency
from pasta.extensions import Check
from tests.support.places import PROGRAMS

SOURCE = PROGRAMS / "amd" / "fake_rocprofiler.c"
COUNTERS = ["SQ_WAVES", "SQ_INSTS_VALU", "GRBM_COUNT"]

Sdk = Callable[..., Path]


@pytest.fixture(scope="session")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Sdk:
    def build(major: int = 1, minor: int = 0, *options: str) -> Path:
        directory = tmp_path_factory.mktemp("sdk")
        command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", f"-DMAJOR={major}"]
        library = directory / "librocprofiler-sdk.so"
        command += [f"-DMINOR={minor}", *options, str(SOURCE), "-o", str(library)]
        subprocess.run(command, check=True)
        return library

    return build


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    nodes = tmp_path / "nodes"

    def node(number: int, name: str, properties: str, *banks: int) -> None:
        (nodes / str(number)).mkdir(parents=True)
        (nodes / str(number) / "name").write_text(f"{name}\n")
        (nodes / str(number) / "properties").write_text(properties)
        for at, size in enumerate(banks):
            bank = nodes / str(number) / "mem_banks" / str(at)
            bank.mkdir(parents=True)
            (bank / "properties").write_text(f"heap_type 1\nsize_in_bytes {size}\nflags 0\n")

    node(0, "", "cpu_cores_count 96\nsimd_count 0\ngfx_target_version 0\n", 1 << 40)
    node(2, "aqua", "simd_count 1216\ngfx_target_version 90402\nlocal_mem_size 0\n", 192 << 30)
    node(10, "aldebaran", "simd_count 440\ngfx_target_version 90010\n", 32 << 30, 32 << 30)
    (nodes / "11").mkdir()  # one that is assigned to another container
    return nodes


def test_devices(topology: Path) -> None:
    assert devices(topology) == [
        Device(2, "gfx942", "aqua", 192 << 30),
        Device(10, "gfx90a", "aldebaran", 64 << 30),
    ]


def test_no_driver(tmp_path: Path) -> None:
    assert devices(tmp_path / "none") == []


@pytest.mark.parametrize("options", [(), ("-DOLDER",)], ids=["1.x", "0.5"])
def test_available_counters_and_sampling(sdk: Sdk, options: tuple[str, ...]) -> None:
    assert offers(sdk(1, 0, *options)) == [
        Offer(COUNTERS, [("host trap", 1, 1000, "us"), ("stochastic", 256, 1 << 20, "cycles")]),
        Offer(),
    ]


def test_sdk_without_counters_and_sampling(tmp_path: Path) -> None:
    with pytest.raises(MissingDependency, match="does not report its services"):
        offers(tmp_path / "none.so")


def test_crashing_sdk(sdk: Sdk) -> None:
    with pytest.raises(MissingDependency, match="status -6"):
        offers(sdk(1, 0, "-DCRASH"))


@pytest.fixture
def checks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, topology: Path
) -> Callable[..., dict[str, Check]]:
    """Checks by name, of a machine with the devices above and an SDK, or without either."""

    def found(library: Path | None, *, driver: bool = True) -> dict[str, Check]:
        device = tmp_path / "kfd"
        if driver:
            device.touch()
        monkeypatch.setattr(rocm, "DEVICE", device)
        monkeypatch.setattr(rocm, "find_rocprofiler", lambda: library)
        monkeypatch.setattr(rocm_devices, "devices", lambda: devices(topology))
        return {check.name: check for check in amd_checks.checks()}

    return found


def test_machine_without_amd(checks) -> None:
    found = checks(None, driver=False)
    assert {name: check.state for name, check in found.items()} == {
        "libpasta_amd": "ok",
        "AMD driver": "note",
    }


def test_complete_machine(checks, sdk: Sdk) -> None:
    found = checks(sdk())
    assert found["AMD devices"].found == "gfx942 aqua, 192 GiB; gfx90a aldebaran, 64 GiB"
    assert found["rocprofiler-sdk"].found.startswith("1.0.0 at ")
    assert found["counters of AMD device 0"].found == f"3: {', '.join(COUNTERS)}"
    assert found["PC sampling of AMD device 0"].found == (
        "host trap, 1 to 1,000 us; stochastic, 256 to 1,048,576 cycles"
    )
    assert found["counters of AMD device 1"].state == "note"
    assert {c.state for n, c in found.items() if "device 1" not in n and n != "AMD driver"} == {
        "ok"
    }


@pytest.mark.parametrize(
    ("major", "minor", "state", "offered"),
    [
        (0, 5, "ok", ()),
        (0, 6, "ok", ("PC sampling",)),
        (1, 1, "ok", ("counters", "PC sampling")),
        (0, 7, "missing", ()),
        (2, 0, "missing", ()),
    ],
)
def test_versions(
    checks, sdk: Sdk, major: int, minor: int, state: str, offered: tuple[str, ...]
) -> None:
    found = checks(sdk(major, minor))
    assert found["rocprofiler-sdk"].state == state
    assert {name for name in ("counters", "PC sampling") if f"{name} of AMD device 0" in found} == {
        *offered
    }


def test_driver_without_sdk(checks) -> None:
    check = checks(None)["rocprofiler-sdk"]
    assert (check.state, check.found) == ("missing", "not found")
    assert rocm.NAMED in check.remedy


def test_unloadable_sdk(checks, tmp_path: Path) -> None:
    (tmp_path / "librocprofiler-sdk.so").write_text("no library")
    check = checks(tmp_path / "librocprofiler-sdk.so")["rocprofiler-sdk"]
    assert check.state == "missing"
    assert "cannot be loaded" in check.found


def test_device_of_a_group_without_membership(
    checks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usable = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path) != tmp_path / "kfd" and usable(path, mode)
    )
    monkeypatch.setattr(rocm_devices.os, "getgroups", list)
    monkeypatch.setattr(rocm_devices.os, "getegid", lambda: -1)
    check = checks(None)["AMD driver"]
    assert (check.state, check.found) == ("missing", f"this user cannot open {tmp_path / 'kfd'}")
    group = rocm_devices._group((tmp_path / "kfd").stat().st_gid)
    assert check.remedy == f"sudo usermod -aG {group} USER, and log in again"


def test_list_of_counters(
    checks, sdk: Sdk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checks(sdk())
    assert doctor._list_counters() == 0
    assert capsys.readouterr().out.splitlines() == [f"0 {name}" for name in COUNTERS]
    checks(None)
    assert doctor._list_counters() == 1
    assert "no device offers counters" in capsys.readouterr().err
