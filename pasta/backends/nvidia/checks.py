"""Checks of `pasta doctor` for NVIDIA GPUs: driver, libraries, and the compiler of probes."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from pasta import paths
from pasta.backends.nvidia.libraries import find_cupti, find_sanitizer
from pasta.errors import MissingDependency, PastaError
from pasta.extensions import BAD, GOOD, NOTE, Check

#: First ptxas that reads the PTX version of patches.
MIN_PTXAS = (12, 0)


def checks() -> Iterator[Check]:
    """All checks, in the order of display."""
    yield from _driver()
    yield from _probes()


def _driver() -> Iterator[Check]:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        yield Check("NVIDIA driver", NOTE, "none on this machine", "only needed for NVIDIA GPUs")
        return
    yield from _nvidia_devices()
    library = find_sanitizer()
    if library and library.exists():
        yield Check("Compute Sanitizer", GOOD, str(library))
    else:
        yield Check(
            "Compute Sanitizer", BAD, "not found", "pip install 'nvidia-cuda-sanitizer-api>=13'"
        )
    cupti = find_cupti()
    if cupti and cupti.exists():
        yield Check("CUPTI", GOOD, str(cupti))
        yield pc_sampling(cupti)
        yield counting(cupti)
    else:
        yield Check("CUPTI", NOTE, "not found: no device times", "pip install nvidia-cuda-cupti")


#: Settings of the loaded driver, NAME: VALUE in each line.
PARAMETERS = Path("/proc/driver/nvidia/params")
_SYS_ADMIN = 21  # CAP_SYS_ADMIN


def pc_sampling(library: Path) -> Check:
    """Whether the library, the driver's settings and the devices allow PC sampling."""
    return _hardware(library, "PC samples", "cuptiPCSamplingEnable", "pc_samples")


def counting(library: Path) -> Check:
    """Whether they allow reading hardware counters."""
    return _hardware(library, "hardware counters", "cuptiRangeProfilerEnable", "counters")


def _hardware(library: Path, name: str, function: str, tool: str) -> Check:
    if function.encode() + b"\0" not in library.read_bytes():
        return Check(
            name, NOTE, f"{library} does not support them", "pip install -U nvidia-cuda-cupti"
        )
    if _is_restricted() and not _is_administrator():
        return Check(
            name,
            NOTE,
            "the driver restricts profiling to administrators (ERR_NVGPUCTRPERM)",
            "load the driver's module with NVreg_RestrictProfilingToAdminUsers=0, or run as "
            "root; in a container with CAP_SYS_ADMIN",
        )
    partitioned, devices = _mig_devices()
    if partitioned:
        return Check(
            name,
            NOTE,
            f"not available on MIG devices: {', '.join(partitioned)}",
            "use a whole GPU" if partitioned == devices else "",
        )
    return Check(name, GOOD, f"pasta-preload -t {tool} takes them")


def _is_restricted() -> bool:
    try:
        text = PARAMETERS.read_text()
    except OSError:
        return False
    return re.search(r"^RmProfilingAdminOnly: 1$", text, re.MULTILINE) is not None


def _is_administrator() -> bool:
    status = Path("/proc/self/status").read_text()
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return effective is not None and int(effective[1], 16) >> _SYS_ADMIN & 1 == 1


def _mig_devices() -> tuple[list[str], list[str]]:
    """Names of the partitioned GPUs, and of all GPUs."""
    import pynvml

    partitioned, every = [], []
    try:
        pynvml.nvmlInit()
        for number in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(number)
            every.append(f"{number} ({pynvml.nvmlDeviceGetName(handle)})")
            try:
                mode, _ = pynvml.nvmlDeviceGetMigMode(handle)
            except pynvml.NVMLError:  # not a device that can be partitioned
                continue
            if mode == pynvml.NVML_DEVICE_MIG_ENABLE:
                partitioned.append(every[-1])
    except pynvml.NVMLError:  # another check reports it
        pass
    return partitioned, every


