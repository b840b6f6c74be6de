"""Checks of `pasta doctor` for AMD GPUs: driver, SDK, and services of the SDK on each device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pasta.backends.amd import devices, rocprofiler
from pasta.backends.base import DeviceCounter
from pasta.errors import MissingDependency
from pasta.extensions import BAD, GOOD, NOTE, Check, built_check

#: Counters that the table lists.
MAX_LISTED = 5


def checks() -> Iterator[Check]:
    """All checks, in the order of display."""
    yield built_check("libpasta_amd", rocprofiler.LIBPASTA_AMD)
    found = rocprofiler.find_rocprofiler()
    if not rocprofiler.DEVICE.exists():
        yield Check("AMD driver", NOTE, "none on this machine", "only needed for AMD GPUs")
        if found is None:
            return
    else:
        yield from _devices()
    if found is None:
        remedy = f"install ROCm 6.3 or 7, or name the library with {rocprofiler.NAMED}"
        yield Check("rocprofiler-sdk", BAD, "not found", remedy)
        return
    try:
        sdk = rocprofiler.load_rocprofiler(found)
    except MissingDependency as error:
        yield Check("rocprofiler-sdk", BAD, error.message, f"name another with {rocprofiler.NAMED}")
        return
    known = sdk.is_known
    remedy = "" if known else f"PASTA knows {rocprofiler.KNOWN_VERSIONS}"
    yield Check(
        "rocprofiler-sdk", GOOD if known else BAD, f"{sdk.version} at {sdk.library}", remedy
    )
    if known and rocprofiler.DEVICE.exists():
        yield from _offers(sdk)


def _devices() -> Iterator[Check]:
    nodes = [rocprofiler.DEVICE, *sorted(Path("/dev/dri").glob("renderD*"))]
    closed = [path for path in nodes if not os.access(path, os.R_OK | os.W_OK)]
    if closed:
        groups = devices.groups_of(closed)
        remedy = f"sudo usermod -aG {','.join(groups)} USER, and log in again" if groups else ""
        files = ", ".join(map(str, closed))
        state = BAD if rocprofiler.DEVICE in closed else NOTE
        yield Check("AMD driver", state, f"this user cannot open {files}", remedy)
    else:
        yield Check("AMD driver", GOOD, f"{rocprofiler.DEVICE} can be opened")
    found = [
        f"{each.architecture} {each.name}".strip()
        + (f", {each.bytes >> 30:,} GiB" if each.bytes else "")
        for each in devices.devices()
    ]
    yield Check("AMD devices", GOOD if found else BAD, "; ".join(found) or "none visible")


def _offers(sdk: rocprofiler.Rocprofiler) -> Iterator[Check]:
    if not sdk.counts:
        yield Check("AMD counters", NOTE, "need rocprofiler-sdk 1.0 (ROCm 7) or newer")
    if not sdk.samples:
        yield Check("AMD PC sampling", NOTE, "needs rocprofiler-sdk 0.6 (ROCm 6.4) or newer")
        return
    try:
        found = devices.offers(sdk.library)
    except MissingDependency as error:
        yield Check("AMD counters", NOTE, error.message)
        return
    for number, offer in enumerate(found):
        if sdk.counts:
            few = ", ".join(offer.counters[:MAX_LISTED])
            more = (
                f"{few}, … (all: pasta doctor --counters)"
                if len(offer.counters) > MAX_LISTED
                else few
            )
            yield Check(
                f"counters of AMD device {number}",
                GOOD if offer.counters else NOTE,
                f"{len(offer.counters):,}: {more}" if offer.counters else "none offered",
            )
        ways = [f"{way}, {low:,} to {high:,} {unit}" for way, low, high, unit in offer.sampling]
        yield Check(
            f"PC sampling of AMD device {number}",
            GOOD if ways else NOTE,
            "; ".join(ways) or "not available (MI200 and newer have it)",
        )


def counters() -> list[tuple[str, list[DeviceCounter]]]:
    """Counters by device. Raises MissingDependency."""
    library = rocprofiler.find_rocprofiler()
    offers = devices.offers(library) if library else []
    return [
        (str(number), [DeviceCounter(name) for name in offer.counters])
        for number, offer in enumerate(offers)
    ]
