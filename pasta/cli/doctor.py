"""`pasta doctor`: check this machine and installation, with a remedy for whatever is missing."""

from __future__ import annotations

import argparse
import ctypes
import ctypes.util
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pasta import paths
from pasta.errors import MissingDependency, PastaError

if TYPE_CHECKING:
    from pasta.runtime.rocm import Rocprofiler

_GOOD, _NOTE, _BAD = "ok", "note", "missing"
#: First ptxas that reads the PTX version of patches.
_OLDEST_PTXAS = (12, 0)
#: Counters that are named in the table.
_FEW = 5
_STYLES = {_GOOD: "green", _NOTE: "yellow", _BAD: "red"}


@dataclass(frozen=True)
class Check:
    """Outcome of one check."""

    name: str
    state: str
    found: str
    remedy: str = ""


def prepare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-run", action="store_true", help="do not profile the demonstration")
    parser.add_argument(
        "--counters", action="store_true", help="list the counters of AMD devices, and nothing else"
    )


def run(options: argparse.Namespace) -> int:
    if options.counters:
        return _list_counters()
    checks = list(_checks(options))
    table = Table()
    for heading in ("check", "state", "found", "remedy"):
        table.add_column(heading, overflow="fold")
    for check in checks:
        table.add_row(
            check.name,
            Text(check.state, style=_STYLES[check.state]),
            Text(check.found),
            Text(check.remedy),
        )
    Console(emoji=False).print(table)
    return int(any(check.state == _BAD for check in checks))


def _checks(options: argparse.Namespace) -> Iterator[Check]:
    checks: list[Callable[[], Iterator[Check]]] = [
        _python, _native, _google_pasta, _shared_memory, _cache, _compiler,
        _nvidia, _probes, _amd, _abandoned,
    ]  # fmt: skip
    if not options.no_run:
        checks.append(_demonstration)
    for check in checks:
        yield from check()


