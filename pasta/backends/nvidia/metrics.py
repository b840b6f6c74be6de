"""Hardware counters that CUPTI can read on a chip, listed by its profiler host API.

The layouts are those of cupti_profiler_host.h and cupti_target.h of 12.6 to 13.5. Versions up to
13.1 list the counters of any chip without a driver; later ones load libcuda.so.1, and 13.2 recurses
without end if there is none. The library is therefore loaded in a process of its own.
"""

from __future__ import annotations

import ctypes as C
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pasta.backends.base import DeviceCounter
from pasta.errors import MissingDependency
from pasta.own_python import own_environment, own_python

_INSTALL = "pip install 'nvidia-cuda-cupti>=13'"
#: Suffix that turns a base metric into a counter, by metric type: counter, ratio, throughput.
_SUFFIXES = ("sum", "pct", "avg.pct_of_peak_sustained_elapsed")
_TIMEOUT_S = 120


def _layout(name: str, *fields: tuple[str, Any]) -> type[C.Structure]:
    """A parameter struct: its size, a reserved pointer, the fields, and zeros for those that later
    versions add: they read them, whatever the size."""
    head: list[tuple[str, Any]] = [("size", C.c_size_t), ("reserved", C.c_void_p)]
    return type(name, (C.Structure,), {"_fields_": [*head, *fields, ("later", C.c_uint64)]})


_TEXTS = C.POINTER(C.c_char_p)
CHIP = _layout("Chip", ("device", C.c_size_t), ("name", C.c_char_p))
CHIPS = _layout("Chips", ("count", C.c_size_t), ("names", _TEXTS))
HOST = _layout(
    "Host", ("kind", C.c_int), ("chip", C.c_char_p), ("availability", C.c_void_p),
    ("object", C.c_void_p),
)  # fmt: skip
METRICS = _layout(
    "Metrics", ("object", C.c_void_p), ("kind", C.c_int), ("names", _TEXTS), ("count", C.c_size_t)
)
#: Without the scope of collection, which 12.6 to 13.0 do not have.
PROPERTIES = _layout(
    "Properties", ("object", C.c_void_p), ("name", C.c_char_p), ("text", C.c_char_p),
    ("unit", C.c_char_p), ("dimension", C.c_char_p), ("kind", C.c_int),
)  # fmt: skip


class _Failed(Exception):
    """A call of the library failed."""


def _call(library: C.CDLL, function: str, layout: type[C.Structure], **fields: Any) -> Any:
    parameters = layout(**fields)
    last = getattr(layout, layout._fields_[-2][0])
    parameters.size = last.offset + last.size
    result = getattr(library, function)(C.byref(parameters))
    if result:
        raise _Failed(f"{function} failed with {result}")
    return parameters


def _chips_here(library: C.CDLL) -> list[str]:
    """Chips of the devices that the driver sees."""
    try:
        driver, count = C.CDLL("libcuda.so.1"), C.c_int()
    except OSError:
        return []
    if driver.cuInit(0) or driver.cuDeviceGetCount(C.byref(count)):
        return []
    return [
        _call(library, "cuptiDeviceGetChipName", CHIP, device=device).name.decode()
        for device in range(count.value)
    ]


def _check_supported(library: C.CDLL, chips: Sequence[str]) -> None:
    known = _call(library, "cuptiProfilerHostGetSupportedChips", CHIPS)
    names = [each.decode() for each in known.names[: known.count]]
    for chip in chips:
        if chip not in names:
            raise _Failed(f"it does not know {chip}, only {', '.join(names)}")


def _counters(library: C.CDLL, chip: str) -> Iterator[tuple[str, str]]:
    """Counters of a chip with their descriptions."""
    host = _call(library, "cuptiProfilerHostInitialize", HOST, chip=chip.encode()).object
    for kind, suffix in enumerate(_SUFFIXES):
        found = _call(library, "cuptiProfilerHostGetBaseMetrics", METRICS, object=host, kind=kind)
        for name in found.names[: found.count]:
            if b"." in name:  # of a set for sampling
                continue
            counter = f"{name.decode()}.{suffix}"  # 12.6 does not take the base metric
            about = _call(
                library, "cuptiProfilerHostGetMetricProperties", PROPERTIES, object=host,
                name=counter.encode(),
            )  # fmt: skip
            yield counter, (about.text or b"").decode(errors="replace")


def main() -> int:
    """Prints the counters by chip as JSON, of a named chip or of the devices; or why there are
    none. Arguments: the library, and a chip or nothing."""
    path, chip = sys.argv[1:]
    library = C.CDLL(path)
    for name in ("host", "target"):  # otherwise CUPTI asks the loader, which finds another version
        beside = Path(path).with_name(f"libnvperf_{name}.so")
        if beside.exists():
            C.CDLL(str(beside))
    document: Any
    try:
        chips = [chip] if chip else list(dict.fromkeys(_chips_here(library)))
        if chips:
            _check_supported(library, chips)
        document = [[each, list(_counters(library, each))] for each in chips]
    except _Failed as error:
        document = str(error)
    json.dump(document, sys.stdout)
    return 0


def counters(library: Path | None, chip: str = "") -> list[tuple[str, Sequence[DeviceCounter]]]:
    """Counters by chip: of the one named, else of the devices of this machine.

    Raises MissingDependency if the library is missing or lists none.
    """
    if library is None or not library.exists():
        if not chip:
            return []
        raise MissingDependency("libcupti.so was not found", remedy=_INSTALL)
    done = subprocess.run(
        [*own_python(__name__), str(library), chip],
        capture_output=True, text=True, timeout=_TIMEOUT_S, env=own_environment(os.environ),
    )  # fmt: skip
    found = json.loads(done.stdout) if done.returncode == 0 else f"status {done.returncode}"
    if isinstance(found, str):
        raise MissingDependency(
            f"{library} lists no counters: {found}",
            remedy="13.2 and newer need NVIDIA's driver; name another library with "
            "PASTA_CUPTI_LIB, such as that of nvidia-cuda-cupti==13.1.*",
        )
    return [(name, [DeviceCounter(*each) for each in listed]) for name, listed in found]
