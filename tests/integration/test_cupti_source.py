"""The CUPTI source driven by a fake library and driver: records of calls, and times of what ran."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pasta import abi
from pasta.sources import known_sources
from tests.support.capabilities import disagreements
from tests.support.fake_cupti import play_cupti
from tests.support.played import ABSENT64, Played

pytestmark = pytest.mark.slow  # together

CONTEXT, STREAM = 0xC5, 0x51
KERNEL = "_Z4fillIfEvPT_S0_i"
LASTS = 1000  # ns, all work of the fake device
#: Names of devices are read from the driver's files.
DRIVER = Path("/proc/driver/nvidia")
SCRIPTS = (
    "context",
    "launches",
    "copies",
    "memory",
    "graph",
    "events",
    "managed",
    "samples",
    "end",
)


Play = Callable[..., Played]


@pytest.fixture
def play(cupti: Path, tmp_path: Path) -> Play:
    def run(*scripts: str, settings: str = "", **extra: str) -> Played:
        return play_cupti(cupti, tmp_path, *scripts, settings=settings, **extra)

    return run


def column(played: Played, kind: str, name: str) -> list[Any]:
    return [row[0] for row in played.rows(kind, name)]


def completions(played: Played) -> dict[int, tuple[int, int]]:
    """Times by launch ordinal; each launch completes at most once."""
    rows = played.rows("kernel_complete", "ordinal", "start", "end")
    assert len({ordinal for ordinal, _, _ in rows}) == len(rows)
    return {ordinal: (start, end) for ordinal, start, end in rows}


@pytest.mark.main
@pytest.mark.parametrize("api", ["24", "130000", "130500"])
def test_launches_and_their_times(play: Play, api: str) -> None:
    played = play("context", "launches", "end", FAKE_CUPTI_API=api)
    assert (played.status, played.stdout, played.stderr) == (7, "done\n", "")
    version = {"24": "12.6", "130000": "13.0", "130500": "13.5"}[api]
    assert played.names("process_start", "source") == ["nvidia_cupti"]
    assert played.names("process_start", "version") == [version]
    launches = played.rows(
        "kernel_launch", "ordinal", "name", "stream", "grid", "cluster", "registers",
        "shared_static", "shared_dynamic",
    )  # fmt: skip
    assert launches == [
        (0, KERNEL, STREAM, (8, 2, 1), None, 40, 0, 256),
        (1, "_Z6kernelv", STREAM, (3, 2, 1), None, 40, 0, 256),
        (2, "_Z5namedv", 0, (4, 2, 1), None, 41, 0, 256),
        (3, "_Z7clusterv", 2, (16, 1, 1), (2, 1, 1), 42, 1024, 64),
        (4, KERNEL, STREAM, (1, 1, 1), None, 40, 0, 0),  # refused: no return
        (5, KERNEL, STREAM, (5, 2, 1), None, 40, 0, 256),  # not complete at the end
    ]
    assert column(played, "kernel_launch_end", "ordinal") == [0, 1, 2, 3, 5]
    times = completions(played)
    assert sorted(times) == [0, 1, 2, 3]
    launched = dict(played.rows("kernel_launch", "ordinal", "time"))
    for ordinal, (start, end) in times.items():
        assert start > launched[ordinal]
        assert end - start == LASTS
    streams = dict(played.rows("kernel_complete", "ordinal", "stream"))
    assert streams == {0: STREAM, 1: STREAM, 2: 0, 3: 2}
    assert played.rows("clock_error", "observed", "work", "error") == [(0, 4, None)]


def test_context_stream_module_device(play: Play) -> None:
    played = play("context", "end")
    assert played.rows("context_create", "handle", "device", "context") == [(CONTEXT, 0, 0)]
    assert len(played["context_destroy"]) == 1
    assert played.rows("stream_create", "handle", "id") == [(STREAM, STREAM + 7)]
    (module,) = played.rows("module_load", "handle", "bytes", "hash")
    assert module[:2] == (3, 24)
    assert module[2] not in (0, None)
    (device,) = [played.plain("device", row) for row in played["device"]]  # the visible one
    expected = {
        "device": 0, "name": "A Device", "architecture": "sm_90", "multiprocessors": 132,
        "uuid": "GPU-01020304-0506-0708-090a-0b0c0d0e0f10", "warp": 32, "threads": 2048,
        "blocks": 32, "registers": 65536, "shared": 228 << 10, "shared_per_block": 48 << 10,
        "clock": 1_980_000, "l2": 50 << 20, "memory": 150 << 30, "bandwidth": 4_800_000_000_000,
    }  # fmt: skip
    assert {name: device[name] for name in expected} == expected


def test_details_on_request(play: Play) -> None:
    assert len(play("context", "launches")["kernel_details"]) == 0


@pytest.mark.parametrize(("api", "priority"), [("130000", None), ("130500", -1)])
def test_details(play: Play, api: str, priority: int | None) -> None:
    played = play("context", "launches", settings="nvidia.details=1\n", FAKE_CUPTI_API=api)
    rows = played.rows(
        "kernel_details", "ordinal", "shared_executed", "channel", "priority", "local_total",
        "max_clusters",
    )  # fmt: skip
    assert rows[0] == (0, 32768, 5, priority, 1 << 20, None)
    assert rows[3] == (3, 32768, 5, priority, 1 << 20, 66)
    (start, _), (queued, submitted) = (
        completions(played)[3],
        played.rows("kernel_details", "queued", "submitted")[3],
    )
    assert (queued, submitted) == (start - 2000, start - 1000)
    assert played.rows("kernel_details", "queued", "submitted")[0] == (None, None)


@pytest.mark.main
def test_copies_and_sets(play: Play) -> None:
    played = play("context", "copies")
    copies = played.rows(
        "memory_copy", "direction", "bytes", "source", "destination", "flags", "stream"
    )
    device, other, host, array = 0x10000, 0x20000, 0x7F0000, 0xA1
    in_, out, within, peer = (
        "host_to_device", "device_to_host", "device_to_device", "peer_to_peer",
    )  # fmt: skip
    assert copies == [
        (in_, 16, host, device, "", 0),
        (out, 32, device, host, "async", 2),
        (within, 48, device, other, "async", STREAM),
        (in_, 64, host, device + 64, "", 0),
        (out, 80, device + 8, 0x5000, "async", STREAM),
        (peer, 96, device, other, "", 0),
        (in_, 112, host, array, "", 0),
        (out, 128, array, host, "", 0),
        (within, 144, array + 1, array, "", 0),
        (in_, 160, host + 2 * 100 + 8, device, "async", STREAM),
        (within, 176, device + 4 * 64, array, "", 0),
    ]
    shapes = played.rows("memory_copy", "width", "height", "depth", "source_pitch")
    assert shapes[9:] == [(20, 8, 1, 100), (11, 4, 4, 64)]
    assert played.rows("memory_copy", "source_device", "destination_device")[5] == (0, 1)
    sets = played.rows("memory_set", "address", "bytes", "value", "element", "height", "flags")
    assert sets == [
        (device, 10, 7, 1, 1, ""),
        (device, 40, 0xABCDEF01, 4, 1, "async"),
        (device, 60, 9, 2, 3, ""),
    ]
    submitted = {
        correlation: (time, bytes)
        for kind in ("memory_copy", "memory_set")
        for correlation, time, bytes in played.rows(kind, "correlation", "time", "bytes")
    }
    completed = played.rows("copy_complete", "correlation", "bytes", "start", "end")
    assert column(played, "copy_complete", "flags").count("async") == 5
    assert len(submitted) == len(completed) == 14
    for correlation, bytes, start, end in completed:
        time, wanted = submitted[correlation]
        assert (bytes, end - start) == (wanted, LASTS)
        assert start > time


def test_memory_of_every_kind(play: Play) -> None:
    played = play("context", "memory")
    rows = played.rows("memory_alloc", "memory", "address", "bytes", "flags", "stream")
    assert rows == [
        ("device", 0x100000, 1000, "", None),
        ("device", 0x200000, 5120, "", None),
        ("managed", 0x300000, 65536, "", None),
        ("pinned", 0x400000, 4096, "", None),
        ("pinned", 0x500000, 8192, "", None),
        ("pool", 0x600000, 256, "async", STREAM),
        ("pool", 0x700000, 512, "async", 2),
        ("virtual", 0x800000, 1 << 20, "", None),
        ("device", 0x800000, 4096, "", None),
        ("device", 0x801000, 4096, "", None),
        ("array", 0xA1, None, "", None),
        ("external", 0x900000, 12288, "", None),
        ("external", 0xA00000, 16384, "", None),
    ]
    freed = played.rows("memory_free", "memory", "address", "bytes")
    order = [0, 1, 2, 3, 4, 5, 6, 8, 9, 7, 10, 11, 12]
    assert freed == [rows[number][:3] for number in order]
    allocated = dict(played.rows("memory_alloc", "address", "correlation"))
    numbered = [row for row in played.rows("memory_free", "address", "correlation") if row[1]]
    assert len(numbered) == 11  # all but the address range and the array
    assert all(allocated[address] == number for address, number in numbered)


@pytest.mark.main
@pytest.mark.parametrize("script", ["graph", "sources"])
def test_graphs(play: Play, script: str) -> None:
    """Nodes are recorded when their times come, as launches of the graph's launch."""
    played = play("context", script)
    begins = played.rows("graph_launch", "time", "thread")
    assert column(played, "graph_launch", "graph") == [0x99, 0x99]
    assert len(played["graph_launch_end"]) == 2
    plain = played.rows("kernel_launch", "grid", "graph_node", flag="!graph")
    assert plain == [((77, 2, 1), None), ((78, 2, 1), None)]  # captured ones do not run
    nodes = played.rows("kernel_launch", "grid", "graph_node", "time", "thread", flag="graph")
    assert nodes == [
        ((number, 2, 1), 0x900 + number, *begin) for begin in begins for number in (1, 2)
    ]
    correlations = column(played, "kernel_launch", "correlation")
    assert len(set(correlations)) == len(correlations)
    assert len(played["kernel_launch_end"]) == 2
    of_nodes = set(column(played, "kernel_launch", "ordinal")) & set(completions(played))
    assert len(of_nodes) == 4  # the plain ones did not run
    copies = played.rows("memory_copy", "bytes", "graph_node", "source", "flags")
    assert copies == [(64, 0x903, None, "graph async")] * 2
    assert set(column(played, "copy_complete", "flags")) == {"graph async"}
    correlations = column(played, "memory_copy", "correlation")
    assert column(played, "copy_complete", "correlation") == correlations
    assert len(set(correlations)) == 2


