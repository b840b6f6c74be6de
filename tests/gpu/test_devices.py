"""Several devices and several contexts: every record says where it happened."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pyarrow.parquet as pq
import pytest

from .conftest import INTERNAL, Build, Ran, Run
from .test_examples import SANITIZER, assert_same

WAYS = [(), ("--uva", "1")]


def devices_of(run: Ran) -> range:
    """The devices that the program `devices` used."""
    assert run.status == 0, run.stderr
    return range(run.expected["context_create"])


def rows(run: Ran, kind: str) -> list[dict[str, Any]]:
    """The program's own records of a kind, in the order of the ring."""
    table = run.table(kind)
    found = [] if table is None else table.to_pylist()
    return sorted(
        (row for row in found if not row["flags"] & INTERNAL), key=lambda row: row["position"]
    )


def result(run: Ran, tool: str, table: str) -> list[dict[str, Any]]:
    path = run.directory / "results" / tool / f"{table}.parquet"
    return list(pq.read_table(path).to_pylist())


@pytest.mark.parametrize("cudart", ["shared", "static"])
@pytest.mark.parametrize("name", ["devices", "contexts"])
def test_counts(example: Build, native: Run, profiled: Run, name: str, cudart: str) -> None:
    program = example(name, cudart)
    alone, run = native(program, "--expect"), profiled(program, "--expect", options=SANITIZER)
    assert_same(alone, run)
    run.counts.check(run.expected)


def test_device_and_stream_of_each_launch(example: Build, profiled: Run) -> None:
    run = profiled(example("devices"), "--launches", "2000", "--expect", options=SANITIZER)
    devices = devices_of(run)
    context_of = {row["device"]: row["context"] for row in rows(run, "context_create")}
    assert sorted(context_of) == list(devices)
    assert len(set(context_of.values())) == len(devices)
    launches = rows(run, "kernel_launch")
    assert sorted(row["ordinal"] for row in launches) == list(range(len(launches)))
    begins = {}
    for device in devices:
        mine = [row for row in launches if row["device"] == device]
        assert len(mine) == 2000 + device
        assert {row["context"] for row in mine} == {context_of[device]}
        assert {row["grid_x"] for row in mine} == {device + 1}
        # one thread, stream and module for each device
        begins[device] = {(row["thread"], row["stream"], row["module"]) for row in mine}
        assert len(begins[device]) == 1
    for column in range(3):
        assert len({next(iter(begin))[column] for begin in begins.values()}) == len(devices)
    places = {row["correlation"]: (row["device"], row["context"]) for row in launches}
    ends = rows(run, "kernel_launch_end")
    assert {row["correlation"]: (row["device"], row["context"]) for row in ends} == places
    for kind in ("memory_alloc", "memory_copy", "stream_create", "stream_destroy"):
        for row in rows(run, kind):
            if row["device"] is not None and row["context"] is not None:
                assert row["context"] == context_of[row["device"]], row


@pytest.mark.parametrize("way", WAYS)
def test_copies_between_devices(
    example: Build, native: Run, profiled: Run, way: tuple[str, ...]
) -> None:
    program = example("devices")
    run = profiled(program, *way, "--expect")
    devices = devices_of(run)
    if len(devices) < 2:
        pytest.skip("one device: nothing is copied between devices")
    assert_same(native(program, *way, "--expect"), run)
    run.counts.check(run.expected)
    streams = {row["device"]: row["stream"] for row in rows(run, "kernel_launch")}
    buffers = {
        row["address"]: row["device"]
        for row in rows(run, "memory_alloc")
        if row["memory"] == "device"
    }
    copies = [row for row in rows(run, "memory_copy") if row["direction"] == "peer_to_peer"]
    assert [row["source_device"] for row in copies] == list(devices)
    for row in copies:
        source, destination = row["source_device"], row["destination_device"]
        assert destination == (source + 1) % len(devices)
        assert (buffers[row["source"]], buffers[row["destination"]]) == (source, destination)
        assert (row["device"], row["stream"]) == (source, streams[source])


def test_device_ordinals_follow_visible_devices(example: Build, profiled: Run) -> None:
    program = example("devices")
    last = len(devices_of(profiled(program, "--expect"))) - 1
    if not last:
        pytest.skip("one device: it is number 0 in any case")
    run = profiled(program, "--expect", CUDA_VISIBLE_DEVICES=str(last))
    assert list(devices_of(run)) == [0]
    run.counts.check(run.expected)


