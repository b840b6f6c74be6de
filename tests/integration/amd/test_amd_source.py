"""The AMD source driven by the replayer: the records of each callback."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from tests.integration.amd.conftest import SOURCE, Replay
from tests.support.amd_replayer import Replayer
from tests.support.amd_stream import (
    BASE,
    CODE,
    CPU,
    DEFAULT,
    DEVICE_TO_DEVICE,
    DEVICE_TO_HOST,
    GPU,
    HOST_TO_DEVICE,
    HOST_TO_HOST,
    NAMES,
    OUT_OF_MEMORY,
    SECOND_GPU,
    Stream,
    recorded,
    recorded_hsa,
)
from tests.support.places import DATA
from tests.support.played import Played

S, E, HOST, D1, D2 = 0x55D6D3E60D10, 0x55D6D3E67400, 0x9000000, 0x1101E00000, 0x1102E00000
K1, K2 = "_Z2k1Pfi", "k2"
FILL, COPY = "__amd_rocclr_fillBufferAligned", "__amd_rocclr_copyBuffer"
KERNELS = {1: f"{K1}.kd", 2: f"{K2}.kd"}
HELPERS = {6: f"{COPY}.kd", 9: f"{FILL}.kd", 11: "__amd_rocclr_initHeap.kd"}


def loaded(*gpus: int) -> Stream:
    """A stream with loaded kernels: a program's, and the runtime's own."""
    s = Stream(gpus or (GPU,))
    s.load(1, HELPERS)
    s.load(2, KERNELS)
    return s


def alive(*memory: str) -> Stream:
    """A stream with two blocks of device memory, 4 MiB each, and a page-locked one."""
    s = loaded()
    s.hip("hipMalloc", size=4 << 20, ptr=D1)
    s.hip("hipMalloc", size=4 << 20, ptr=D2)
    s.hip("hipHostMalloc", size=4 << 20, flags=0, ptr=HOST)
    return s


# ---- the recorded stream ----


@pytest.fixture
def hip63(replay: Replay, tmp_path: Path, version: str) -> Played:
    stream = recorded(DATA / "amd" / "hip63_sdk100.events.txt")
    played = replay(stream, version)
    assert (played.status, played.stderr) == (7, "")
    return played


def test_recorded_stream(hip63: Played, version: str) -> None:
    start = hip63.rows("process_start", "source", "version")
    assert start == [("amd_rocprofiler", version)]
    assert hip63.rows("context_create", "handle", "name", "device", "context") == [
        (GPU, NAMES[GPU], 0, 0)
    ]
    for kind in ("stream_create", "stream_destroy"):
        assert hip63.rows(kind, "handle", "device", "context") == [(S, 0, 0)]
    assert hip63.rows("module_load", "handle", "bytes") == [(1, 30008), (2, 6536)]
    assert hip63.rows("module_unload", "handle") == [(2,), (1,)]


def test_recorded_memory(hip63: Played) -> None:
    columns = ("address", "bytes", "memory", "stream", "flags")
    alive = [
        (0x1101E00000, 4 << 20, "device", None, ""),
        (0x1000181000, 4096, "managed", None, ""),
        (0x9000000, 4 << 20, "pinned", None, ""),
        (0x1101100000, 4096, "pool", S, "async"),
    ]
    assert hip63.rows("memory_alloc", *columns, flag="!internal") == alive
    frees = hip63.rows("memory_free", *columns, flag="!internal")
    assert frees == [alive[3], alive[0], alive[1], alive[2]]


def test_recorded_memory_of_the_runtime(hip63: Played, version: str) -> None:
    taken = dict(hip63.rows("memory_alloc", "address", "bytes", flag="internal"))
    if version == "0.5.0":  # it has no MEMORY_ALLOCATION
        assert not taken
        return
    assert len(taken) == 10
    assert taken[0x1101000000] == 1048576
    freed = hip63.rows("memory_free", "address", "bytes", flag="internal")
    assert freed == [(0x1101000000, 1048576), (0x11015FC000, 4210688)]


def test_recorded_work(hip63: Played) -> None:
    assert hip63.rows("memory_copy", "direction", "source", "destination", "bytes", "flags") == [
        ("host_to_device", 0x9000000, 0x1101E00000, 4 << 20, "async"),
        ("device_to_device", 0x1101E01000, 0x1101E00000, 4096, ""),
    ]
    (fill,) = hip63.rows("memory_set", "address", "bytes", "value", "element", "stream", "flags")
    assert fill == (0x1101E00000, 4096, 1, 1, S, "async")
    columns = ("name", "grid", "block", "ordinal", "stream", "flags", "module")
    assert hip63.rows("kernel_launch", *columns) == [
        (K1, (8, 2, 1), (64, 4, 1), 0, S, "", 2),
        (K2, (1, 1, 1), (64, 1, 1), 1, S, "", 2),
        (K1, (4, 1, 1), (64, 1, 1), 2, S, "graph", 2),
        (K2, (1, 1, 1), (64, 1, 1), 3, S, "graph", 2),
    ]
    for kind in ("kernel_launch_end", "kernel_complete"):
        columns = ("ordinal", "correlation", "stream", "flags")
        assert hip63.rows(kind, *columns) == hip63.rows("kernel_launch", *columns)


def test_recorded_synchronization(hip63: Played) -> None:
    assert hip63.rows("sync", "what", "handle") == [
        ("event", E),
        ("stream", S),
        ("stream", S),
        ("device", None),
        ("device", None),
    ]
    assert hip63.rows("event_create", "handle") == [(E,)]
    assert hip63.rows("event_record", "handle", "stream") == [(E, S)]
    graph, executable = 0x55D6D3E1E500, 0x55D6D387E040
    assert hip63.rows("graph_instantiate", "graph", "executable") == [(graph, executable)]
    for kind in ("graph_launch", "graph_launch_end"):
        assert hip63.rows(kind, "graph", "stream", "upload") == [(executable, S, 0)]
    correlations = {hip63[kind]["correlation"][0] for kind in ("graph_launch", "graph_launch_end")}
    assert len(correlations) == 1


# ---- launches ----


@pytest.mark.parametrize("operation", ["hipLaunchKernelExC", "hipDrvLaunchKernelEx"])
def test_stream_from_the_launch_configuration(replay: Replay, operation: str) -> None:
    s = loaded()
    with s.call(operation, config=S):
        s.dispatch(1)
    with s.call(operation, config="null"):
        s.dispatch(2)
    assert replay(s).rows("kernel_launch", "name", "stream") == [(K1, S), (K2, None)]


def test_stream_from_the_configured_call(replay: Replay, version: str) -> None:
    s = loaded()
    for kernel, stream in ((1, S), (2, 0)):
        s.hip("hipConfigureCall", gridDim=(1, 1, 1), blockDim=(64, 1, 1), stream=stream)
        with s.call("hipLaunchByPtr", func=0x1234):
            s.dispatch(kernel)
    with s.call("hipLaunchByPtr", func=0x1234):  # nothing was configured
        s.dispatch(1)
    rows = replay(s, version).rows("kernel_launch", "name", "stream")
    assert rows == [(K1, S), (K2, 0), (K1, None)]


@pytest.mark.parametrize(
    "operation", ["hipLaunchCooperativeKernelMultiDevice", "hipExtLaunchMultiKernelMultiDevice"]
)
def test_multi_device_launches_have_the_devices_stream(replay: Replay, operation: str) -> None:
    s = loaded(GPU, SECOND_GPU)
    for device, stream in ((0, 0x1001), (1, 0x1002)):
        s.hip("hipSetDevice", deviceId=device)
        s.hip("hipStreamCreate", stream=stream)
    with s.call(operation, launchParamsList=(0x1001, 0x1002), numDevices=2, flags=0):
        s.dispatch(1, agent=SECOND_GPU)
        s.dispatch(1, agent=GPU)
    rows = replay(s).rows("kernel_launch", "device", "stream")
    assert rows == [(1, 0x1002), (0, 0x1001)]


def launching(s: Stream, kernel: int = 1, stream: int = S, **fields: Any) -> Any:
    with s.call("hipLaunchKernel", numBlocks=(1, 1, 1), dimBlocks=(64, 1, 1), stream=stream):
        return s.dispatch(kernel, **fields)


def test_launch_fields(replay: Replay, version: str) -> None:
    s = loaded()
    d = launching(s, grid=(1000, 9, 1), workgroup=(256, 4, 1), lds=768, scratch=48)
    s.complete(d, 1500, 4000)
    played = replay(s, version)
    (launch,) = [played.plain("kernel_launch", row) for row in played["kernel_launch"]]
    expected = {
        "name": K1, "grid": (4, 3, 1), "block": (256, 4, 1), "cluster": None, "registers": 32,
        "shared_static": 256, "shared_dynamic": 512, "local": 48, "ordinal": 0, "module": 2,
        "graph_node": None, "stream": S, "device": 0, "context": 0, "flags": "",
        "entry_pc": None if version == "0.5.0" else BASE + CODE,
    }  # fmt: skip
    assert {name: launch[name] for name in expected} == expected
    (complete,) = [played.plain("kernel_complete", row) for row in played["kernel_complete"]]
    assert complete["end"] - complete["start"] == 2500
    assert 0 <= launch["time"] - complete["start"] + 1500 < 10**9  # the program's clock
    assert complete["thread"] != launch["thread"] == played["process_start"]["thread"][0]
    (ended,) = played.rows("kernel_launch_end", "thread")
    assert ended == (launch["thread"],)


@pytest.mark.parametrize(
    "operation", ["hipLaunchKernel", "hipLaunchKernel_spt", "hipExtLaunchKernel",
                  "hipLaunchCooperativeKernel", "hipModuleLaunchKernel",
                  "hipModuleLaunchCooperativeKernel", "hipExtModuleLaunchKernel"]
)  # fmt: skip
def test_stream_from_the_call(replay: Replay, operation: str) -> None:
    s = loaded()
    with s.call(operation, stream=S):
        s.dispatch(1)
    assert replay(s).rows("kernel_launch", "stream", "flags") == [(S, "")]


def test_dispatch_on_another_thread(replay: Replay, version: str) -> None:
    s = loaded()
    with s.call("hipLaunchKernel", stream=S, thread=2) as correlation:
        s.open[3] = [correlation]
        s.dispatch(1, thread=3)
    s.dispatch(2)  # nobody's call
    played = replay(s, version)
    assert played.rows("kernel_launch", "name", "stream") == [(K1, S), (K2, None)]


def test_dispatch_of_an_unknown_nested_call(replay: Replay) -> None:
    s = loaded()
    with s.call("hipLaunchKernel", stream=S, thread=2) as outer:
        s.open[3] = [999]  # an unknown call
        s.dispatch(1, thread=3, ancestor=outer)
    assert replay(s).rows("kernel_launch", "name", "stream") == [(K1, S)]


def test_graph_dispatched_on_runtime_threads(replay: Replay, version: str) -> None:
    s = loaded()
    with s.call("hipGraphLaunch", graphExec=0x12, stream=S) as launched:
        s.open[3] = [launched]
        s.complete(s.dispatch(1, thread=3))
    s.complete(s.dispatch(2, thread=3))  # the call has returned
    played = replay(s, version)
    rows = [(K1, S, "graph"), (K2, S, "graph")]
    assert played.rows("kernel_launch", "name", "stream", "flags") == rows
    assert played.rows("kernel_complete", "stream", "flags") == [row[1:] for row in rows]


def test_completions_in_any_order(replay: Replay, version: str) -> None:
    s = loaded()
    launches = [launching(s, kernel=1 + i % 2) for i in range(40)]
    for i in (*range(39, 20, -1), *range(0, 21, 2), *range(1, 21, 2)):
        s.complete(launches[i], 1000 * i, 1000 * i + i, by=8 + i % 3)
    played = replay(s, version)
    begun = dict(played.rows("kernel_launch", "ordinal", "correlation"))
    completed = played.rows("kernel_complete", "ordinal", "correlation")
    assert len(completed) == 40
    assert dict(completed) == begun
    times = played.rows("kernel_complete", "ordinal", "start", "end")
    assert all(end - start == ordinal for ordinal, start, end in times)
    assert [row[0] for row in completed[:3]] == [39, 38, 37]


def test_helper_kernels_of_calls_are_hidden(replay: Replay, version: str) -> None:
    s = alive()
    with s.call("hipMemset", dst=D1, value=7, sizeBytes=4096):
        fill = s.dispatch(9)
    with s.call("hipMemcpy", dst=D1, src=D2, sizeBytes=4096, kind=DEVICE_TO_DEVICE):
        copy = s.dispatch(6)
    with s.call("hipMalloc", size=64, ptr=0x1103E00000):
        heap = s.dispatch(11)
    for d in (heap, copy, fill):
        s.complete(d)
    played = replay(s, version)
    name = "__amd_rocclr_initHeap"
    assert played.rows("kernel_launch", "name", "flags") == [(name, "internal")]
    assert len(played["kernel_complete"]) == len(played["kernel_launch_end"]) == 1
    assert (len(played["memory_set"]), len(played["memory_copy"])) == (1, 1)


def test_kernels_are_removed_on_unload(replay: Replay, version: str) -> None:
    s = loaded()
    first = launching(s)
    s.unload(2, KERNELS)
    s.load(3, {1: "another.kd", 2: "name_without_suffix", 3: "x.kd.kd"})
    for kernel in (1, 2, 3):
        launching(s, kernel)
    s.complete(first)
    played = replay(s, version)
    assert played.names("kernel_launch") == [K1, "another", "name_without_suffix", "x.kd"]
    assert played.rows("kernel_launch", "module") == [(2,), (3,), (3,), (3,)]
    assert played.rows("module_load", "handle") == [(1,), (2,), (3,)]
    assert played.rows("module_unload", "handle") == [(2,)]


def test_images_in_files_and_in_memory(replay: Replay, tmp_path: Path, version: str) -> None:
    image = bytes((i * 7 + 5) & 0xFF for i in range(999))  # as the replayer makes object 5's
    (tmp_path / "a program").write_bytes(bytes(16384) + image + b"more")
    uri = f"file://{tmp_path}/a%20program#offset=16384&size=999"
    s = Stream()
    s.load(5, {}, image=999)
    s.load(6, {}, image=0, storage=1, uri=uri, file=-1)
    s.load(7, {}, image=0, storage=1, uri="file:///no/such/file")
    s.load(8, {}, image=0, storage=0, uri="null")
    s.dispatch(1)
    played = replay(s, version)
    loads = played.rows("module_load", "handle", "bytes", "hash")
    assert [load[:2] for load in loads] == [(5, 999), (6, 999), (7, None), (8, None)]
    assert loads[0][2] == loads[1][2] == _hash(image)
    assert loads[2][2] is None


def _hash(image: bytes) -> int:
    """The content hash of modules, as pasta_source.h describes it."""
    value, prime, mask = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1
    whole = len(image) // 8 * 8
    for i in range(0, whole, 8):
        value = (value ^ int.from_bytes(image[i : i + 8], "little")) * prime & mask
        value ^= value >> 29
    if rest := image[whole:]:
        value = (value ^ int.from_bytes(rest, "little") ^ len(rest) << 56) * prime & mask
    return value ^ value >> 32


# ---- copies and sets ----

H2D, D2H, D2D = "host_to_device", "device_to_host", "device_to_device"
FLAT = {"sizeBytes": 4096}
AREA = {"dpitch": 512, "spitch": 1024, "width": 300, "height": 10}


@pytest.mark.parametrize(
    ("operation", "arguments", "direction", "flags"),
    [
        ("hipMemcpy", {"dst": D1, "src": HOST, **FLAT, "kind": HOST_TO_DEVICE}, H2D, ""),
        ("hipMemcpy", {"dst": HOST, "src": D1, **FLAT, "kind": DEVICE_TO_HOST}, D2H, ""),
        ("hipMemcpy", {"dst": D1, "src": D2, **FLAT, "kind": DEVICE_TO_DEVICE}, D2D, ""),
        ("hipMemcpy", {"dst": 1, "src": 2, **FLAT, "kind": HOST_TO_HOST}, "host_to_host", ""),
        ("hipMemcpy", {"dst": D1, "src": HOST + 9, **FLAT, "kind": DEFAULT}, H2D, ""),
        ("hipMemcpy", {"dst": 0x77, "src": D1 + 9, **FLAT, "kind": DEFAULT}, D2H, ""),
        ("hipMemcpy", {"dst": D2, "src": D1 + 9, **FLAT, "kind": DEFAULT}, D2D, ""),
        ("hipMemcpy_spt", {"dst": D1, "src": HOST, **FLAT, "kind": HOST_TO_DEVICE}, H2D, ""),
        ("hipMemcpyAsync", {"dst": D1, "src": HOST, **FLAT, "kind": 1, "stream": S}, H2D, "async"),
        (
            "hipMemcpyWithStream",
            {"dst": D1, "src": HOST, **FLAT, "kind": 1, "stream": S},
            H2D,
            "",
        ),
        ("hipMemcpyHtoD", {"dst": D1, "src": HOST, **FLAT}, H2D, ""),
        ("hipMemcpyDtoH", {"dst": HOST, "src": D1, **FLAT}, D2H, ""),
        ("hipMemcpyDtoD", {"dst": D1, "src": D2, **FLAT}, D2D, ""),
        ("hipMemcpyHtoDAsync", {"dst": D1, "src": HOST, **FLAT, "stream": S}, H2D, "async"),
        ("hipMemcpyDtoHAsync", {"dst": HOST, "src": D1, **FLAT, "stream": S}, D2H, "async"),
        ("hipMemcpyDtoDAsync", {"dst": D1, "src": D2, **FLAT, "stream": S}, D2D, "async"),
    ],
)
def test_flat_copies(
    replay: Replay, operation: str, arguments: dict[str, int], direction: str, flags: str
) -> None:
    s = alive()
    s.hip(operation, **arguments)
    columns = ("direction", "source", "destination", "bytes", "flags")
    expected = (direction, arguments["src"], arguments["dst"], 4096, flags)
    played = replay(s)
    assert played.rows("memory_copy", *columns) == [expected]
    on_host = direction.split("_to_")
    (devices,) = played.rows("memory_copy", "source_device", "destination_device")
    assert devices == tuple(None if end == "host" else 0 for end in on_host)


PLANES = {
    "hipMemcpy2D": {"dst": D1, "src": HOST, **AREA, "kind": HOST_TO_DEVICE},
    "hipMemcpy2DAsync": {"dst": D1, "src": HOST, **AREA, "kind": HOST_TO_DEVICE, "stream": S},
    "hipMemcpyParam2D": {"pCopy": (1, HOST, 1024, 2, D1, 512, 300, 10)},
    "hipMemcpyParam2DAsync": {"pCopy": (1, HOST, 1024, 2, D1, 512, 300, 10), "stream": S},
    "hipMemcpy3D": {"p": (HOST, 1024, D1, 512, 300, 10, 1, HOST_TO_DEVICE)},
    "hipMemcpy3DAsync": {"p": (HOST, 1024, D1, 512, 300, 10, 1, HOST_TO_DEVICE), "stream": S},
}


@pytest.mark.parametrize("operation", PLANES)
def test_copies_of_rows(replay: Replay, operation: str) -> None:
    s = alive()
    s.hip(operation, **PLANES[operation])  # type: ignore[arg-type]
    columns = ("direction", "source", "destination", "bytes", "width", "height", "depth")
    (copy,) = replay(s).rows("memory_copy", *columns, "source_pitch", "destination_pitch", "flags")
    asynchronous = "async" if operation.endswith("Async") else ""
    assert copy == (H2D, HOST, D1, 3000, 300, 10, 1, 1024, 512, asynchronous)


def test_copies_between_devices(replay: Replay, version: str) -> None:
    s = Stream((GPU, SECOND_GPU))
    s.hip("hipMalloc", size=4096, ptr=D1)
    s.hip("hipSetDevice", deviceId=1)
    s.hip("hipMalloc", size=4096, ptr=D2)
    s.hip("hipMemcpyPeer", dst=D2, dstDeviceId=1, src=D1, srcDeviceId=0, sizeBytes=64)
    s.hip("hipMemcpyPeerAsync", dst=D1, dstDeviceId=0, src=D2, srcDevice=1, sizeBytes=64, stream=S)
    s.hip("hipMemcpy", dst=D2, src=D1, sizeBytes=32, kind=DEVICE_TO_DEVICE)
    s.hip("hipMemcpy", dst=D2, src=D1, sizeBytes=32, kind=DEFAULT)
    columns = ("direction", "source_device", "destination_device", "bytes")
    peer = "peer_to_peer"
    assert replay(s, version).rows("memory_copy", *columns) == [
        (peer, 0, 1, 64),
        (peer, 1, 0, 64),
        (peer, 0, 1, 32),
        (peer, 0, 1, 32),
    ]


@pytest.mark.parametrize(
    ("operation", "arguments", "bytes", "element", "extents"),
    [
        ("hipMemset", {"dst": D1, "value": 7, "sizeBytes": 4097}, 4097, 1, (4097, 1)),
        (
            "hipMemsetAsync",
            {"dst": D1, "value": 7, "sizeBytes": 64, "stream": S},
            64,
            1,
            (64, 1),
        ),
        ("hipMemsetD8", {"dest": D1, "value": 7, "count": 100}, 100, 1, (100, 1)),
        ("hipMemsetD16", {"dest": D1, "value": 7, "count": 100}, 200, 2, (100, 1)),
        ("hipMemsetD32", {"dest": D1, "value": 7, "count": 100}, 400, 4, (100, 1)),
        (
            "hipMemsetD32Async",
            {"dst": D1, "value": 7, "count": 100, "stream": S},
            400,
            4,
            (100, 1),
        ),
        (
            "hipMemset2D",
            {"dst": D1, "pitch": 512, "value": 7, "width": 300, "height": 100},
            30000,
            1,
            (300, 100),
        ),
        (
            "hipMemset2DAsync",
            {"dst": D1, "pitch": 512, "value": 7, "width": 300, "height": 100, "stream": S},
            30000,
            1,
            (300, 100),
        ),
    ],
)
def test_sets(
    replay: Replay,
    operation: str,
    arguments: dict[str, int],
    bytes: int,
    element: int,
    extents: tuple[int, int],
) -> None:
    s = alive()
    s.hip(operation, **arguments)
    columns = ("address", "bytes", "element", "value", "width", "height", "flags")
    flags = "async" if "Async" in operation else ""
    (row,) = replay(s).rows("memory_set", *columns)
    assert row == (D1, bytes, element, 7, *extents, flags)


def test_copies_without_a_call(replay: Replay, version: str) -> None:
    s = Stream()
    s.memory_copy("HOST_TO_DEVICE", bytes=4096, source=HOST, destination=D1)
    s.memory_copy("DEVICE_TO_HOST", bytes=64, source=D1, destination=HOST,
                  source_agent=GPU, destination_agent=CPU)  # fmt: skip
    s.memory_copy("DEVICE_TO_DEVICE", bytes=32, source=D1, destination=D2, source_agent=GPU)
    copies = replay(s, version).rows(
        "memory_copy", "direction", "bytes", "source", "destination", "source_device",
        "destination_device",
    )  # fmt: skip
    known = version == "1.0.0"  # addresses
    ends = [(HOST, D1), (D1, HOST), (D1, D2)] if known else [(None, None)] * 3
    assert copies == [
        (H2D, 4096, *ends[0], None, 0),
        (D2H, 64, *ends[1], 0, None),
        (D2D, 32, *ends[2], 0, 0),
    ]


def test_copy_within_a_call_is_recorded_once(replay: Replay, version: str) -> None:
    s = alive()
    with s.call("hipMemcpyAsync", dst=D1, src=HOST, sizeBytes=4096, kind=1, stream=S):
        s.memory_copy("HOST_TO_DEVICE", bytes=4096, source=HOST, destination=D1)
    with s.call("hipMemcpy", dst=D1, src=HOST, sizeBytes=8 << 20, kind=1):  # in two pieces
        s.memory_copy("HOST_TO_DEVICE", bytes=4 << 20, source=HOST, destination=D1)
        s.memory_copy("HOST_TO_DEVICE", bytes=4 << 20, source=HOST, destination=D1)
    assert replay(s, version).rows("memory_copy", "bytes") == [(4096,), (8 << 20,)]


TIMES = ("correlation", "start", "end")


def timed(played: Played) -> list[tuple[Any, ...]]:
    """Correlation, start relative to the first one, and duration of copies."""
    rows = played.rows("copy_complete", *TIMES)
    first = min(start for _, start, _ in rows)
    return [(correlation, start - first, end - start) for correlation, start, end in rows]


def test_device_times_come_after_the_copy_that_they_are_of(replay: Replay, version: str) -> None:
    s = alive()
    own = s.memory_copy("HOST_TO_DEVICE", bytes=4096, source=HOST, destination=D1, ends=False)
    with s.call("hipMemcpyAsync", dst=D1, src=HOST, sizeBytes=64, kind=1, stream=S):
        later = s.memory_copy("HOST_TO_DEVICE", bytes=64, source=HOST, destination=D1, ends=False)
    with s.call("hipMemcpy", dst=D1, src=HOST, sizeBytes=8 << 20, kind=1):  # in two pieces
        s.memory_copy("HOST_TO_DEVICE", bytes=4 << 20, source=HOST, destination=D1)
        s.memory_copy("HOST_TO_DEVICE", bytes=4 << 20, source=HOST + (4 << 20), destination=D2)
    with s.call("hipMemset", dst=D1, value=7, sizeBytes=100):
        s.memory_copy("HOST_TO_DEVICE", bytes=100, source=HOST, destination=D1)
    later("+5000,+6000")
    own("+7000,+7100")
    played = replay(s, version)
    alone, asynchronous, pieces = (row[0] for row in played.rows("memory_copy", "correlation"))
    ((set_,),) = played.rows("memory_set", "correlation")
    assert len({alone, asynchronous, pieces, set_, 0}) == 5
    assert timed(played) == [
        (pieces, 0, 2000), (pieces, 0, 2000), (set_, 0, 2000), (asynchronous, 4000, 1000),
        (alone, 6000, 100),
    ]  # fmt: skip
    about = ("bytes", "direction", "stream", "device", "flags")
    assert played.rows("copy_complete", *about) == [
        (4 << 20, H2D, 0, 0, ""), (4 << 20, H2D, 0, 0, ""), (100, None, 0, 0, ""),
        (64, H2D, S, 0, "async"), (4096, H2D, None, 0, "async"),
    ]  # fmt: skip
    seen = set()
    for kind, row in played.in_order():
        if kind in ("memory_copy", "memory_set"):
            seen.add(int(row["correlation"]))
        assert kind != "copy_complete" or int(row["correlation"]) in seen
    (began,) = played["process_start"]["time"]
    assert (played["copy_complete"]["start"] > began - 10**9).all()  # of the same clock
    assert (played["copy_complete"]["end"] < played["copy_complete"]["time"] + 10**9).all()


def test_what_is_not_recorded_has_no_device_times(replay: Replay) -> None:
    s = alive()
    fields = {"source": HOST, "destination": D1, "bytes": 64}
    copy = {"dst": D1, "src": HOST, "sizeBytes": 64, "kind": HOST_TO_DEVICE}
    ends = []
    with s.call("hipMemcpyAsync", **copy, stream=S, ret=OUT_OF_MEMORY):
        s.memory_copy("HOST_TO_DEVICE", **fields)
        ends.append(s.memory_copy("HOST_TO_DEVICE", **{**fields, "destination": D2}, ends=False))
    s.hip("hipProfilerStop")
    with s.call("hipMemcpy", **copy):
        s.memory_copy("HOST_TO_DEVICE", **fields)
    with s.call("hipMemcpyAsync", **copy, stream=S):
        ends.append(s.memory_copy("HOST_TO_DEVICE", **fields, ends=False))
    ends.append(s.memory_copy("HOST_TO_DEVICE", **fields, ends=False))
    s.hip("hipProfilerStart")
    for end in ends:
        end("+4000,+5000")
    with s.call("hipMemcpy", **copy):
        s.memory_copy("HOST_TO_DEVICE", **fields, ends=False)("0,0")
    with s.call("hipMemcpy", **copy):
        s.memory_copy("HOST_TO_DEVICE", **fields)
    played = replay(s)
    first, second = (row[0] for row in played.rows("memory_copy", "correlation"))
    assert first != second
    assert timed(played) == [(second, 0, 2000)]
    assert played.log.count("copies that ended without times") == 2  # the first, and their number


def test_copies_of_a_graph_have_device_times(replay: Replay) -> None:
    s = alive()
    with s.call("hipGraphLaunch", graphExec=0x77, stream=S):
        s.memory_copy("HOST_TO_DEVICE", bytes=64, source=HOST, destination=D1)
        s.memory_copy("DEVICE_TO_HOST", bytes=32, source=D1, destination=HOST,
                      source_agent=GPU, destination_agent=CPU)  # fmt: skip
    played = replay(s)
    about = ("correlation", "bytes", "direction", "flags", "stream", "device")
    assert played.rows("copy_complete", *about) == played.rows("memory_copy", *about)
    assert [row[1:4] for row in played.rows("copy_complete", *about)] == [
        (64, H2D, "graph async"), (32, D2H, "graph async"),
    ]  # fmt: skip


def test_many_copies_in_flight_end_in_any_order(replay: Replay, version: str) -> None:
    s = alive()
    ends = []
    for number in range(300):
        with s.call("hipMemcpyAsync", dst=D1, src=HOST, sizeBytes=number + 1, kind=1, stream=S):
            about = {"bytes": number + 1, "source": HOST, "destination": D1 + number}
            ends.append(s.memory_copy("HOST_TO_DEVICE", **about, by=8 + number % 3, ends=False))
    for number in (*range(299, 150, -1), *range(151)):
        ends[number](f"+{1000 * number},+{1000 * number + number}")
    played = replay(s, version)
    sizes = dict(played.rows("memory_copy", "correlation", "bytes"))
    done = played.rows("copy_complete", "correlation", "bytes", "start", "end")
    assert len(sizes) == len(done) == 300
    assert all(
        sizes[correlation] == size == end - start + 1 for correlation, size, start, end in done
    )


# ---- memory ----


@pytest.mark.parametrize(
    ("operation", "arguments", "free", "memory"),
    [
        ("hipMalloc", {"size": 4096, "ptr": D1}, "hipFree", "device"),
        ("hipExtMallocWithFlags", {"sizeBytes": 4096, "ptr": D1}, "hipFree", "device"),
        (
            "hipMallocPitch",
            {"ptr": D1, "pitch": 512, "width": 300, "height": 8},
            "hipFree",
            "device",
        ),
        (
            "hipMemAllocPitch",
            {"dptr": D1, "pitch": 512, "widthInBytes": 300, "height": 8, "elementSizeBytes": 4},
            "hipFree",
            "device",
        ),
        (
            "hipMalloc3D",
            {"pitchedDevPtr": (D1, 512, 300, 4), "extent": (300, 4, 2)},
            "hipFree",
            "device",
        ),
        ("hipMallocManaged", {"size": 4096, "flags": 1, "dev_ptr": D1}, "hipFree", "managed"),
        ("hipHostMalloc", {"size": 4096, "flags": 0, "ptr": D1}, "hipHostFree", "pinned"),
        ("hipHostAlloc", {"size": 4096, "flags": 0, "ptr": D1}, "hipHostFree", "pinned"),
        ("hipMallocHost", {"size": 4096, "ptr": D1}, "hipFreeHost", "pinned"),
        ("hipMemAllocHost", {"size": 4096, "ptr": D1}, "hipFreeHost", "pinned"),
    ],
)
def test_allocations(
    replay: Replay, operation: str, arguments: Any, free: str, memory: str
) -> None:
    s = Stream()
    s.hip(operation, **arguments)
    s.hip(free, ptr=D1)
    s.hip(free, ptr=D1)  # nothing is allocated there any more
    s.hip(free, ptr=0)
    played = replay(s)
    expected = [(D1, 4096, memory, "", None)]
    columns = ("address", "bytes", "memory", "flags", "stream")
    assert played.rows("memory_alloc", *columns) == expected
    assert played.rows("memory_free", *columns) == expected


@pytest.mark.parametrize(
    ("made", "gone", "expected"),
    [
        (
            ("hipHostRegister", {"hostPtr": HOST, "sizeBytes": 4096, "flags": 0}),
            ("hipHostUnregister", {"hostPtr": HOST}),
            (HOST, 4096, "pinned"),
        ),
        (
            ("hipMallocArray", {"array": 0xA1, "desc": (32, 0, 0, 0, 2), "width": 64, "height": 4}),
            ("hipFreeArray", {"array": 0xA1}),
            (0xA1, 64 * 4 * 4, "array"),
        ),
        (
            ("hipArrayCreate", {"pHandle": 0xA1, "pAllocateArray": (64, 4)}),
            ("hipArrayDestroy", {"array": 0xA1}),
            (0xA1, 64 * 4 * 4, "array"),
        ),
        (
            ("hipArray3DCreate", {"array": 0xA1, "pAllocateArray": (64, 4, 2)}),
            ("hipArrayDestroy", {"array": 0xA1}),
            (0xA1, 64 * 4 * 2 * 4, "array"),
        ),
        (
            (
                "hipMemAddressReserve",
                {"ptr": D1, "size": 1 << 21, "alignment": 0, "addr": 0, "flags": 0},
            ),
            ("hipMemAddressFree", {"devPtr": D1, "size": 1 << 21}),
            (D1, 1 << 21, "virtual"),
        ),
        (
            ("hipMemMap", {"ptr": D1, "size": 4096, "offset": 0, "handle": 5, "flags": 0}),
            ("hipMemUnmap", {"ptr": D1, "size": 4096}),
            (D1, 4096, "device"),
        ),
    ],
    ids=lambda v: v[0] if isinstance(v[0], str) else None,
)
def test_other_allocations(replay: Replay, made: Any, gone: Any, expected: Any) -> None:
    s = Stream()
    s.hip(made[0], **made[1])
    s.hip(gone[0], **gone[1])
    played = replay(s)
    for kind in ("memory_alloc", "memory_free"):
        assert played.rows(kind, "address", "bytes", "memory") == [expected]


def test_memory_of_a_reset_device(replay: Replay, version: str) -> None:
    s = Stream((GPU, SECOND_GPU))
    s.hip("hipMalloc", size=64, ptr=D1)
    s.hip("hipSetDevice", deviceId=1)
    s.hip("hipMalloc", size=32, ptr=D2)
    s.hip("hipDeviceReset")
    played = replay(s, version)
    assert played.rows("memory_alloc", "bytes", "device") == [(64, 0), (32, 1)]
    assert played.rows("memory_free", "bytes", "device") == [(32, 1)]


def test_reused_address(replay: Replay, version: str) -> None:
    """A free was missed: the second allocation is the live one."""
    s = Stream()
    s.hip("hipMalloc", size=64, ptr=D1)
    s.hip("hipMalloc", size=128, ptr=D1)
    s.hip("hipFree", ptr=D1)
    played = replay(s, version)
    assert played.rows("memory_alloc", "bytes") == [(64,), (128,)]
    assert played.rows("memory_free", "bytes") == [(128,)]


def test_pool_allocations_are_stream_ordered(replay: Replay, version: str) -> None:
    s = Stream()
    s.hip("hipMallocAsync", size=64, stream=S, dev_ptr=D1)
    s.hip("hipMallocFromPoolAsync", size=32, mem_pool=5, stream=S, dev_ptr=D2)
    s.hip("hipFreeAsync", dev_ptr=D1, stream=S + 1)
    s.hip("hipFree", ptr=D2)
    played = replay(s, version)
    columns = ("address", "bytes", "memory", "flags", "stream")
    assert played.rows("memory_alloc", *columns) == [
        (D1, 64, "pool", "async", S),
        (D2, 32, "pool", "async", S),
    ]
    assert [row[:3] for row in played.rows("memory_free", *columns)] == [
        (D1, 64, "pool"),
        (D2, 32, "pool"),
    ]
    assert played.rows("memory_free", "stream", "flags")[0] == (S + 1, "async")


def test_free_precedes_reuse_of_the_address(replay: Replay, version: str) -> None:
    s = Stream()
    s.hip("hipMalloc", size=64, ptr=D1)
    with s.call("hipFree", ptr=D1), s.call("hipMalloc", thread=2, size=128, ptr=D1):
        pass
    order = [
        (kind, int(row["bytes"])) for kind, row in replay(s, version).in_order() if "memory" in kind
    ]
    assert order == [("memory_alloc", 64), ("memory_free", 64), ("memory_alloc", 128)]


def test_memory_of_the_runtime_and_of_hsa_programs(replay: Replay) -> None:
    s = Stream()
    with s.call("hipMalloc", size=4096, ptr=D1):
        s.runtime_allocation(D1, 4096)
    with s.call("hipStreamCreate", stream=S):
        s.runtime_allocation(D2, 1 << 20)
    s.runtime_allocation(0x7000, 512)  # outside any call: the program's own, through HSA
    s.runtime_allocation(0x8000, 256, agent=CPU)
    s.runtime_free(0x7000)
    s.runtime_free(0x6000)  # never seen
    with s.call("hipFree", ptr=D1):
        s.runtime_free(D1)
    with s.call("hipStreamDestroy", stream=S):
        s.runtime_free(D2)
        s.runtime_free(0)
    played = replay(s)
    columns = ("address", "bytes", "memory", "flags")
    assert played.rows("memory_alloc", *columns) == [
        (D1, 4096, "device", ""),
        (D2, 1 << 20, "device", "internal"),
        (0x7000, 512, "device", ""),
        (0x8000, 256, "pinned", ""),
    ]
    assert played.rows("memory_free", *columns) == [
        (0x7000, 512, "device", ""),
        (D1, 4096, "device", ""),
        (D2, 1 << 20, "device", "internal"),
    ]


def test_scratch_of_queues(replay: Replay, version: str) -> None:
    s = Stream()
    name = "SCRATCH_MEMORY:SCRATCH_MEMORY_"
    for phase, more in (("ENTER", {}), ("EXIT", {"bytes": 1 << 20, "slots": 64})):
        s.event(f"{name}ALLOC", phase, agent=GPU, queue=3, dispatch=1, **more)
    for operation in ("ASYNC_RECLAIM", "FREE"):
        for phase in ("ENTER", "EXIT"):
            s.event(f"{name}{operation}", phase, agent=GPU, queue=3)
    played = replay(s, version)
    row = (3, 1 << 20, "scratch", "internal", 0)
    columns = ("address", "bytes", "memory", "flags", "device")
    assert played.rows("memory_alloc", *columns) == [row]
    assert played.rows("memory_free", *columns) == [row]  # reclaimed: gone before it is freed


@pytest.mark.parametrize(
    ("operation", "arguments", "kind"),
    [
        ("hipMalloc", {"size": 64, "ptr": D1}, "memory_alloc"),
        ("hipMalloc", {"size": 64, "ptr": "null"}, "memory_alloc"),
        ("hipMallocAsync", {"size": 64, "stream": S, "dev_ptr": D1}, "memory_alloc"),
        ("hipMemcpy", {"dst": D1, "src": HOST, **FLAT, "kind": 1}, "memory_copy"),
        ("hipMemcpy3D", {"p": "null"}, "memory_copy"),
        ("hipMemset", {"dst": D1, "value": 0, "sizeBytes": 64}, "memory_set"),
        ("hipStreamCreate", {"stream": S}, "stream_create"),
        ("hipEventCreate", {"event": E}, "event_create"),
        ("hipGraphInstantiate", {"pGraphExec": 1, "graph": 2}, "graph_instantiate"),
        ("hipMemPrefetchAsync", {"dev_ptr": D1, "count": 64, "device": 0}, "uvm_prefetch"),
    ],
)
def test_failed_calls_are_not_recorded(
    replay: Replay, operation: str, arguments: Any, kind: str, version: str
) -> None:
    s = Stream()
    s.hip(operation, ret=OUT_OF_MEMORY, **arguments)
    s.hip("hipDeviceSynchronize")
    played = replay(s, version)
    assert len(played[kind]) == 0
    assert len(played["sync"]) == 1


# ---- streams, waiting, events, graphs ----


def test_streams_have_unique_ids(replay: Replay, version: str) -> None:
    s = Stream()
    s.hip("hipStreamCreate", stream=0x1001)
    s.hip("hipStreamCreateWithFlags", stream=0x1002, flags=1)
    s.hip("hipStreamCreateWithPriority", stream=0x1003, flags=1, priority=-1)
    s.hip("hipStreamDestroy", stream=0x1002)
    s.hip("hipStreamCreate", stream=0x1002)  # the handle is reused
    s.hip("hipStreamDestroy", stream=0x1002)
    s.hip("hipStreamDestroy", stream=0x1009)  # created before recording
    played = replay(s, version)
    created = [(0x1001, None, 1), (0x1002, None, 2), (0x1003, -1, 3), (0x1002, None, 4)]
    assert played.rows("stream_create", "handle", "priority", "id") == created
    assert played.rows("stream_destroy", "handle", "id") == [
        (0x1002, 2),
        (0x1002, 4),
        (0x1009, None),
    ]


@pytest.mark.parametrize(("handle", "stream"), [(1, 0), (2, 2)])
def test_default_streams_by_handle(replay: Replay, handle: int, stream: int, version: str) -> None:
    """SDK 1.0.0 aborts a program that uses hipStreamLegacy (1) or hipStreamPerThread (2) if a tool
    subscribes to HIP_STREAM."""
    s = loaded()
    launching(s, stream=handle)
    played = replay(s, version)
    assert (played.status, played.stderr) == (7, "")
    assert played.rows("kernel_launch", "stream") == [(stream,)]


def test_synchronization_and_events(replay: Replay, version: str) -> None:
    s = Stream()
    s.hip("hipEventCreateWithFlags", event=E, flags=2)
    s.hip("hipEventRecord", event=E, stream=S)
    s.hip("hipStreamWaitEvent", stream=S + 1, event=E, flags=0)
    s.hip("hipEventSynchronize", event=E)
    s.hip("hipStreamSynchronize", stream=S)
    s.hip("hipStreamSynchronize", stream=0)
    s.hip("hipDeviceSynchronize")
    s.hip("hipCtxSynchronize")
    s.hip("hipEventQuery", event=E)  # does not wait
    s.hip("hipEventDestroy", event=E)
    played = replay(s, version)
    assert played.rows("sync", "what", "handle", "stream") == [
        ("event", E, None),
        ("stream", S, S),
        ("stream", 0, 0),
        ("device", None, None),
        ("context", GPU, None),
    ]
    assert all(duration > 0 for (duration,) in played.rows("sync", "duration"))
    assert played.rows("event_create", "handle") == played.rows("event_destroy", "handle") == [(E,)]
    assert played.rows("event_record", "handle", "stream") == [(E, S)]
    assert played.rows("event_wait", "handle", "stream") == [(E, S + 1)]


def test_graph_operations_are_marked(replay: Replay, version: str) -> None:
    s = alive()
    s.hip("hipGraphInstantiateWithFlags", graph=0x11, flags=0, pGraphExec=0x12)
    s.hip("hipGraphUpload", graphExec=0x12, stream=S)
    for _ in range(2):
        with s.call("hipGraphLaunch", graphExec=0x12, stream=S):
            s.complete(s.dispatch(1))
            s.memory_copy("HOST_TO_DEVICE", bytes=4096, source=HOST, destination=D1)
            s.dispatch(9)  # a node that sets memory
    launching(s)
    played = replay(s, version)
    assert played.rows("graph_instantiate", "graph", "executable") == [(0x11, 0x12)]
    launches = [
        row for row in played.rows("graph_launch", "graph", "stream", "upload") if not row[2]
    ]
    assert launches == [(0x12, S, 0)] * 2
    graph = [(K1, "graph"), (FILL, "graph internal")]
    assert played.rows("kernel_launch", "name", "flags") == [*graph, *graph, (K1, "")]
    assert played.rows("kernel_complete", "flags") == [("graph",)] * 2
    assert played.rows("memory_copy", "flags", "bytes", "stream") == [("graph async", 4096, S)] * 2


def test_captured_operations_are_not_recorded(replay: Replay, version: str) -> None:
    s = alive()
    s.hip("hipStreamBeginCapture", stream=S, mode=0)
    s.hip("hipMemcpyAsync", dst=D1, src=HOST, sizeBytes=64, kind=1, stream=S)
    s.hip("hipMemsetAsync", dst=D1, value=0, sizeBytes=64, stream=S)
    s.hip("hipLaunchKernel", stream=S)
    s.hip("hipMemcpyAsync", dst=D2, src=HOST, sizeBytes=32, kind=1, stream=S + 1)  # another one
    s.hip("hipStreamEndCapture", stream=S, pGraph=0x11)
    s.hip("hipMemsetAsync", dst=D1, value=0, sizeBytes=16, stream=S)
    played = replay(s, version)
    assert played.rows("memory_copy", "bytes") == [(32,)]
    assert played.rows("memory_set", "bytes") == [(16,)]
    assert len(played["kernel_launch"]) == 0


def test_symbols_are_copied(replay: Replay, version: str) -> None:
    s = alive()
    s.hip("hipMemcpyToSymbol", symbol=0x55D0, src=HOST, sizeBytes=64, offset=8, kind=1)
    s.hip(
        "hipMemcpyFromSymbolAsync", dst=HOST, symbol=0x55D0, sizeBytes=32, offset=0, kind=2,
        stream=S,
    )  # fmt: skip
    played = replay(s, version)
    # the program refers to the symbol by a host address, not the device's
    columns = ("direction", "bytes", "source", "destination", "flags")
    assert played.rows("memory_copy", *columns) == [
        (H2D, 64, HOST, None, ""),
        (D2H, 32, None, HOST, "async"),
    ]


def test_managed_memory(replay: Replay, version: str) -> None:
    s = Stream((GPU, SECOND_GPU))
    s.hip("hipMallocManaged", size=4096, flags=1, dev_ptr=D1)
    s.hip("hipMemPrefetchAsync", dev_ptr=D1, count=4096, device=1, stream=S)
    s.hip("hipMemPrefetchAsync", dev_ptr=D1, count=64, device=-1, stream=S)
    s.hip("hipMemAdvise", dev_ptr=D1, count=4096, advice=3, device=1)
    s.hip("hipStreamAttachMemAsync", stream=S, dev_ptr=D1, length=4096, flags=4)
    played = replay(s, version)
    columns = ("address", "bytes", "destination", "stream", "flags")
    assert played.rows("uvm_prefetch", *columns) == [
        (D1, 4096, 1, S, "async"),
        (D1, 64, None, S, "async"),
    ]
    assert played.rows("uvm_advise", "address", "bytes", "advice", "destination") == [
        (D1, 4096, 3, 1)
    ]
    assert played.rows("uvm_attach", "address", "bytes", "advice", "stream") == [(D1, 4096, 4, S)]


# ---- ranges, profiling, start ----


def test_ranges(replay: Replay, version: str) -> None:
    s = Stream()
    s.roctx("roctxRangePushA", message="epoch 3", ret=0)
    s.roctx("roctxMarkA", message="here")
    s.roctx("roctxRangePop", ret=0)
    s.roctx("roctxRangeStartA", message="all", ret=5)
    s.roctx("roctxRangeStop", id=5)
    s.hip("hipDeviceSynchronize")
    played = replay(s, version)
    assert played.rows("range_push", "name", "origin") == [("epoch 3", "roctx")]
    assert played.rows("range_pop", "origin") == [("roctx",)]
    assert played.rows("mark", "name", "origin") == [("here", "roctx")]
    assert played.rows("range_start", "name", "id", "origin") == [("all", 5, "roctx")]
    assert played.rows("range_end", "id", "origin") == [(5, "roctx")]


@pytest.mark.parametrize(
    ("stop", "start", "kind", "origin"),
    [
        ("hipProfilerStop", "hipProfilerStart", "HIP_RUNTIME_API", "profiler"),
        ("roctxProfilerPause", "roctxProfilerResume", "MARKER_CONTROL_API", "roctx"),
    ],
)
def test_profiling_stop_and_start(
    replay: Replay, stop: str, start: str, kind: str, origin: str, version: str
) -> None:
    s = loaded()
    with s.call(stop, api=kind):
        pass
    s.complete(launching(s, 1))
    s.hip("hipMalloc", size=64, ptr=D1)
    s.hip("hipStreamCreate", stream=0x1001)
    s.hip("hipMemset", dst=D1, value=0, sizeBytes=64)
    with s.call(start, api=kind):
        pass
    s.complete(launching(s, 2))
    s.hip("hipFree", ptr=D1)
    played = replay(s, version)
    assert played.names("kernel_launch") == [K2]
    assert len(played["kernel_complete"]) == 1
    assert played.rows("kernel_launch", "ordinal") == played.rows("kernel_complete", "ordinal")
    # objects allocated, loaded and created before must be known after a start
    assert played.rows("memory_alloc", "address", "bytes") == [(D1, 64)]
    assert played.rows("memory_free", "address", "bytes") == [(D1, 64)]
    assert len(played["stream_create"]) == 1
    assert len(played["module_load"]) == 2
    assert len(played["memory_set"]) == 0
    for change in ("profiling_stop", "profiling_start"):
        assert played.rows(change, "origin") == [(origin,)]


def test_device_ordinals_follow_visible_devices(replay: Replay, version: str) -> None:
    s = loaded(GPU, SECOND_GPU)
    s.load(3, {3: "second.kd"}, agent=SECOND_GPU)
    launching(s, 3, agent=SECOND_GPU)
    launching(s, 1)
    columns = ("name", "device", "context")
    both = replay(s, version)
    assert both.rows("kernel_launch", *columns) == [("second", 1, 1), (K1, 0, 0)]
    assert both.rows("context_create", "name", "device", "context", "handle") == [
        (NAMES[GPU], 0, 0, GPU),
        (NAMES[SECOND_GPU], 1, 1, SECOND_GPU),
    ]
    assert both.rows("device", "device", "name", "architecture", "uuid", "warp") == [
        (0, NAMES[GPU], "gfx942", None, None),
        (1, NAMES[SECOND_GPU], "gfx942", None, None),
    ]


def test_hsa_program(replay: Replay, version: str) -> None:
    s = loaded()
    s.runtime_allocation(D1, 4096)
    s.memory_copy("HOST_TO_DEVICE", bytes=64, source=HOST, destination=D1)
    s.complete(s.dispatch(1, queue=7))
    s.runtime_free(D1)
    played = replay(s, version)
    assert played.rows("process_start", "source") == [("amd_rocprofiler",)]
    assert played.rows("context_create", "device") == [(0,)]
    assert played.rows("kernel_launch", "name", "stream", "device") == [(K1, None, 0)]
    assert len(played["kernel_complete"]) == len(played["memory_copy"]) == 1
    expected = int(version != "0.5.0")  # of allocations
    assert len(played["memory_alloc"]) == len(played["memory_free"]) == expected


def test_recorded_hsa_program(replay: Replay) -> None:
    """Its memory is known only if the whole kind is subscribed."""
    played = replay(recorded_hsa(DATA / "amd" / "hsa_sdk100.events.txt"))
    assert (played.status, played.stderr) == (7, "")
    assert played.rows("memory_alloc", "address", "bytes", "memory", "device", "flags") == [
        (0x1100600000, 1 << 20, "device", 0, ""),
        (0x230000, 65536, "pinned", None, ""),
    ]
    assert played.rows("memory_copy", "direction", "source", "destination", "bytes") == [
        ("host_to_device", 0x230000, 0x1100600000, 65536)
    ]
    assert played.rows("kernel_launch", "name", "grid", "block") == [
        ("_Z3addPfPKfi", (16, 1, 1), (64, 1, 1))
    ]
    assert len(played["kernel_complete"]) == 1


@pytest.mark.parametrize(
    ("product", "name", "model", "expected", "architecture"),
    [
        ("AMD Instinct MI300X", "gfx942", "gfx942", "AMD Instinct MI300X", "gfx942"),
        ("", "gfx942", "gfx900", "gfx942", "gfx942"),
        ("unknown", "", "gfx942", "gfx942", None),
        ("", "unknown", "gfx942", "gfx942", None),
        ("", "", "unknown", None, None),
    ],
)
def test_device_without_product_name(
    replay: Replay, product: str, name: str, model: str, expected: str | None,
    architecture: str | None,
) -> None:  # fmt: skip
    s = Stream()
    s.lines[-1] = (
        f"agent id={GPU} type=gpu name={name} product={quote(product)} model={model} logical=0"
    )
    s.load(2, KERNELS)
    launching(s)
    played = replay(s)
    assert played.rows("context_create", "name") == [(expected,)]
    assert played.rows("device", "name", "architecture") == [(expected, architecture)]


def test_one_visible_device_of_two(replay: Replay, version: str) -> None:
    s = Stream((GPU, SECOND_GPU))
    s.load(3, {3: "second.kd"}, agent=SECOND_GPU)
    launching(s, 3, agent=SECOND_GPU)
    one = replay(s, version, HIP_VISIBLE_DEVICES="1")
    assert one.rows("kernel_launch", "name", "device", "context") == [("second", 0, 0)]
    assert one.rows("context_create", "name", "device") == [(NAMES[SECOND_GPU], 0)]


def test_only_required_operations_are_subscribed(replay: Replay, version: str) -> None:
    s = Stream()
    s.say("subscriptions")
    played = replay(s, version)
    _, client, *lines, _ = played.stdout.splitlines()
    assert client == "client pasta"
    calls = dict(line.removeprefix("subscribed ").split(":") for line in lines)
    hip = set(calls["HIP_RUNTIME_API"].split())
    assert {"hipMalloc", "hipMemcpyAsync", "hipLaunchKernel", "hipGraphLaunch"} <= hip
    assert not {"hipGetErrorName", "hipGetLastError", "hipEventQuery"} & hip
    assert not any(name.startswith("hipSomethingElse") for name in hip)
    assert not {"HSA_CORE_API", "HIP_COMPILER_API", "RCCL_API"} & set(calls)


def test_kinds_and_operations_are_found_by_name(replay: Replay, tmp_path: Path) -> None:
    expected: dict[str, Any] = {}
    for seed in ("1", "2", "31337"):
        s = alive()
        s.complete(launching(s))
        s.hip("hipMemsetAsync", dst=D1, value=7, sizeBytes=64, stream=S)
        (tmp_path / seed).mkdir()
        for old in (tmp_path / "rings").glob("*"):
            old.unlink()
        played = replay(s, "1.3.0", REPLAY_SEED=seed)
        counts = {kind: len(table) for kind, table in played.tables.items()}
        expected = expected or counts
        assert counts == expected
        assert counts["kernel_complete"] == counts["memory_set"] == 1


def test_threads_lose_no_launch(replay: Replay, version: str) -> None:
    s = loaded()
    threads, rounds = range(2, 8), 1000
    with s.block("parallel"):
        for thread in threads:
            with s.block(f"loop {rounds} 100"):
                s.correlation, s.dispatches = thread * 10, thread * 10
                with s.call("hipLaunchKernel", thread=thread, stream=0x1000 + thread):
                    d = s.dispatch(1, thread=thread)
                s.complete(d, by=thread)
    played = replay(s, version)
    launches = played["kernel_launch"]
    assert len(launches) == len(played["kernel_complete"]) == len(threads) * rounds
    assert sorted(launches["ordinal"].tolist()) == list(range(len(launches)))
    for thread in threads:
        mine = launches[launches["stream"] == 0x1000 + thread]
        assert len(mine) == rounds
        assert len(set(mine["thread"].tolist())) == 1
    pairs = [
        np.sort(played[kind][["ordinal", "correlation"]], order="ordinal")
        for kind in ("kernel_launch", "kernel_complete")
    ]
    assert np.array_equal(*pairs)


def test_another_tool_also_receives_its_events(replay: Replay, replayer: Replayer) -> None:
    s = loaded()
    s.complete(launching(s))
    played = replay(s, tools=f"{replayer.tool}:{SOURCE}:")
    assert played.names("kernel_launch") == [K1]
    assert len(re.findall("^tool KERNEL_DISPATCH_COMPLETE", played.stdout, re.MULTILINE)) == 1


def test_unloads_at_exit_follow_process_end(replay: Replay) -> None:
    """process_end marks the begin of exit handlers; HIP unloads its code objects in a later one."""
    s = loaded()
    s.complete(launching(s))
    with s.block("exit"):
        s.unload(2, KERNELS)
    played = replay(s)
    kinds = [kind for kind, _ in played.in_order()]
    assert kinds.index("process_end") < kinds.index("module_unload")
