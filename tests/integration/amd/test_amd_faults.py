"""Failures of rocprofiler-sdk: at most one clear line, and the target is unaffected."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.amd.conftest import SOURCE, Replay
from tests.support.amd_replayer import Replayer
from tests.support.amd_samples import (
    CALLS,
    D1,
    HOST,
    KERNELS,
    S,
    cut_short,
    everything,
    launching,
    loaded,
)
from tests.support.amd_stream import Stream, recorded
from tests.support.places import DATA
from tests.support.played import LIBRARY, Played, read_ring


def unharmed(played: Played, *lines: str) -> Played:
    """The program's own output and status, and these lines of PASTA's on stderr."""
    assert played.status == 7, played.stderr
    assert "done" in played.stdout.splitlines()
    assert len(played.stderr.splitlines()) == len(lines), played.stderr
    for line, expected in zip(played.stderr.splitlines(), lines, strict=True):
        assert re.match(f"pasta: .*{expected}", line)
    return played


# ---- unknown or failing SDKs ----


@pytest.mark.parametrize("version", ["0.4.0", "0.9.0", "2.0.0", "3.14.15"])
def test_unknown_version(replay: Replay, version: str) -> None:
    s = loaded()
    launching(s)
    played = unharmed(replay(s, version), rf"ROCm is not recorded: .*{re.escape(version)}")
    assert not played.tables


@pytest.mark.parametrize("version", ["1.0.1", "1.1.0", "1.99.0"])
def test_newer_minor_version(replay: Replay, version: str) -> None:
    s = loaded()
    s.complete(launching(s))
    played = unharmed(replay(s, version))
    assert played.names("kernel_launch") == ["_Z2k1Pfi"]
    assert len(played["kernel_complete"]) == 1


@pytest.mark.parametrize(
    "function",
    [
        "create_context",
        "start_context",
        "context_is_valid",
        "get_timestamp",
        "get_timestamp@9",
        "query_available_agents",
        "iterate_callback_tracing_kinds",
        "iterate_callback_tracing_kind_operations",
        "iterate_callback_tracing_kind_operations@3",
        "configure_callback_tracing_service",
        "configure_callback_tracing_service@4",
    ],
)
def test_failing_function(replay: Replay, function: str) -> None:
    s = loaded()
    launching(s)
    name, at, call = function.partition("@")
    line = rf"ROCm is not recorded: \S*{name[:9]}\S* failed with 1 \(Generalized error\)"
    played = unharmed(replay(s, REPLAY_FAIL=f"{name}=1{at}{call}"), line)
    assert "kernel_launch" not in played.tables


@pytest.mark.parametrize(
    "name", ["query_callback_tracing_kind_name", "query_callback_tracing_kind_operation_name"]
)
def test_failing_name_queries(replay: Replay, name: str) -> None:
    s = loaded()
    launching(s)
    played = replay(s, REPLAY_FAIL=f"{name}=4")
    assert (played.status, played.stdout.splitlines()[-1]) == (7, "done")
    assert "kernel_launch" not in played.tables
    assert len(played.stderr.splitlines()) <= 1
    assert "no operation" in played.log or "has no" in played.log or played.stderr


def test_missing_function(replay: Replay, replayer: Replayer, tmp_path: Path) -> None:
    library = tmp_path / "librocprofiler-sdk.so"
    hidden = b"rocprofiler_iterate_callback_tracing_kinds"
    image = replayer.library.read_bytes()
    assert hidden in image
    library.write_bytes(image.replace(hidden, hidden[:-1] + b"x"))
    s = loaded()
    launching(s)
    unharmed(
        replay(s, ROCPROFILER_REGISTER_LIBRARY=str(library)),
        f"ROCm is not recorded: .*has no {hidden.decode()}",
    )


def test_no_device(replay: Replay, version: str) -> None:
    s = Stream(())
    s.hip("hipMalloc", size=64, ptr=D1, ret=100)
    s.hip("hipDeviceSynchronize", ret=100)
    unharmed(replay(s, version))


def test_unknown_devices(replay: Replay, version: str) -> None:
    s = loaded()
    s.complete(launching(s, agent=4711))
    played = unharmed(replay(s, version))
    assert played.rows("kernel_launch", "name", "device", "context") == [("_Z2k1Pfi", None, None)]
    assert played.rows("kernel_complete", "device") == [(None,)]


def test_unprofiled_process(replayer: Replayer, tmp_path: Path) -> None:
    s = loaded()
    launching(s)
    for preload in (str(LIBRARY), ""):  # the source brings the library with it
        done = subprocess.run(
            [replayer.program, s.write(tmp_path / "stream.txt")],
            env={**replayer.environment(str(SOURCE)), "LD_PRELOAD": preload},
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (7, "")
        assert done.stdout.endswith("done\n")


@pytest.mark.parametrize("preload", ["", f"{LIBRARY}:{SOURCE}"])
def test_other_ways_to_load_the_source(replay: Replay, preload: str) -> None:
    """Through the library alone, which loads libpasta; and preloaded, where it is found by its
    symbol."""
    s = loaded()
    s.complete(launching(s))
    played = unharmed(replay(s, preload=preload, tools="" if preload else str(SOURCE)))
    assert len(played["kernel_complete"]) == 1


# ---- configured never, twice, by two copies, together with others ----


def test_never_configured(replay: Replay) -> None:
    s = loaded()
    launching(s)
    played = unharmed(replay(s, tools=""))
    assert (played.stdout, played.tables) == ("done\n", {})


def test_configured_twice(replay: Replay, version: str) -> None:
    s = loaded()
    launching(s)
    s.say("configure")
    launching(s)
    played = unharmed(replay(s, version))
    assert "configured again: refused" in played.stdout
    assert played.log.count("configured again") == 1
    assert len(played["kernel_launch"]) == 2


@pytest.mark.parametrize("other", ["1.0.0", "0.5.0"])
def test_second_copy_of_the_library(
    replay: Replay, replayer: Replayer, tmp_path: Path, version: str, other: str
) -> None:
    """As in PyTorch's wheels: only the copy that configures first is recorded, through its own
    functions."""
    (tmp_path / "wheel").mkdir()
    copy = tmp_path / "wheel" / "librocprofiler-sdk.so"
    shutil.copy(replayer.library, copy)
    s = loaded()
    launching(s)
    s.say("library 2")
    launching(s, 2)
    s.say("library 1")
    launching(s)
    played = unharmed(replay(s, version, REPLAY_SECOND=str(copy), REPLAY_SECOND_VERSION=other))
    assert played.names("kernel_launch") == ["_Z2k1Pfi"] * 2
    assert played.rows("process_start", "version") == [(version,)]
    assert played.log.count("configured again") == 1
    assert str(copy) in played.log


def test_earlier_local_copy_of_the_library(
    replay: Replay, replayer: Replayer, tmp_path: Path
) -> None:
    """Functions are looked up in the calling copy, whatever else the process has loaded."""
    (tmp_path / "wheel").mkdir()
    copy = tmp_path / "wheel" / "librocprofiler-sdk.so"
    shutil.copy(replayer.library, copy)
    s = loaded()
    s.complete(launching(s))
    played = unharmed(replay(s, ROCPROFILER_REGISTER_LIBRARY=str(copy)))
    assert played.names("kernel_launch") == ["_Z2k1Pfi"]
    assert str(copy) in played.log


def test_another_tool_is_configured_first(replay: Replay, replayer: Replayer) -> None:
    s = loaded()
    s.hip("hipMalloc", size=64, ptr=D1)
    played = unharmed(replay(s, preload=f"{replayer.tool}:{LIBRARY}", REPLAY_ERRNO=""))
    assert len(played["memory_alloc"]) == 1
    assert played.stdout.count("tool hipMalloc") == 2


# ---- the end ----


def test_callbacks_after_finalisation_are_ignored(replay: Replay, version: str) -> None:
    s = loaded()
    open_launch = launching(s)
    s.say("finalize")
    s.complete(open_launch)
    launching(s)
    s.hip("hipMalloc", size=64, ptr=D1)
    s.unload(2, KERNELS)
    played = unharmed(replay(s, version, REPLAY_LATE="1"))
    counts = {kind: len(table) for kind, table in played.tables.items()}
    assert counts["kernel_launch"] == 1
    assert not {"kernel_complete", "memory_alloc", "module_unload"} & set(counts)


def test_dispatches_without_completion(replay: Replay, version: str) -> None:
    s = loaded()
    for _ in range(10):
        launching(s)
    played = unharmed(replay(s, version))
    assert len(played["kernel_launch"]) == 10
    assert "kernel_complete" not in played.tables


def test_fork_after_configuration(replay: Replay, version: str) -> None:
    s = loaded()
    launching(s)
    with s.block("fork"):
        s.complete(launching(s, 2))
        s.hip("hipMalloc", size=64, ptr=D1)
        s.say("finalize")
    s.complete(launching(s))
    played = unharmed(replay(s, version))
    assert "child ended with 0" in played.stdout
    assert played.names("kernel_launch") == ["_Z2k1Pfi"] * 2
    assert "memory_alloc" not in played.tables
    assert len(played["kernel_complete"]) == 1


def test_fork_before_configuration(replay: Replay, tmp_path: Path) -> None:
    """As in process pools: each process has its own library and ring."""
    s = loaded()
    s.complete(launching(s))
    unharmed(replay(s, HIP_APP_FORK="1", read=False))
    rings = list((tmp_path / "rings").iterdir())
    assert len(rings) == 2
    for path in rings:
        played = Played(0, "", "", "")
        read_ring(path, played)
        assert played.names("kernel_launch") == ["_Z2k1Pfi"]
        assert len(played["kernel_complete"]) == len(played["context_create"]) == 1


# ---- order ----


def test_completion_before_its_dispatch(replay: Replay, version: str) -> None:
    s = loaded()
    early = launching(s)
    end = s.lines.index(next(line for line in s.lines if "ENQUEUE ENTER" in line)) - 2
    lines, s.lines = s.lines[end:], s.lines[:end]
    s.complete(early)
    s.complete(early)
    s.lines += lines
    s.complete(launching(s))
    played = unharmed(replay(s, version))
    assert len(played["kernel_launch"]) == 2
    assert played.rows("kernel_complete", "ordinal") == [(1,)]
    assert played.log.count("unknown dispatches") == 2  # the first, and their number


def test_duplicate_completion(replay: Replay, version: str) -> None:
    s = loaded()
    d = launching(s)
    s.complete(d)
    s.complete(d)
    played = unharmed(replay(s, version))
    assert len(played["kernel_complete"]) == 1


def test_end_without_begin(replay: Replay, version: str) -> None:
    s = loaded()
    for operation, arguments in CALLS.items():
        s.hip(operation, **arguments)
    s.lines = [line for line in s.lines if not (line.startswith("HIP_RUN") and " ENTER " in line)]
    d = launching(s, returns=False)
    s.lines = [line for line in s.lines if "ENQUEUE ENTER" not in line]
    s.enqueue(d, "EXIT")
    played = unharmed(replay(s, version))
    assert "kernel_launch" not in played.tables
    assert "kernel_launch_end" not in played.tables


def test_begins_without_end(replay: Replay, version: str) -> None:
    s = loaded()
    with s.block("loop 300"):
        for operation, arguments in CALLS.items():
            s.hip(operation, **arguments)
    s.lines = [line for line in s.lines if not (line.startswith("HIP_RUN") and " EXIT " in line)]
    d = launching(s)
    s.complete(d)
    played = unharmed(replay(s, version))
    assert played.rows("kernel_launch", "name", "stream") == [("_Z2k1Pfi", S)]


def test_kernel_of_an_unknown_code_object(replay: Replay, version: str) -> None:
    s = loaded()
    s.complete(launching(s, kernel=999))
    played = unharmed(replay(s, version))
    (launch,) = played.rows("kernel_launch", "name", "registers", "shared_static", "module")
    assert launch[0]
    assert launch[1:] == (None, None, None)
    assert len(played["kernel_complete"]) == 1


@pytest.mark.parametrize("seed", range(8))
def test_invalid_values(replay: Replay, seed: int, version: str) -> None:
    """Arbitrary events in arbitrary order, on any thread, some truncated."""
    draw = random.Random(seed)
    s = everything() if seed % 2 else recorded(DATA / "amd" / "hip63_sdk100.events.txt")
    if seed % 4 > 1:
        cut_short(s, draw.randrange(0, 150))
    agents = [line for line in s.lines if line.startswith("agent")]
    events = [line for line in s.lines if line not in agents] * 2
    draw.shuffle(events)
    s.lines = agents + [
        line if "@thread" in line else f"{line} @thread={draw.randrange(1, 5)}"
        for line in events[: draw.randrange(len(events))]
    ]
    unharmed(replay(s, version))


# ---- truncated records ----


@pytest.mark.parametrize("size", [0, 4, 8, 24, 28, 32, 48, 72, 100, 150])
def test_truncated_records(replay: Replay, size: int, version: str) -> None:
    """The replayer's payloads end at the end of mapped memory: reading further faults."""
    played = replay(cut_short(everything(), size), version)
    assert (played.status, played.stderr) == (7, "")


