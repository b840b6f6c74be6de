"""Kernels that measure roofs, compiled for devices that need not be here."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from pasta.backends.nvidia.architectures import find_architecture
from pasta.backends.nvidia.libraries import find_ptxas
from pasta.backends.nvidia.roof_kernels import COPY, READ, Kernel, kernels
from pasta.errors import MissingDependency
from pasta.processors.architecture import CACHE, is_bandwidth

CAPABILITIES = (75, 80, 86, 89, 90, 100, 120)


@pytest.fixture(scope="module")
def ptxas() -> Path:
    try:
        return find_ptxas()
    except MissingDependency as error:
        pytest.skip(str(error))


def target(capability: int) -> str:
    return "sm_90a" if capability == 90 else f"sm_{capability}"


def cases() -> list[pytest.param]:  # type: ignore[valid-type]
    return [
        pytest.param(capability, kernel, id=f"{capability}-{kernel.roof}")
        for capability in CAPABILITIES
        for kernel in kernels(capability)
    ]


@pytest.mark.parametrize(("capability", "kernel"), cases())
def test_they_compile_without_spills(
    ptxas: Path, tmp_path: Path, capability: int, kernel: Kernel
) -> None:
    """And without warnings, such as that products wait for each other."""
    source = tmp_path / "kernel.ptx"
    source.write_text(kernel.ptx)
    command = [ptxas, "-v", "-Werror", "-arch", target(capability), source, "-o", "/dev/null"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    output = done.stdout + done.stderr
    assert "0 bytes spill stores" in output and "warning" not in output
    registers = re.search(r"Used (\d+) registers", output)
    assert registers and int(registers[1]) * kernel.threads * kernel.blocks <= 1 << 16


@pytest.mark.parametrize("capability", [80, 86, 89, 90, 120])
def test_roofs_are_the_units_of_the_data_sheet(capability: int) -> None:
    known = find_architecture(f"sm_{capability}")
    names = [each.roof for each in kernels(capability)]
    assert known is not None and len(set(names)) == len(names)
    assert {name for name in names if is_bandwidth(name)} == {READ, COPY, CACHE}
    units = {name for name in names if not is_bandwidth(name)}
    # consumer devices have slow units for it, which are not in the data sheet
    assert units - {"float64 matrix"} == known.operations.keys() - {"float64 matrix"}
