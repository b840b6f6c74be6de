"""Measures what devices reach: bytes and operations per second of kernels of PASTA's own.

Each device is measured once for each driver, in a process of its own, which takes about a second
and a GiB of device memory; the rates are kept in the user's cache. Clocks are left as they are.
"""

from __future__ import annotations

import ctypes as C
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from pasta import paths, private
from pasta.backends.base import DeviceRoofs
from pasta.backends.nvidia.roof_kernels import (
    COPY,
    MIN_CAPABILITY,
    READ,
    Kernel,
    kernels,
)
from pasta.errors import PastaError
from pasta.own_python import own_environment, own_python
from pasta.processors.architecture import CACHE, MEMORY

#: Incremented when kernels change in a way that can change rates; older cached rates are ignored.
_VERSION = 1
_MEMORY = 1 << 30
_MIN_FREE = 2 << 30
#: Percent of time with a kernel from which on a device is busy, and how long it may last.
_BUSY, _BUSY_SECONDS = 10, 1.5
_TIMEOUT_SECONDS = 60
#: Variables by which other tools are loaded, or the driver's compiler is switched off.
_WITHOUT = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "LD_PRELOAD", "CUDA_DISABLE_PTX_JIT")

Say = Callable[[str], None]


# ---- the process that measures ----

#: Milliseconds of device time: to raise clocks, of one launch, and of all launches.
_WARM_MS, _LAUNCH_MS, _BUDGET_MS = 200.0, 4.0, 1500.0
_LAUNCHES = 7
#: Iterations of the launch from whose time the number of the others follows.
_FIRST_ITERATIONS = 16
_MAX_ITERATIONS = 1 << 24
# cuda.h: CUdevice_attribute
_MULTIPROCESSORS, _L2_BYTES, _MAJOR, _MINOR = 16, 38, 75, 76


class _Failed(Exception):
    """A call of the driver failed."""


class _Driver:
    """Calls of libcuda.so.1 by name; a failed one raises _Failed."""

    def __init__(self) -> None:
        self._library = C.CDLL("libcuda.so.1")

    def __getattr__(self, name: str) -> Callable[..., None]:
        function = getattr(self._library, name)

        def call(*arguments: Any) -> None:
            result = function(*arguments)
            if result:
                raise _Failed(f"{name} failed with {result}{self._text(result)}")

        return call

    def _text(self, result: int) -> str:
        text = C.c_char_p()
        self._library.cuGetErrorName(result, C.byref(text))
        return f" ({text.value.decode()})" if text.value else ""


class _Device:
    """The first device that the process sees, with memory to read."""

    def __init__(self) -> None:
        self.driver = driver = _Driver()
        device, context, free, total = C.c_int(), C.c_void_p(), C.c_size_t(), C.c_size_t()
        driver.cuInit(0)
        driver.cuDeviceGet(C.byref(device), 0)
        self._device = device
        self.multiprocessors = self._attribute(_MULTIPROCESSORS)
        self.cache = self._attribute(_L2_BYTES)
        self.capability = 10 * self._attribute(_MAJOR) + self._attribute(_MINOR)
        driver.cuDevicePrimaryCtxRetain(C.byref(context), device)
        driver.cuCtxSetCurrent(context)
        driver.cuMemGetInfo_v2(C.byref(free), C.byref(total))
        if free.value < _MIN_FREE:
            raise _Failed(_short_of_memory(free.value))
        self.memory = C.c_uint64()
        driver.cuMemAlloc_v2(C.byref(self.memory), C.c_size_t(_MEMORY))
        driver.cuMemsetD8_v2(self.memory, C.c_ubyte(0), C.c_size_t(_MEMORY))
        self._events = C.c_void_p(), C.c_void_p()
        for event in self._events:
            driver.cuEventCreate(C.byref(event), 0)
        self.spent = 0.0  # device time, ms

    def _attribute(self, attribute: int) -> int:
        value = C.c_int()
        self.driver.cuDeviceGetAttribute(C.byref(value), attribute, self._device)
        return value.value

    def load(self, kernel: Kernel) -> C.c_void_p:
        """The kernel, compiled by the driver. Raises _Failed."""
        module, function = C.c_void_p(), C.c_void_p()
        self.driver.cuModuleLoadData(C.byref(module), C.c_char_p(kernel.ptx.encode()))
        self.driver.cuModuleGetFunction(C.byref(function), module, b"kernel")
        return function

    def blocks(self, kernel: Kernel) -> int:
        """Blocks of a launch: as many as run at once."""
        return kernel.blocks * self.multiprocessors

    def run(self, kernel: Kernel, function: C.c_void_p, iterations: int) -> float:
        """Device time of a launch, in ms. Raises _Failed."""
        begin, end = self._events
        values = [self.memory, C.c_uint32(iterations), *_pattern(kernel, self)]
        parameters = (C.c_void_p * len(values))(
            *(C.cast(C.pointer(each), C.c_void_p) for each in values)
        )
        self.driver.cuEventRecord(begin, None)
        self.driver.cuLaunchKernel(
            function, self.blocks(kernel), 1, 1, kernel.threads, 1, 1, 0, None, parameters, None
        )
        self.driver.cuEventRecord(end, None)
        self.driver.cuEventSynchronize(end)
        took = C.c_float()
        self.driver.cuEventElapsedTime(C.byref(took), begin, end)
        self.spent += took.value
        return took.value