def test_capture_without_the_driver_is_recorded_as_work(play: Play) -> None:
    """Without the driver's functions nothing tells a captured launch from another."""
    played = play("context", "graph", FAKE_DRIVER="")
    assert played.status == 90  # the program opens it: no such file


def test_waits_and_events(play: Play) -> None:
    played = play("context", "events")
    waits = played.rows("sync", "what", "handle", "stream")
    assert waits == [
        ("event", 0xE1, None), ("stream", 2, 2), ("context", CONTEXT, None),
        ("context", CONTEXT, None),
    ]  # fmt: skip
    durations = column(played, "sync", "duration")
    assert durations[0] >= 2_000_000
    assert None not in durations
    assert played.rows("event_record", "handle", "stream") == [(0xE1, STREAM)]
    assert played.rows("event_wait", "handle", "stream") == [(0xE1, 0)]
    assert len(played["event_create"]) == len(played["event_destroy"]) == 1


def test_managed_memory_and_overheads(play: Play) -> None:
    played = play("context", "managed", settings="nvidia.uvm=1\n")
    assert played.rows("uvm_attach", "address", "advice") == [(0x7000, 1)]
    assert played.rows("uvm_prefetch", "bytes", "destination") == [(4096, 2)]
    assert len(played["uvm_advise"]) == 1
    columns = ("cause", "bytes", "count", "source", "destination")
    assert played.rows("uvm_migration", *columns) == [
        ("migration", 4097, None, None, 1),
        ("migration", 4098, None, 0, None),
        ("migration", 4104, None, 0, 1),
    ]
    assert played.rows("uvm_fault", *columns) == [
        ("cpu_fault", None, 1, None, None),
        ("gpu_fault", None, 4100, 0, None),
    ]
    assert [row[0] for row in played.rows("uvm_thrashing", "cause")] == [
        "thrashing", "throttling", "remote_map",
    ]  # fmt: skip
    assert played.rows("uvm_fault", "end")[0] == (None,)
    ((name, start, end, thread),) = played.rows("overhead", "name", "start", "end", "thread")
    assert (name, end - start, thread) == ("lazy function loading", 1000, 77)