def _probes() -> Iterator[Check]:
    from pasta.backends.nvidia.libraries import find_ptxas
    from pasta.sass.disassembly import find_nvdisasm

    try:
        yield _program("ptxas", find_ptxas(), MIN_PTXAS)
    except MissingDependency as error:
        yield Check("ptxas", NOTE, error.message, error.remedy or _remedy("ptxas"))
    nvdisasm = find_nvdisasm()
    if nvdisasm:
        yield _program("nvdisasm", nvdisasm)
    else:
        yield Check(
            "nvdisasm",
            NOTE,
            "not found; needed to find accesses that probes do not see",
            "optional: pip install nvidia-cuda-nvdisasm",
        )
    library = find_sanitizer()
    if library and library.exists():
        yield _probe_api(library)
    yield _probe_cache()


def _program(name: str, path: Path, minimum: tuple[int, int] = (0, 0)) -> Check:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(name, BAD, f"{path} cannot be run: {error}", "use another: " + _remedy(name))
    release = re.search(r"release (\d+)\.(\d+)", done.stdout)
    if done.returncode or not release:
        message = (done.stderr or done.stdout).strip().partition("\n")[0]
        return Check(
            name,
            BAD,
            f"{path} does not print its version: {message}",
            "use another: " + _remedy(name),
        )
    found = f"{release[1]}.{release[2]} at {path}"
    if (int(release[1]), int(release[2])) < minimum:
        wanted = ".".join(map(str, minimum))
        return Check(name, NOTE, f"{found}; probes need {wanted} or newer", _remedy(name))
    return Check(name, GOOD, found)


def _remedy(name: str) -> str:
    wheel = {"ptxas": "nvidia-cuda-nvcc", "nvdisasm": "nvidia-cuda-nvdisasm"}[name]
    return f"pip install {wheel}, or PASTA_{name.upper()}"


def _probe_api(library: Path) -> Check:
    from pasta.backends.nvidia.plan import library_version
    from pasta.backends.nvidia.signatures import VERSIONS, signatures
    from pasta.probes.kinds import KIND

    name = "Sanitizer for probes"
    try:
        version = library_version(library)
        seen = [each for each in KIND if signatures(each, version)]
        unseen = [each for each in KIND if each not in seen and signatures(each, VERSIONS[-1])]
    except PastaError as error:
        return Check(name, NOTE, f"probes do not run: {error.message}", error.remedy or "")
    if unseen:
        what = f"{version}, which does not see {', '.join(unseen)}"
        return Check(name, NOTE, what, f"pip install 'nvidia-cuda-sanitizer-api=={VERSIONS[-1]}.*'")
    return Check(name, GOOD, f"{version} of {library}")


def _probe_cache() -> Check:
    cache = paths.cache("probes")
    place = next(each for each in (cache, *cache.parents) if each.exists())
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        return Check("probe cache", GOOD, f"{cache} is writable")
    return Check(
        "probe cache",
        NOTE,
        f"{cache} is not writable: probes do not run on NVIDIA GPUs",
        "set XDG_CACHE_HOME",
    )


def _nvidia_devices() -> Iterator[Check]:
    import pynvml

    try:
        pynvml.nvmlInit()
        driver = pynvml.nvmlSystemGetDriverVersion()
        cuda = pynvml.nvmlSystemGetCudaDriverVersion()
        names = [
            pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i))
            for i in range(pynvml.nvmlDeviceGetCount())
        ]
    except pynvml.NVMLError as error:
        yield Check("NVIDIA driver", BAD, f"NVML: {error}", "check the driver with nvidia-smi")
        return
    supported = cuda >= 12000
    yield Check(
        "NVIDIA driver",
        GOOD if supported else BAD,
        f"{driver}, CUDA {cuda // 1000}.{cuda % 1000 // 10}",
        "" if supported else "PASTA needs a driver for CUDA 12 or newer",
    )
    yield Check("NVIDIA devices", GOOD if names else BAD, ", ".join(names) or "none visible")