def test_larger_records(replay: Replay) -> None:
    """Records of a later version have additional, unknown fields."""
    s = loaded()
    s.complete(launching(s))
    s.hip("hipMalloc", size=64, ptr=D1)
    s.memory_copy("HOST_TO_DEVICE", bytes=64, source=HOST, destination=D1)
    s.lines = [line if line.startswith("agent") else f"{line} @size=184" for line in s.lines]
    played = unharmed(replay(s, "1.9.0"))
    assert played.names("kernel_launch") == ["_Z2k1Pfi"]
    assert [len(played[kind]) for kind in ("kernel_complete", "memory_alloc", "memory_copy")] == [
        1
    ] * 3


def test_dispatch_without_its_last_fields(replay: Replay, version: str) -> None:
    s = loaded()
    d = launching(s)
    s.complete(d)
    # grid and workgroup come later
    s.lines = [f"{line} @size=72" if line.startswith("KERNEL_DISP") else line for line in s.lines]
    played = unharmed(replay(s, version))
    columns = ("name", "ordinal", "device", "stream", "module")
    assert played.rows("kernel_launch", *columns) == [("_Z2k1Pfi", 0, 0, S, 2)]
    assert played.rows("kernel_launch", "grid", "block") == [(None, None)]
    assert len(played["kernel_complete"]) == 1