def _pattern(kernel: Kernel, device: _Device) -> list[Any]:
    """Parameters `mask`, `block`, `step` and `distance` of kernels that access memory.

    In memory all blocks advance side by side. In the cache each block reads a quarter of it, so
    that it stays there, from a place of its own on.
    """
    row = 16 * kernel.threads
    if kernel.roof == CACHE:
        size = 1 << max(device.cache // 4, row).bit_length() - 1
        block, step = max(size // device.blocks(kernel) & -row, row), row
    else:
        size = _MEMORY // 2 if kernel.roof == COPY else _MEMORY
        block, step = row, row * device.blocks(kernel)
    return [C.c_uint32(each) for each in (size - 1, block, step)] + [C.c_uint64(_MEMORY // 2)]


def _iterations(of_first: float) -> int:
    """Iterations of a launch of the intended time."""
    wanted = _FIRST_ITERATIONS * _LAUNCH_MS / max(of_first, 1e-3)
    return min(max(round(wanted), 1), _MAX_ITERATIONS)


def _warm_up(device: _Device, kernel: Kernel) -> None:
    """Raises the clocks of an idle device."""
    function = device.load(kernel)
    iterations = _iterations(device.run(kernel, function, _FIRST_ITERATIONS))
    end = time.monotonic() + _WARM_MS / 1000
    while time.monotonic() < end:
        device.run(kernel, function, iterations)


def _rate(device: _Device, kernel: Kernel) -> float:
    """Work per second: the median of several launches. Raises _Failed."""
    function = device.load(kernel)
    device.run(kernel, function, _FIRST_ITERATIONS)  # the code and the memory's pages are loaded
    iterations = _iterations(device.run(kernel, function, _FIRST_ITERATIONS))
    took = statistics.median(device.run(kernel, function, iterations) for _ in range(_LAUNCHES))
    return kernel.work * device.blocks(kernel) * iterations / (took / 1000)


def measure() -> dict[str, Any]:
    """Rates by roof, and why others are missing, of the first device; {"obstacle": why} if none can
    be measured."""
    rates: dict[str, float] = {}
    missing: dict[str, str] = {}
    try:
        device = _Device()
        if device.capability < MIN_CAPABILITY:
            raise _Failed("its compute capability is below 7.5")
        every = list(kernels(device.capability))
        _warm_up(device, next(each for each in every if each.roof == "float64"))
        device.spent = 0.0
        for kernel in every:
            try:
                if device.spent > _BUDGET_MS:
                    raise _Failed("the device is too slow")
                rates[kernel.roof] = _rate(device, kernel)
            except _Failed as error:
                missing[kernel.roof] = str(error)
    except (_Failed, OSError, AttributeError) as error:
        return {"obstacle": str(error)}
    return {"rates": rates, "missing": missing}


def main() -> int:
    """Prints the result of `measure` as JSON."""
    json.dump(measure(), sys.stdout)
    return 0


# ---- the launcher ----


class _Found:
    """A device that the program may see."""

    def __init__(self, nvml: Any, uuid: str, driver: str) -> None:
        self.uuid, self.driver, self._nvml = uuid, driver, nvml
        self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        self.name = str(nvml.nvmlDeviceGetName(self._handle))

    def obstacle(self, until: float) -> str:
        """Why it is not measured now; empty if it can be. Waits `until` this time while it is
        busy."""
        nvml, handle = self._nvml, self._handle
        if self._otherwise([0], nvml.nvmlDeviceGetMigMode)[0] == nvml.NVML_DEVICE_MIG_ENABLE:
            return "it is partitioned (MIG)"
        free = int(nvml.nvmlDeviceGetMemoryInfo(handle).free)
        if free < _MIN_FREE:
            return _short_of_memory(free)
        while self._is_busy():
            if time.monotonic() > until:
                return "it is busy"
            time.sleep(0.1)
        return ""

    def _is_busy(self) -> bool:
        rates = self._otherwise(None, self._nvml.nvmlDeviceGetUtilizationRates)
        return rates is not None and int(rates.gpu) > _BUSY

    def _otherwise(self, otherwise: Any, function: Callable[[Any], Any]) -> Any:
        try:
            return function(self._handle)
        except self._nvml.NVMLError:
            return otherwise


def find_roofs(environment: Mapping[str, str], say: Say, *, again: bool) -> list[DeviceRoofs]:
    """Roofs of the devices that a program with these variables sees; see Backend.roofs."""
    import pynvml as nvml

    from pasta.backends.nvidia.telemetry import NvmlSampler

    sampler = NvmlSampler()
    try:
        uuids = sampler.open()
    except nvml.NVMLError:  # no driver
        return []
    try:
        driver = str(nvml.nvmlSystemGetDriverVersion())
        visible = sorted(uuids[index] for index in sampler.ordinals(environment))
        return _of([_Found(nvml, uuid, driver) for uuid in visible], environment, say, again)
    except nvml.NVMLError as error:
        say(f"roofs of NVIDIA devices are not measured: NVML: {error}")
        return []
    finally:
        sampler.close()


def _of(
    devices: Sequence[_Found], environment: Mapping[str, str], say: Say, again: bool
) -> list[DeviceRoofs]:
    place = _cache()
    with ExitStack() as locks:  # another launcher must not measure meanwhile, or measure again
        known: dict[str, DeviceRoofs] = {}
        until = time.monotonic() + _BUSY_SECONDS
        for device in devices:
            if place is not None and (again or stored(place, device) is None):
                locks.callback(os.close, _locked(place / f"{device.uuid}.lock"))
            found = None if again or place is None else stored(place, device)
            why = "" if found else device.obstacle(until)
            if found or why:
                known[device.uuid] = DeviceRoofs(device.uuid, device.name, found or {}, why)
        left = [each for each in devices if each.uuid not in known]
        if left:
            names = ", ".join(dict.fromkeys(each.name for each in left))
            say(f"measuring the roofs of {names}, once per driver")
        for device, measured in zip(left, _measured(left, environment), strict=True):
            known[device.uuid] = measured
            if measured.rates and place is not None:
                _keep(place, device, measured, say)
    return [known[each.uuid] for each in devices]


def _measured(devices: Sequence[_Found], environment: Mapping[str, str]) -> Iterator[DeviceRoofs]:
    """Measures devices side by side."""
    given = {name: each for name, each in environment.items() if name not in _WITHOUT}
    processes = [
        subprocess.Popen(
            own_python(__name__), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
            env=own_environment({**given, "CUDA_VISIBLE_DEVICES": device.uuid}),
        )
        for device in devices
    ]  # fmt: skip
    end = time.monotonic() + _TIMEOUT_SECONDS
    try:
        for device, process in zip(devices, processes, strict=True):
            rates, why = _result_of(process, end)
            yield DeviceRoofs(device.uuid, device.name, rates, why)
    finally:  # also after an interrupt
        for process in processes:
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # the driver may not let it end
                process.wait(timeout=1)


def _result_of(process: subprocess.Popen[str], end: float) -> tuple[dict[str, float], str]:
    try:
        output, errors = process.communicate(timeout=max(end - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        return {}, f"the device did not answer within {_TIMEOUT_SECONDS} s"
    try:
        document = json.loads(output)
        missing = [f"{roof}: {why}" for roof, why in document.get("missing", {}).items()]
        why = document.get("obstacle") or "; ".join(missing)
        return _with_memory(document.get("rates", {})), str(why)
    except ValueError:
        last = errors.strip().splitlines()[-1:]
        return {}, f"status {process.returncode}{''.join(f': {each}' for each in last)}"


def _with_memory(rates: Mapping[str, float]) -> dict[str, float]:
    """Rates with the memory rate: the higher of reading and copying."""
    found = dict(rates)
    of_memory = [found[name] for name in (READ, COPY) if name in found]
    return {MEMORY: max(of_memory), **found} if of_memory else found


def _short_of_memory(free: int) -> str:
    return f"{free >> 20:,} MiB of device memory are free, {_MIN_FREE >> 20:,} are needed"


# ---- the cache ----


def _cache() -> Path | None:
    """The directory, or None if it cannot be used."""
    try:
        place = paths.cache("roofs", make=True)
        private.make_or_check_directory(place)
    except (PastaError, OSError):
        return None
    return place


def _locked(path: Path) -> int:
    descriptor = private.create(path, 0)
    private.lock(descriptor, wait=True)
    return descriptor


def stored(place: Path, device: _Found) -> dict[str, float] | None:
    """Rates of the device with this driver in the cache's directory; None without."""
    try:
        document = json.loads(private.read(place / f"{device.uuid}.json"))
        if (document["version"], document["driver"]) != (_VERSION, device.driver):
            return None
        rates = {str(name): float(rate) for name, rate in document["rates"].items()}
    except (OSError, PastaError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return rates if rates and all(0 < rate < math.inf for rate in rates.values()) else None


def _keep(place: Path, device: _Found, measured: DeviceRoofs, say: Say) -> None:
    document = {"version": _VERSION, "driver": device.driver, "rates": measured.rates}
    try:
        private.write_atomically(
            place / f"{device.uuid}.json", json.dumps(document, indent=1).encode()
        )
    except OSError as error:
        say(f"roofs cannot be stored in {place}: {error.strerror}")
