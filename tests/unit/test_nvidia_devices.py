"""Architectures of NVIDIA devices: what NVML reports, and what is kept of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from pasta import paths
from pasta.backends.nvidia import devices
from pasta.backends.nvidia.devices import device_architectures

GPUS = {"0000:01:00.0": "Model: NVIDIA H200\nIRQ: 41\n", "0000:02:00.0": "Model: NVIDIA A100\n"}
NODES = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")


class Machine:
    """A driver's files, and an NVML that knows its own devices and counts how often it starts."""

    def __init__(self, directory: Path) -> None:
        self.driver, self.nodes = directory / "driver", directory / "dev"
        self.capabilities: list[tuple[int, int]] | None = [(9, 0), (8, 0), (9, 0)]
        self.started = 0
        for name, text in GPUS.items():
            (self.driver / "gpus" / name).mkdir(parents=True)
            (self.driver / "gpus" / name / "information").write_text(text)
        (self.driver / "version").write_text("580.159.04")
        self.nodes.mkdir()
        for name in NODES:
            (self.nodes / name).touch()

    def start(self) -> None:
        self.started += 1
        if self.capabilities is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(devices, "_DRIVER", made.driver)
    monkeypatch.setattr(devices, "_NODES", made.nodes)
    monkeypatch.setattr(pynvml, "nvmlInit", made.start)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(made.capabilities or ()))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetCudaComputeCapability", lambda at: (made.capabilities or [])[at]
    )
    return made


def test_nvml_starts_once_for_the_same_devices(machine: Machine) -> None:
    assert [device_architectures() for _ in range(3)] == [[80, 90]] * 3
    assert machine.started == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda machine: (machine.nodes / "nvidia1").unlink(),  # as in a container with one device
        lambda machine: (machine.driver / "version").write_text("590.1"),
        lambda machine: (machine.driver / "gpus" / "0000:02:00.0" / "information").write_text("?"),
    ],
)
def test_nvml_starts_again_for_others(
    machine: Machine, change: Callable[[Machine], object]
) -> None:
    assert device_architectures() == [80, 90]
    change(machine)
    machine.capabilities = [(10, 0)]
    assert device_architectures() == device_architectures() == [100]
    assert machine.started == 2


@pytest.mark.parametrize("missing", ["version", "gpus"])
def test_nothing_is_kept_if_the_driver_does_not_tell(machine: Machine, missing: str) -> None:
    machine.driver.joinpath(missing).rename(machine.driver / "elsewhere")
    assert device_architectures() == device_architectures() == [80, 90]
    assert machine.started == 2


def test_a_driver_that_fails_is_asked_again(machine: Machine) -> None:
    found, machine.capabilities = machine.capabilities, None
    assert device_architectures() == []
    machine.capabilities = found
    assert device_architectures() == [80, 90]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", json.dumps({"seen": "", "architectures": "x"}).encode()]
)
def test_a_damaged_file_is_replaced(machine: Machine, content: bytes) -> None:
    kept = paths.cache("devices.json")
    kept.parent.mkdir(parents=True)
    kept.write_bytes(content)
    assert device_architectures() == device_architectures() == [80, 90]
    assert machine.started == 1


def test_a_file_that_others_can_write_is_not_trusted(machine: Machine) -> None:
    assert device_architectures() == [80, 90]
    paths.cache("devices.json").chmod(0o666)
    machine.capabilities = [(7, 0)]
    assert device_architectures() == [70]


def test_a_cache_that_cannot_be_written_costs_time_only(machine: Machine) -> None:
    paths.cache().parent.mkdir(parents=True)
    paths.cache().touch()
    assert device_architectures() == device_architectures() == [80, 90]
    assert machine.started == 2