def test_faults_of_managed_memory_only_on_request(play: Play) -> None:
    played = play("context", "managed")
    assert len(played["uvm_migration"]) == len(played["uvm_fault"]) == 0


def test_work_of_unknown_calls(play: Play) -> None:
    played = play("context", "unknown")
    assert played.rows("memory_copy", "bytes", "direction", "source", "stream") == [
        (64, "host_to_device", None, STREAM)
    ]
    assert played.rows("kernel_launch", "name", "grid", "registers") == [(KERNEL, (7, 2, 1), 40)]
    assert played.rows("memory_set", "bytes", "value", "stream") == [(100, 5, None)]
    assert sorted(completions(played)) == [0]
    assert len(played["copy_complete"]) == 2
    assert "3 kernels and copies were recorded from their records alone" in played.log


def test_results_of_work_before_a_stop_are_kept(play: Play) -> None:
    played = play("context", "profiler")
    grids = played.rows("kernel_launch", "grid", "flags")
    assert grids == [((1, 2, 1), ""), ((9, 2, 1), "graph"), ((3, 2, 1), "")]
    assert sorted(completions(played)) == sorted(column(played, "kernel_launch", "ordinal"))
    assert len(played["memory_copy"]) == len(played["copy_complete"]) == 1


def test_error_of_times_is_stated(play: Play) -> None:
    ((observed, work),) = play("context", "early").rows("clock_error", "observed", "work")
    assert work == 1
    assert 49_000_000 < observed <= 50_000_000