def test_tables_per_device(example: Build, profiled: Run) -> None:
    options = ("-t", "memory_timeline", "-t", "copies")
    run = profiled(example("devices"), "--expect", options=options)
    devices, expected = devices_of(run), run.expected
    peaks = {
        row["device"]: (row["peak"], row["live_at_end"], row["allocations"])
        for row in result(run, "memory_timeline", "peaks")
        if (row["layer"], row["memory"], row["internal"]) == ("memory", "device", False)
    }
    assert peaks == {
        device: (expected[f"memory_alloc.device.bytes@{device}"], 0, 2) for device in devices
    }
    copied = {
        (row["source_device"], row["destination_device"]): (row["copies"], row["bytes"])
        for row in result(run, "copies", "devices")
    }

    def reported(direction: str, device: int) -> tuple[int, int]:
        key = f"memory_copy.{direction}"
        return expected[f"{key}@{device}"], expected[f"{key}.bytes@{device}"]

    wanted: dict[tuple[int | None, int | None], tuple[int, int]] = {}
    for device in devices:
        wanted[None, device] = reported("host_to_device", device)
        wanted[device, None] = reported("device_to_host", device)
        if len(devices) > 1:
            wanted[device, (device + 1) % len(devices)] = reported("peer_to_peer", device)
    assert copied == wanted


def test_several_contexts_of_one_device(example: Build, profiled: Run) -> None:
    run = profiled(example("contexts"), "--launches", "50", options=SANITIZER)
    assert run.status == 0, run.stderr
    created, destroyed = rows(run, "context_create"), rows(run, "context_destroy")
    assert [(row["context"], row["device"]) for row in created] == [(n, 0) for n in range(4)]
    assert [row["context"] for row in destroyed] == [0, 1, 2, 3]
    assert [row["handle"] for row in destroyed] == [row["handle"] for row in created]
    launches = rows(run, "kernel_launch")
    hashes = set()
    for context, kernel in enumerate(["ping", "pong", "pong", "ping"]):
        mine = [row for row in launches if row["context"] == context]
        assert len(mine) == 50
        assert {(row["device"], row["grid_x"], row["name"]) for row in mine} == {
            (0, context + 1, kernel)
        }
        assert len({(row["stream"], row["module"]) for row in mine}) == 1
        modules = {
            row["handle"]: row["hash"]
            for row in rows(run, "module_load")
            if row["context"] == context
        }
        hashes.add(modules[mine[0]["module"]])
        position = created[context]["position"], destroyed[context]["position"]
        assert position[0] < mine[0]["position"] < mine[-1]["position"] < position[1]
        (alloc,), (free,) = (
            [row for row in rows(run, kind) if row["bytes"] == 4096 * (context + 1)]
            for kind in ("memory_alloc", "memory_free")
        )
        assert alloc["address"] == free["address"]
        # The first context of a pair allocates before and the second frees after the other lives;
        # in between the driver does not report which one it is.
        second = context % 2
        assert (alloc["device"], alloc["context"]) == (0, None if second else context)
        assert (free["device"], free["context"]) == (0, context if second else None)
        assert position[0] < alloc["position"] < free["position"] < position[1]
        # also the streams and modules that are destroyed with their context
        for kind in ("stream_destroy", "module_unload"):
            (row,) = [row for row in rows(run, kind) if row["context"] == context]
            assert (row["device"], row["position"] < position[1]) == (0, True), kind
    assert len(hashes) == 1  # one file, loaded four times


def test_bandwidth_of_links(example: Build, profiled: Run) -> None:
    """As nvidia-smi gives the speed of each NVLink, with the overhead of its line code."""
    run = profiled(example("devices"), "--launches", "2000", "--expect")
    found = json.loads((run.directory / "run.json").read_text())["link_bandwidth"]
    assert set(found) >= {str(device) for device in devices_of(run)}
    given = subprocess.run(
        ["nvidia-smi", "nvlink", "--status", "-i", "0"], capture_output=True, text=True, check=False
    ).stdout
    links = [float(speed) for speed in re.findall(r": ([0-9.]+) GB/s", given)]
    if links:
        assert found["0"] == pytest.approx(1000 * sum(links), rel=0.1), (found, given)
    else:  # PCIe: at least 8 lanes of generation 3
        assert found["0"] >= 8 * 985, (found, given)
