"""Synthetic runs of the two passes of a program."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pasta import abi
from pasta.plugins import find_tools
from pasta.run.directory import RunDirectory
from pasta.run.results import write_result
from pasta.testing import Events, run_tool
from tests.support.runs import recorded

A = 0x10_0000
#: A launch: kernel, device time in ns, bytes that it reads, bytes that it writes.
Launch = tuple[str, int, int, int]
WORK: list[Launch] = [("a", 100, 64, 32), ("b", 50, 128, 0), ("a", 300, 64, 32)]
_SOURCE = {"sources": {"refacc": "1.0"}, "devices": {"0": "A GPU"}}


def manifested(run: RunDirectory, **changes: Any) -> RunDirectory:
    """The run with other entries in its manifest."""
    run.write_manifest({**run.manifest(), **_SOURCE, **changes})
    return run


def times_run(
    place: Path, launches: Iterable[Launch], *, peak: int = 0, **manifest: Any
) -> RunDirectory:
    """A run with device times, on a device with this peak bandwidth (bytes/s)."""
    events, at = Events(), 10_000_000
    if peak:
        events.add("device", device=0, bandwidth=peak)
    for kernel, time, _, _ in launches:
        ordinal = events.launch(kernel, flags=0, thread=7)
        events.complete(ordinal, at, at + time)
        at += time
    run = recorded(events, place)
    tool = find_tools("kernel_freq")[0]
    write_result(run.results, "kernel_freq", run_tool(tool, events))
    return manifested(run, tools=["kernel_freq"], **manifest)


def accesses_run(
    place: Path, launches: Iterable[Launch], *, every: int = 1, **manifest: Any
) -> RunDirectory:
    """A run in which every n-th launch was probed. Bytes are multiples of 4, at most 128."""
    events = Events()
    events.alloc(A, 4096)
    for number, (kernel, _, read, written) in enumerate(launches):
        probed = number % every == 0
        events.launch(kernel, flags=abi.FLAG_PROBED if probed else 0, thread=9)
        if probed:
            for bytes, write in ((read, False), (written, True)):
                if bytes:
                    events.access("global", [A + 4 * i for i in range(bytes // 4)], write=write)
            events.access("shared", [0, 4])  # not of the device's memory
    run = recorded(events, place)
    tool = find_tools("access_count")[0]
    write_result(run.results, "access_count", run_tool(tool, events))
    return manifested(run, tools=["access_count"], **manifest)