def test_many_threads(play: Play) -> None:
    played = play("context", "threads")
    assert len(played["kernel_launch"]) == len(played["kernel_complete"]) == 40_000
    launches = {row[0]: row[1:] for row in played.rows("kernel_launch", "ordinal", "stream")}
    assert len(launches) == 40_000
    for ordinal, stream in played.rows("kernel_complete", "ordinal", "stream"):
        assert launches[ordinal] == (stream,)
    ((_, work),) = played.rows("clock_error", "observed", "work")
    assert work == 40_000


def test_forked_child_is_ignored(play: Play) -> None:
    played = play("context", "fork")
    assert played.names("kernel_launch") == ["_Z6parentv"]
    assert len(completions(played)) == 1


def test_launches_that_are_not_remembered_lose_their_times_alone(play: Play) -> None:
    """Ten more than are: they are not recorded twice."""
    played = play("context", "flood")
    assert len(played.names("kernel_launch")) == (1 << 16) + 10
    ordinals = sorted(completions(played))
    assert (len(ordinals), ordinals[0]) == (1 << 16, 10)
    assert played.stderr == (
        "pasta: 10 kernels and copies ended after too many later ones were submitted: their device "
        "times are missing\n"
    )


def test_regular_flush_saves_times_of_a_killed_program(play: Play) -> None:
    played = play("context", "kill", settings="nvidia.flush_ms=50\n")
    assert played.status == -9
    assert len(completions(played)) == 1