def _python() -> Iterator[Check]:
    yield Check("python", _GOOD, f"{platform.python_version()} at {sys.executable}")
    library = paths.libpython()
    if library:
        yield Check("libpython", _GOOD, str(library))
    else:
        yield Check(
            "libpython",
            _NOTE,
            "only a static Python: C programs are analysed by a collector process",
            "optional: a Python built with --enable-shared (Debian: apt install libpython3-dev)",
        )
    for name in ("cffi", "jinja2", "numpy", "numba", "pyarrow", "rich"):
        try:
            yield Check(name, _GOOD, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Check(name, _BAD, "not installed", f"pip install {name}")


def _native() -> Iterator[Check]:
    for name, path in (
        ("libpasta", paths.LIBPASTA),
        ("libpasta_amd", paths.LIBPASTA_AMD),
        ("reference accelerator", paths.NATIVE / "librefacc.so"),
        ("embedding module", paths.embedding_module()),
    ):
        if path and path.exists():
            yield Check(name, _GOOD, str(path))
        else:
            yield Check(name, _BAD, "not built", "pip install --force-reinstall pasta-profiler")


def _google_pasta() -> Iterator[Check]:
    found = paths.google_pasta()
    if found:
        yield Check(
            "google-pasta",
            _BAD,
            f"{found.name} is in this environment and has a package `pasta` too",
            "install PASTA in an environment of its own: pipx install pasta-profiler",
        )


def _shared_memory() -> Iterator[Check]:
    place = Path("/dev/shm")
    if not os.access(place, os.W_OK):
        yield Check(
            "shared memory", _NOTE, f"{place} is not writable", "rings go to TMPDIR or /tmp"
        )
        return
    free = shutil.disk_usage(place).free
    state = _GOOD if free >= 512 << 20 else _NOTE
    remedy = (
        "" if state == _GOOD else "in a container: --shm-size=1g; else --set ring.directory=DIR"
    )
    yield Check("shared memory", state, f"{free >> 20:,} MiB free in {place}", remedy)


def _cache() -> Iterator[Check]:
    cache = paths.cache().parent
    writable = os.access(cache if cache.exists() else cache.parent, os.W_OK)
    yield Check(
        "cache",
        _GOOD if writable else _NOTE,
        f"{cache} is {'writable' if writable else 'not writable: compiled code is not kept'}",
        "" if writable else "set XDG_CACHE_HOME",
    )


def _compiler() -> Iterator[Check]:
    found = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if found:
        yield Check("C compiler", _GOOD, found)
    else:
        yield Check(
            "C compiler", _NOTE, "none; needed only to build PASTA", "apt install gcc libc6-dev"
        )


def _nvidia() -> Iterator[Check]:
    from pasta.runtime.injection import find_sanitizer

    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        yield Check("NVIDIA driver", _NOTE, "none on this machine", "only needed for NVIDIA GPUs")
        return
    yield from _nvidia_devices()
    library = find_sanitizer()
    if library and library.exists():
        yield Check("Compute Sanitizer", _GOOD, str(library))
    else:
        yield Check("Compute Sanitizer", _BAD, "not found", "pip install 'pasta-profiler[nvidia]'")


def _probes() -> Iterator[Check]:
    from pasta.probes.nvptx import find_ptxas
    from pasta.probes.sass import find_nvdisasm
    from pasta.runtime.injection import find_sanitizer

    try:
        yield _program("ptxas", find_ptxas(), _OLDEST_PTXAS)
    except MissingDependency as error:
        yield Check("ptxas", _NOTE, error.message, error.remedy or _how("ptxas"))
    nvdisasm = find_nvdisasm()
    if nvdisasm:
        yield _program("nvdisasm", nvdisasm)
    else:
        yield Check(
            "nvdisasm",
            _NOTE,
            "not found; tells what probes cannot see in a kernel",
            "optional: pip install nvidia-cuda-nvdisasm",
        )
    library = find_sanitizer()
    if library and library.exists():
        yield _probe_api(library)
    yield _probe_cache()


def _program(name: str, path: Path, oldest: tuple[int, int] = (0, 0)) -> Check:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(
            name, _BAD, f"{path} cannot be run: {error}", "name another one: " + _how(name)
        )
    release = re.search(r"release (\d+)\.(\d+)", done.stdout)
    if done.returncode or not release:
        said = (done.stderr or done.stdout).strip().partition("\n")[0]
        return Check(
            name,
            _BAD,
            f"{path} does not say its version: {said}",
            "name another one: " + _how(name),
        )
    found = f"{release[1]}.{release[2]} at {path}"
    if (int(release[1]), int(release[2])) < oldest:
        wanted = ".".join(map(str, oldest))
        return Check(name, _NOTE, f"{found}; probes need {wanted} or newer", _how(name))
    return Check(name, _GOOD, found)


def _how(name: str) -> str:
    wheel = {"ptxas": "nvidia-cuda-nvcc", "nvdisasm": "nvidia-cuda-nvdisasm"}[name]
    return f"pip install {wheel}, or PASTA_{name.upper()}"


def _probe_api(library: Path) -> Check:
    from pasta.probes.build import library_version
    from pasta.probes.kinds import KIND
    from pasta.probes.signatures import VERSIONS, signatures

    name = "Sanitizer for probes"
    try:
        version = library_version(library)
        seen = [each for each in KIND if signatures(each, version)]
        unseen = [each for each in KIND if each not in seen and signatures(each, VERSIONS[-1])]
    except PastaError as error:
        return Check(name, _NOTE, f"probes do not run: {error.message}", error.remedy or "")
    if unseen:
        what = f"{version}, which does not see {', '.join(unseen)}"
        return Check(
            name, _NOTE, what, f"pip install 'nvidia-cuda-sanitizer-api=={VERSIONS[-1]}.*'"
        )
    return Check(name, _GOOD, f"{version} of {library}")


def _probe_cache() -> Check:
    cache = paths.cache("probes")
    place = next(each for each in (cache, *cache.parents) if each.exists())
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        return Check("probe cache", _GOOD, f"{cache} is writable")
    return Check(
        "probe cache",
        _NOTE,
        f"{cache} cannot be written: probes do not run on NVIDIA GPUs",
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
        yield Check(
            "NVIDIA driver", _BAD, f"NVML says: {error}", "check the driver with nvidia-smi"
        )
        return
    supported = cuda >= 12000
    yield Check(
        "NVIDIA driver",
        _GOOD if supported else _BAD,
        f"{driver}, CUDA {cuda // 1000}.{cuda % 1000 // 10}",
        "" if supported else "PASTA needs a driver for CUDA 12 or newer",
    )
    yield Check("NVIDIA devices", _GOOD if names else _BAD, ", ".join(names) or "none visible")


def _amd() -> Iterator[Check]:
    from pasta.runtime import rocm

    found = rocm.find_rocprofiler()
    if not rocm.DEVICE.exists():
        yield Check("AMD driver", _NOTE, "none on this machine", "only needed for AMD GPUs")
        if found is None:
            return
    else:
        yield from _amd_devices()
    if found is None:
        remedy = f"install ROCm 6.3 or 7, or name the library with {rocm.NAMED}"
        yield Check("rocprofiler-sdk", _BAD, "not found", remedy)
        return
    try:
        sdk = rocm.load_rocprofiler(found)
    except MissingDependency as error:
        yield Check("rocprofiler-sdk", _BAD, error.message, f"name another: {rocm.NAMED}")
        return
    known = sdk.is_known
    remedy = "" if known else f"PASTA knows {rocm.KNOWN_VERSIONS}"
    yield Check(
        "rocprofiler-sdk", _GOOD if known else _BAD, f"{sdk.version} at {sdk.library}", remedy
    )
    if known and rocm.DEVICE.exists():
        yield from _amd_offers(sdk)


def _amd_devices() -> Iterator[Check]:
    from pasta.runtime import rocm, rocm_devices

    nodes = [rocm.DEVICE, *sorted(Path("/dev/dri").glob("renderD*"))]
    closed = [path for path in nodes if not os.access(path, os.R_OK | os.W_OK)]
    if closed:
        groups = rocm_devices.groups_of(closed)
        remedy = f"sudo usermod -aG {','.join(groups)} USER, and log in again" if groups else ""
        files = ", ".join(map(str, closed))
        state = _BAD if rocm.DEVICE in closed else _NOTE
        yield Check("AMD driver", state, f"this user may not open {files}", remedy)
    else:
        yield Check("AMD driver", _GOOD, f"{rocm.DEVICE} can be opened")
    found = [
        f"{each.architecture} {each.name}".strip()
        + (f", {each.bytes >> 30:,} GiB" if each.bytes else "")
        for each in rocm_devices.devices()
    ]
    yield Check("AMD devices", _GOOD if found else _BAD, "; ".join(found) or "none visible")


def _amd_offers(sdk: Rocprofiler) -> Iterator[Check]:
    from pasta.runtime.rocm_devices import offers

    if not sdk.counts:
        yield Check("AMD counters", _NOTE, "need rocprofiler-sdk 1.0 (ROCm 7) or newer")
    if not sdk.samples:
        yield Check("AMD PC sampling", _NOTE, "needs rocprofiler-sdk 0.6 (ROCm 6.4) or newer")
        return
    try:
        found = offers(sdk.library)
    except MissingDependency as error:
        yield Check("AMD counters", _NOTE, error.message)
        return
    for number, offer in enumerate(found):
        if sdk.counts:
            few = ", ".join(offer.counters[:_FEW])
            more = f"{few}, … (all: pasta doctor --counters)" if len(offer.counters) > _FEW else few
            yield Check(
                f"counters of AMD device {number}",
                _GOOD if offer.counters else _NOTE,
                f"{len(offer.counters):,}: {more}" if offer.counters else "none offered",
            )
        ways = [f"{way}, {least:,} to {most:,} {unit}" for way, least, most, unit in offer.sampling]
        yield Check(
            f"PC sampling of AMD device {number}",
            _GOOD if ways else _NOTE,
            "; ".join(ways) or "not offered (MI200 and newer have it)",
        )


def _list_counters() -> int:
    """Prints the counters of every AMD device; 1 where there are none."""
    from pasta.runtime import rocm
    from pasta.runtime.rocm_devices import offers

    library = rocm.find_rocprofiler()
    try:
        found = offers(library) if library else []
    except MissingDependency as error:
        print(f"pasta: {error}", file=sys.stderr)
        return 1
    for number, offer in enumerate(found):
        for name in offer.counters:
            print(f"{number} {name}")
    if not any(offer.counters for offer in found):
        print("pasta: no AMD device offers counters: see pasta doctor", file=sys.stderr)
        return 1
    return 0


def _abandoned() -> Iterator[Check]:
    from pasta.cli.recover import abandoned

    left = [str(path) for path in abandoned()]
    if left:
        yield Check("unfinished sessions", _NOTE, ", ".join(left), "pasta recover")


def _demonstration() -> Iterator[Check]:
    import tempfile

    from pasta.runtime.injection import own_python

    program = paths.DEMOS / "vadd"
    with tempfile.TemporaryDirectory() as directory:
        command = [*own_python("pasta.cli.preload"), "-q", "-o", f"{directory}/run", str(program)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        good = done.returncode == 0 and Path(directory, "run", "run.json").exists()
    yield Check(
        "profile the demo",
        _GOOD if good else _BAD,
        "a run was written" if good else (done.stderr.strip() or f"status {done.returncode}"),
        "" if good else "run: pasta-preload -v pasta demo vadd",
    )
