"""Samples of NVIDIA devices, by NVML (https://docs.nvidia.com/deploy/nvml-api)."""

from __future__ import annotations

import ctypes
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any

from pasta import abi
from pasta.backends.base import PCIE_LANE, Sample

#: Seconds between readings of what changes rarely, or takes long to read.
_SLOW_SECONDS = 1.0
#: Bits of NVML's reasons for lower clocks, which have no names in all versions of pynvml.
_REASONS = {
    0x1: "idle",
    0x2: "setting",  # application clocks
    0x4: "power",  # software power cap
    0x8: "hardware",  # slowdown by hardware: thermal, or a power brake
    0x10: "other",  # sync boost
    0x20: "thermal",  # by software
    0x40: "thermal",  # by hardware
    0x80: "hardware",  # power brake
    0x100: "setting",  # clocks of the display
}
#: Bandwidth of an NVLink in one direction by its version, as NVIDIA documents it, 10^6 bytes/s.
_NVLINK = {"1_0": 20_000, "2_0": 25_000, "2_2": 25_000, "3_0": 25_000, "3_1": 25_000,
           "4_0": 25_000, "5_0": 50_000}  # fmt: skip
_PLACES = {name: place for place, name in enumerate(Sample._fields)}


class _Query:
    """A query of one device, prepared so that a call makes few steps: pynvml's own functions would
    take most of the time of a sample.

    `fields`: those of `Sample`, from the attributes `names` of `answer`, which the function fills.
    """

    __slots__ = ("answer", "arguments", "calls", "convert", "function", "places")

    def __init__(
        self,
        fields: Sequence[str],
        calls: Sequence[tuple[str, tuple[Any, ...]]],
        answer: Any,
        names: Sequence[str] = ("value",),
        convert: Callable[[int], int] | None = None,
    ) -> None:
        self.places = [(_PLACES[each], name) for each, name in zip(fields, names, strict=True)]
        self.calls = list(calls)  # functions with their arguments; the first one that is supported
        self.answer, self.convert = answer, convert
        self.function: Any = None
        self.arguments: tuple[Any, ...] = ()

    def prepare(self, library: Any, handle: Any) -> bool:
        """Finds the next function that the driver has; False if there is none."""
        while self.calls:
            name, arguments = self.calls.pop(0)
            self.function = getattr(library, name, None)
            self.arguments = (handle, *arguments, ctypes.byref(self.answer))
            if self.function is not None:
                return True
        return False


@dataclass
class _Device:
    uuid: str
    name: str
    handle: Any
    is_mig: bool
    quick: list[_Query] = field(default_factory=list)
    #: One of them at each sample: a query takes the driver 13 us.
    in_turns: deque[_Query] = field(default_factory=deque)
    slow: list[_Query] = field(default_factory=list)
    #: Whether processes can be read, the last answers, and when the slow queries are due.
    lists_processes: bool = True
    kept: list[Any] = field(default_factory=lambda: [None] * len(_PLACES))
    due: float = 0.0


