"""The architectures of the NVIDIA devices of this machine."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from pasta import paths, private

_DRIVER, _NODES = Path("/proc/driver/nvidia"), Path("/dev")


def device_architectures() -> list[int]:
    """Compute capabilities of the NVIDIA devices, as 90 for 9.0; empty without a driver.

    NVML takes a fifth of the time before the program starts. What it reports is kept in the user's
    cache for the same driver, devices and device files, of which a container may have a part.
    """
    seen = _seen()
    if not seen:
        return _reported()
    kept = paths.cache("devices.json", make=True)
    # a file that cannot be read, or that this function has not written
    with suppress(OSError, ValueError, LookupError, TypeError, private.NotPrivate):
        known = json.loads(private.read(kept))
        if known["seen"] == seen:
            return [int(each) for each in known["architectures"]]
    found = _reported()
    if found:
        with suppress(OSError):
            document = {"seen": seen, "architectures": found}
            private.write_atomically(kept, json.dumps(document).encode())
    return found


def _seen() -> str:
    """What identifies the devices without NVML; empty if the driver does not tell."""
    devices = sorted(_DRIVER.glob("gpus/*/information"))
    nodes = sorted(each.name for each in _NODES.glob("nvidia[0-9]*"))
    if not devices or not nodes:
        return ""
    try:
        return "\n".join([*nodes, *(each.read_text() for each in (_DRIVER / "version", *devices))])
    except OSError:
        return ""


def _reported() -> list[int]:
    """What NVML reports."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        found = set()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            found.add(10 * major + minor)
        return sorted(found)
    except pynvml.NVMLError:
        return []
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
