"""Samples of AMD devices, by AMD SMI (https://rocm.docs.amd.com/projects/amdsmi).

Never run on AMD hardware so far.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pasta import abi
from pasta.backends.base import PCIE_LANE, Sample

#: Seconds between readings of what changes rarely, or takes long to read.
_SLOW_SECONDS = 1.0
_MIB = 1 << 20
#: AMD SMI reports power limits in W or uW, depending on its version; no limit is this many W.
_MAX_WATTS = 10_000
#: Keys of the status of violations (throttling), which are true while it lasts.
_VIOLATIONS = {
    "active_ppt_pwr": "power",
    "active_socket_thrm": "thermal",
    "active_vr_thrm": "thermal",
    "active_hbm_thrm": "thermal",
    "active_prochot_thrm": "hardware",
}


class _Device(NamedTuple):
    handle: Any
    uuid: str


#: One query of a device: the values that it returns, by field.
_Query = Callable[[Any], dict[str, Any]]


class AmdSmiSampler:
    """Reads the devices that AMD SMI lists, in HIP's order; `smi`: its module, else imported."""

    def __init__(self, smi: Any = None) -> None:
        self._smi = smi
        self._devices: list[_Device] = []
        #: Queries of each device that it supports so far, the slow ones with their last answers.
        self._quick: list[list[_Query]] = []
        self._slow: list[list[_Query]] = []
        self._kept: list[dict[str, Any]] = []
        self._due: list[float] = []

    def open(self) -> list[str]:
        """Loads the library. Raises ImportError, and the library's exceptions."""
        self._smi = self._smi or import_smi()
        smi = self._smi
        smi.amdsmi_init()
        found = [(self._hip_id(h, n), h) for n, h in enumerate(smi.amdsmi_get_processor_handles())]
        found.sort(key=lambda each: each[0])
        self._devices = [_Device(handle, self._uuid(handle)) for _, handle in found]
        quick = [self._power, self._clock, self._memory_clock, self._throttle, self._temperature]
        for _ in self._devices:
            self._quick.append([*quick, self._activity, self._memory])
            self._slow.append([self._limit, self._processes, self._links])
            self._kept.append({})
            self._due.append(0.0)
        return [device.uuid for device in self._devices]

    def _hip_id(self, handle: Any, otherwise: int) -> int:
        try:
            return int(self._smi.amdsmi_get_gpu_enumeration_info(handle)["hip_id"])
        except Exception:  # an older version
            return otherwise

    def _uuid(self, handle: Any) -> str:
        """As rocminfo prints it."""
        try:
            found = str(self._smi.amdsmi_get_gpu_enumeration_info(handle)["hip_uuid"])
            if found.startswith("GPU-"):
                return found
        except Exception:
            pass
        try:
            serial = int(str(self._smi.amdsmi_get_gpu_asic_info(handle)["asic_serial"]), 16)
            return f"GPU-{serial & 0xFFFF_FFFF_FFFF_FFFF:016x}"
        except Exception:
            return str(self._smi.amdsmi_get_gpu_device_uuid(handle))

    def _power(self, handle: Any) -> dict[str, Any]:
        found = self._smi.amdsmi_get_power_info(handle)
        names = ("socket_power", "current_socket_power", "average_socket_power")
        watts = next((w for name in names if (w := number(found.get(name)))), None)
        return {"power": None if watts is None else watts * 1000}

    def _limit(self, handle: Any) -> dict[str, Any]:
        limit = number(self._smi.amdsmi_get_power_cap_info(handle)["power_cap"])
        if limit is not None:
            limit = limit // 1000 if limit > _MAX_WATTS else limit * 1000
        return {"power_limit": limit}

    def _clocks(self, handle: Any, type: str) -> tuple[int | None, int | None]:
        found = self._smi.amdsmi_get_clock_info(handle, getattr(self._smi.AmdSmiClkType, type))
        return number(found.get("clk", found.get("cur_clk"))), number(found.get("max_clk"))

    def _clock(self, handle: Any) -> dict[str, Any]:
        return dict(zip(("clock", "max_clock"), self._clocks(handle, "GFX"), strict=True))

    def _memory_clock(self, handle: Any) -> dict[str, Any]:
        return {"memory_clock": self._clocks(handle, "MEM")[0]}

    def _throttle(self, handle: Any) -> dict[str, Any]:
        found = self._smi.amdsmi_get_violation_status(handle)
        given = {key: found[key] for key in _VIOLATIONS if isinstance(found.get(key), bool)}
        active = {_VIOLATIONS[key] for key, value in given.items() if value}
        return {"throttle": sum(abi.THROTTLE[name] for name in active) if given else None}

    def _temperature(self, handle: Any) -> dict[str, Any]:
        kinds, metrics = self._smi.AmdSmiTemperatureType, self._smi.AmdSmiTemperatureMetric
        found = self._smi.amdsmi_get_temp_metric(handle, kinds.HOTSPOT, metrics.CURRENT)
        return {"temperature": number(found)}

    def _activity(self, handle: Any) -> dict[str, Any]:
        found = self._smi.amdsmi_get_gpu_activity(handle)
        return {
            "utilization": number(found["gfx_activity"]),
            "memory_activity": number(found["umc_activity"]),
        }

    def _memory(self, handle: Any) -> dict[str, Any]:
        found = self._smi.amdsmi_get_gpu_vram_usage(handle)  # MiB
        used, total = number(found["vram_used"]), number(found["vram_total"])
        return {
            "memory_used": None if used is None else used * _MIB,
            "memory_total": None if total is None else total * _MIB,
        }

    def _processes(self, handle: Any) -> dict[str, Any]:
        found = {}
        for process in self._smi.amdsmi_get_gpu_process_list(handle):
            bytes = number(process.get("memory_usage", {}).get("vram_mem"))
            if bytes != 0:  # the driver lists every process that opened it
                found[int(process["pid"])] = bytes
        return {"processes": found}

    def _links(self, handle: Any) -> dict[str, Any]:
        """Bandwidth of all XGMI links to other devices, or of PCIe if there are none."""
        own, found = self._smi.amdsmi_get_gpu_device_bdf(handle), self._xgmi(handle)
        speeds = [number(link["max_bandwidth"]) for link in found if link["bdf"] != own]  # Gb/s
        if total := sum(filter(None, speeds)):
            return {"link_bandwidth": total * 1000 // 8}
        pcie = self._smi.amdsmi_get_pcie_info(handle)["pcie_static"]
        lane = PCIE_LANE[pcie["pcie_interface_version"]]
        return {"link_bandwidth": lane * int(pcie["max_pcie_width"])}

    def _xgmi(self, handle: Any) -> list[dict[str, Any]]:
        try:
            found = self._smi.amdsmi_get_link_metrics(handle)
        except Exception as error:
            if is_temporary(self._smi, error):
                raise
            return []  # not supported: a device without such links, or an older version
        return list(found["links"][: found["num_links"]])

    def sample(self, device: int) -> Sample:
        """State of a device. Raises the library's exception once every query has failed."""
        handle = self._devices[device].handle
        found = self._answers(self._quick[device], handle)
        if self._due[device] <= time.monotonic():
            self._kept[device] = self._answers(self._slow[device], handle)
            self._due[device] = time.monotonic() + _SLOW_SECONDS
        if not self._quick[device] and not self._slow[device]:
            raise LookupError("it supports no queries")
        return Sample(**found, **self._kept[device])

    def _answers(self, queries: list[_Query], handle: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for query in [*queries]:
            try:
                found |= query(handle)
            except Exception as error:
                # "busy" and the like pass; a missing function, key or permission does not
                if not is_temporary(self._smi, error):
                    queries.remove(query)
        return found

    def ordinals(self, environment: Mapping[str, str]) -> dict[int, int]:
        """Ordinals, as PASTA's events have them, of the devices that a process sees."""
        return visible_ordinals([each.uuid for each in self._devices], environment)

    def close(self) -> None:
        """Shuts AMD SMI down."""
        self._smi.amdsmi_shut_down()


def import_smi() -> Any:
    """AMD SMI's module: the installed one, else that of ROCm. Raises ImportError."""
    try:
        return importlib.import_module("amdsmi")
    except ImportError:
        place = Path(os.environ.get("ROCM_PATH") or "/opt/rocm") / "share" / "amd_smi"
        if not place.is_dir():
            raise
    sys.path.append(str(place))
    try:
        return importlib.import_module("amdsmi")
    finally:
        sys.path.remove(str(place))


def number(value: Any) -> int | None:
    """A number of AMD SMI; None for "N/A", and for all ones."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return None if value in (0xFFFF, 0xFFFF_FFFF, 2**64 - 1) or value < 0 else int(value)


def is_temporary(smi: Any, error: Exception) -> bool:
    """Whether the same query may succeed later."""
    code = getattr(error, "err_code", None)
    names = ("BUSY", "RETRY", "TIMEOUT", "INTERRUPT", "NO_DATA", "REFCOUNT_OVERFLOW", "API_FAILED")
    wrapper = getattr(smi, "amdsmi_wrapper", None)
    return code is not None and code in {
        getattr(wrapper, f"AMDSMI_STATUS_{name}", None) for name in names
    }


def visible_ordinals(uuids: Sequence[str], environment: Mapping[str, str]) -> dict[int, int]:
    """Ordinals of the visible devices by index in `uuids`, which are in HIP's order; -1 if unknown.

    ROCR_VISIBLE_DEVICES selects first, HIP_VISIBLE_DEVICES (or CUDA_VISIBLE_DEVICES) among what is
    left; a list ends at its first invalid entry. PASTA's AMD source ignores lists with uuids, so
    that the ordinals of its events are not known then.
    """
    visible, is_known = list(range(len(uuids))), True
    hip = environment.get("HIP_VISIBLE_DEVICES") or environment.get("CUDA_VISIBLE_DEVICES")
    for text in (environment.get("ROCR_VISIBLE_DEVICES"), hip):
        if not text:
            continue
        kept: list[int] = []
        for entry in (each.strip() for each in text.split(",")):
            if re.fullmatch(r"\d+", entry, re.ASCII):
                matching = visible[int(entry) : int(entry) + 1]
            else:
                is_known = False
                start = entry.lower()
                matching = [
                    each
                    for each in visible
                    if start.startswith("gpu-") and uuids[each].lower().startswith(start)
                ]
            if len(matching) != 1:
                break
            kept += matching
        visible = kept
    return {device: ordinal if is_known else -1 for ordinal, device in enumerate(visible)}