class NvmlSampler:
    """Reads the devices that NVML lists."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._devices: list[_Device] = []
        self._permanent: set[int] = set()
        self._lost: set[int] = set()

    def open(self) -> list[str]:
        """Loads the driver's library. Raises NVMLError, for example without a driver."""
        import pynvml as nvml

        self._nvml = nvml
        nvml.nvmlInit()
        # errors that will not go away
        self._permanent = {
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_NO_PERMISSION,
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            nvml.NVML_ERROR_INVALID_ARGUMENT,
            nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        }
        self._lost = {
            nvml.NVML_ERROR_GPU_IS_LOST,
            nvml.NVML_ERROR_RESET_REQUIRED,
            nvml.NVML_ERROR_NOT_FOUND,
            nvml.NVML_ERROR_UNINITIALIZED,
        }
        self._devices = [self._device(number) for number in range(nvml.nvmlDeviceGetCount())]
        return [device.uuid for device in self._devices]

    def _device(self, number: int) -> _Device:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        device = _Device(
            nvml.nvmlDeviceGetUUID(handle),
            self._otherwise("", nvml.nvmlDeviceGetName, handle),
            handle,
            self._otherwise([0], nvml.nvmlDeviceGetMigMode, handle)[0] == 1,
        )
        device.kept[_PLACES["link_bandwidth"]] = link_bandwidth(nvml, handle)
        # once: it never changes, and the driver takes 2 ms
        device.kept[_PLACES["max_clock"]] = self._otherwise(
            None, nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM
        )
        for queries, into in (
            (self._quick(), device.quick),
            (self._in_turns(), device.in_turns),
            (self._slow(), device.slow),
        ):
            into.extend(each for each in queries if each.prepare(nvml.nvmlLib, handle))
        return device

    def _otherwise(self, otherwise: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return otherwise

    def _quick(self) -> list[_Query]:
        reasons = [(f"nvmlDeviceGetCurrentClocks{name}Reasons", ()) for name in _NAMES_OF_REASONS]
        return [
            _Query(["power"], [("nvmlDeviceGetPowerUsage", ())], ctypes.c_uint()),
            _Query(["throttle"], reasons, ctypes.c_ulonglong(), convert=throttle),
        ]

    def _in_turns(self) -> list[_Query]:
        nvml = self._nvml
        memory = nvml.c_nvmlMemory_v2_t()
        memory.version = nvml.nvmlMemory_v2
        rates = nvml.c_nvmlUtilization_t()
        temperature = ("nvmlDeviceGetTemperature", (nvml.NVML_TEMPERATURE_GPU,))
        return [
            _Query(["temperature"], [temperature], ctypes.c_uint()),
            _Query(["clock"], [_clock(nvml.NVML_CLOCK_SM)], ctypes.c_uint()),
            _Query(
                ["utilization", "memory_activity"],
                [("nvmlDeviceGetUtilizationRates", ())],
                rates,
                ["gpu", "memory"],
            ),
            # version 2 excludes memory that the driver reserves
            _Query(
                ["memory_used", "memory_total"],
                [("nvmlDeviceGetMemoryInfo_v2", ())],
                memory,
                ["used", "total"],
            ),
        ]

    def _slow(self) -> list[_Query]:
        nvml = self._nvml
        limit = ("nvmlDeviceGetEnforcedPowerLimit", ())
        return [
            _Query(["power_limit"], [limit], ctypes.c_uint()),
            _Query(["memory_clock"], [_clock(nvml.NVML_CLOCK_MEM)], ctypes.c_uint()),
        ]

    def sample(self, device: int) -> Sample:
        """State of a device. Raises NVMLError if it is lost."""
        this = self._devices[device]
        now = time.monotonic()
        if not this.due:
            self._ask(this, this.in_turns)
        if now >= this.due:
            self._ask(this, this.slow)
            this.kept[_PLACES["processes"]] = self._processes(this)
            this.due = now + _SLOW_SECONDS
        self._ask(this, this.quick)
        if this.in_turns:
            self._ask(this, this.in_turns, 1)
            this.in_turns.rotate(-1)
        return Sample._make(this.kept)

    def _ask(
        self, device: _Device, queries: MutableSequence[_Query], count: int | None = None
    ) -> None:
        """Keeps the answers to the first `count` queries, or to all; None where there is none."""
        useless, values = [], device.kept
        for query in islice(queries, count):
            status = query.function(*query.arguments)
            while status in self._permanent and query.prepare(self._nvml.nvmlLib, device.handle):
                status = query.function(*query.arguments)
            if status:
                if status in self._lost:
                    raise self._nvml.NVMLError(status)
                if status in self._permanent:
                    useless.append(query)
                for place, _ in query.places:
                    values[place] = None
                continue
            convert, answer = query.convert, query.answer
            for place, name in query.places:
                value = getattr(answer, name)
                values[place] = value if convert is None else convert(value)
        for query in useless:
            queries.remove(query)

    def _processes(self, device: _Device) -> dict[int, int | None] | None:
        """Memory of processes by pid; None if it cannot be read."""
        if not device.lists_processes:
            return None
        try:
            found = self._nvml.nvmlDeviceGetComputeRunningProcesses(device.handle)
        except self._nvml.NVMLError as error:
            if error.value in self._lost:
                raise
            device.lists_processes = error.value not in self._permanent
            return None
        return {each.pid: each.usedGpuMemory for each in found}

    def ordinals(self, environment: Mapping[str, str]) -> dict[int, int]:
        """CUDA's ordinals of the devices that a process sees."""
        names = {each.name for each in self._devices}
        in_order = len(names) == 1 or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        return visible_ordinals(
            [each.uuid for each in self._devices],
            environment.get("CUDA_VISIBLE_DEVICES"),
            in_order=in_order,
            is_mig=any(each.is_mig for each in self._devices),
        )

    def close(self) -> None:
        """Shuts NVML down."""
        self._nvml.nvmlShutdown()


#: Newer and older drivers.
_NAMES_OF_REASONS = ("Event", "Throttle")


def _clock(type: int) -> tuple[str, tuple[Any, ...]]:
    return "nvmlDeviceGetClockInfo", (type,)


def link_bandwidth(nvml: Any, handle: Any) -> int | None:
    """Bandwidth of all active NVLinks of a device in one direction, or of PCIe if there are none,
    in 10^6 bytes/s. None if the driver does not report it, or a version is unknown."""
    versions = []
    try:
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            if nvml.nvmlDeviceGetNvLinkState(handle, link):
                versions.append(nvml.nvmlDeviceGetNvLinkVersion(handle, link))
    except nvml.NVMLError:  # no NVLink, or no more links
        pass
    try:
        if versions:
            numbers = {f"NVML_NVLINK_VERSION_{name}": each for name, each in _NVLINK.items()}
            speeds = {getattr(nvml, name, None): each for name, each in numbers.items()}
            return sum(speeds[version] for version in versions)
        # the largest that device and system allow: it is lowered while the device is idle
        generation = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
        return PCIE_LANE[generation] * int(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
    except (nvml.NVMLError, KeyError):
        return None


@cache
def throttle(reasons: int) -> int:
    """Bits of PASTA_THROTTLE for NVML's reasons."""
    found = 0
    for bit in range(reasons.bit_length()):
        if reasons >> bit & 1:
            found |= abi.THROTTLE[_REASONS.get(1 << bit, "other")]
    return found


def visible_ordinals(
    uuids: Sequence[str], visible: str | None, *, in_order: bool, is_mig: bool
) -> dict[int, int]:
    """Ordinals in CUDA of the visible devices, by index in `uuids`; -1 if unknown.

    `visible`: CUDA_VISIBLE_DEVICES, a list of indices and uuids, or their unique beginnings, that
    ends at the first invalid one. `in_order`: whether CUDA numbers devices like NVML, by PCI bus.
    """
    unknown = dict.fromkeys(range(len(uuids)), -1)
    if visible is None:
        return {each: each for each in unknown} if in_order and not is_mig else unknown
    found: list[int] = []
    for entry in (each.strip() for each in visible.split(",")):
        if entry.upper().startswith("MIG"):
            return unknown
        if re.fullmatch(r"\d+", entry, re.ASCII):
            if not in_order or is_mig:
                return unknown
            matching = [int(entry)] if int(entry) < len(uuids) else []
        else:
            lower = entry.lower()
            matching = [
                number
                for number, uuid in enumerate(uuids)
                if lower.startswith("gpu-") and uuid.lower().startswith(lower)
            ]
        if len(matching) != 1:
            break
        if matching[0] in found:
            return {}  # CUDA then has no devices
        found += matching
    return {device: ordinal for ordinal, device in enumerate(found)}