def test_code_object_record_without_an_image(replay: Replay, version: str) -> None:
    s = Stream()
    s.load(2, KERNELS)
    s.lines = [f"{line} @size=72" if "OBJECT_LOAD" in line else line for line in s.lines]
    launching(s)
    played = unharmed(replay(s, version))
    assert played.rows("module_load", "handle", "bytes", "hash") == [(2, None, None)]
    assert played.rows("kernel_launch", "name", "module") == [("_Z2k1Pfi", 2)]


# ---- memory and scale ----


def many(rounds: int, *, body: Callable[[Stream], None]) -> Stream:
    s = loaded()
    s.hip("hipMalloc", size=64, ptr=D1)
    with s.block(f"loop {rounds // 10} 16"):
        body(s)
    s.say("rss")
    with s.block(f"loop {rounds} 16"):
        body(s)
    s.say("rss")
    return s


def busy(s: Stream) -> None:
    """Four launches that complete out of order, allocations and frees, and a copy."""
    launches = [launching(s) for _ in range(4)]
    for i in (2, 3, 0, 1):
        s.complete(launches[i], by=1)
    s.hip("hipMallocAsync", size=64, stream=S, dev_ptr=D1 + 4096)
    s.hip("hipMemcpyAsync", dst=D1, src=HOST, sizeBytes=64, kind=4, stream=S)
    s.hip("hipFreeAsync", dev_ptr=D1 + 4096, stream=S)


def reloading(s: Stream) -> None:
    s.load(3, {7: "again.kd"})
    s.complete(launching(s, 7), by=1)
    s.unload(3, {7: "again.kd"})


@pytest.mark.parametrize(("body", "rounds"), [(busy, 250_000), (reloading, 50_000)])
def test_memory_use_is_bounded(replay: Replay, body: Callable[[Stream], None], rounds: int) -> None:
    """A million dispatches without a consumer; the ring stays at its cap."""
    played = unharmed(replay(many(rounds, body=body), ring_max=1 << 20, read=False))
    before, after = map(int, re.findall(r"^rss (\d+)", played.stdout, re.MULTILINE))
    assert after - before < 128  # KiB


def test_incomplete_dispatches_are_bounded(replay: Replay) -> None:
    def body(s: Stream) -> None:
        launching(s)

    played = unharmed(replay(many(200_000, body=body), ring_max=1 << 20, read=False))
    before, after = map(int, re.findall(r"^rss (\d+)", played.stdout, re.MULTILINE))
    assert after - before < 8192  # KiB: the table of incomplete dispatches, which is bounded
    assert "dispatches dropped" in played.log