def test_lost_records_are_reported(play: Play) -> None:
    played = play("context", "launches", FAKE_CUPTI_DROP="12")
    assert played.stderr == (
        "pasta: CUPTI lost 12 records: the device times of as many kernels and copies are missing\n"
    )


NO_CUPTI = "cupti_lib=/no/such/libcupti.so\n"


@pytest.mark.parametrize(
    ("failure", "settings", "expected"),
    [
        ("Subscribe=39", "", "subscribe failed with 39 (CUPTI_ERROR_MULTIPLE_SUBSCRIBERS"),
        ("Subscribe=15", "", "subscribe failed with 15 (CUPTI_ERROR_SOME); the driver is not"),
        ("EnableCallback=35", "", "(CUPTI_ERROR_SOME); the driver restricts profiling to admini"),
        ("ActivityEnable=14", "", "enable failed with 14"),
        ("ActivityRegisterCallbacks=8", "", "register_callbacks failed with 8"),
        ("ActivityRegisterTimestampCallback=8", "", "register_timestamp failed with 8"),
        ("GetVersion=999", "", "does not work here: 999 (CUPTI_ERROR_SOME); see"),
        ("", NO_CUPTI, "/no/such/libcupti.so: cannot open shared object file"),
        ("", "cupti_lib=libm.so.6\n", "libm.so.6 has no cupti"),
    ],
)
def test_failure_leaves_the_program_alone(
    play: Play, failure: str, settings: str, expected: str
) -> None:
    chosen = "nvidia.source=cupti\n" + settings
    played = play("context", "launches", "end", settings=chosen, FAKE_CUPTI_FAIL=failure)
    assert (played.status, played.stdout) == (7, "done\n")
    assert played.stderr.startswith("pasta: CUDA is not recorded: ")
    assert expected in played.stderr
    assert played.stderr.count("\n") == 1
    assert not played.tables


def test_old_library_is_refused(play: Play) -> None:
    played = play("context", settings="nvidia.source=cupti\n", FAKE_CUPTI_API="23")
    assert "is older than 12.6; pip install" in played.stderr


def test_optional_records_may_fail(play: Play) -> None:
    played = play("context", "launches", FAKE_CUPTI_FAIL="ActivityEnableOverhead=27")
    assert (played.status, played.stderr) == (7, "")
    assert len(completions(played)) == 4
    assert "enable failed with 27" in played.log


def test_nothing_is_recorded_without_a_session(cupti: Path, tmp_path: Path) -> None:
    played = play_cupti(
        cupti, tmp_path, "context", "launches", settings="backend=none\nlisten=none\n"
    )
    assert played.status == 7


def test_capabilities(play: Play, cupti: Path, tmp_path: Path) -> None:
    chosen = "nvidia.details=1\nnvidia.uvm=1\nnvidia.pc_sampling=4096cycles\n"
    streams = [play(*SCRIPTS, settings=chosen).tables]
    for number, counting in enumerate(("counters=dram__bytes.sum", "instructions=1")):
        place = tmp_path / str(number)
        place.mkdir()
        played = play_cupti(
            cupti, place, "context", "counters", "end", settings=f"nvidia.{counting}\n"
        )
        streams.append(played.tables)
    unplayed = set() if DRIVER.exists() else {"device_name"}
    assert disagreements("nvidia_cupti", streams, unplayed=unplayed) == {}
    assert "accesses" not in known_sources()["nvidia_cupti"].gives


def test_absent_is_all_ones(play: Play) -> None:
    """Modules of functions and addresses of code are not reported."""
    (launch, *_) = play("context", "launches")["kernel_launch"]
    assert (launch["module"], launch["entry_pc"]) == (ABSENT64, ABSENT64)
    assert launch["graph_node"] == ABSENT64
    assert abi.KINDS["kernel_details"] == 54
